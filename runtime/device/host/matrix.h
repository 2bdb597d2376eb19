// Weight matrices as the host's kernels read them.
//
// Sixteen rows are a *panel*; the lanes of a vector are its rows, so that one register holds the sums of
// several. A panel is made of planes one after another, each from a multiple of 64 bytes on; b counts blocks
// of 32 columns, g the block's groups of four columns, r the panel's rows, s super-blocks of eight blocks:
//
//   plane    types              at            holds
//   values   F32, F16, BF16     16 c + r      element of column c, as in the file
//   quants   Q8_0               512 b         byte 64 g + 4 r + j: column 4 g + j, signed
//            others             256 b         byte 64 (g / 2) + 4 r + j: column 4 g + j, unsigned; even g in
//            the
//                                             low, odd g in the high nibble
//   high     Q5_0, Q5_1, Q5_K   64 b          byte 4 r + j, bit g: bit 4 of column 4 g + j
//            Q6_K               128 b         byte 64 (g / 4) + 4 r + j, bits 2 (g % 4) and the next: bits 4,
//            5
//   scales   Qn_0               32 b          half d[16]
//            Qn_1               64 b          half d[16], half m[16]
//            Q4_K, Q5_K         32 b          uint8 scale[16], uint8 minimum[16]
//            Q6_K               32 b          int8 scale[16] of columns 0 to 15, then of 16 to 31
//   supers   Q4_K, Q5_K         64 s          half d[16], half minimum[16]
//            Q6_K               32 s          half d[16]
//
// Nothing is rounded: every number is the file's. Six-bit scales take a byte (Q4_K: 4.63 bits per weight
// instead of 4.5; Q5_K: 5.63 instead of 5.5); the other types keep their size. Rows past the last one of the
// last panel are zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "runtime/device/device.h"
#include "runtime/device/host/host_device.h"

namespace kvrun::host {

inline constexpr uint32_t kPanelRows = 16;
inline constexpr uint32_t kBlockColumns = 32;
inline constexpr uint32_t kBlockGroups = 8;  // of four columns
inline constexpr uint32_t kSuperBlocks = 8;  // blocks of a super-block

struct PanelLayout {
  TensorType type = TensorType::kF32;
  uint32_t n_cols = 0;
  uint32_t n_blocks = 0;  // of 32 columns; 0: float types, which have none
  // Bytes from the panel's begin; quants (or values) are at 0.
  uint64_t high = 0;
  uint64_t scales = 0;
  uint64_t supers = 0;
  uint64_t panel_bytes = 0;
};

PanelLayout MakePanelLayout(TensorType type, uint32_t n_cols);

// Row r of a panel, from `row` as it lies in a GGUF tensor. The panel is zeros before its first row.
void PackRow(const PanelLayout& layout, const std::byte* row, uint32_t r, std::byte* panel);

// One row's block of a quantised type: value = quant * scale[column / 16] + minimum.
struct UnpackedBlock {
  int8_t quants[kBlockColumns];  // signed: what the type subtracts is subtracted
  float scale[2];
  float minimum;
};
UnpackedBlock UnpackBlock(const PanelLayout& layout, const std::byte* panel, uint32_t r, uint32_t block);
// Element of a float type.
float UnpackValue(const PanelLayout& layout, const std::byte* panel, uint32_t r, uint32_t column);

class HostMatrix : public Matrix {
 public:
  HostMatrix(const PanelLayout& layout, uint32_t n_rows, std::unique_ptr<HostMemory> memory)
      : Matrix(layout.type, n_rows, layout.n_cols), layout_(layout), memory_(std::move(memory)) {}

  uint64_t size_bytes() const override { return memory_->size_bytes(); }
  const PanelLayout& layout() const { return layout_; }
  // That of rows 16 * index and following.
  const std::byte* panel(size_t index) const { return memory_->data() + index * layout_.panel_bytes; }

 private:
  PanelLayout layout_;
  std::unique_ptr<HostMemory> memory_;
};

}  // namespace kvrun::host
