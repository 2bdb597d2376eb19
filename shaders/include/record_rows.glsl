// Which row of which record is which entry of a layer's KV. The includer declares push constants RecordCopyParams p.

struct RecordRow {
  uint record;  // its first word
  uint row;     // in the record
  uint entry;   // of KvShape with one sequence, from first_head on: [n_kv_heads, 2, n_ctx]
  uint plane;   // of [n_kv_heads, 2] of all heads
  bool is_value;
};

// Rows are numbered [n_kv_heads, 2, n_groups, group_tokens].
uint NumberOfRows() { return 2 * p.n_kv_heads * p.n_groups * p.record.group_tokens; }

RecordRow RowAt(uint i) {
  const uint tokens = p.n_groups * p.record.group_tokens;
  const uint plane = i / tokens;
  const uint token = i % tokens;
  const uint kv_head = p.first_head + plane / 2;
  const uint record = kv_head / p.record.n_heads * p.n_groups + token / p.record.group_tokens;
  return RecordRow(record * p.record.size_words,
                   (kv_head % p.record.n_heads) * p.record.group_tokens + token % p.record.group_tokens,
                   plane * p.n_ctx + p.first_token + token, 2 * p.first_head + plane, plane % 2 != 0);
}

// Of a dispatch whose x and y are one number.
uint LinearInvocation() {
  return (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * gl_WorkGroupSize.x + gl_LocalInvocationIndex;
}
