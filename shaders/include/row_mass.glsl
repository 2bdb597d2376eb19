// What the kernels of SumWeights and AttentionMass share: bindings, and scores of a tile's entries. KV_F16 or KV_F32:
// what the entries are read as.
layout(push_constant) uniform Params { RowMassParams p; };
// [n_rows, n_heads, head_dim / 2].
layout(set = 0, binding = 0, std430) readonly buffer Queries { vec2 queries[]; };
// KvShape of one sequence: [n_kv_heads, 2, n_ctx, head_dim].
layout(set = 0, binding = 1, std430) readonly buffer Kv { uint kv[]; };

// Of a row's head and an entry of the tile.
float ScoreOf(uint row, uint head, uint entry) {
  const uint pairs = p.head_dim / 2;
  const uint kv_head = head / (p.n_heads / p.n_kv_heads);
  const uint query = (row * p.n_heads + head) * pairs;
  const uint key = (2 * kv_head * p.n_ctx + entry) * pairs;
  float score = 0.0;
  for (uint i = 0; i < pairs; ++i) {
    const vec2 q = queries[query + i];
#ifdef KV_F16
    const vec2 k = unpackHalf2x16(kv[key + i]);
#else
    const vec2 k = vec2(uintBitsToFloat(kv[2 * (key + i)]), uintBitsToFloat(kv[2 * (key + i) + 1]));
#endif
    score += k.x * q.x;
    score += k.y * q.y;
  }
  return score * p.scale;
}
