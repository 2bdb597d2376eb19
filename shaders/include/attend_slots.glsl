// What both kernels of attention over slots of one source share: bindings, and which entries there are. Constants of
// each: HAS_BIASES, whether slots count entries of their own and have biases (SlotShape::has_biases); KEEPS_SCORES,
// whether scores go to scratch, for slot_mass.comp.
#include "include/read_only.glsl"
layout(push_constant) uniform Params { AttendSlotsParams p; };
READ_ONLY(0, qkv)
// SlotShape: records [n_streams, n_slots].
READ_ONLY(1, records)
READ_ONLY(2, table)
// The output [n_tokens * n_heads, head_dim], or with keeps_parts the parts that combine_splits.comp or
// combine_in_space.comp joins: [n_tokens * n_heads, n_parts, head_dim + 2]. With KEEPS_SCORES from scores_begin on the
// scores [n_tokens * n_heads, scores_stride], in the order of entries.
layout(set = 0, binding = 3, std430) writeonly buffer Result { float result[]; };
layout(set = 0, binding = 4, std140) uniform Step { StepParams stepp; };
#include "include/attend_rows.glsl"

#define OF_SOURCE(name) name
#define TABLE(kind) table_##kind
#define SOURCE_LAYOUT p.record
#define SOURCE_SLOTS p.n_slots
#define SOURCE_TABLE_STRIDE p.table_stride
#include "include/slot_table.glsl"

uint PartOf(uint row, uint split) { return row * p.n_parts + p.first_part + split; }

// Of row `row` of a KV head and the `index`-th entry; rows past the end have none.
void KeepScore(uint token, uint kv_head, uint row, uint index, float score) {
  const uint group = p.n_heads / p.n_kv_heads;
  if (KEEPS_SCORES != 0 && row < group) {
    result[p.scores_begin + (token * p.n_heads + kv_head * group + row) * p.scores_stride + index] = score;
  }
}
