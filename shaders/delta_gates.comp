// What delta_rule.comp needs of each row and value head beside the vectors themselves: decay, beta, what keys and
// queries are multiplied with, and (k . q) of these. One workgroup per value head and row.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/layer_params.h"

#define ROW_LANES 32
layout(local_size_x = ROW_LANES) in;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { DeltaGatesParams p; };
READ_ONLY(0, qkv)
READ_ONLY(1, gates)
READ_ONLY(2, constants)
// [n_tokens, n_value_heads, KVRUN_DELTA_GATES].
layout(set = 0, binding = 3, std430) writeonly buffer Output { float result[]; };
#include "include/row_lanes.glsl"

float Softplus(float x) {
  const float small = exp(-abs(x));
  // log(1 + small) is 0 for what is small, as 1 + small is 1 then.
  return max(x, 0.0) + (small < 1e-4 ? small : log(1.0 + small));
}

void main() {
  const uint head = gl_WorkGroupID.x;
  const uint token = gl_WorkGroupID.y;
  const uint row = token * (2 * p.n_key_heads + p.n_value_heads) * p.head_dim;
  const uint query = row + head % p.n_key_heads * p.head_dim;
  const uint key = query + p.n_key_heads * p.head_dim;
  vec3 sums = vec3(0.0);
  for (uint i = RowLane(); i < p.head_dim; i += ROW_LANES) {
    const float q = qkv_float(query + i);
    const float k = qkv_float(key + i);
    sums += vec3(q * q, k * k, q * k);
  }
  const float query_factor = 1.0 / sqrt(RowSum(sums.x) + p.epsilon) / sqrt(float(p.head_dim));
  const float key_factor = 1.0 / sqrt(RowSum(sums.y) + p.epsilon);
  const float product = RowSum(sums.z) * query_factor * key_factor;
  if (RowLane() == 0) {
    const float alpha = gates_float(token * p.gates_stride + p.alpha_offset + head);
    const float beta = gates_float(token * p.gates_stride + p.beta_offset + head);
    const uint at = (token * p.n_value_heads + head) * KVRUN_DELTA_GATES;
    result[at] = exp(constants_float(head) * Softplus(alpha + constants_float(p.n_value_heads + head)));
    result[at + 1] = 1.0 / (1.0 + exp(-beta));
    result[at + 2] = key_factor;
    result[at + 3] = query_factor;
    result[at + 4] = product;
  }
}
