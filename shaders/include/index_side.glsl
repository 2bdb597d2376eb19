// Four columns of a dimension's row of query_side or key_side, a buffer named side (read_only.glsl); the last again beyond it.
vec4 LoadSide(uint dim, uint column, uint rank) {
  const uint last = rank - 1;
  if (VECTOR_COLUMNS != 0) return side_vec4(dim * (rank / 4) + min(column, last) / 4);
  const uint at = dim * rank;
  return vec4(side_float(at + min(column, last)), side_float(at + min(column + 1, last)), side_float(at + min(column + 2, last)),
              side_float(at + min(column + 3, last)));
}
