// What both kernels of attention over slots share: bindings, and which entries there are. Constants of each: HAS_BIASES,
// whether slots count entries of their own and have biases (SlotShape::has_biases); KEEPS_SCORES, whether scores go to
// scratch, for slot_mass.comp.
#include "include/read_only.glsl"
layout(push_constant) uniform Params { AttendSlotsParams p; };
READ_ONLY(0, qkv)
// SlotShape: records [n_streams, n_slots].
READ_ONLY(1, records)
// [n_streams, 2 + table_slots]: slots in use, entries of the last of them, slots. With HAS_BIASES [n_streams, 2 + 2 *
// table_slots]: slots in use, nothing, slot | (its entries - 1) << 24 of each, the bias of each.
READ_ONLY(2, table)
// The output [n_tokens * n_heads, head_dim], or with keeps_parts the parts that combine_splits.comp or
// combine_in_space.comp joins: [n_tokens * n_heads, n_parts, head_dim + 2]. With KEEPS_SCORES from scores_begin on the
// scores [n_tokens * n_heads, scores_stride], in the order of entries.
layout(set = 0, binding = 3, std430) writeonly buffer Result { float result[]; };
layout(set = 0, binding = 4, std140) uniform Step { StepParams stepp; };

const float kMasked = -1e30;

uint StreamOf(uint token, uint kv_head) {
  return stepp.tokens[token].sequence * (p.n_kv_heads / p.record.n_heads) + kv_head / p.record.n_heads;
}

// With HAS_BIASES those that do not count are among them: they get no weight.
uint NumberOfEntries(uint stream) {
  const uint n_slots = table_uint(stream * p.table_stride);
  if (HAS_BIASES != 0) return n_slots * p.record.group_tokens;
  return n_slots == 0 ? 0 : (n_slots - 1) * p.record.group_tokens + table_uint(stream * p.table_stride + 1);
}

// Of the `index`-th entry: the first word of its record, and its row there. Of one that does not count: the last's that
// does, as what follows that may be anything.
uvec2 RecordAndRow(uint stream, uint kv_head, uint index) {
  const uint nth = index / p.record.group_tokens;
  uint slot = table_uint(stream * p.table_stride + 2 + nth);
  uint entry = index - nth * p.record.group_tokens;
  if (HAS_BIASES != 0) {
    entry = min(entry, slot >> 24);
    slot &= 0xffffff;
  }
  return uvec2((stream * p.n_slots + slot) * p.record.size_words,
               (kv_head % p.record.n_heads) * p.record.group_tokens + entry);
}

// Of the `index`-th entry, with HAS_BIASES; of one that does not count kMasked, beside which no score matters.
float BiasOf(uint stream, uint index) {
  const uint nth = index / p.record.group_tokens;
  const uint slot = stream * p.table_stride + 2 + nth;
  if (index - nth * p.record.group_tokens > table_uint(slot) >> 24) return kMasked;
  return table_float(slot + p.table_stride / 2 - 1);
}
float AddBias(float score, float bias) { return HAS_BIASES != 0 ? score + bias : score; }

bool KeepsParts() { return p.keeps_parts != 0; }

// The part [begin, end) of n_entries that a split covers, in whole blocks.
uvec2 SplitRange(uint n_entries, uint split, uint block) {
  const uint blocks = (n_entries + block - 1) / block;
  const uint per_split = (blocks + p.n_splits - 1) / p.n_splits;
  return uvec2(min(split * per_split * block, n_entries), min((split + 1) * per_split * block, n_entries));
}

// The query head of row `row_begin + r` of a KV head; rows past the end are the last one again.
uint HeadOf(uint kv_head, uint row) {
  const uint group = p.n_heads / p.n_kv_heads;
  return kv_head * group + min(row, group - 1);
}

// Of row `row` of a KV head and the `index`-th entry; rows past the end have none.
void KeepScore(uint token, uint kv_head, uint row, uint index, float score) {
  const uint group = p.n_heads / p.n_kv_heads;
  if (KEEPS_SCORES != 0 && row < group) {
    result[p.scores_begin + (token * p.n_heads + kv_head * group + row) * p.scores_stride + index] = score;
  }
}
