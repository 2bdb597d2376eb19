// How much more than at first a cluster's keys may vary before it is divided
// (ClustersPlan::threshold_factor), measured on keys of a text. Pure and deterministic.
#pragma once

#include <cstdint>
#include <span>

namespace kvrun {

// Of fewer keys none is measured; of more, the first are enough.
inline constexpr uint32_t kLeastKeysOfFactor = 512;
inline constexpr uint32_t kMostKeysOfFactor = 2048;

// keys: float [n, dim], finite, of one KV head in the order of the text, n from kLeastKeysOfFactor on. The
// first half is divided as a prompt is, into clusters of 16 on average; the others join one by one, their
// clusters in memory. The answer is the factor with which clusters stay as large on average as they were:
// with a larger one they grow, with a smaller one the index's room is soon spent. Between 1 and 3.
float FindClusterFactor(std::span<const float> keys, uint32_t dim);

}  // namespace kvrun
