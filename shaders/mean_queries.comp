// Rows of z for the first of two stages (include/score_stages.glsl): each is the mean of n_rows / n_first_rows
// neighbouring rows of a token's z, of which the first columns count; zeros beyond.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/index_params.h"

#define LOCAL_SIZE 32
layout(local_size_x = LOCAL_SIZE) in;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { MeanQueriesParams p; };
READ_ONLY(0, scratch)
layout(set = 0, binding = 1, std430) writeonly buffer Means { float means[]; };

void main() {
  const uint column = gl_WorkGroupID.x * LOCAL_SIZE + gl_LocalInvocationIndex;
  const uint row = gl_WorkGroupID.y;
  const uint token = gl_WorkGroupID.z;
  if (column >= p.rank) return;
  const uint n = p.n_rows / p.n_first_rows;
  float sum = 0.0;
  if (column < p.first_columns) {
    const uint from = p.z_begin + (token * p.n_rows + row * n) * p.rank + column;
    for (uint r = 0; r < n; ++r) sum += scratch_float(from + r * p.rank);
  }
  means[p.first_z_begin + (token * p.n_first_rows + row) * p.rank + column] = 1.0 / float(n) * sum;
}
