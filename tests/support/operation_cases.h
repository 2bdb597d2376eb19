// What cases of operations share, with and without a device.
#pragma once

#include <cstdint>

#include "shaders/shared/step_params.h"

namespace kvrun::testing {

// The unit roundoff of 32-bit floats: an operation's result is off by at most this, relatively.
inline constexpr double kRoundoff = 0x1p-24;

// A tanh is good to a few units in the last place of 1, where it is made of exponentials.
constexpr double CapTolerance(double score_cap) { return 16 * kRoundoff * score_cap; }

inline StepToken TokenAt(uint32_t position, uint32_t sequence) {
  return {.id = 0, .position = position, .sequence = sequence, .output_row = 0};
}

}  // namespace kvrun::testing
