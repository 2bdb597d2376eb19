// A row of a query: its heads, those of one KV head added up. Of project_query.comp, and of score.comp where it projects.
uint HeadsAdded() { return min(q.n_heads / q.n_rows, q.n_heads / q.n_kv_heads); }

// The first of a row's heads that are added up to its dimension i.
uint FirstHead(uint token, uint row, uint i) {
  return token * q.n_heads + row * (q.n_heads / q.n_rows) + i / q.head_dim * HeadsAdded();
}

// Dimension i of a row's heads, added up by KV head.
float Input(uint token, uint row, uint i) {
  float value = 0.0;
  for (uint h = 0; h < HeadsAdded(); ++h) value += HeadElement(token, FirstHead(token, row, i) + h, i % q.head_dim);
  return value;
}

// Dimensions i .. i + 3.
vec4 InputVector(uint token, uint row, uint i) {
  vec4 value = vec4(0.0);
  for (uint h = 0; h < HeadsAdded(); ++h) value += HeadVector(token, FirstHead(token, row, i) + h, i % q.head_dim);
  return value;
}
