// The scalar reference of drawing groups at random (ChooseAndSample), in double.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/device/device.h"

namespace kvrun::testing {

// With which each group is drawn; 0 of those that are chosen.
std::vector<double> SampleProbabilities(std::span<const double> scores, std::span<const uint32_t> chosen,
                                        uint32_t n_sampled);

// `list` [shape.words()]: a choice with its sample. Whether the groups are those that the running sums of
// their probabilities give where they are cut from `offset` (of 1) on, and their biases are minus the
// logarithms of those, within what fixed points and floats round.
::testing::AssertionResult IsSample(std::span<const double> scores, const ChoiceList& shape, double offset,
                                    std::span<const uint32_t> list);

}  // namespace kvrun::testing
