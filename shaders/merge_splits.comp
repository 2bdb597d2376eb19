// Joins the parts of a row's softmax into one part, with what is there from positions before: head_dim weighted sums,
// the maximum score and the sum of weights, per row. One invocation per row and value.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/op_params.h"

layout(local_size_x = 64) in;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { MergeParams p; };
// [n_rows, n_splits, head_dim + 2].
READ_ONLY(0, scratch)
// [.., head_dim + 2], both: n_rows from their first ones on.
READ_ONLY(1, before)
layout(set = 0, binding = 2, std430) writeonly buffer After { float after[]; };

void main() {
  const uint stride = p.head_dim + 2;
  const uint row = gl_GlobalInvocationID.x / stride;
  const uint i = gl_GlobalInvocationID.x % stride;
  if (row < p.n_rows) {
    const uint begin = row * p.n_splits * stride;
    const uint part_before = (p.first_before + row) * stride;
    float maximum = p.has_before != 0 ? before_float(part_before + p.head_dim) : -1e30;
    for (uint s = 0; s < p.n_splits; ++s) maximum = max(maximum, scratch_float(begin + s * stride + p.head_dim));
    float value = maximum;
    if (i != p.head_dim) {
      value = 0.0;
      if (p.has_before != 0) value = exp(before_float(part_before + p.head_dim) - maximum) * before_float(part_before + i);
      for (uint s = 0; s < p.n_splits; ++s) {
        const uint part = begin + s * stride;
        value += exp(scratch_float(part + p.head_dim) - maximum) * scratch_float(part + i);
      }
    }
    after[(p.first_after + row) * stride + i] = value;
  }
}
