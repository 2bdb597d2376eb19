// result[row] = x[row] * weight / sqrt(mean(x[row]^2) + epsilon), or that added to it. One workgroup per row.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/op_params.h"

#define LOCAL_SIZE 32
layout(local_size_x = LOCAL_SIZE) in;
layout(constant_id = 0) const uint VECTOR_COLUMNS = 1;  // n_cols is a multiple of 4
layout(constant_id = 1) const uint ACCUMULATES = 0;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { RmsNormParams p; };
READ_ONLY(0, x)
READ_ONLY(1, weight)
layout(set = 0, binding = 2, std430) buffer R4 { vec4 result4[]; };
layout(set = 0, binding = 2, std430) buffer R1 { float result1[]; };

shared float sums[LOCAL_SIZE];

void main() {
  const uint row = gl_WorkGroupID.x;
  const uint lane = gl_LocalInvocationIndex;
  const uint n = VECTOR_COLUMNS != 0 ? p.n_cols / 4 : p.n_cols;
  float sum = 0.0;
  for (uint i = lane; i < n; i += LOCAL_SIZE) {
    if (VECTOR_COLUMNS != 0) {
      const vec4 v = x_vec4(row * n + i);
      sum += dot(v, v);
    } else {
      const float v = x_float(row * n + i);
      sum += v * v;
    }
  }
  sums[lane] = sum;
  barrier();
  sum = 0.0;
  for (uint i = 0; i < LOCAL_SIZE; ++i) sum += sums[i];
  const float factor = 1.0 / sqrt(sum / float(p.n_cols) + p.epsilon);
  for (uint i = lane; i < n; i += LOCAL_SIZE) {
    if (VECTOR_COLUMNS != 0) {
      const vec4 value = x_vec4(row * n + i) * weight_vec4(i) * factor;
      result4[row * n + i] = ACCUMULATES != 0 ? result4[row * n + i] + value : value;
    } else {
      const float value = x_float(row * n + i) * weight_float(i) * factor;
      result1[row * n + i] = ACCUMULATES != 0 ? result1[row * n + i] + value : value;
    }
  }
}
