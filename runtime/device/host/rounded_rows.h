// Activations that are rounded for products with panels of weights (matmul_kernels.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "platform/base/units.h"
#include "runtime/device/host/matmul_kernels.h"

namespace kvrun::host {

// Rows that meet the same panels. The first n_wide, whole tiles, are in 16 bits, the others in 8.
struct RoundedRows {
  static constexpr size_t kMaskRows = 8;  // bits of has_fine

  // Where kernels multiply full tiles of the type in 16 bits.
  static size_t CountWide(const MatMulKernels& kernels, TensorType type, size_t n_rows) {
    const bool takes_wide = kernels.takes_wide != nullptr && kernels.takes_wide(type);
    return takes_wide ? n_rows / kernels.int8_tile_tokens * kernels.int8_tile_tokens : 0;
  }
  static size_t Bytes(size_t n_rows, size_t n_wide, size_t n_blocks) {
    const size_t n_narrow = n_rows - n_wide;
    return n_blocks * (n_wide * sizeof(WideBlock) + n_narrow * (sizeof(ActivationBlock) + sizeof(FineBlock)) +
                       CeilDiv(n_narrow, kMaskRows));
  }

  RoundedRows(std::byte* memory, size_t n_rows, size_t wide_rows, size_t blocks_per_row)
      : n_blocks(blocks_per_row), n_wide(wide_rows) {
    const size_t n_narrow = (n_rows - n_wide) * n_blocks;
    wide = reinterpret_cast<WideBlock*>(memory);
    blocks = reinterpret_cast<ActivationBlock*>(wide + n_wide * n_blocks);
    fine = reinterpret_cast<FineBlock*>(blocks + n_narrow);
    has_fine = reinterpret_cast<uint8_t*>(fine + n_narrow);
  }

  // n rows that begin at x, at most kMaskRows, from row `row` on, a multiple of that. After n_wide come fewer
  // than that.
  void Round(const MatMulKernels& kernels, TensorType type, const float* x, size_t row, size_t n) const {
    const size_t n_first = row < n_wide ? std::min(n, n_wide - row) : 0;
    if (n_first > 0) kernels.quantize_wide(x, n_first, n_blocks, wide + row * n_blocks);
    if (n_first == n) return;
    const size_t at = (row + n_first - n_wide) * n_blocks;
    kernels.quantize(type, x + n_first * n_blocks * kBlockColumns, n - n_first, n_blocks, blocks + at,
                     fine + at, has_fine + at / kMaskRows);
  }

  // From a row in 8 bits on.
  ActivationTile Tile(size_t row) const {
    row -= n_wide;
    return {.blocks = blocks + row * n_blocks,
            .fine = fine + row * n_blocks,
            .has_fine = has_fine + row / kMaskRows * n_blocks,
            .first_bit = static_cast<uint32_t>(row % kMaskRows)};
  }

  // Of a panel with rows from `row` on, as many as a tile takes. unpacked: the panel's, or null.
  void Multiply(const MatMulKernels& kernels, const PanelLayout& layout, const std::byte* panel,
                const std::byte* unpacked, size_t row, uint32_t n, TileSums& sums) const {
    if (row < n_wide) return kernels.multiply_wide(layout, panel, unpacked, wide + row * n_blocks, sums);
    ActivationTile tile = Tile(row);
    tile.unpacked = unpacked;
    kernels.multiply_int8(layout, panel, tile, n, sums);
  }

  size_t n_blocks;
  size_t n_wide;
  WideBlock* wide;          // [n_wide, n_blocks]
  ActivationBlock* blocks;  // [n_rows - n_wide, n_blocks]
  FineBlock* fine;          // the same
  uint8_t* has_fine;        // [(n_rows - n_wide) / kMaskRows, n_blocks]
};

// Rows that are rounded by the calling thread alone: sooner done than another one wakes up.
inline constexpr size_t kSerialElements = size_t{16} * 1024;
// Activations in use at a time: they stay in the second-level cache while panels go past.
inline constexpr size_t kChunkBytes = size_t{512} * 1024;
// A panel is unpacked where so many rows are multiplied with it, and where it stays in that cache as well.
inline constexpr size_t kUnpackFromRows = 16;
inline constexpr size_t kMaxUnpackedPanelBytes = size_t{128} * 1024;

// Rows of kChunkBytes, whole tiles.
inline size_t ChunkRows(size_t n_blocks, bool are_wide) {
  const size_t row_bytes = n_blocks * (are_wide ? sizeof(WideBlock) : sizeof(ActivationBlock));
  return std::max(kChunkBytes / row_bytes / kTileTokens * kTileTokens, size_t{kTileTokens});
}

}  // namespace kvrun::host
