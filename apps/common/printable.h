// Texts from files, as messages and tables quote them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvrun::cli {

// More than any message and any table's cell of ours has: what is longer holds a text of others.
inline constexpr size_t kMaxShownBytes = 1200;

// In one line, and harmless to a terminal: control characters (below 0x20, 0x7f) as \n, \r, \t or \x1b, and
// Clipped. What is so already is not changed.
std::string Printable(std::string_view text);

// Where it has more than `max_bytes` (at least 100): a third of that of its beginning and a quarter of its
// end, cut between characters, and between them how much is left out. The end of a message says what to do.
std::string Clipped(std::string_view text, size_t max_bytes = kMaxShownBytes);

}  // namespace kvrun::cli
