#include "apps/common/colour.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

namespace kvrun::cli {
namespace {

int CodeOf(Tone tone) {
  switch (tone) {
    case Tone::kPlain: return 0;
    case Tone::kGood: return 32;
    case Tone::kBad: return 31;
    case Tone::kDim: return 2;
  }
  return 0;
}

}  // namespace

bool TakesColour(int fd) {
  const char* refused = std::getenv("NO_COLOR");
  if (refused != nullptr && *refused != '\0') return false;
  const char* terminal = std::getenv("TERM");
  return terminal != nullptr && std::string_view(terminal) != "dumb" && ::isatty(fd) == 1;
}

std::string Coloured(std::string_view text, Tone tone, int fd) {
  if (tone == Tone::kPlain || !TakesColour(fd)) return std::string(text);
  return fmt::format("\x1b[{}m{}\x1b[0m", CodeOf(tone), text);
}

}  // namespace kvrun::cli
