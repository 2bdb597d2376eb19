// Decodes packed matrices (docs/formats/packed_matrix.md). Define WEIGHT_<TYPE>; the matrix is at binding 0. A block
// is 32 columns of one row, an eighth of it a group of four.
//
//   Block LoadBlock(planes, row, block)        scales and high bits
//   uvec4 LoadQuants(planes, row, block, i)    vector i of its QUANT_VECTORS vectors of quants
//   vec4 BlockWeights(block, quants, j)        weights 4j .. 4j+3 of the block, j in 0..7; quants is the vector
//                                              j / GROUPS_PER_VECTOR
//   HALVES is defined where columns 0 to 15 and 16 to 31 of a block each have their own scale.
//   AFFINE_BLOCKS is defined where a weight is scale * quant + offset with one scale and offset per block: then
//   vec4 BlockQuants(block, quants, j) gives the quants, so that a dot product is scaled once per block.
//   But for FLOAT_WEIGHTS, RawQuants(block, quants, j) gives what of a weight is least work: with RawScale(block, half),
//   of one half of a block's columns, it is .x times that plus .y.

READ_ONLY(0, packed)

#if defined(WEIGHT_F32)
#define QUANT_VECTORS 8
#elif defined(WEIGHT_F16) || defined(WEIGHT_BF16)
#define QUANT_VECTORS 4
#elif defined(WEIGHT_Q8_0)
#define QUANT_VECTORS 2
#else
#define QUANT_VECTORS 1
#endif
#if defined(WEIGHT_F32) || defined(WEIGHT_F16) || defined(WEIGHT_BF16)
#define FLOAT_WEIGHTS 1
#endif
#if defined(WEIGHT_Q2_K) || defined(WEIGHT_Q3_K) || defined(WEIGHT_Q6_K)
#define HALVES 1
#endif
#if defined(WEIGHT_Q2_K) || defined(WEIGHT_Q3_K)
#define BIT_PAIRS 1  // the low bits of quants: two instead of four
#endif
#if defined(WEIGHT_IQ4_NL) || defined(WEIGHT_IQ4_XS)
#define CODES 1  // which stand for values of a table
#endif
#define GROUPS_PER_VECTOR (8 / QUANT_VECTORS)  // groups of four weights

// What the weights of a block have in common.
struct Block {
#if defined(WEIGHT_Q3_K) || defined(WEIGHT_Q5_0) || defined(WEIGHT_Q5_1) || defined(WEIGHT_Q5_K)
  uint high;
#elif defined(WEIGHT_Q6_K)
  uvec2 high;
#endif
#if defined(HALVES)
  vec2 scale;  // of its two halves
#if defined(WEIGHT_Q2_K)
  vec2 offset;  // added to the scaled quant
#endif
#elif !defined(FLOAT_WEIGHTS)
  float scale;
  float offset;  // added to the scaled quant
#else
  float unused;
#endif
};

// The index of a unit of a plane, in units.
uint PlaneIndex(uint row, uint units_per_row, uint unit) {
  return ((row / KVRUN_ROW_INTERLEAVE) * units_per_row + unit) * KVRUN_ROW_INTERLEAVE + row % KVRUN_ROW_INTERLEAVE;
}

int SignedByte(uint word, uint index) { return int(word << (24u - 8u * index)) >> 24; }

uvec4 LoadQuants(PackedPlanes planes, uint row, uint block, uint i) {
#if defined(BIT_PAIRS)  // a vector holds two blocks
  return uvec4(packed_uvec2(PlaneIndex(row, planes.n_chunks, block / 2) * 2 + block % 2), 0, 0);
#else
  return packed_uvec4(PlaneIndex(row, planes.n_chunks * 2 * QUANT_VECTORS, block * QUANT_VECTORS + i));
#endif
}

#if defined(WEIGHT_Q3_K) || defined(WEIGHT_Q4_K) || defined(WEIGHT_Q5_K)
// The two numbers, of six bits each, of one of a super-block's eight blocks.
uvec2 SixBits(uvec3 words, uint part) {
  const uint at = 12 * part;
  const uint low_word = at < 32 ? words.x : (at < 64 ? words.y : words.z);
  const uint high_word = at < 32 ? words.y : words.z;
  const uint shift = at % 32;
  const uint bits = (low_word >> shift) | (shift > 20 ? high_word << (32 - shift) : 0);
  return uvec2(bits & 63u, (bits >> 6) & 63u);
}
#endif

#if defined(CODES)
// The numbers that four codes stand for: kIq4Values of runtime/model/block_bits.h, four a word.
vec4 ValuesOfCodes(uvec4 codes) {
  const uvec4 upper = mix(uvec4(0x26190d01u), uvec4(0x71594535u), notEqual(codes & 4u, uvec4(0)));
  const uvec4 lower = mix(uvec4(0xbfad9881u), uvec4(0xf6eaddcfu), notEqual(codes & 4u, uvec4(0)));
  const uvec4 words = mix(lower, upper, notEqual(codes & 8u, uvec4(0)));
  return vec4(ivec4(words << (24u - 8u * (codes & 3u))) >> 24);
}
#endif

Block LoadBlock(PackedPlanes planes, uint row, uint block) {
  Block b;
  const uint unit = PlaneIndex(row, planes.n_chunks, block / 2);  // of planes with a unit per chunk
  const uint parity = block % 2;
#if defined(WEIGHT_Q3_K) || defined(WEIGHT_Q5_0) || defined(WEIGHT_Q5_1) || defined(WEIGHT_Q5_K)
  b.high = packed_uint(planes.high * 4 + unit * 2 + parity);
#elif defined(WEIGHT_Q6_K)
  b.high = packed_uvec2(planes.high * 2 + unit * 2 + parity);
#endif
#if defined(WEIGHT_Q4_0) || defined(WEIGHT_Q5_0) || defined(WEIGHT_Q8_0) || defined(WEIGHT_IQ4_NL)
  b.scale = unpackHalf2x16(packed_uint(planes.scales * 4 + unit) >> (16 * parity)).x;
#if defined(WEIGHT_Q4_0)
  b.offset = -8.0 * b.scale;
#elif defined(WEIGHT_Q5_0)
  b.offset = -16.0 * b.scale;
#else
  b.offset = 0.0;
#endif
#elif defined(WEIGHT_Q4_1) || defined(WEIGHT_Q5_1)
  const vec2 scale_offset = unpackHalf2x16(packed_uint(planes.scales * 4 + unit * 2 + parity));
  b.scale = scale_offset.x;
  b.offset = scale_offset.y;
#elif !defined(FLOAT_WEIGHTS)
  // Super-blocks of 256 columns are eight blocks.
  const uint super_unit = PlaneIndex(row, planes.n_chunks / 4, block / 8);
  const uint part = block % 8;
#if defined(WEIGHT_Q6_K) || defined(WEIGHT_Q2_K)
  const vec2 d = unpackHalf2x16(packed_uint(planes.extra * 4 + super_unit));
  const uint word = packed_uint(planes.scales * 4 + super_unit * 4 + part / 2) >> (16 * parity);
#if defined(WEIGHT_Q6_K)
  b.scale = d.x * vec2(SignedByte(word, 0), SignedByte(word, 1));
#else
  b.scale = d.x * vec2(word & 15u, (word >> 8) & 15u);
  b.offset = -d.y * vec2((word >> 4) & 15u, (word >> 12) & 15u);
#endif
#elif defined(WEIGHT_IQ4_XS)
  // words.x: d, and the upper two bits of eight scales; words.y: their lower four.
  const uvec2 words = packed_uvec2(planes.scales * 2 + super_unit);
  const uint bits = ((words.y >> (4 * part)) & 15u) | ((words.x >> (16 + 2 * part)) & 3u) << 4;
  b.scale = unpackHalf2x16(words.x).x * float(int(bits) - 32);
  b.offset = 0.0;
#else
  // words.x: d, dmin; the rest: two numbers of six bits for each block.
  const uvec4 words = packed_uvec4(planes.scales + super_unit);
  const vec2 d = unpackHalf2x16(words.x);
  const uvec2 numbers = SixBits(words.yzw, part);
#if defined(WEIGHT_Q3_K)
  b.scale = d.x * vec2(ivec2(numbers) - 32);
#else
  b.scale = d.x * float(numbers.x);
  b.offset = -d.y * float(numbers.y);
#endif
#endif
#endif
  return b;
}

#if !defined(FLOAT_WEIGHTS) && !defined(HALVES)
#define AFFINE_BLOCKS 1
#endif

vec4 BlockQuants(Block b, uvec4 quants, uint j) {
#if defined(WEIGHT_F32)
  return uintBitsToFloat(quants);
#elif defined(WEIGHT_F16)
  const uvec2 w = j % 2 == 0 ? quants.xy : quants.zw;
  return vec4(unpackHalf2x16(w.x), unpackHalf2x16(w.y));
#elif defined(WEIGHT_BF16)
  const uvec2 w = j % 2 == 0 ? quants.xy : quants.zw;
  return uintBitsToFloat(uvec4(w.x << 16, w.x & 0xffff0000u, w.y << 16, w.y & 0xffff0000u));
#elif defined(WEIGHT_Q8_0)
  const uint w = quants[j % 4];
  return vec4(SignedByte(w, 0), SignedByte(w, 1), SignedByte(w, 2), SignedByte(w, 3));
#elif defined(BIT_PAIRS)
  const uint low = quants[j / 4] >> ((j % 4) * 8);
  uvec4 q = uvec4(low, low >> 2, low >> 4, low >> 6) & 3u;
#if defined(WEIGHT_Q3_K)
  const uint high = b.high >> (j * 4);
  q |= uvec4(high << 2, high << 1, high, high >> 1) & 4u;
#endif
  return vec4(ivec4(q));
#else
  const uint low = quants[j / 2] >> ((j % 2) * 16);
  uvec4 q = uvec4(low, low >> 4, low >> 8, low >> 12) & 15u;
#if defined(WEIGHT_Q5_0) || defined(WEIGHT_Q5_1) || defined(WEIGHT_Q5_K)
  const uint high = b.high >> (j * 4);
  q |= uvec4(high << 4, high << 3, high << 2, high << 1) & 16u;
#elif defined(WEIGHT_Q6_K)
  const uint high = b.high[j / 4] >> ((j % 4) * 8);
  q |= uvec4(high << 4, high << 2, high, high >> 2) & 48u;
#endif
#if defined(CODES)
  return ValuesOfCodes(q);
#else
  return vec4(ivec4(q));
#endif
#endif
}

#if defined(WEIGHT_Q4_0) || defined(WEIGHT_Q4_1) || defined(WEIGHT_Q4_K)
// 1 + quant / 16, whose bits need no conversion of a whole number.
vec4 RawQuants(Block b, uvec4 quants, uint j) {
  const uint w = quants[j / 2];
  uvec4 bits;
  if (j % 2 == 0) {
    bits = uvec4(w << 19, w << 15, w << 11, w << 7);
  } else {
    bits = uvec4(w << 3, w >> 1, w >> 5, w >> 9);
  }
  return uintBitsToFloat((bits & 0x00780000u) | 0x3f800000u);
}
vec2 RawScale(Block b, uint half_block) { return vec2(16.0 * b.scale, b.offset - 16.0 * b.scale); }
#elif !defined(FLOAT_WEIGHTS)
vec4 RawQuants(Block b, uvec4 quants, uint j) { return BlockQuants(b, quants, j); }
vec2 RawScale(Block b, uint half_block) {
#if defined(WEIGHT_Q2_K)
  return vec2(b.scale[half_block], b.offset[half_block]);
#elif defined(WEIGHT_Q3_K)
  return vec2(b.scale[half_block], -4.0 * b.scale[half_block]);
#elif defined(WEIGHT_Q6_K)
  return vec2(b.scale[half_block], -32.0 * b.scale[half_block]);
#else
  return vec2(b.scale, b.offset);
#endif
}
#endif

vec4 BlockWeights(Block b, uvec4 quants, uint j) {
  const vec4 q = BlockQuants(b, quants, j);
#if defined(AFFINE_BLOCKS)
  return b.scale * q + b.offset;
#elif defined(WEIGHT_Q2_K)
  return b.scale[j / 4] * q + b.offset[j / 4];
#elif defined(WEIGHT_Q3_K)
  return b.scale[j / 4] * (q - 4.0);
#elif defined(WEIGHT_Q6_K)
  return b.scale[j / 4] * (q - 32.0);
#else
  return q;
#endif
}
