// What kernels of attention over slots do with a subgroup, whatever their sources: decode elements, keep the running
// softmax of ROWS query heads, and write it. For scores lanes lie along entries; for the weighted sum of V along the
// head's dimensions, SUM_DIMS each, and where the head has fewer vectors of so many than there are lanes, groups of
// lanes take every KEY_GROUPS-th entry.
//
// Macros: ROWS, SUM_DIMS. Needs: at least 8 lanes; HEAD_DIM / SUM_DIMS is a power of two and at most
// MAX_VECTORS_PER_LANE * LANES.

#define FEWEST_LANES 8
#define KEYS_PER_LANE 4
// K is read in vectors of 4 words, and decoded in parts of 4 elements.
#define K_DIMS (K_TYPE == KVRUN_KV_F32 ? 4 : K_TYPE == KVRUN_KV_F16 ? 8 : K_TYPE == KVRUN_KV_INT4 ? 32 : 16)
#define K_PARTS (K_DIMS / 4)
#define K_VECTORS (HEAD_DIM / K_DIMS)
// So is V, but int4 in vectors of 2 words.
#define V_DIMS (V_TYPE == KVRUN_KV_F32 ? 4 : V_TYPE == KVRUN_KV_F16 ? 8 : 16)
#define V_PARTS (V_DIMS / 4)
#define V_LOAD_WORDS (V_TYPE == KVRUN_KV_INT4 ? 2 : 4)
// A lane holds the sums of SUM_DIMS elements for each so many vectors of V.
#define V_LOADS (SUM_DIMS / V_DIMS)
#define SUM_PARTS (SUM_DIMS / 4)
#define MAX_VECTORS_PER_LANE (SUM_DIMS == 16 ? 2 : 4)
// Loads in which the lanes share the parts of Q that meet one vector of K.
#define SHARES ((ROWS * K_PARTS + FEWEST_LANES - 1) / FEWEST_LANES)

const uint SUM_VECTORS = HEAD_DIM / SUM_DIMS;
const uint VECTORS_PER_LANE = SUM_VECTORS > LANES ? SUM_VECTORS / LANES : 1;
const uint KEY_GROUPS = SUM_VECTORS < LANES ? LANES / SUM_VECTORS : 1;
const uint KEYS_PER_GROUP = LANES / KEY_GROUPS;

// Reductions over the lanes that differ in bits at or above `from` of their index. Spelled out, because loops with
// specialised bounds keep the loops around them from being unrolled.
#define FOLD(value, from, OP)                                                      \
  if (LANES > 1 && from <= 1) value = OP(value, subgroupShuffleXor(value, 1));     \
  if (LANES > 2 && from <= 2) value = OP(value, subgroupShuffleXor(value, 2));     \
  if (LANES > 4 && from <= 4) value = OP(value, subgroupShuffleXor(value, 4));     \
  if (LANES > 8 && from <= 8) value = OP(value, subgroupShuffleXor(value, 8));     \
  if (LANES > 16 && from <= 16) value = OP(value, subgroupShuffleXor(value, 16));  \
  if (LANES > 32 && from <= 32) value = OP(value, subgroupShuffleXor(value, 32));  \
  if (LANES > 64 && from <= 64) value = OP(value, subgroupShuffleXor(value, 64));
#define ADD(a, b) ((a) + (b))

// E4M3 as halves: the same bits, further left, stand for 2^-8 of the number; TypeFactor makes up for it. A device that
// flushes small halves to zero flushes what is below 2^-6 (of a row whose largest is 448), an error of less than
// 2^-15 of the row's largest.
vec4 Fp8Quad(uint word) {
  const vec2 even = unpackHalf2x16(((word & 0x00800080u) << 8) | ((word & 0x007f007fu) << 7));
  const vec2 odd = unpackHalf2x16((word & 0x80008000u) | ((word & 0x7f007f00u) >> 1));
  return vec4(even.x, odd.x, even.y, odd.y);
}

float TypeFactor(uint type) { return type == KVRUN_KV_FP8 ? 256.0 : 1.0; }

// Elements 4 * part .. 4 * part + 3 of a vector, before they are scaled. `part` is a literal where it is called.
vec4 DecodePart(uint type, uvec4 vector, uint part) {
  if (type == KVRUN_KV_F32) return uintBitsToFloat(vector);
  if (type == KVRUN_KV_F16) return vec4(unpackHalf2x16(vector[2 * part]), unpackHalf2x16(vector[2 * part + 1]));
  if (type == KVRUN_KV_FP8) return Fp8Quad(vector[part]);
  if (type == KVRUN_KV_INT8) return vec4((ivec4(vector[part]) << ivec4(24, 16, 8, 0)) >> 24);
  return vec4((ivec4(vector[part / 2] >> (16 * (part % 2))) << ivec4(28, 24, 20, 16)) >> 28);
}

// Of the entries so far.
float maximum[ROWS];
float weight[ROWS];  // of this lane's entries
vec4 sums[ROWS][MAX_VECTORS_PER_LANE][SUM_PARTS];

void BeginRows() {
  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    maximum[r] = kMasked;
    weight[r] = 0.0;
    [[unroll]] for (uint v = 0; v < MAX_VECTORS_PER_LANE; ++v)
      [[unroll]] for (uint h = 0; h < SUM_PARTS; ++h) sums[r][v][h] = vec4(0.0);
  }
}

// A number of a part.
#ifndef PUT_PART
#define PUT_PART(at, value) result[at] = value
#endif

void WriteRows(uint token, uint kv_head, uint row_begin, uint split) {
  const uint lane = gl_LocalInvocationIndex;
  const uint group = p.n_heads / p.n_kv_heads;
  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    FOLD(weight[r], 1, ADD)
    [[unroll]] for (uint h = 0; h < SUM_PARTS; ++h) {
      FOLD(sums[r][0][h], SUM_VECTORS, ADD)
    }
  }
  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    if (row_begin + r < group && lane < SUM_VECTORS) {
      const uint row = token * p.n_heads + HeadOf(kv_head, row_begin + r);
      const uint part = PartOf(row, split) * (HEAD_DIM + 2);
      [[unroll]] for (uint v = 0; v < MAX_VECTORS_PER_LANE; ++v) {
        if (v < VECTORS_PER_LANE) {
          [[unroll]] for (uint h = 0; h < SUM_PARTS; ++h) {
            [[unroll]] for (uint i = 0; i < 4; ++i) {
              const uint dim = (v * LANES + lane) * SUM_DIMS + h * 4 + i;
              if (KeepsParts()) {
                PUT_PART(part + dim, sums[r][v][h][i]);
              } else {
                result[row * HEAD_DIM + dim] = sums[r][v][h][i] / weight[r];
              }
            }
          }
        }
      }
      if (KeepsParts() && lane == 0) {
        PUT_PART(part + HEAD_DIM, maximum[r]);
        PUT_PART(part + HEAD_DIM + 1, weight[r]);
      }
    }
  }
}
