// Columns of an index's rows, by words. Of a buffer named index (read_only.glsl), push constants `p` (ScoreParams) and
// the constants RANK and GROUP (entries of a group); macros INDEX_F16, INDEX_INT8 or INDEX_INT4.
#if defined(INDEX_F16)
#define BITS 16
#elif defined(INDEX_INT8)
#define BITS 8
#else
#define BITS 4
#endif
#define PER_WORD (32 / BITS)

// Of one entry's row.
const uint WORDS = (RANK * BITS + 31) / 32;

// 32 bits of an entry's row from column k * PER_WORD on; zeros beyond its last. first_group: of the entry's sequence.
uint LoadWord(uint first_group, uint entry, uint k) {
  const uint bit = (entry % GROUP) * RANK * BITS + 32 * k;
  const uint at = (first_group + entry / GROUP) * p.group_words + bit / 32;
  uint word = index_uint(at);
  if (RANK * BITS % 32 != 0) {
    const uint shift = bit % 32;
    if (shift != 0) word = word >> shift | index_uint(at + 1) << (32 - shift);
    if (k == WORDS - 1) word &= (1u << (RANK * BITS % 32)) - 1;
  }
  return word;
}

// Column j of a word.
float Value(uint word, uint j) {
#if defined(INDEX_F16)
  return unpackHalf2x16(j == 0 ? word : word >> 16).x;
#else
  return float(int(word << (32 - BITS - BITS * j)) >> (32 - BITS));
#endif
}

// Column j of the word of each of four entries.
vec4 Values(uvec4 words, uint j) {
#if defined(INDEX_F16)
  const uvec4 halves = j == 0 ? words & 0xffffu : words >> 16;
  return vec4(unpackHalf2x16(halves.x).x, unpackHalf2x16(halves.y).x, unpackHalf2x16(halves.z).x,
              unpackHalf2x16(halves.w).x);
#else
  return vec4(ivec4(words << (32 - BITS - BITS * j)) >> (32 - BITS));
#endif
}
