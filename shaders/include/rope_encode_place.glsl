// Where the kernels rope_encode find a row's mean and write its record. The includer declares push constants p, a step
// stepp, the constants K_TYPE and V_TYPE, and includes kv_encode.glsl.

// In norms.
uint MeanBegin(uint token, uint kv_head, bool is_value) {
  const uint sequence = stepp.tokens[token].sequence;
  return p.means_begin + ((sequence * p.n_kv_heads + kv_head) * 2 + (is_value ? 1 : 0)) * HEAD_DIM;
}

void EncodeInPlace(uint source, uint token, uint kv_head, bool is_value) {
  const KvRecordLayout r = p.record;
  const uint position = stepp.tokens[token].position;
  const uint streams = p.n_kv_heads / r.n_heads;  // of a sequence
  const uint stream = stepp.tokens[token].sequence * streams + kv_head / r.n_heads;
  const uint slot = p.n_slots - p.n_window_slots + (position / r.group_tokens) % p.n_window_slots;
  const uint record = (stream * p.n_slots + slot) * r.size_words;
  const uint row = (kv_head % r.n_heads) * r.group_tokens + position % r.group_tokens;
  if (is_value) {
    EncodeRow(V_TYPE, source, record + r.v_begin + row * r.v_row_words,
              2 * record + r.v_scales_begin + row * r.v_row_scales, r.head_dim);
  } else {
    EncodeRow(K_TYPE, source, record + row * r.k_row_words, 2 * record + r.k_scales_begin + row * r.k_row_scales,
              r.head_dim);
  }
}
