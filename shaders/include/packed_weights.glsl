// Decodes packed matrices (docs/formats/packed_matrix.md). Define WEIGHT_<TYPE>; the matrix is at binding 0. A chunk
// is 64 columns of one row.
//
//   Chunk LoadChunk(planes, row, chunk)   reads everything that the chunk needs
//   vec4 ChunkWeights(chunk, j)           weights 4j .. 4j+3 of it, j in 0..15

layout(set = 0, binding = 0, std430) readonly buffer Packed4 { uvec4 packed4[]; };
layout(set = 0, binding = 0, std430) readonly buffer Packed2 { uvec2 packed2[]; };
layout(set = 0, binding = 0, std430) readonly buffer Packed1 { uint packed1[]; };

#if defined(WEIGHT_F32)
#define QUANT_VECTORS 16
#elif defined(WEIGHT_F16) || defined(WEIGHT_BF16)
#define QUANT_VECTORS 8
#elif defined(WEIGHT_Q8_0)
#define QUANT_VECTORS 4
#else
#define QUANT_VECTORS 2
#endif

#if defined(WEIGHT_Q4_K) || defined(WEIGHT_Q5_K) || defined(WEIGHT_Q6_K)
#define SUPER_BLOCKS 1
#endif

struct Chunk {
  uvec4 quants[QUANT_VECTORS];
#if defined(WEIGHT_Q5_0) || defined(WEIGHT_Q5_1) || defined(WEIGHT_Q5_K)
  uvec2 high;
#elif defined(WEIGHT_Q6_K)
  uvec4 high;
#endif
#if defined(WEIGHT_Q4_0) || defined(WEIGHT_Q5_0) || defined(WEIGHT_Q8_0)
  vec2 scale;  // of the two blocks of 32
#elif defined(WEIGHT_Q4_1) || defined(WEIGHT_Q5_1) || defined(WEIGHT_Q4_K) || defined(WEIGHT_Q5_K)
  vec2 scale;
  vec2 minimum;  // added
#elif defined(WEIGHT_Q6_K)
  vec4 scale;  // of the four blocks of 16
#endif
};

uint PlaneIndex(uint row, uint units_per_row, uint unit) {
  return ((row / KVRUN_ROW_INTERLEAVE) * units_per_row + unit) * KVRUN_ROW_INTERLEAVE + row % KVRUN_ROW_INTERLEAVE;
}

int SignedByte(uint word, uint index) { return int(word << (24u - 8u * index)) >> 24; }

Chunk LoadChunk(PackedPlanes planes, uint row, uint chunk) {
  Chunk c;
  [[unroll]] for (uint i = 0; i < QUANT_VECTORS; ++i) {
    c.quants[i] = packed4[PlaneIndex(row, planes.n_chunks * QUANT_VECTORS, chunk * QUANT_VECTORS + i)];
  }
  const uint unit = PlaneIndex(row, planes.n_chunks, chunk);
#if defined(WEIGHT_Q5_0) || defined(WEIGHT_Q5_1) || defined(WEIGHT_Q5_K)
  c.high = packed2[planes.high * 2 + unit];
#elif defined(WEIGHT_Q6_K)
  c.high = packed4[planes.high + unit];
#endif
#if defined(WEIGHT_Q4_0) || defined(WEIGHT_Q5_0) || defined(WEIGHT_Q8_0)
  c.scale = unpackHalf2x16(packed1[planes.scales * 4 + unit]);
#elif defined(WEIGHT_Q4_1) || defined(WEIGHT_Q5_1)
  const uvec2 words = packed2[planes.scales * 2 + unit];
  const vec2 first = unpackHalf2x16(words.x);
  const vec2 second = unpackHalf2x16(words.y);
  c.scale = vec2(first.x, second.x);
  c.minimum = vec2(first.y, second.y);
#elif defined(SUPER_BLOCKS)
  // Super-blocks of 256 columns are four chunks.
  const uvec4 words = packed4[planes.scales + PlaneIndex(row, planes.n_chunks / 4, chunk / 4)];
  const uint part = chunk % 4;
#if defined(WEIGHT_Q6_K)
  const float d = unpackHalf2x16(packed1[planes.extra * 4 + PlaneIndex(row, planes.n_chunks / 4, chunk / 4)]).x;
  const uint word = part == 0 ? words.x : (part == 1 ? words.y : (part == 2 ? words.z : words.w));
  c.scale = d * vec4(SignedByte(word, 0), SignedByte(word, 1), SignedByte(word, 2), SignedByte(word, 3));
#else
  // words.x: d, dmin; the rest: per chunk of the super-block 24 bits, scale, minimum of its first and second
  // block of 32, 6 bits each.
  const vec2 d = unpackHalf2x16(words.x);
  const uint bits = part == 0   ? words.y
                    : part == 1 ? (words.y >> 24) | (words.z << 8)
                    : part == 2 ? (words.z >> 16) | (words.w << 16)
                                : words.w >> 8;
  c.scale = d.x * vec2(bits & 63u, (bits >> 12) & 63u);
  c.minimum = -d.y * vec2((bits >> 6) & 63u, (bits >> 18) & 63u);
#endif
#endif
  return c;
}

vec4 ChunkWeights(Chunk c, uint j) {
#if defined(WEIGHT_F32)
  return uintBitsToFloat(c.quants[j]);
#elif defined(WEIGHT_F16)
  const uvec4 q = c.quants[j / 2];
  const uvec2 w = j % 2 == 0 ? q.xy : q.zw;
  return vec4(unpackHalf2x16(w.x), unpackHalf2x16(w.y));
#elif defined(WEIGHT_BF16)
  const uvec4 q = c.quants[j / 2];
  const uvec2 w = j % 2 == 0 ? q.xy : q.zw;
  return uintBitsToFloat(uvec4(w.x << 16, w.x & 0xffff0000u, w.y << 16, w.y & 0xffff0000u));
#elif defined(WEIGHT_Q8_0)
  const uint w = c.quants[j / 4][j % 4];
  return c.scale[j / 8] * vec4(SignedByte(w, 0), SignedByte(w, 1), SignedByte(w, 2), SignedByte(w, 3));
#else
  const uint low = c.quants[j / 8][(j % 8) / 2] >> ((j % 2) * 16);
  uvec4 q = uvec4(low, low >> 4, low >> 8, low >> 12) & 15u;
#if defined(WEIGHT_Q5_0) || defined(WEIGHT_Q5_1) || defined(WEIGHT_Q5_K)
  const uint high = c.high[j / 8] >> ((j % 8) * 4);
  q |= uvec4(high << 4, high << 3, high << 2, high << 1) & 16u;
#elif defined(WEIGHT_Q6_K)
  const uint high = c.high[j / 4] >> ((j % 4) * 8);
  q |= uvec4(high << 4, high << 2, high, high >> 2) & 48u;
#endif
#if defined(WEIGHT_Q4_0)
  return c.scale[j / 8] * (vec4(q) - 8.0);
#elif defined(WEIGHT_Q5_0)
  return c.scale[j / 8] * (vec4(q) - 16.0);
#elif defined(WEIGHT_Q6_K)
  return c.scale[j / 4] * (vec4(q) - 32.0);
#else
  return c.scale[j / 8] * vec4(q) + c.minimum[j / 8];
#endif
#endif
}
