// Four columns of a dimension's row of query_side or key_side, a buffer named side (read_only.glsl); the last again beyond
// it. HALF_SIDE: its numbers are f16.
float SideAt(uint i) {
  if (HALF_SIDE == 0) return side_float(i);
  const vec2 pair = unpackHalf2x16(side_uint(i / 2));
  return i % 2 == 0 ? pair.x : pair.y;
}

vec4 LoadSide(uint dim, uint column, uint rank) {
  const uint last = rank - 1;
  if (VECTOR_COLUMNS != 0) {
    const uint i = dim * (rank / 4) + min(column, last) / 4;
    if (HALF_SIDE == 0) return side_vec4(i);
    const uvec2 halves = side_uvec2(i);
    return vec4(unpackHalf2x16(halves.x), unpackHalf2x16(halves.y));
  }
  const uint at = dim * rank;
  return vec4(SideAt(at + min(column, last)), SideAt(at + min(column + 1, last)), SideAt(at + min(column + 2, last)),
              SideAt(at + min(column + 3, last)));
}
