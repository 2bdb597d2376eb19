// What both attention kernels share: bindings, and which rows and positions a tile covers. Constants of each: HAS_CAP,
// whether scores have one; HAS_WINDOW, whether rows attend to the newest window_tokens entries alone, in a ring.
//
// Macro NEW_ENTRY: rows are no prompt's; the kernel itself rotates queries, and rotates and stores what is new of K and V.
#include "include/read_only.glsl"
#ifdef NEW_ENTRY
layout(push_constant) uniform Params { AttendParams p; NewEntryParams entry; };
#else
layout(push_constant) uniform Params { AttendParams p; };
#endif
READ_ONLY(0, qkv)
// KvShape: [n_sequences, n_kv_heads, 2, n_ctx, head_dim], from first_stream on; f16 entries are two to a word.
READ_ONLY(1, kv)
layout(set = 0, binding = 2, std430) writeonly buffer Output { float result[]; };
// [n_tokens * n_heads, n_splits, head_dim + 2], see combine_splits.comp.
#ifdef NEW_ENTRY
layout(set = 0, binding = 3, std430) coherent buffer Scratch { uint scratch[]; };
// [n_tokens, rotary_dim / 2]: cosine and sine of the row's angle, times the magnitude.
READ_ONLY(4, angles)
// q_norm [head_dim], k_norm [head_dim].
READ_ONLY(5, norms)
layout(set = 0, binding = 6, std430) writeonly buffer NewKv { uint new_kv[]; };  // kv, to be written
layout(set = 0, binding = 7, std430) coherent buffer Counters { uint counters[]; };
layout(set = 0, binding = 8, std140) uniform Step { StepParams stepp; };
#else
layout(set = 0, binding = 3, std430) writeonly buffer Scratch { float scratch[]; };
layout(set = 0, binding = 4, std140) uniform Step { StepParams stepp; };
#endif

const float kMasked = -1e30;
#include "include/score_cap.glsl"

// Rows of a span that share a KV head.
uint SpanRows() { return p.span_tokens * (p.n_heads / p.n_kv_heads); }

// The step's token and head of a row of a span; rows past the end are the last one again.
uvec2 TokenAndHead(uint span, uint kv_head, uint row) {
  const uint group = p.n_heads / p.n_kv_heads;
  const uint r = min(row, SpanRows() - 1);
  return uvec2(span * p.span_tokens + r / group, kv_head * group + r % group);
}

// Among those that are bound; large where it is not one of them.
uint BoundStream(uint span, uint kv_head) {
  return stepp.tokens[span * p.span_tokens].sequence * p.n_kv_heads + kv_head - p.first_stream;
}

// The first position that a row at `position` attends to.
uint FirstSeen(uint position) {
  return HAS_WINDOW != 0 && position >= p.window_tokens ? position + 1 - p.window_tokens : 0;
}

bool Sees(uint row_position, uint position) {
  return position <= row_position && (HAS_WINDOW == 0 || position + p.window_tokens > row_position);
}

// The part [begin, end) that a split covers, in whole blocks, of the positions from what a row at `first` attends to on
// to `last`.
uvec2 SplitRange(uint first, uint last, uint split, uint block) {
  const uint begin = FirstSeen(first);
  const uint blocks = (last - begin + block) / block;
  const uint per_split = (blocks + p.n_splits - 1) / p.n_splits;
  const uvec2 part = min(uvec2(split, split + 1) * per_split, blocks) * block;
  return begin + uvec2(part.x, min(part.y, last + 1 - begin));
}

// Where the entries of a block of positions that begins at `position` lie: EntryAt(BlockBegin(position) + i) for the
// i-th; for those behind what counts, anywhere.
uint BlockBegin(uint position) { return HAS_WINDOW != 0 ? position % p.n_ctx : position; }
uint EntryAt(uint at) { return min(HAS_WINDOW != 0 && at >= p.n_ctx ? at - p.n_ctx : at, p.n_ctx - 1); }
