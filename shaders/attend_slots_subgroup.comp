// output = softmax(Q K^T * scale) V with an online softmax over the entries that a mapping table names; a subgroup,
// which is a workgroup, computes ROWS query heads of a token that share a KV head. As attend_subgroup.comp; what lanes
// do is in include/attend_lanes.glsl.
//
// Macros: ROWS, K_TYPE, V_TYPE (KVRUN_KV_...).
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "shared/slot_params.h"
#include "shared/step_params.h"

layout(constant_id = 0) const uint LANES = 32;
layout(constant_id = 1) const uint HEAD_DIM = 64;
layout(local_size_x_id = 2, local_size_y = 1, local_size_z = 1) in;
layout(constant_id = 3) const uint HAS_BIASES = 0;
layout(constant_id = 4) const uint KEEPS_SCORES = 0;
layout(constant_id = 5) const uint HAS_CAP = 0;
#include "include/attend_slots.glsl"
#include "include/kv_record.glsl"

#define SUM_DIMS V_DIMS
#define RECORDS(kind) records_##kind
#include "include/attend_lanes.glsl"
#include "include/attend_source.glsl"

void main() {
  const uint tiles_per_head = (p.n_heads / p.n_kv_heads + ROWS - 1) / ROWS;
  const uint kv_head = gl_WorkGroupID.x / tiles_per_head;
  const uint row_begin = (gl_WorkGroupID.x % tiles_per_head) * ROWS;
  const uint split = gl_WorkGroupID.y;
  const uint token = gl_WorkGroupID.z;
  BeginRows();
  const uint n_entries = NumberOfEntries(StreamOf(token, kv_head));
  AttendTo(token, kv_head, row_begin, SplitRange(n_entries, split, p.split_block), 0, n_entries);
  WriteRows(token, kv_head, row_begin, split);
}
