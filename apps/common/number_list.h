// Lists of numbers as options have them: "0,4096,8k".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvrun::cli {

// "8192"; "8k" is 8 x 1,024, and "2m" is 2 x 1,048,576. Nothing where the text is no such number, or one that
// 64 bits do not hold.
std::optional<uint64_t> ParseCount(std::string_view text);

// A UsageError that begins with `source`, the option or the variable, and shows `example` where the text is
// no such list or a number is not from `least` to `most`.
std::vector<uint32_t> ParseNumberList(const std::string& source, const std::string& text, uint32_t least,
                                      uint32_t most, const std::string& example);
// The same of contexts' lengths in tokens, each from 256 to 2^27.
std::vector<uint32_t> ParseContexts(const std::string& source, const std::string& text);

}  // namespace kvrun::cli
