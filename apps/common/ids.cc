#include "apps/common/ids.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "apps/common/failure.h"
#include "apps/common/files.h"

namespace kvrun::cli {

std::vector<int32_t> ReadIds(const std::string& path, uint32_t vocab_size) {
  static constexpr std::string_view kSpace = " \t\r\n\v\f";
  const std::string text = ReadText(path);
  const std::string name = path == "-" ? "standard input" : path;
  std::vector<int32_t> ids;
  for (size_t start = text.find_first_not_of(kSpace); start != std::string::npos;) {
    const size_t end = std::min(text.find_first_of(kSpace, start), text.size());
    int32_t id = -1;
    const auto [rest, error] = std::from_chars(text.data() + start, text.data() + end, id);
    if (error != std::errc() || rest != text.data() + end || id < 0) {
      throw Failure(KVRUN_INVALID_ARGUMENT,
                    fmt::format("{}: word {} (\"{}\", at byte {}) is not a token id", name, ids.size() + 1,
                                text.substr(start, std::min<size_t>(end - start, 40)), start));
    }
    if (static_cast<uint32_t>(id) >= vocab_size) {
      throw Failure(KVRUN_INVALID_ARGUMENT,
                    fmt::format("{}: word {} is the id {}, but the model has only {} tokens", name,
                                ids.size() + 1, id, vocab_size));
    }
    ids.push_back(id);
    start = text.find_first_not_of(kSpace, end);
  }
  if (ids.empty()) throw Failure(KVRUN_INVALID_ARGUMENT, name + " has no token id in it");
  return ids;
}

}  // namespace kvrun::cli
