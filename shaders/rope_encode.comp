// Normalises and rotates the heads of Q and K in place, and encodes K and V into the newest slots of their streams.
// One invocation per token and head of Q, K and V. With IN_SPACE (EntrySpace) records hold K and V in a space of their
// own, and Q is brought there in place.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "shared/slot_params.h"
#include "shared/step_params.h"

layout(constant_id = 0) const uint K_TYPE = KVRUN_KV_F16;
layout(constant_id = 1) const uint V_TYPE = KVRUN_KV_F16;
layout(constant_id = 2) const uint IN_SPACE = 0;
layout(local_size_x = 32) in;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { RopeEncodeParams p; };
layout(set = 0, binding = 0, std430) buffer Qkv { float qkv[]; };
// SlotShape: records [n_streams, n_slots].
layout(set = 0, binding = 1, std430) buffer Slots { uint records[]; };
// [n_tokens, rotary_dim / 2]: cosine and sine of the row's angle, times the magnitude.
READ_ONLY(2, angles)
// q_norm [head_dim], k_norm [head_dim]; with IN_SPACE from means_begin on the means.
READ_ONLY(3, norms)
layout(set = 0, binding = 4, std140) uniform Step { StepParams stepp; };

#define HEAD_DIM p.record.head_dim
#include "include/rope_heads.glsl"

#include "include/rotated_row.glsl"

float Element(uint head_begin, uint i) { return IN_SPACE != 0 ? rotated[i] : qkv[head_begin + i]; }
#include "include/kv_record.glsl"
#include "include/kv_encode.glsl"
#include "include/rope_encode_place.glsl"

void RotateQuery(uint head_begin) {
  for (uint i = 0; i < HEAD_DIM; ++i) rotated[i] = qkv[head_begin + i];
  RotateRow(HEAD_DIM);
  for (uint i = 0; i < HEAD_DIM; ++i) qkv[head_begin + i] = rotated[i];
}

void LoadIntoSpace(uint head_begin, uint token, uint kv_head, bool is_value) {
  const uint mean = MeanBegin(token, kv_head, is_value);
  for (uint i = 0; i < HEAD_DIM; ++i) rotated[i] = qkv[head_begin + i] - norms_float(mean + i);
  RotateRow(HEAD_DIM);
}

void EncodeHead(uint head_begin, uint token, uint kv_head, bool is_value) {
  if (IN_SPACE != 0) LoadIntoSpace(head_begin, token, kv_head, is_value);
  EncodeInPlace(head_begin, token, kv_head, is_value);
}

void main() {
  const uint n_rows = p.n_heads + 2 * p.n_kv_heads;
  const uint token = gl_GlobalInvocationID.x / n_rows;
  const uint row = gl_GlobalInvocationID.x % n_rows;
  if (token < p.n_tokens) {
    const uint head_begin = (token * n_rows + row) * HEAD_DIM;
    const bool is_value = row >= p.n_heads + p.n_kv_heads;
    if (!is_value) {
      if (p.has_qk_norm != 0) NormHead(head_begin, row < p.n_heads ? 0 : HEAD_DIM);
      RotateHead(head_begin, token);
    }
    if (row >= p.n_heads) {
      EncodeHead(head_begin, token, (row - p.n_heads) % p.n_kv_heads, is_value);
    } else if (IN_SPACE != 0) {
      RotateQuery(head_begin);
    }
  }
}
