// Reads vectors as fast as the device can, neighbouring lanes neighbouring vectors: the bound that kernel_bench
// compares with.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "shared/op_params.h"

layout(local_size_x = 64) in;
layout(push_constant) uniform Params { RateParams p; };
layout(set = 0, binding = 0, std430) buffer Values { uvec4 values[]; };

void main() {
  uvec4 sum = uvec4(0);
  uint at = gl_GlobalInvocationID.x;
  for (uint step = 0; step < p.n_steps; step += 8) {
    [[unroll]] for (uint i = 0; i < 8; ++i) {
      sum ^= values[at];
      at += p.stride;
    }
  }
  if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 0x12345678u) values[0] = sum;
}
