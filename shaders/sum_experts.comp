// result[token, row] += sum over its uses of weights[use] * products[use, row]; products are those of tokens from
// first_token on. One invocation per token and row.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/layer_params.h"

layout(local_size_x = 64) in;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { SumExpertsParams p; };
READ_ONLY(0, products)
READ_ONLY(1, weights)
layout(set = 0, binding = 2, std430) buffer Output { float result[]; };

void main() {
  const uint row = gl_GlobalInvocationID.x;
  const uint nth = gl_WorkGroupID.y;
  if (row < p.n_rows) {
    const uint token = p.first_token + nth;
    float sum = 0.0;
    for (uint j = 0; j < p.n_used; ++j) {
      sum += weights_float(token * p.n_used + j) * products_float((nth * p.n_used + j) * p.n_rows + row);
    }
    result[token * p.n_rows + row] += sum;
  }
}
