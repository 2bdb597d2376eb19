// Joins the parts of a row's softmax: scratch holds, per row and split, head_dim weighted sums, the maximum score
// and the sum of weights. One invocation per row and dimension.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/op_params.h"

layout(local_size_x = 64) in;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { CombineParams p; };
READ_ONLY(0, scratch)
layout(set = 0, binding = 1, std430) writeonly buffer Output { float result[]; };

void main() {
  const uint row = gl_GlobalInvocationID.x / p.head_dim;
  const uint i = gl_GlobalInvocationID.x % p.head_dim;
  if (row < p.n_rows) {
    const uint stride = p.head_dim + 2;
    const uint begin = (p.first_row + row) * p.n_splits * stride;
    float maximum = -1e30;
    for (uint s = 0; s < p.n_splits; ++s) maximum = max(maximum, scratch_float(begin + s * stride + p.head_dim));
    float value = 0.0;
    float weight = 0.0;
    for (uint s = 0; s < p.n_splits; ++s) {
      const uint part = begin + s * stride;
      const float factor = exp(scratch_float(part + p.head_dim) - maximum);
      value += factor * scratch_float(part + i);
      weight += factor * scratch_float(part + p.head_dim + 1);
    }
    result[row * p.head_dim + i] = value / weight;
  }
}
