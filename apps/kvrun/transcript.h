// A conversation as a text for people.
#pragma once

#include <string>
#include <vector>

#include "apps/kvrun/conversation.h"

namespace kvrun::cli {

// Markdown: who said what, in order. Documents are named, and not repeated.
std::string Transcript(const std::string& model, const std::string& system, const std::vector<Turn>& turns);

// Writes a file that is not there yet, whole or not at all. A Failure where that cannot be done: also where
// something has that name already, which stays as it is.
void WriteNewFile(const std::string& path, const std::string& text);

}  // namespace kvrun::cli
