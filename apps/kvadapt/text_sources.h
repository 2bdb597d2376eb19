// Texts to calibrate with: files, whole folders, standard input, or what lies on any Debian machine. Read and
// tokenised one after another, until there are enough tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "apps/common/api.h"

namespace kvrun::cli {

struct CollectedTexts {
  // Of files and standard input one each; the texts of a folder are one after another in one, so that short
  // ones make up pieces as long as those to come.
  std::vector<std::vector<int32_t>> texts;
  uint64_t n_tokens = 0;
  uint64_t n_files = 0;                     // that at least a token is from
  std::map<std::string, uint64_t> skipped;  // in folders: why ("not text"), how many
  bool has_folders = false;
  bool is_cut = false;                 // there would have been more
  std::vector<std::string> shortened;  // files that are so large that their beginning alone is read
};

// Each source is a file, a folder or "-". A file that cannot be read, is empty or is not text is a Failure;
// in folders it is skipped. At most max_tokens, and 64 MiB of a file.
CollectedTexts CollectTexts(const Model& model, const std::vector<std::string>& sources, uint64_t max_tokens);
// Of the texts that come with Debian: licences first, then documentation and Perl's modules, no more than
// 64 KiB of a file and none twice.
CollectedTexts CollectDefaultTexts(const Model& model, uint64_t max_tokens);

// "12 texts, 131072 tokens; skipped: 3 not text, 1 hidden; there would be more: --tokens", and what was
// shortened.
std::string DescribeTexts(const CollectedTexts& texts);

// For tests: whether bytes read as text; those of a last unfinished character do not count.
bool LooksLikeText(std::string_view bytes);

}  // namespace kvrun::cli
