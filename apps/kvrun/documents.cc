#include "apps/kvrun/documents.h"

#include <utility>

#include "apps/common/files.h"

namespace kvrun::cli {

std::vector<Document> ReadDocuments(const std::vector<std::string>& paths) {
  std::vector<std::string> texts = ReadTexts(paths);
  std::vector<Document> documents;
  for (size_t i = 0; i < paths.size(); ++i) documents.push_back({paths[i], std::move(texts[i])});
  return documents;
}

std::string ComposedText(const std::vector<Document>& documents, const std::optional<std::string>& question) {
  std::vector<std::string> texts;
  for (const Document& document : documents) texts.push_back(document.text);
  if (question) texts.push_back(*question);
  return JoinedTexts(texts);
}

}  // namespace kvrun::cli
