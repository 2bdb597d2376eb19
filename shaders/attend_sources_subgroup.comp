// attend_slots_subgroup.comp over the entries of several sources, one after another, in one softmax: a split's part
// may begin in one source and end in another. The block loop is there once for each source, so that no load has to
// choose between buffers: a CPU that runs shaders would do all that it can choose from. The last workgroup of a tile joins
// its splits, and brings what they make out of the records' space.
//
// Macros: ROWS; K_TYPE, V_TYPE (KVRUN_KV_..., but not f32) of all sources but the last, whose K and V are f16.
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
layout(constant_id = 3) const uint N_SOURCES = 2;
layout(constant_id = 4) const uint BIASED = 0;  // bit i: source i's slots have biases (SlotShape::has_biases)
layout(constant_id = 5) const uint IN_SPACE = 0;
layout(constant_id = 6) const uint HAS_CAP = 0;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { AttendSourcesParams p; };
READ_ONLY(0, qkv)
// Of each source as in include/attend_slots.glsl. The last is number 3, however many there are.
READ_ONLY(1, records0)
READ_ONLY(2, table0)
READ_ONLY(3, records1)
READ_ONLY(4, table1)
READ_ONLY(5, records2)
READ_ONLY(6, table2)
READ_ONLY(7, records3)
READ_ONLY(8, table3)
layout(set = 0, binding = 9, std430) writeonly buffer Output { float result[]; };
// [n_tokens * n_heads, n_splits, head_dim + 2].
layout(set = 0, binding = 10, std430) coherent buffer Scratch { uint scratch[]; };
READ_ONLY(11, means)  // with IN_SPACE from means_begin on
layout(set = 0, binding = 12, std430) coherent buffer Counters { uint counters[]; };
layout(set = 0, binding = 13, std140) uniform Step { StepParams stepp; };
#include "include/attend_rows.glsl"
#include "include/kv_record.glsl"

uint PartOf(uint row, uint split) { return row * p.n_splits + split; }

#if V_TYPE == KVRUN_KV_F16
#define SUM_DIMS 8
#else
#define SUM_DIMS 16
#endif
#define PUT_PART(at, value) scratch[at] = floatBitsToUint(value)
#include "include/attend_lanes.glsl"

// The workgroup is one subgroup.
#define GROUP_SYNC()             \
  subgroupMemoryBarrierShared(); \
  subgroupBarrier()
#include "include/entry_space.glsl"
#include "include/join_parts.glsl"
#include "include/last_workgroup.glsl"
shared float shared_halfway[256];
#define SPACE_ROW shared_joined
#define SPACE_HALFWAY shared_halfway
#define SPACE_LANE gl_LocalInvocationIndex
#define SPACE_LANES LANES
#include "include/out_of_space.glsl"

void JoinRow(uint token, uint kv_head, uint head) {
  const uint lane = gl_LocalInvocationIndex;
  const uint row = token * p.n_heads + head;
  JoinParts(lane, row * p.n_splits * (HEAD_DIM + 2), p.n_splits);
  if (IN_SPACE == 0) {
    for (uint i = lane; i < HEAD_DIM; i += LANES) result[row * HEAD_DIM + i] = shared_joined[i];
  } else {
    const uint block = HadamardBlock(HEAD_DIM);
    const uint low = 1u << (findMSB(block) / 2);
    MultiplyLow(HEAD_DIM, low);
    GROUP_SYNC();
    const uint mean = p.means_begin + ((stepp.tokens[token].sequence * p.n_kv_heads + kv_head) * 2 + 1) * HEAD_DIM;
    const float factor = 1.0 / sqrt(float(block));
    for (uint i = lane; i < HEAD_DIM; i += LANES) {
      result[row * HEAD_DIM + i] = SignOf(i) * HighElement(i, low, block / low) * factor + means_float(mean + i);
    }
  }
  GROUP_SYNC();
}

// Sources whose scores are kept have dispatches of their own.
const uint KEEPS_SCORES = 0;
void KeepScore(uint token, uint kv_head, uint row, uint index, float score) {}

uint RowWords(uint type) {
  if (type == KVRUN_KV_F16) return HEAD_DIM / 2;
  return type == KVRUN_KV_INT4 ? HEAD_DIM / 8 : HEAD_DIM / 4;
}
uint RowScales(uint type) {
  if (type == KVRUN_KV_INT4) return (HEAD_DIM + KVRUN_INT4_BLOCK - 1) / KVRUN_INT4_BLOCK;
  return HasScales(type) ? 1 : 0;
}
// As KvRecordShape has it (runtime/device/kv_record.h).
KvRecordLayout LayoutOf(AttendedSource source, uint k_type, uint v_type) {
  const uint n_rows = source.record_heads * source.group_tokens;
  const uint v_begin = n_rows * RowWords(k_type);
  const uint scales_begin = 2 * (v_begin + n_rows * RowWords(v_type));
  return KvRecordLayout(source.record_heads, HEAD_DIM, source.group_tokens, source.record_words, RowWords(k_type),
                        RowWords(v_type), RowScales(k_type), RowScales(v_type), v_begin, scales_begin,
                        scales_begin + n_rows * RowScales(k_type));
}
// Of the source that is included.
#define JOIN_TOKENS(a, b) a##b
#define JOIN(a, b) JOIN_TOKENS(a, b)
#define JOIN_THREE_TOKENS(a, b, c) a##b##c
#define JOIN_THREE(a, b, c) JOIN_THREE_TOKENS(a, b, c)
#define OF_SOURCE(name) JOIN(name, SOURCE)
#define RECORDS(kind) JOIN_THREE(records, SOURCE, _##kind)
#define TABLE(kind) JOIN_THREE(table, SOURCE, _##kind)
#define SOURCE_LAYOUT LayoutOf(p.sources[SOURCE], K_TYPE, V_TYPE)
#define SOURCE_SLOTS p.sources[SOURCE].n_slots
#define SOURCE_TABLE_STRIDE p.sources[SOURCE].table_stride
#define HAS_BIASES (BIASED >> SOURCE & 1)

#define SOURCE 0
#include "include/slot_table.glsl"
#include "include/attend_source.glsl"
#undef SOURCE
#define SOURCE 1
#include "include/slot_table.glsl"
#include "include/attend_source.glsl"
#undef SOURCE
#define SOURCE 2
#include "include/slot_table.glsl"
#include "include/attend_source.glsl"
#undef SOURCE
#define SOURCE 3
#undef K_TYPE
#undef V_TYPE
#define K_TYPE KVRUN_KV_F16
#define V_TYPE KVRUN_KV_F16
#include "include/slot_table.glsl"
#include "include/attend_source.glsl"

void main() {
  const uint tiles_per_head = (p.n_heads / p.n_kv_heads + ROWS - 1) / ROWS;
  const uint kv_head = gl_WorkGroupID.x / tiles_per_head;
  const uint row_begin = (gl_WorkGroupID.x % tiles_per_head) * ROWS;
  const uint split = gl_WorkGroupID.y;
  const uint token = gl_WorkGroupID.z;
  const uvec4 n = uvec4(NumberOfEntries0(StreamOf0(token, kv_head)),
                        N_SOURCES > 2 ? NumberOfEntries1(StreamOf1(token, kv_head)) : 0,
                        N_SOURCES > 3 ? NumberOfEntries2(StreamOf2(token, kv_head)) : 0,
                        NumberOfEntries3(StreamOf3(token, kv_head)));
  const uvec2 range = SplitRange(n.x + n.y + n.z + n.w, split, p.split_block);
  BeginRows();
  AttendTo0(token, kv_head, row_begin, range, 0, n.x);
  if (N_SOURCES > 2) AttendTo1(token, kv_head, row_begin, range, n.x, n.y);
  if (N_SOURCES > 3) AttendTo2(token, kv_head, row_begin, range, n.x + n.y, n.z);
  AttendTo3(token, kv_head, row_begin, range, n.x + n.y + n.z, n.w);
  WriteRows(token, kv_head, row_begin, split);
  if (KeepsParts() && IsLast(token * gl_NumWorkGroups.x + gl_WorkGroupID.x, p.n_splits)) {
    const uint n_rows = min(ROWS, p.n_heads / p.n_kv_heads - row_begin);
    for (uint r = 0; r < n_rows; ++r) JoinRow(token, kv_head, HeadOf(kv_head, row_begin + r));
  }
}
