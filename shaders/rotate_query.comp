// Normalises and rotates the heads of a query in place, as rope_store.comp does. One workgroup per head and token.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/index_params.h"

#define LOCAL_SIZE 32
layout(local_size_x = LOCAL_SIZE) in;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { RotateQueryParams p; };
layout(set = 0, binding = 0, std430) buffer Query { float query[]; };
// [n_tokens, rotary_dim / 2]: cosine and sine of the row's angle, times the magnitude.
READ_ONLY(1, angles)
READ_ONLY(2, norms)

shared float sums[LOCAL_SIZE];

void main() {
  const uint lane = gl_LocalInvocationIndex;
  const uint token = gl_WorkGroupID.y;
  const uint begin = (token * p.n_heads + gl_WorkGroupID.x) * p.head_dim;
  if (p.has_norm != 0) {
    float sum = 0.0;
    for (uint i = lane; i < p.head_dim; i += LOCAL_SIZE) sum += query[begin + i] * query[begin + i];
    sums[lane] = sum;
    barrier();
    sum = 0.0;
    for (uint i = 0; i < LOCAL_SIZE; ++i) sum += sums[i];
    const float factor = 1.0 / sqrt(sum / float(p.head_dim) + p.norm_epsilon);
    for (uint i = lane; i < p.head_dim; i += LOCAL_SIZE) query[begin + i] *= factor * norms_float(i);
    memoryBarrierBuffer();
    barrier();
  }
  const uint pairs = p.rotary_dim / 2;
  for (uint i = lane; i < pairs; i += LOCAL_SIZE) {
    const uint first = begin + (p.rope_halves != 0 ? i : 2 * i);
    const uint second = first + (p.rope_halves != 0 ? pairs : 1);
    const vec2 angle = angles_vec2(token * pairs + i);
    const float a = query[first];
    const float b = query[second];
    query[first] = a * angle.x - b * angle.y;
    query[second] = a * angle.y + b * angle.x;
  }
}
