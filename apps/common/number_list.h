// Lists of numbers as options have them: "0,4096,8192".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvrun::cli {

// A UsageError that begins with `source`, the option or the variable, and shows `example` where the text is
// no such list or a number is not from `least` to `most`.
std::vector<uint32_t> ParseNumberList(const std::string& source, const std::string& text, uint32_t least,
                                      uint32_t most, const std::string& example);

}  // namespace kvrun::cli
