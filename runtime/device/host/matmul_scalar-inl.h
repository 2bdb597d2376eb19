// The kernels of matmul_kernels.h in plain C++: for processors without vectors that Highway knows, and for
// what the others are compared with. To be included once per target.

#if defined(KVRUN_MATMUL_SCALAR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_MATMUL_SCALAR_INL_H_
#undef KVRUN_MATMUL_SCALAR_INL_H_
#else
#define KVRUN_MATMUL_SCALAR_INL_H_
#endif

#include "runtime/device/host/quantize_activations-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

inline void Quantize(TensorType type, const float* x, size_t n_rows, size_t n_blocks, ActivationBlock* blocks,
                     FineBlock* fine, uint8_t* has_fine) {
  QuantizeActivations(type, {}, x, n_rows, n_blocks, blocks, fine, has_fine);
}

// UnpackBlock has subtracted what ActivationBlock::start is for; sums for minima are taken here.
inline void MultiplyInt8(const PanelLayout& layout, const std::byte* panel, const ActivationTile& x,
                         uint32_t n_tokens, TileSums& sums) {
  for (uint32_t r = 0; r < kPanelRows; ++r) {
    for (uint32_t t = 0; t < n_tokens; ++t) sums[t][r] = 0.0F;
    for (uint32_t b = 0; b < layout.n_blocks; ++b) {
      const UnpackedBlock w = UnpackBlock(layout, panel, r, b);
      for (uint32_t t = 0; t < n_tokens; ++t) {
        const ActivationBlock& a = x.blocks[size_t{t} * layout.n_blocks + b];
        const FineBlock& fine = x.fine[size_t{t} * layout.n_blocks + b];
        const bool is_fine = (x.has_fine[b] >> (x.first_bit + t) & 1U) != 0;
        int32_t products[2] = {0, 0};  // these and the sums times 256
        int32_t of_activations[2] = {0, 0};
        for (uint32_t i = 0; i < kBlockColumns; ++i) {
          const int32_t activation = 256 * a.quants[i] + (is_fine ? fine.quants[i] : 0);
          products[i / 16] += w.quants[i] * activation;
          of_activations[i / 16] += activation;
        }
        float sum = 0.0F;
        for (uint32_t h = 0; h < 2; ++h) {
          sum += w.scale[h] * static_cast<float>(products[h]);
          sum += w.minimum[h] * static_cast<float>(of_activations[h]);
        }
        sums[t][r] += a.scale / 256.0F * sum;
      }
    }
  }
}

inline void Decode(const PanelLayout& layout, const std::byte* panel, float* out) {
  for (uint32_t r = 0; r < kPanelRows; ++r) {
    for (uint32_t b = 0; b < layout.n_blocks; ++b) {
      const UnpackedBlock w = UnpackBlock(layout, panel, r, b);
      for (uint32_t i = 0; i < kBlockColumns; ++i) {
        out[size_t{b * kBlockColumns + i} * kPanelRows + r] =
            static_cast<float>(w.quants[i]) * w.scale[i / 16] + w.minimum[i / 16];
      }
    }
  }
}

inline void MultiplyFloat(TensorType type, const std::byte* panel, uint32_t n_cols, const float* x,
                          uint32_t n_tokens, TileSums& sums) {
  const PanelLayout layout = MakePanelLayout(type, n_cols);
  for (uint32_t r = 0; r < kPanelRows; ++r) {
    for (uint32_t t = 0; t < n_tokens; ++t) sums[t][r] = 0.0F;
    for (uint32_t c = 0; c < n_cols; ++c) {
      const float w = UnpackValue(layout, panel, r, c);
      for (uint32_t t = 0; t < n_tokens; ++t) sums[t][r] += w * x[size_t{t} * n_cols + c];
    }
  }
}

inline MatMulKernels MatMulKernelsOfTarget(Int8Products /*most*/) {
  return {.target = hwy::TargetName(HWY_TARGET),
          .products = Int8Products::kPlain,
          .tile_tokens = 8,
          .int8_tile_tokens = 8,
          .quantize = Quantize,
          .takes_wide = nullptr,
          .quantize_wide = nullptr,
          .multiply_wide = nullptr,
          .unpack = nullptr,
          .begin_int8 = nullptr,
          .end_int8 = nullptr,
          .multiply_int8 = MultiplyInt8,
          .decode = Decode,
          .multiply_float = MultiplyFloat};
}

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_MATMUL_SCALAR_INL_H_
