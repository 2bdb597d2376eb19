// output[use, row] = sum over columns of weight[expert of the use * n_rows + row, column] * input[use, column], on
// packed weights (include/packed_weights.glsl). A workgroup has some rows of one expert, and up to USES of its uses, for which
// it decodes weights once; lanes lie along rows, SPLITS of them divide the columns. A matrix in several slices takes a
// dispatch each; rows outside of the slice are left alone.
//
// Macros: WEIGHT_<TYPE>.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "shared/layer_params.h"

#define LANES 32
#define MAX_LOCAL_SIZE 128
#define MAX_USES 8
layout(constant_id = 0) const uint USES = 1;
layout(constant_id = 1) const uint SPLITS = 1;
layout(constant_id = 2) const uint IS_GROUPED = 0;    // by group_experts.comp; else uses are taken one by one
layout(constant_id = 3) const uint VECTOR_INPUT = 1;  // n_cols is a multiple of 4
layout(local_size_x_id = 4, local_size_y = 1, local_size_z = 1) in;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { ExpertMatMulParams p; };
#include "include/packed_weights.glsl"
READ_ONLY(1, inputs)
READ_ONLY(2, plan)  // GroupExpertsParams; else the experts of all uses
layout(set = 0, binding = 3, std430) writeonly buffer Output { float result[]; };

shared float parts[MAX_LOCAL_SIZE];

struct Work {
  uint expert;
  uint n_uses;
  uint first;  // of its uses
};

Work WorkOf(uint group) {
  if (IS_GROUPED == 0) return Work(plan_uint(p.first_use + group), 1, p.first_use + group);
  if (group >= plan_uint(0)) return Work(0, 0, 0);
  const uint expert_count = plan_uint(4 + 2 * group);
  return Work(expert_count & 0xffffu, expert_count >> 16, plan_uint(5 + 2 * group));
}

// Those past the end are the last one again.
uint UseOf(Work work, uint i) {
  return IS_GROUPED == 0 ? work.first : plan_uint(p.uses_begin + work.first + min(i, work.n_uses - 1));
}

vec4 LoadInput(uint begin, uint column) {
  if (VECTOR_INPUT != 0) return inputs_vec4((begin + column) / 4);
  vec4 x = vec4(0.0);
  [[unroll]] for (uint i = 0; i < 4; ++i) {
    if (column + i < p.n_cols) x[i] = inputs_float(begin + column + i);
  }
  return x;
}

void main() {
  const uint lane = gl_LocalInvocationIndex % LANES;
  const uint split = gl_LocalInvocationIndex / LANES;
  const uint expert_row = gl_WorkGroupID.x * LANES + lane;
  const Work work = WorkOf(gl_WorkGroupID.y);
  if (work.n_uses == 0) return;
  const uint row = work.expert * p.n_rows + expert_row - p.row_begin;  // large before the slice
  const bool is_own = expert_row < p.n_rows && row < p.slice_rows;
  const uint packed_row = is_own ? row : 0;

  uint begins[USES];
  float sums[USES];
  [[unroll]] for (uint u = 0; u < USES; ++u) {
    begins[u] = UseOf(work, u) / p.input_uses * p.n_cols;
    sums[u] = 0.0;
  }
  const uint n_blocks = is_own ? (p.n_cols + 31) / 32 : 0;
  for (uint block = split; block < n_blocks; block += SPLITS) {
    const Block b = LoadBlock(p.planes, packed_row, block);
    uvec4 quants;
    [[unroll]] for (uint j = 0; j < 8; ++j) {
      if (j % GROUPS_PER_VECTOR == 0) quants = LoadQuants(p.planes, packed_row, block, j / GROUPS_PER_VECTOR);
      const vec4 w = BlockWeights(b, quants, j);
      [[unroll]] for (uint u = 0; u < USES; ++u) sums[u] += dot(w, LoadInput(begins[u], block * 32 + 4 * j));
    }
  }
  [[unroll]] for (uint u = 0; u < USES; ++u) {
    float sum = sums[u];
    if (SPLITS > 1) {
      parts[gl_LocalInvocationIndex] = sum;
      barrier();
      sum = 0.0;
      for (uint s = 0; s < SPLITS; ++s) sum += parts[s * LANES + lane];
      barrier();
    }
    if (is_own && split == 0 && u < work.n_uses) {
      result[(UseOf(work, u) - p.first_use) * p.n_rows + expert_row] = sum;
    }
  }
}
