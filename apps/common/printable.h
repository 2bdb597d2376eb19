// Texts from files, as messages and tables quote them.
#pragma once

#include <string>
#include <string_view>

namespace kvrun::cli {

// In one line, and harmless to a terminal: control characters (below 0x20, 0x7f) as \n, \r, \t or \x1b. What
// is so already is not changed.
std::string Printable(std::string_view text);

}  // namespace kvrun::cli
