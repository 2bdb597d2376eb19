// Multiplies and adds as fast as the device can, without memory: the bound that kernel_bench compares with.
// 256 multiply-adds per invocation and step.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "shared/op_params.h"

layout(local_size_x = 64) in;
layout(push_constant) uniform Params { RateParams p; };
layout(set = 0, binding = 0, std430) buffer Values { float values[]; };

void main() {
  float sums[16];
  const float x = values[gl_LocalInvocationIndex];
  [[unroll]] for (uint i = 0; i < 16; ++i) sums[i] = x + float(i);
  for (uint step = 0; step < p.n_steps; ++step) {
    [[unroll]] for (uint repeat = 0; repeat < 16; ++repeat) {
      [[unroll]] for (uint i = 0; i < 16; ++i) sums[i] = sums[i] * x + 0.25;
    }
  }
  float sum = 0.0;
  [[unroll]] for (uint i = 0; i < 16; ++i) sum += sums[i];
  values[gl_LocalInvocationIndex] = sum;
}
