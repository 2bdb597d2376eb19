// Normalises and rotates the heads of Q and K in place, and writes K and V into the KV buffer. One invocation per
// token and head of Q, K and V.
//
// Macros: KV_F16 or KV_F32.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/op_params.h"
#include "shared/step_params.h"

layout(local_size_x = 32) in;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { RopeStoreParams p; };
layout(set = 0, binding = 0, std430) buffer Qkv { float qkv[]; };
// KvShape: [n_sequences, n_kv_heads, 2, n_ctx, head_dim], from first_stream on; f16 entries are two to a word. A ring
// where positions are more than n_ctx.
layout(set = 0, binding = 1, std430) writeonly buffer Kv { uint kv[]; };
// [n_tokens, rotary_dim / 2]: cosine and sine of the row's angle, times the magnitude.
READ_ONLY(2, angles)
// q_norm [head_dim], k_norm [head_dim].
READ_ONLY(3, norms)
layout(set = 0, binding = 4, std140) uniform Step { StepParams stepp; };

#define HEAD_DIM p.head_dim
#include "include/rope_heads.glsl"

void StoreHead(uint head_begin, uint entry) {
#ifdef KV_F16
  for (uint i = 0; i < p.head_dim; i += 2) {
    kv[(entry * p.head_dim + i) / 2] = packHalf2x16(vec2(qkv[head_begin + i], qkv[head_begin + i + 1]));
  }
#else
  for (uint i = 0; i < p.head_dim; ++i) kv[entry * p.head_dim + i] = floatBitsToUint(qkv[head_begin + i]);
#endif
}

void main() {
  const uint n_rows = p.n_heads + 2 * p.n_kv_heads;
  const uint token = gl_GlobalInvocationID.x / n_rows;
  const uint row = gl_GlobalInvocationID.x % n_rows;
  if (token < p.n_tokens) {
    const uint head_begin = (token * n_rows + row) * p.head_dim;
    const bool is_value = row >= p.n_heads + p.n_kv_heads;
    if (!is_value && p.is_rotated == 0) {
      if (p.has_qk_norm != 0) NormHead(head_begin, row < p.n_heads ? 0 : p.head_dim);
      RotateHead(head_begin, token);
    }
    if (row >= p.n_heads) {
      const uint kv_head = is_value ? row - p.n_heads - p.n_kv_heads : row - p.n_heads;
      const uint stream = stepp.tokens[token].sequence * p.n_kv_heads + kv_head - p.first_stream;
      const uint plane = stream * 2 + (is_value ? 1 : 0);
      // Of streams before the first, the difference is a large number.
      if (stream < p.n_streams) StoreHead(head_begin, plane * p.n_ctx + stepp.tokens[token].position % p.n_ctx);
    }
  }
}
