// Weight matrices as the shaders read them: rows interleaved, quants, high bits and scales in planes of their
// own. The format, with a worked example: docs/formats/packed_matrix.md; its reader:
// shaders/include/packed_weights.glsl.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/model/tensor_type.h"
#include "shaders/shared/op_params.h"

namespace kvrun {

struct PackedLayout {
  TensorType type = TensorType::kF32;
  uint32_t n_rows = 0;
  uint32_t n_cols = 0;
  PackedPlanes planes{};
  uint64_t size_bytes = 0;
};

PackedLayout MakePackedLayout(TensorType type, uint32_t n_rows, uint32_t n_cols);

// The most rows, a multiple of the interleave, whose packed form takes at most max_bytes; 0 if not even one
// block.
uint32_t PackedRowsThatFit(TensorType type, uint32_t n_cols, uint64_t max_bytes);

// Writes one row. `row` holds n_cols elements as in a GGUF tensor; `packed` is the whole matrix, zero-filled
// before the first row. Rows may be written in any order.
void PackRow(const PackedLayout& layout, uint32_t row_index, std::span<const std::byte> row,
             std::span<uint32_t> packed);

}  // namespace kvrun
