// Colour, for terminals only: never in pipes or files, and not where NO_COLOR is set and not empty or TERM is
// "dumb" (https://no-color.org).
#pragma once

#include <string>
#include <string_view>

namespace kvrun::cli {

enum class Tone { kPlain, kGood, kBad, kDim };

// Whether anything but plain text is written to descriptor `fd`.
bool TakesColour(int fd);
// The text as it is written to descriptor `fd`.
std::string Coloured(std::string_view text, Tone tone, int fd);

}  // namespace kvrun::cli
