// output = softmax(Q K^T * scale) V with an online softmax over the entries that a mapping table names; a subgroup,
// which is a workgroup, computes ROWS query heads of a token that share a KV head. As attend_subgroup.comp: for scores
// lanes lie along entries; for the weighted sum of V along the head's dimensions, a vector each, and where the head
// has fewer vectors than there are lanes, groups of lanes take every KEY_GROUPS-th entry.
//
// Macros: ROWS, K_TYPE, V_TYPE (KVRUN_KV_...). Needs: at least 8 lanes; K_DIMS divides head_dim; head_dim / V_DIMS is a
// power of two and at most MAX_VECTORS_PER_LANE * LANES.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "shared/slot_params.h"
#include "shared/step_params.h"

layout(constant_id = 0) const uint LANES = 32;
layout(constant_id = 1) const uint HEAD_DIM = 64;
layout(local_size_x_id = 2, local_size_y = 1, local_size_z = 1) in;
layout(constant_id = 3) const uint HAS_BIASES = 0;
layout(constant_id = 4) const uint KEEPS_SCORES = 0;
#include "include/attend_slots.glsl"
#include "include/kv_record.glsl"

#define FEWEST_LANES 8
#define KEYS_PER_LANE 4

// K is read in vectors of 4 words, and decoded in parts of 4 elements.
#if K_TYPE == KVRUN_KV_F32
#define K_DIMS 4
#elif K_TYPE == KVRUN_KV_F16
#define K_DIMS 8
#elif K_TYPE == KVRUN_KV_INT4
#define K_DIMS 32
#else
#define K_DIMS 16
#endif
#define K_PARTS (K_DIMS / 4)
// So is V, but int4 in vectors of 2 words: a lane holds the sums of all elements of its vectors.
#if V_TYPE == KVRUN_KV_F32
#define V_DIMS 4
#elif V_TYPE == KVRUN_KV_F16
#define V_DIMS 8
#else
#define V_DIMS 16
#endif
#define V_PARTS (V_DIMS / 4)
#define MAX_VECTORS_PER_LANE (V_DIMS == 16 ? 2 : 4)
// Loads in which the lanes share the parts of Q that meet one vector of K.
#define SHARES ((ROWS * K_PARTS + FEWEST_LANES - 1) / FEWEST_LANES)

const uint K_VECTORS = HEAD_DIM / K_DIMS;
const uint V_VECTORS = HEAD_DIM / V_DIMS;
const uint VECTORS_PER_LANE = V_VECTORS > LANES ? V_VECTORS / LANES : 1;
const uint KEY_GROUPS = V_VECTORS < LANES ? LANES / V_VECTORS : 1;
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

uvec4 LoadV(uint index) {
#if V_TYPE == KVRUN_KV_INT4
  return uvec4(records_uvec2(index), 0, 0);
#else
  return records_uvec4(index);
#endif
}
#define V_LOAD_WORDS (V_TYPE == KVRUN_KV_INT4 ? 2 : 4)

float LoadScale(uint half_index) { return HalfValue(records_uint(half_index / 2) >> (16 * (half_index % 2))); }

void main() {
  const uint lane = gl_LocalInvocationIndex;
  const uint group = p.n_heads / p.n_kv_heads;
  const uint tiles_per_head = (group + ROWS - 1) / ROWS;
  const uint kv_head = gl_WorkGroupID.x / tiles_per_head;
  const uint row_begin = (gl_WorkGroupID.x % tiles_per_head) * ROWS;
  const uint split = gl_WorkGroupID.y;
  const uint token = gl_WorkGroupID.z;

  // Lane i of share s reads part (s * LANES + i) % K_PARTS of row (s * LANES + i) / K_PARTS.
  uint my_q[SHARES];
  [[unroll]] for (uint s = 0; s < SHARES; ++s) {
    const uint i = min(s * LANES + lane, ROWS * K_PARTS - 1);
    my_q[s] = (token * p.qkv_stride + HeadOf(kv_head, row_begin + i / K_PARTS) * HEAD_DIM) / 4 + i % K_PARTS;
  }

  float maximum[ROWS];
  float weight[ROWS];  // of this lane's entries
  vec4 sums[ROWS][MAX_VECTORS_PER_LANE][V_PARTS];
  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    maximum[r] = kMasked;
    weight[r] = 0.0;
    [[unroll]] for (uint v = 0; v < MAX_VECTORS_PER_LANE; ++v)
      [[unroll]] for (uint h = 0; h < V_PARTS; ++h) sums[r][v][h] = vec4(0.0);
  }

  const uint stream = StreamOf(token, kv_head);
  const uint block = KEYS_PER_LANE * LANES;
  const uvec2 range = SplitRange(NumberOfEntries(stream), split, block);
  for (uint begin = range.x; begin < range.y; begin += block) {
    float scores[ROWS][KEYS_PER_LANE];
    uint keys[KEYS_PER_LANE];          // in vectors of K
    uint key_scales[KEYS_PER_LANE];    // in halves
    uint values[KEYS_PER_LANE];        // in vectors of V
    uint value_scales[KEYS_PER_LANE];  // in halves
    [[unroll]] for (uint k = 0; k < KEYS_PER_LANE; ++k) {
      const uvec2 at = RecordAndRow(stream, kv_head, min(begin + k * LANES + lane, range.y - 1));
      keys[k] = at.x / 4 + at.y * K_VECTORS;
      key_scales[k] = 2 * at.x + p.record.k_scales_begin + at.y * p.record.k_row_scales;
      values[k] = (at.x + p.record.v_begin) / V_LOAD_WORDS + at.y * V_VECTORS;
      value_scales[k] = 2 * at.x + p.record.v_scales_begin + at.y * p.record.v_row_scales;
      [[unroll]] for (uint r = 0; r < ROWS; ++r) scores[r][k] = 0.0;
    }
    for (uint v = 0; v < K_VECTORS; ++v) {
      uvec4 vectors[KEYS_PER_LANE];
      [[unroll]] for (uint k = 0; k < KEYS_PER_LANE; ++k) vectors[k] = records_uvec4(keys[k] + v);
      vec4 shares[SHARES];
      [[unroll]] for (uint s = 0; s < SHARES; ++s) {
        if (s * LANES < ROWS * K_PARTS) shares[s] = qkv_vec4(my_q[s] + v * K_PARTS);
      }
      float parts[ROWS][KEYS_PER_LANE];
      [[unroll]] for (uint r = 0; r < ROWS; ++r)
        [[unroll]] for (uint k = 0; k < KEYS_PER_LANE; ++k) parts[r][k] = K_TYPE == KVRUN_KV_INT4 ? 0.0 : scores[r][k];
      [[unroll]] for (uint h = 0; h < K_PARTS; ++h) {
        vec4 elements[KEYS_PER_LANE];
        [[unroll]] for (uint k = 0; k < KEYS_PER_LANE; ++k) elements[k] = DecodePart(K_TYPE, vectors[k], h);
        [[unroll]] for (uint r = 0; r < ROWS; ++r) {
          const uint i = r * K_PARTS + h;
          const vec4 q = subgroupShuffle(shares[i / LANES], i % LANES);
          [[unroll]] for (uint k = 0; k < KEYS_PER_LANE; ++k) {
            parts[r][k] += elements[k].x * q.x;
            parts[r][k] += elements[k].y * q.y;
            parts[r][k] += elements[k].z * q.z;
            parts[r][k] += elements[k].w * q.w;
          }
        }
      }
      [[unroll]] for (uint k = 0; k < KEYS_PER_LANE; ++k) {
#if K_TYPE == KVRUN_KV_INT4
        const float scale = LoadScale(key_scales[k] + v);
        [[unroll]] for (uint r = 0; r < ROWS; ++r) scores[r][k] += parts[r][k] * scale;
#else
        [[unroll]] for (uint r = 0; r < ROWS; ++r) scores[r][k] = parts[r][k];
#endif
      }
    }

    float factors[KEYS_PER_LANE];
    float biases[KEYS_PER_LANE];
    [[unroll]] for (uint k = 0; k < KEYS_PER_LANE; ++k) {
      biases[k] = 0.0;
      if (HAS_BIASES != 0) biases[k] = BiasOf(stream, min(begin + k * LANES + lane, range.y - 1));
      factors[k] = p.scale * TypeFactor(K_TYPE);
#if K_TYPE == KVRUN_KV_FP8 || K_TYPE == KVRUN_KV_INT8
      factors[k] *= LoadScale(key_scales[k]);
#endif
    }
    [[unroll]] for (uint r = 0; r < ROWS; ++r) {
      float block_maximum = kMasked;
      [[unroll]] for (uint k = 0; k < KEYS_PER_LANE; ++k) {
        const uint index = begin + k * LANES + lane;
        scores[r][k] = index < range.y ? AddBias(scores[r][k] * factors[k], biases[k]) : kMasked;
        block_maximum = max(block_maximum, scores[r][k]);
        if (KEEPS_SCORES != 0 && index < range.y) KeepScore(token, kv_head, row_begin + r, index, scores[r][k]);
      }
      FOLD(block_maximum, 1, max)
      const float new_maximum = max(maximum[r], block_maximum);
      const float correction = exp(maximum[r] - new_maximum);
      maximum[r] = new_maximum;
      weight[r] *= correction;
      [[unroll]] for (uint k = 0; k < KEYS_PER_LANE; ++k) {
        scores[r][k] = exp(scores[r][k] - new_maximum);
        weight[r] += scores[r][k];
      }
      [[unroll]] for (uint v = 0; v < MAX_VECTORS_PER_LANE; ++v) {
        if (v < VECTORS_PER_LANE) {
          [[unroll]] for (uint h = 0; h < V_PARTS; ++h) sums[r][v][h] *= correction;
        }
      }
    }
#if V_TYPE == KVRUN_KV_FP8 || V_TYPE == KVRUN_KV_INT8
    [[unroll]] for (uint k = 0; k < KEYS_PER_LANE; ++k) {
      const float scale = LoadScale(value_scales[k]) * TypeFactor(V_TYPE);
      [[unroll]] for (uint r = 0; r < ROWS; ++r) scores[r][k] *= scale;
    }
#endif

    for (uint i = 0; i < KEYS_PER_GROUP; ++i) {
      const uint source = i * KEY_GROUPS + (KEY_GROUPS > 1 ? lane / V_VECTORS : 0);
      [[unroll]] for (uint k = 0; k < KEYS_PER_LANE; ++k) {
        const uint entry = subgroupShuffle(values[k], source) + lane % V_VECTORS;
#if V_TYPE == KVRUN_KV_INT4
        const uint scales = subgroupShuffle(value_scales[k], source);
#endif
        float weights[ROWS];
        [[unroll]] for (uint r = 0; r < ROWS; ++r) weights[r] = subgroupShuffle(scores[r][k], source);
        [[unroll]] for (uint v = 0; v < MAX_VECTORS_PER_LANE; ++v) {
          if (v < VECTORS_PER_LANE) {
            const uvec4 vector = LoadV(entry + v * LANES);
#if V_TYPE == KVRUN_KV_INT4
            const float scale = LoadScale(scales + (lane % V_VECTORS + v * LANES) * V_DIMS / KVRUN_INT4_BLOCK);
#else
            const float scale = 1.0;
#endif
            [[unroll]] for (uint h = 0; h < V_PARTS; ++h) {
              const vec4 value = DecodePart(V_TYPE, vector, h);
              [[unroll]] for (uint r = 0; r < ROWS; ++r) sums[r][v][h] += (weights[r] * scale) * value;
            }
          }
        }
      }
    }
  }

  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    FOLD(weight[r], 1, ADD)
    [[unroll]] for (uint h = 0; h < V_PARTS; ++h) {
      FOLD(sums[r][0][h], V_VECTORS, ADD)
    }
  }
  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    if (row_begin + r < group && lane < V_VECTORS) {
      const uint row = token * p.n_heads + HeadOf(kv_head, row_begin + r);
      const uint to = KeepsParts() ? (row * p.n_parts + p.first_part + split) * (HEAD_DIM + 2) : row * HEAD_DIM;
      const float factor = KeepsParts() ? 1.0 : 1.0 / weight[r];
      [[unroll]] for (uint v = 0; v < MAX_VECTORS_PER_LANE; ++v) {
        if (v < VECTORS_PER_LANE) {
          [[unroll]] for (uint h = 0; h < V_PARTS; ++h) {
            [[unroll]] for (uint i = 0; i < 4; ++i) {
              result[to + (v * LANES + lane) * V_DIMS + h * 4 + i] = sums[r][v][h][i] * factor;
            }
          }
        }
      }
      if (KeepsParts() && lane == 0) {
        result[to + HEAD_DIM] = maximum[r];
        result[to + HEAD_DIM + 1] = weight[r];
      }
    }
  }
}
