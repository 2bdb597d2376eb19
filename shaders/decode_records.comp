// Records back to entries of one layer's KV. One invocation per row and PAIRS pairs of elements; with IN_SPACE, where
// records hold them in a space of their own (EntrySpace), one per row.
//
// Macros: KV_F16 or KV_F32, what the entries are written as.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "shared/slot_params.h"

layout(constant_id = 0) const uint K_TYPE = KVRUN_KV_F16;
layout(constant_id = 1) const uint V_TYPE = KVRUN_KV_F16;
layout(constant_id = 2) const uint IN_SPACE = 0;
layout(local_size_x = 64) in;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { RecordCopyParams p; };
READ_ONLY(0, records)
layout(set = 0, binding = 1, std430) writeonly buffer Kv { uint kv[]; };
READ_ONLY(2, means)

#include "include/kv_record.glsl"
#include "include/kv_decode.glsl"
#include "include/record_rows.glsl"
#include "include/rotated_row.glsl"

#define PAIRS 4  // divides a block of int4

void StorePair(uint first, vec2 values) {
#ifdef KV_F16
  kv[first / 2] = HalfBits(values.x) | HalfBits(values.y) << 16;
#else
  kv[first] = floatBitsToUint(values.x);
  kv[first + 1] = floatBitsToUint(values.y);
#endif
}

void DecodePart(uint type, uint row, uint scales, uint entry, uint part) {
  const float scale = LoadScale(type, scales + ScaleOfElement(type, 2 * PAIRS * part));
  const uint end = min((part + 1) * PAIRS, p.record.head_dim / 2);
  for (uint pair = part * PAIRS; pair < end; ++pair) {
    const vec2 values = LoadPair(type, row, pair);
    StorePair(entry * p.record.head_dim + 2 * pair, vec2(values.x * scale, values.y * scale));
  }
}

void DecodeOutOfSpace(uint type, uint row, uint scales, uint entry, uint plane) {
  const uint head_dim = p.record.head_dim;
  for (uint pair = 0; pair < head_dim / 2; ++pair) {
    const vec2 values = LoadPair(type, row, pair) * LoadScale(type, scales + ScaleOfElement(type, 2 * pair));
    rotated[2 * pair] = values.x;
    rotated[2 * pair + 1] = values.y;
  }
  RotateRowBack(head_dim);
  for (uint i = 0; i < head_dim; i += 2) {
    const uint mean = p.means_begin + plane * head_dim + i;
    StorePair(entry * head_dim + i, vec2(rotated[i] + means_float(mean), rotated[i + 1] + means_float(mean + 1)));
  }
}

void DecodeRow(uint type, uint row, uint scales, RecordRow at, uint part) {
  if (IN_SPACE != 0) {
    DecodeOutOfSpace(type, row, scales, at.entry, at.plane);
  } else {
    DecodePart(type, row, scales, at.entry, part);
  }
}

void main() {
  const KvRecordLayout r = p.record;
  const uint parts = IN_SPACE != 0 ? 1 : (r.head_dim + 2 * PAIRS - 1) / (2 * PAIRS);
  const uint i = LinearInvocation() / parts;
  const uint part = LinearInvocation() % parts;
  if (i < NumberOfRows()) {
    const RecordRow at = RowAt(i);
    if (at.is_value) {
      DecodeRow(V_TYPE, at.record + r.v_begin + at.row * r.v_row_words,
                2 * at.record + r.v_scales_begin + at.row * r.v_row_scales, at, part);
    } else {
      DecodeRow(K_TYPE, at.record + at.row * r.k_row_words,
                2 * at.record + r.k_scales_begin + at.row * r.k_row_scales, at, part);
    }
  }
}
