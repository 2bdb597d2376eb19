// Push constants of what layers consist of beside attention (runtime/device/layer_args.h). Shared by GLSL and
// C++: 32-bit scalars only, at most 128 bytes each.
#ifndef KVRUN_SHADERS_SHARED_LAYER_PARAMS_H_
#define KVRUN_SHADERS_SHARED_LAYER_PARAMS_H_

#include "op_params.h"

#ifdef __cplusplus
#include <cstdint>
namespace kvrun {
using uint = uint32_t;
#endif

#define KVRUN_MAX_EXPERTS 1024
#define KVRUN_MAX_USED_EXPERTS 32
// Of delta_rule.comp: columns of the state that a workgroup has, and parts that its rows are divided into.
#define KVRUN_DELTA_COLUMNS 16
#define KVRUN_DELTA_PARTS 8
// Of delta_gates.comp: floats of a row's value head.
#define KVRUN_DELTA_GATES 8
// Rows of a prompt that an invocation of short_convolution.comp goes through.
#define KVRUN_CONVOLVED_ROWS 32

struct SigmoidGateParams {
  uint n_values;
};

struct ChooseExpertsParams {
  uint n_experts;
  uint n_used;
};

// Uses are numbered token by token: use i is that of token i / n_used. Those of one expert are neighbours in
// groups of up to group_uses; what is written: how many groups, three words of nothing; of each group two
// words, its expert and how many uses it has << 16, and the first of them; from uses_begin on the uses.
struct GroupExpertsParams {
  uint first_use;
  uint n_uses;
  uint n_experts;
  uint group_uses;
  uint uses_begin;
};

struct ExpertMatMulParams {
  PackedPlanes planes;
  uint slice_rows;
  uint row_begin;  // first row of the slice
  uint n_rows;     // of an expert
  uint n_cols;
  uint first_use;   // whose result is the output's row 0
  uint input_uses;  // that share a row of the input
  uint uses_begin;  // GroupExpertsParams
};

struct SumExpertsParams {
  uint n_used;
  uint n_rows;
  uint first_token;
};

struct ShortConvolutionParams {
  uint n_channels;
  uint input_stride;
  uint span_tokens;  // of one sequence, at consecutive positions
};

struct DeltaGatesParams {
  uint n_key_heads;
  uint n_value_heads;
  uint head_dim;
  uint gates_stride;
  uint alpha_offset;
  uint beta_offset;
  float epsilon;
};

struct DeltaRuleParams {
  uint n_key_heads;
  uint n_value_heads;
  uint span_tokens;  // of one sequence, at consecutive positions
};

struct GatedNormParams {
  uint n_heads;
  uint head_dim;
  uint gate_stride;
  uint gate_offset;
  float epsilon;
};

#ifdef __cplusplus
}  // namespace kvrun
#endif

#endif  // KVRUN_SHADERS_SHARED_LAYER_PARAMS_H_
