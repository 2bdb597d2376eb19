// values *= sigmoid(gate).
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/layer_params.h"

layout(local_size_x = 64) in;
layout(constant_id = 0) const uint VECTORS = 1;  // n_values is a multiple of 4
#include "include/read_only.glsl"
layout(push_constant) uniform Params { SigmoidGateParams p; };
READ_ONLY(0, gate)
layout(set = 0, binding = 1, std430) buffer Values4 { vec4 values4[]; };
layout(set = 0, binding = 1, std430) buffer Values1 { float values1[]; };

void main() {
  const uint i = gl_GlobalInvocationID.x;
  if (VECTORS != 0) {
    if (i < p.n_values / 4) values4[i] /= 1.0 + exp(-gate_vec4(i));
  } else {
    if (i < p.n_values) values1[i] /= 1.0 + exp(-gate_float(i));
  }
}
