// The space in which records may hold entries, where elements of a row are alike in size and have no common
// part: few bits lose least there. For each KV head
//   k' = H D (k - mean key),  v' = H D (v - mean value),  q' = H D q,  output = D H output' + mean value,
// which changes nothing of attention: H D is orthogonal, a mean key adds the same to all scores of a query,
// and weights add up to one. D changes signs, always the same ones. H is a Hadamard matrix / sqrt(its size),
// for each block of the largest power of two that divides head_dim: it is its own inverse.
// QuaRot (arXiv 2404.00456) rotates in the same way; docs/decisions/kv-cache.md says what it wins.
//
// Threads: any.
#pragma once

#include <span>

namespace kvrun {

// H D row, in place. Of an even number of elements, up to kMaxCodecHeadDim.
void RotateRow(std::span<float> row);
// D H row: the reverse.
void RotateRowBack(std::span<float> row);

// H D (row - mean), in place; and the reverse.
void IntoSpace(std::span<const float> mean, std::span<float> row);
void OutOfSpace(std::span<const float> mean, std::span<float> row);

}  // namespace kvrun
