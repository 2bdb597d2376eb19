// Which entries a source has. Macros: OF_SOURCE(name), the name of a function of this source; TABLE(kind), how its
// tables are read; SOURCE_LAYOUT (a KvRecordLayout), SOURCE_SLOTS and SOURCE_TABLE_STRIDE, from a stream to the next;
// HAS_BIASES.
//
// Tables: [n_streams, 2 + table_slots]: slots in use, entries of the last of them, slots. With HAS_BIASES [n_streams,
// 2 + 2 * table_slots]: slots in use, nothing, slot | (its entries - 1) << 24 of each, the bias of each.

uint OF_SOURCE(StreamOf)(uint token, uint kv_head) {
  const uint n_heads = SOURCE_LAYOUT.n_heads;
  return stepp.tokens[token].sequence * (p.n_kv_heads / n_heads) + kv_head / n_heads;
}

// With HAS_BIASES those that do not count are among them: they get no weight.
uint OF_SOURCE(NumberOfEntries)(uint stream) {
  const uint group_tokens = SOURCE_LAYOUT.group_tokens;
  const uint n_slots = TABLE(uint)(stream * SOURCE_TABLE_STRIDE);
  if (HAS_BIASES != 0) return n_slots * group_tokens;
  return n_slots == 0 ? 0 : (n_slots - 1) * group_tokens + TABLE(uint)(stream * SOURCE_TABLE_STRIDE + 1);
}

// Of the `index`-th entry: the first word of its record, and its row there. Of one that does not count: the last's that
// does, as what follows that may be anything.
uvec2 OF_SOURCE(RecordAndRow)(uint stream, uint kv_head, uint index) {
  const KvRecordLayout record = SOURCE_LAYOUT;
  const uint nth = index / record.group_tokens;
  uint slot = TABLE(uint)(stream * SOURCE_TABLE_STRIDE + 2 + nth);
  uint entry = index - nth * record.group_tokens;
  if (HAS_BIASES != 0) {
    entry = min(entry, slot >> 24);
    slot &= 0xffffff;
  }
  return uvec2((stream * SOURCE_SLOTS + slot) * record.size_words,
               (kv_head % record.n_heads) * record.group_tokens + entry);
}

// Of the `index`-th entry, with HAS_BIASES; of one that does not count kMasked, beside which no score matters.
float OF_SOURCE(BiasOf)(uint stream, uint index) {
  const uint group_tokens = SOURCE_LAYOUT.group_tokens;
  const uint nth = index / group_tokens;
  const uint slot = stream * SOURCE_TABLE_STRIDE + 2 + nth;
  if (index - nth * group_tokens > TABLE(uint)(slot) >> 24) return kMasked;
  return TABLE(float)(slot + SOURCE_TABLE_STRIDE / 2 - 1);
}
float OF_SOURCE(AddBias)(float score, float bias) { return HAS_BIASES != 0 ? score + bias : score; }
