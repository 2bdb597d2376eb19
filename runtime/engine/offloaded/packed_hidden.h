// Hidden states in 16 bits, as they lie in a spill file between layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvrun {

// Packed rows: float scale [n_rows], the power of two that a row is to be multiplied with, and f16 [n_rows,
// n_embd]: the largest element of a row is near the largest half that there is, so that none is too large,
// and few are too small. In whole pages, as direct I/O takes them.
uint64_t PackedHiddenBytes(uint64_t n_rows, uint64_t n_embd);

// rows: float [n_rows, n_embd]; packed: PackedHiddenBytes.
void PackHidden(std::span<const std::byte> rows, size_t n_rows, std::span<std::byte> packed);
void UnpackHidden(std::span<const std::byte> packed, size_t n_rows, std::span<std::byte> rows);

}  // namespace kvrun
