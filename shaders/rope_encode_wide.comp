// rope_encode.comp with a workgroup for each token and head of Q, K and V: GPUs hide little of what one invocation waits
// for, and keep arrays of its own in memory.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "shared/slot_params.h"
#include "shared/step_params.h"

#define ROW_LANES 64
layout(constant_id = 0) const uint K_TYPE = KVRUN_KV_F16;
layout(constant_id = 1) const uint V_TYPE = KVRUN_KV_F16;
layout(constant_id = 2) const uint IN_SPACE = 0;
layout(local_size_x = ROW_LANES) in;
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
#include "include/rotated_row.glsl"
float Element(uint head_begin, uint i) { return rotated[i]; }
#include "include/kv_record.glsl"
#include "include/kv_encode.glsl"
#include "include/rope_encode_place.glsl"

void NormRow(uint norm_begin) {
  float sum = 0.0;
  for (uint i = RowLane(); i < HEAD_DIM; i += ROW_LANES) sum += rotated[i] * rotated[i];
  const float factor = 1.0 / sqrt(RowSum(sum) / float(HEAD_DIM) + p.norm_epsilon);
  for (uint i = RowLane(); i < HEAD_DIM; i += ROW_LANES) rotated[i] *= factor * norms_float(norm_begin + i);
  RowSync();
}

void TurnRow(uint token) {
  const uint pairs = p.rotary_dim / 2;
  for (uint i = RowLane(); i < pairs; i += ROW_LANES) {
    const uint first = p.rope_halves != 0 ? i : 2 * i;
    const uint second = first + (p.rope_halves != 0 ? pairs : 1);
    const vec2 angle = angles_vec2(token * pairs + i);
    const float a = rotated[first];
    const float b = rotated[second];
    rotated[first] = a * angle.x - b * angle.y;
    rotated[second] = a * angle.y + b * angle.x;
  }
  RowSync();
}

void StoreRow(uint head_begin) {
  for (uint i = RowLane(); i < HEAD_DIM; i += ROW_LANES) qkv[head_begin + i] = rotated[i];
}

void main() {
  const uint n_rows = p.n_heads + 2 * p.n_kv_heads;
  const uint token = gl_WorkGroupID.x / n_rows;
  const uint row = gl_WorkGroupID.x % n_rows;
  const uint head_begin = (token * n_rows + row) * HEAD_DIM;
  const bool is_query = row < p.n_heads;
  const bool is_value = row >= p.n_heads + p.n_kv_heads;
  for (uint i = RowLane(); i < HEAD_DIM; i += ROW_LANES) rotated[i] = qkv[head_begin + i];
  RowSync();
  if (!is_value) {
    if (p.has_qk_norm != 0) NormRow(is_query ? 0 : HEAD_DIM);
    TurnRow(token);
  }
  if (is_query) {
    if (IN_SPACE != 0) RotateRow(HEAD_DIM);
    StoreRow(head_begin);
    return;
  }
  if (!is_value) StoreRow(head_begin);
  const uint kv_head = (row - p.n_heads) % p.n_kv_heads;
  if (IN_SPACE != 0) {
    RowSync();
    const uint mean = MeanBegin(token, kv_head, is_value);
    for (uint i = RowLane(); i < HEAD_DIM; i += ROW_LANES) rotated[i] -= norms_float(mean + i);
    RowSync();
    RotateRow(HEAD_DIM);
  }
  EncodeInPlace(0, token, kv_head, is_value);
}
