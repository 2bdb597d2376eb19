// What the kernels of SumWeights and AttentionMass share: bindings, and scores of a tile's entries. A query is one head
// of a row; those that share a KV head are numbered row by row. Invocations lie along entries, so that a key is read once
// for QUERIES of them. KV_F16 or KV_F32: what the entries are read as.
#include "include/read_only.glsl"
layout(constant_id = 0) const uint VECTORS = 0;  // head_dim is a multiple of 8
layout(constant_id = 1) const uint HAS_CAP = 0;
layout(push_constant) uniform Params { RowMassParams p; };
#include "include/score_cap.glsl"
// [n_rows, n_heads, head_dim].
READ_ONLY(0, queries)
// KvShape of one sequence: [n_kv_heads, 2, n_ctx, head_dim].
READ_ONLY(1, kv)

#define QUERIES 8

uint Group() { return p.n_heads / p.n_kv_heads; }
uint NumberOfQueries() { return p.n_rows * Group(); }
uint RowOf(uint query) { return query / Group(); }
// Its place among [n_rows, n_heads].
uint PlaceOf(uint kv_head, uint query) { return RowOf(query) * p.n_heads + kv_head * Group() + query % Group(); }

// Of the queries from `first` on, and an entry; those past the end are the last one again.
void ScoreEntry(uint kv_head, uint first, uint entry, out float scores[QUERIES]) {
  const uint key = (2 * kv_head * p.n_ctx + entry) * p.head_dim;
  uint begins[QUERIES];
  [[unroll]] for (uint q = 0; q < QUERIES; ++q) {
    begins[q] = PlaceOf(kv_head, min(first + q, NumberOfQueries() - 1)) * p.head_dim;
    scores[q] = 0.0;
  }
  for (uint i = 0; i < p.head_dim; i += VECTORS != 0 ? 8 : 2) {
    if (VECTORS != 0) {
#ifdef KV_F16
      const uvec4 words = kv_uvec4((key + i) / 8);
      const vec4 low = vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y));
      const vec4 high = vec4(unpackHalf2x16(words.z), unpackHalf2x16(words.w));
#else
      const vec4 low = kv_vec4((key + i) / 4);
      const vec4 high = kv_vec4((key + i) / 4 + 1);
#endif
      [[unroll]] for (uint q = 0; q < QUERIES; ++q) {
        scores[q] += dot(low, queries_vec4((begins[q] + i) / 4));
        scores[q] += dot(high, queries_vec4((begins[q] + i) / 4 + 1));
      }
    } else {
#ifdef KV_F16
      const vec2 pair = unpackHalf2x16(kv_uint((key + i) / 2));
#else
      const vec2 pair = kv_vec2((key + i) / 2);
#endif
      [[unroll]] for (uint q = 0; q < QUERIES; ++q) scores[q] += dot(pair, queries_vec2((begins[q] + i) / 2));
    }
  }
  [[unroll]] for (uint q = 0; q < QUERIES; ++q) scores[q] = Capped(scores[q] * p.scale);
}
