// The texts of -f and /file, and the message that they are part of.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace kvrun::cli {

struct Document {
  std::string name;  // of its file
  std::string text;
};

// All of them, in their order; their limit is one of all together.
std::vector<Document> ReadDocuments(const std::vector<std::string>& paths);

// One text: the documents' and then the question, with a blank line between each and the next.
std::string ComposedText(const std::vector<Document>& documents, const std::optional<std::string>& question);

}  // namespace kvrun::cli
