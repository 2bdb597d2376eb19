// The one scalar reference of every operation of runtime/device/device.h: plain loops that follow the
// contracts, sums in double. Results are doubles, so that they are not rounded before a comparison.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/device/device.h"
#include "shaders/shared/step_params.h"

namespace kvrun::testing {

// Rows as in a GGUF tensor, decoded.
struct ReferenceMatrix {
  ReferenceMatrix(TensorType type, uint32_t n_cols, std::span<const MatrixSource> sources);

  uint32_t n_rows = 0;
  uint32_t n_cols = 0;
  std::vector<float> values;  // [n_rows, n_cols]
};

std::vector<double> EmbedReference(const ReferenceMatrix& table, std::span<const StepToken> tokens,
                                   float scale = 1.0F);
std::vector<double> RmsNormReference(std::span<const float> x, std::span<const float> weight, float epsilon,
                                     uint32_t n_rows, uint32_t n_cols);

struct MatMulReferenceArgs {
  std::span<const float> input;  // [n_tokens, n_cols]
  std::span<const float> bias;   // empty: none
  uint32_t n_tokens = 0;
  uint32_t output_stride = 0;  // 0: n_rows
  uint32_t output_offset = 0;
  uint32_t bias_offset = 0;
  bool accumulate = false;
};
// `output` is read where results are added, and written where a result belongs.
void MatMulReference(const ReferenceMatrix& weight, const MatMulReferenceArgs& args,
                     std::span<double> output);
// Where MatMulReference writes: the sum of the magnitudes of all that is added up.
void MatMulMagnitudes(const ReferenceMatrix& weight, const MatMulReferenceArgs& args,
                      std::span<const float> before, std::span<double> output);

// The fields of AttentionArgs that say what to do.
struct AttentionReferenceArgs {
  std::span<const StepToken> tokens;
  KvShape kv_shape;
  uint32_t n_heads = 0;
  std::span<const float> angles;
  std::span<const float> norms;  // empty: none
  float norm_epsilon = 0.0F;
  uint32_t rotary_dim = 0;
  bool rope_halves = false;
  uint32_t window_tokens = 0;
  float score_cap = 0.0F;
  float score_scale = 0.0F;
};
// AttentionArgs::score_scale and score_cap: q . k to what a softmax takes.
double ScoreReference(double product, uint32_t head_dim, float score_scale, float score_cap);
// Changes qkv, and the entries of kv (as values, before they are rounded to the KV type).
void RopeAndStoreReference(const AttentionReferenceArgs& args, std::span<double> qkv, std::span<double> kv);
std::vector<double> AttendReference(const AttentionReferenceArgs& args, std::span<const float> qkv,
                                    std::span<const float> kv);

std::vector<double> SwiGluReference(std::span<const float> gate_up, uint32_t n_tokens, uint32_t n_ff);
std::vector<double> GatherRowsReference(std::span<const float> x, std::span<const StepToken> tokens,
                                        uint32_t n_cols);

}  // namespace kvrun::testing
