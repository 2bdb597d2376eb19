// What Python's str does with texts, on marked ones. Internal to the templates' interpreter.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/jinja/functions.h"

namespace kvrun::jinja {

enum class Case : uint8_t { kUpper, kLower, kSwapped, kCapitalised, kTitle, kFolded };
MarkedText WithCase(const MarkedText& text, Case to);
// Jinja's filter `title`, which knows other words than str.title().
MarkedText WithTitleWords(const MarkedText& text);

enum class Side : uint8_t { kLeft, kRight, kBoth };
// Without spaces, or without the characters of `characters`, at its sides.
Result<MarkedText> Stripped(Run& run, const MarkedText& text, const MarkedText* characters, Side side);

// At most `most` times, and each time where that is negative.
Result<MarkedText> Replaced(Run& run, const MarkedText& text, const MarkedText& old, const MarkedText& by,
                            int64_t most);
Result<std::vector<Value>> LinesOf(Run& run, const MarkedText& text, bool keeps_ends);

}  // namespace kvrun::jinja
