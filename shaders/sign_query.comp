// Rows of z for an index of bounds. Of KV head j's column i, z[token, row, j * head_dim + i] = scale * sum of max(q, 0),
// and key_dim columns further on the same of min(q, 0), times the column's scale in the index. q: dimension i of each of
// the row's heads of KV head j (none: 0), or of every n_added neighbours together. An invocation takes both columns.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/index_params.h"
#include "shared/step_params.h"

#define LOCAL_SIZE 32
layout(local_size_x = LOCAL_SIZE) in;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { SignQueryParams p; };
READ_ONLY(0, query)
READ_ONLY(1, scales)
layout(set = 0, binding = 2, std430) writeonly buffer Scratch { float z[]; };
layout(set = 0, binding = 3, std140) uniform Step { StepParams stepp; };

void main() {
  const uint column = gl_WorkGroupID.x * LOCAL_SIZE + gl_LocalInvocationIndex;
  const uint row = gl_WorkGroupID.y;
  const uint token = gl_WorkGroupID.z;
  const uint key_dim = p.n_kv_heads * p.head_dim;
  if (column >= key_dim) return;
  const uint group = p.n_heads / p.n_kv_heads;  // heads of a KV head
  const uint heads = p.n_heads / p.n_rows;      // of a row
  const uint kv_head = column / p.head_dim;
  const uint end = min((row + 1) * heads, (kv_head + 1) * group);
  float above = 0.0;
  float below = 0.0;
  for (uint head = max(row * heads, kv_head * group); head < end; head += p.n_added) {
    float value = 0.0;
    for (uint h = head; h < head + p.n_added; ++h) {
      value += query_float((token * p.n_heads + h) * p.head_dim + column % p.head_dim);
    }
    above += max(value, 0.0);
    below += min(value, 0.0);
  }
  const uint at = p.z_begin + (token * p.n_rows + row) * 2 * key_dim + column;
  const uint scale_at = stepp.tokens[token].sequence * 2 * key_dim + column;
  z[at] = p.scale * above * scales_float(scale_at);
  z[at + key_dim] = p.scale * below * scales_float(scale_at + key_dim);
}
