// Weight matrices as the host's kernels read them.
//
// Sixteen rows are a *panel*; the lanes of a vector are its rows, so that one register holds the sums of
// several. A panel is made of planes one after another, each from a multiple of 64 bytes on; b counts blocks
// of 32 columns, g the block's groups of four columns, r the panel's rows, s super-blocks of eight blocks:
//
//   plane    types              at            holds
//   values   F32, F16, BF16     16 c + r      element of column c, as in the file
//   quants   Q8_0               512 b         byte 64 g + 4 r + j: column 4 g + j, signed
//            Q2_K, Q3_K         128 b         byte 64 (g / 4) + 4 r + j, bits 2 (g % 4) and the next: bits 0,
//            1
//            others             256 b         byte 64 (g / 2) + 4 r + j: column 4 g + j, unsigned; even g in
//            the
//                                             low, odd g in the high nibble. IQ4: codes
//   high     Q5_0, Q5_1, Q5_K   64 b          byte 4 r + j, bit g: bit 4 of column 4 g + j
//            Q3_K               64 b          the same: bit 2
//            Q6_K               128 b         byte 64 (g / 4) + 4 r + j, bits 2 (g % 4) and the next: bits 4,
//            5
//   scales   Qn_0, IQ4_NL       32 b          half d[16]
//            Qn_1               64 b          half d[16], half m[16]
//            Q4_K, Q5_K         32 b          uint8 scale[16], uint8 minimum[16]
//            Q3_K, Q6_K         32 b          int8 scale[16] of columns 0 to 15, then of 16 to 31
//            Q2_K               32 b          the same of uint8: scale in the low, minimum in the high nibble
//            IQ4_XS             16 b          int8 scale[16]
//   supers   Q2_K, Q4_K, Q5_K   64 s          half d[16], half minimum[16]
//            Q3_K, Q6_K, IQ4_XS 32 s          half d[16]
//
// Nothing is rounded: every number is the file's. Six-bit scales take a byte (Q4_K: 4.63 bits per weight
// instead of 4.5; Q5_K: 5.63 instead of 5.5; Q3_K: 3.56 instead of 3.44; IQ4_XS: 4.31 instead of 4.25); the
// other types keep their size. Rows past the last one of the last panel are zeros.
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

// Bytes of each plane of a panel: per column for values, per block otherwise, per super-block for supers.
struct PlaneBytes {
  uint32_t values = 0;
  uint32_t quants = 0;
  uint32_t high = 0;
  uint32_t scales = 0;
  uint32_t supers = 0;
};

constexpr PlaneBytes GetPlaneBytes(TensorType type) {
  switch (type) {
    case TensorType::kF32: return {.values = 64};
    case TensorType::kF16:
    case TensorType::kBF16: return {.values = 32};
    case TensorType::kQ8_0: return {.quants = 512, .scales = 32};
    case TensorType::kQ4_0:
    case TensorType::kIQ4_NL: return {.quants = 256, .scales = 32};
    case TensorType::kQ4_1: return {.quants = 256, .scales = 64};
    case TensorType::kQ5_0: return {.quants = 256, .high = 64, .scales = 32};
    case TensorType::kQ5_1: return {.quants = 256, .high = 64, .scales = 64};
    case TensorType::kQ2_K: return {.quants = 128, .scales = 32, .supers = 64};
    case TensorType::kQ3_K: return {.quants = 128, .high = 64, .scales = 32, .supers = 32};
    case TensorType::kQ4_K: return {.quants = 256, .scales = 32, .supers = 64};
    case TensorType::kQ5_K: return {.quants = 256, .high = 64, .scales = 32, .supers = 64};
    case TensorType::kQ6_K: return {.quants = 256, .high = 128, .scales = 32, .supers = 32};
    case TensorType::kIQ4_XS: return {.quants = 256, .scales = 16, .supers = 32};
    case TensorType::kF64: break;  // no type of weights
  }
  return {};
}

// Columns 0 to 15 of a block have a scale of their own, as have 16 to 31.
constexpr bool HasHalves(TensorType type) {
  return type == TensorType::kQ2_K || type == TensorType::kQ3_K || type == TensorType::kQ6_K;
}
// Quants are codes, which stand for kIq4Values.
constexpr bool HasCodes(TensorType type) {
  return type == TensorType::kIQ4_NL || type == TensorType::kIQ4_XS;
}
// What is subtracted from unsigned quants.
constexpr int32_t QuantOffset(TensorType type) {
  switch (type) {
    case TensorType::kQ3_K: return 4;
    case TensorType::kQ4_0: return 8;
    case TensorType::kQ5_0: return 16;
    case TensorType::kQ6_K: return 32;
    default: return 0;
  }
}

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

// One row's block of a quantised type: value = quant * scale[column / 16] + minimum[column / 16].
struct UnpackedBlock {
  int8_t quants[kBlockColumns];  // signed: what the type subtracts is subtracted; not codes, but their values
  float scale[2];
  float minimum[2];
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
