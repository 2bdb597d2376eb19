// Entries of one layer's KV as records, to the last word of their padding. One invocation per row. With IN_SPACE
// records hold them in a space of their own (EntrySpace).
//
// Macros: KV_F16 or KV_F32, what the entries are read as.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "shared/slot_params.h"

layout(constant_id = 0) const uint K_TYPE = KVRUN_KV_F16;
layout(constant_id = 1) const uint V_TYPE = KVRUN_KV_F16;
layout(constant_id = 2) const uint IN_SPACE = 0;
layout(local_size_x = 64) in;
layout(push_constant) uniform Params { RecordCopyParams p; };
layout(set = 0, binding = 0, std430) readonly buffer Kv { uint kv[]; };
layout(set = 0, binding = 1, std430) buffer Records { uint records[]; };
layout(set = 0, binding = 2, std430) readonly buffer Means { float means[]; };

#include "include/kv_record.glsl"
#include "include/record_rows.glsl"
#include "include/rotated_row.glsl"

float KvElement(uint first, uint i) {
#ifdef KV_F16
  return HalfValue(kv[(first + i) / 2] >> (16 * ((first + i) % 2)));
#else
  return uintBitsToFloat(kv[first + i]);
#endif
}
float Element(uint first, uint i) { return IN_SPACE != 0 ? rotated[i] : KvElement(first, i); }
#include "include/kv_encode.glsl"

void LoadIntoSpace(uint first, uint plane) {
  const uint mean = p.means_begin + plane * p.record.head_dim;
  for (uint i = 0; i < p.record.head_dim; ++i) rotated[i] = KvElement(first, i) - means[mean + i];
  RotateRow(p.record.head_dim);
}

// What follows a record's scales: half a word if their number is odd, then whole words.
void ClearPadding(uint record) {
  const uint end = 2 * p.record.size_words;
  const uint begin =
      p.record.k_scales_begin + p.record.n_heads * p.record.group_tokens * (p.record.k_row_scales + p.record.v_row_scales);
  if (begin % 2 != 0) atomicAnd(records[record + begin / 2], 0xffffu);
  for (uint half_index = (begin + 1) / 2 * 2; half_index < end; half_index += 2) records[record + half_index / 2] = 0;
}

void main() {
  const uint i = LinearInvocation();
  if (i < NumberOfRows()) {
    const KvRecordLayout r = p.record;
    const RecordRow at = RowAt(i);
    if (IN_SPACE != 0) LoadIntoSpace(at.entry * r.head_dim, at.plane);
    if (at.is_value) {
      EncodeRow(V_TYPE, at.entry * r.head_dim, at.record + r.v_begin + at.row * r.v_row_words,
                2 * at.record + r.v_scales_begin + at.row * r.v_row_scales, r.head_dim);
    } else {
      EncodeRow(K_TYPE, at.entry * r.head_dim, at.record + at.row * r.k_row_words,
                2 * at.record + r.k_scales_begin + at.row * r.k_row_scales, r.head_dim);
      if (at.row == 0) ClearPadding(at.record);
    }
  }
}
