// Texts that templates make, piece by piece, and the bounds of making them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvrun {

struct JinjaPiece {
  std::string text;
  bool is_content = false;
};
// Neighbours differ in is_content; no piece is empty.
using JinjaText = std::vector<JinjaPiece>;

// The pieces as one text.
std::string JoinPieces(const JinjaText& text);

struct JinjaLimits {
  uint64_t max_steps = 4'000'000;       // nodes evaluated, and elements that filters look at
  uint32_t max_depth = 400;             // of calls, of expressions, of values
  size_t max_bytes = size_t{64} << 20;  // of the text, and of all values that a run makes
};

}  // namespace kvrun
