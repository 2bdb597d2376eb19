// What a page's keys are bounded by, for a PageIndex.
#pragma once

#include <span>

namespace kvrun {

// Smallest and largest of each column. Source: Quest (arXiv 2406.10774, section 3.3).
void MinMaxBounds(std::span<const float> keys, std::span<float> upper, std::span<float> lower);

// Mean plus and less the standard deviation: what most keys lie between, where one of them does not widen
// the bounds for all. Source: arXiv 2605.27740.
void SpreadBounds(std::span<const float> keys, std::span<float> upper, std::span<float> lower);

}  // namespace kvrun
