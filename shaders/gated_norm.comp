// values[row] = values[row] * weight / sqrt(mean(values[row]^2) + epsilon) * silu(gate[row]). One workgroup per token
// and head.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/layer_params.h"

#define ROW_LANES 32
layout(local_size_x = ROW_LANES) in;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { GatedNormParams p; };
layout(set = 0, binding = 0, std430) buffer Values { float values[]; };
READ_ONLY(1, weight)
READ_ONLY(2, gate)
#include "include/row_lanes.glsl"

void main() {
  const uint head = gl_WorkGroupID.x;
  const uint token = gl_WorkGroupID.y;
  const uint begin = (token * p.n_heads + head) * p.head_dim;
  const uint gate_begin = token * p.gate_stride + p.gate_offset + head * p.head_dim;
  float sum = 0.0;
  for (uint i = RowLane(); i < p.head_dim; i += ROW_LANES) sum += values[begin + i] * values[begin + i];
  const float factor = 1.0 / sqrt(RowSum(sum) / float(p.head_dim) + p.epsilon);
  for (uint i = RowLane(); i < p.head_dim; i += ROW_LANES) {
    const float g = gate_float(gate_begin + i);
    values[begin + i] *= weight_float(i) * factor * (g / (1.0 + exp(-g)));
  }
}
