// What a product multiplies with: rows of columns, taken in vectors of four. The includer declares VECTOR_INPUT (n_cols
// is a multiple of 4), push constants p (n_cols, n_tokens, norm_epsilon), and what is read only: `inputs`, and `constants`,
// which begins with a norm's weights.
//
// Macro MAY_BRANCH: rows of float types are read as vectors where they can be. Some drivers take minutes to compile
// dozens of such branches.

// Columns 4v .. 4v+3 of a token's row. What lies beyond the last column is finite, and meets weights that are zero. Only
// rows of float types may be no whole number of vectors.
vec4 LoadInput(uint token, uint v) {
  const uint t = min(token, p.n_tokens - 1);
#if !defined(FLOAT_WEIGHTS)
  return inputs_vec4(t * (p.n_cols / 4) + v);
#else
  const uint base = t * p.n_cols + 4 * v;
#ifdef MAY_BRANCH
  if (VECTOR_INPUT != 0) return inputs_vec4(base / 4);
#endif
  return vec4(inputs_float(base), inputs_float(base + 1), inputs_float(base + 2), inputs_float(base + 3));
#endif
}

// The sum of their squares.
float SquaresOf(vec4 x, uint v) {
#if !defined(FLOAT_WEIGHTS)
  return 4 * v < p.n_cols ? dot(x, x) : 0.0;
#else
  const bvec4 is_there = lessThan(uvec4(4 * v, 4 * v + 1, 4 * v + 2, 4 * v + 3), uvec4(p.n_cols));
  const vec4 known = mix(vec4(0.0), x, is_there);
  return dot(known, known);
#endif
}

vec4 NormWeights(uint v) {
#if defined(FLOAT_WEIGHTS)
#ifdef MAY_BRANCH
  if (VECTOR_INPUT != 0) return constants_vec4(v);
#endif
  return vec4(constants_float(4 * v), constants_float(4 * v + 1), constants_float(4 * v + 2),
              constants_float(4 * v + 3));
#else
  return constants_vec4(v);
#endif
}

// By which a product of a row that was multiplied with the norm's weights alone is multiplied.
float NormFactor(float squares) { return 1.0 / sqrt(squares / float(p.n_cols) + p.norm_epsilon); }
