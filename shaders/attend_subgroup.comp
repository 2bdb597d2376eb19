// output = softmax(Q K^T * scale) V with an online softmax; a subgroup computes ROWS query rows that share a KV
// head. Scores: lanes lie along positions. Weighted sum of V: lanes lie along the head's dimensions, a vector of
// VECTOR_DIMS each; where the head has fewer vectors than there are lanes, groups of lanes take every KEY_GROUPS-th
// position, and are added at the end. Nothing is shared but by subgroup shuffles.
//
// With NEW_ENTRY (include/attend.glsl) a workgroup is one subgroup; the last split of a tile attends to the newest entry,
// which no other invocation reads, and the last workgroup of a tile joins its splits.
//
// Macros: ROWS, KV_F16 or KV_F32, NEW_ENTRY. Needs: head_dim / VECTOR_DIMS is a multiple (at most 4) or a divisor of LANES,
// and a power of two.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "shared/op_params.h"
#include "shared/step_params.h"

layout(constant_id = 0) const uint LANES = 32;
layout(constant_id = 1) const uint HEAD_DIM = 64;
layout(local_size_x_id = 2, local_size_y = 1, local_size_z = 1) in;
layout(constant_id = 3) const uint HAS_CAP = 0;
layout(constant_id = 4) const uint HAS_WINDOW = 0;
#include "include/attend.glsl"

#ifdef KV_F16
#define VECTOR_DIMS 8
#else
#define VECTOR_DIMS 4
#endif
#define HALVES (VECTOR_DIMS / 4)
#ifndef KEYS_PER_LANE
#define KEYS_PER_LANE 4
#endif
#define MAX_VECTORS_PER_LANE 4

const uint VECTORS = HEAD_DIM / VECTOR_DIMS;  // of one entry
const uint VECTORS_PER_LANE = VECTORS > LANES ? VECTORS / LANES : 1;
const uint KEY_GROUPS = VECTORS < LANES ? LANES / VECTORS : 1;
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

#ifdef NEW_ENTRY
#ifdef KV_F16
vec4 STORED(vec4 x) { return vec4(unpackHalf2x16(packHalf2x16(x.xy)), unpackHalf2x16(packHalf2x16(x.zw))); }
#else
#define STORED(x) (x)
#endif
#define PART_WORD(value) floatBitsToUint(value)
// The workgroup is one subgroup.
#define GROUP_SYNC()           \
  subgroupMemoryBarrierShared(); \
  subgroupBarrier()
#define QUERY_VECTOR(i) shared_queries[i]
#define SHARE(v) shares[v]
#include "include/last_workgroup.glsl"
#include "include/new_entry.glsl"
#include "include/join_parts.glsl"
#else
#define PART_WORD(value) (value)
#define QUERY_VECTOR(i) qkv_vec4(i)
#define SHARE(v) qkv_vec4(my_q + v * HALVES)
#endif

struct KvVector { vec4 part[HALVES]; };

KvVector LoadKv(uint index) {
  const uvec4 w = kv_uvec4(index);
  KvVector v;
#ifdef KV_F16
  v.part[0] = vec4(unpackHalf2x16(w.x), unpackHalf2x16(w.y));
  v.part[1] = vec4(unpackHalf2x16(w.z), unpackHalf2x16(w.w));
#else
  v.part[0] = uintBitsToFloat(w);
#endif
  return v;
}

#ifdef NEW_ENTRY
void StoreEntry(uint lane, uint stream, uint position) {
  const uint key_begin = (stream * 2 * p.n_ctx + position % p.n_ctx) * HEAD_DIM;
  const uint value_begin = key_begin + p.n_ctx * HEAD_DIM;
  for (uint v = lane; v < HEAD_VECTORS; v += LANES) {
    const vec4 key = shared_key[v];
    const vec4 value = shared_value[v];
#ifdef KV_F16
    new_kv[key_begin / 2 + 2 * v] = packHalf2x16(key.xy);
    new_kv[key_begin / 2 + 2 * v + 1] = packHalf2x16(key.zw);
    new_kv[value_begin / 2 + 2 * v] = packHalf2x16(value.xy);
    new_kv[value_begin / 2 + 2 * v + 1] = packHalf2x16(value.zw);
#else
    [[unroll]] for (uint i = 0; i < 4; ++i) {
      new_kv[key_begin + 4 * v + i] = floatBitsToUint(key[i]);
      new_kv[value_begin + 4 * v + i] = floatBitsToUint(value[i]);
    }
#endif
  }
}

shared float shared_scores[ROWS];  // of the newest entry

void ScoreEntry(uint lane) {
  for (uint r = 0; r < ROWS; ++r) {
    float score = 0.0;
    for (uint v = lane; v < HEAD_VECTORS; v += LANES) {
      score += dot(shared_queries[r * HEAD_VECTORS + v], shared_key[v]);
    }
    FOLD(score, 1, ADD)
    if (lane == 0) shared_scores[r] = Capped(score * p.scale);
  }
}

void JoinRow(uint lane, uint row) {
  JoinParts(lane, row * p.n_splits * (HEAD_DIM + 2), p.n_splits);
  for (uint i = lane; i < HEAD_DIM; i += LANES) result[row * HEAD_DIM + i] = shared_joined[i];
  GROUP_SYNC();
}
#endif

void main() {
  const uint lane = gl_LocalInvocationIndex % LANES;
  const uint tile = gl_WorkGroupID.x * (gl_WorkGroupSize.x / LANES) + gl_LocalInvocationIndex / LANES;
  const uint tiles_per_head = (SpanRows() + ROWS - 1) / ROWS;
  const uint kv_head = min(tile / tiles_per_head, p.n_kv_heads - 1);
  const uint row_begin = (tile % tiles_per_head) * ROWS;
  const uint split = gl_WorkGroupID.y;
  const uint span = gl_WorkGroupID.z;
  const uint stream = BoundStream(span, kv_head);
#ifndef NEW_ENTRY
  if (stream >= p.n_streams) return;
#endif

  uint positions[ROWS];
  uint q_begin[ROWS];
  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    const uvec2 token_head = TokenAndHead(span, kv_head, row_begin + r);
    positions[r] = stepp.tokens[token_head.x].position;
    q_begin[r] = (token_head.x * p.qkv_stride + token_head.y * HEAD_DIM) / 4;
  }
#ifdef NEW_ENTRY
  const bool has_new = split == p.n_splits - 1;
  for (uint r = 0; r < ROWS; ++r) {
    const uvec2 token_head = TokenAndHead(span, kv_head, row_begin + r);
    TakeQuery(lane, span, r, token_head.x * (p.qkv_stride / 4) + token_head.y * HEAD_VECTORS);
  }
  [[unroll]] for (uint r = 0; r < ROWS; ++r) q_begin[r] = r * HEAD_VECTORS;
  if (has_new) {
    const uint key_vector = span * (p.qkv_stride / 4) + (p.n_heads + kv_head) * HEAD_VECTORS;
    TakeEntry(lane, span, key_vector, key_vector + p.n_kv_heads * HEAD_VECTORS);
  }
  GROUP_SYNC();
  if (has_new) ScoreEntry(lane);
  GROUP_SYNC();
  if (has_new && row_begin == 0) StoreEntry(lane, stream, positions[0]);
#endif
  // The lanes share the loads of Q: lane i reads part i % HALVES of row i / HALVES.
  uint my_q = q_begin[0];
  [[unroll]] for (uint r = 1; r < ROWS; ++r) {
    if ((lane / HALVES) % ROWS == r) my_q = q_begin[r];
  }
  my_q += lane % HALVES;
  const uint k_begin = stream * 2 * p.n_ctx * VECTORS;
  const uint v_begin = k_begin + p.n_ctx * VECTORS;

  float maximum[ROWS];
  float weight[ROWS];  // of this lane's positions
  vec4 sums[ROWS][MAX_VECTORS_PER_LANE][HALVES];
  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    maximum[r] = kMasked;
    weight[r] = 0.0;
    [[unroll]] for (uint v = 0; v < MAX_VECTORS_PER_LANE; ++v)
      [[unroll]] for (uint h = 0; h < HALVES; ++h) sums[r][v][h] = vec4(0.0);
  }
#ifdef NEW_ENTRY
  [[unroll]] for (uint v = 0; v < MAX_VECTORS_PER_LANE; ++v) {
    if (v < VECTORS_PER_LANE) {
      [[unroll]] for (uint h = 0; h < HALVES; ++h) {
        vec4 value = vec4(0.0);
        if (has_new && lane < VECTORS) value = shared_value[(v * LANES + lane) * HALVES + h];
        [[unroll]] for (uint r = 0; r < ROWS; ++r) sums[r][v][h] = value;
      }
    }
  }
  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    if (has_new) maximum[r] = shared_scores[r];
    weight[r] = has_new && lane == 0 ? 1.0 : 0.0;
  }
#endif

#ifdef NEW_ENTRY
  // What this lane hands out, in registers: shared memory is slow on CPUs.
  vec4 shares[MOST_VECTORS / HALVES];
  for (uint v = 0; v < VECTORS; ++v) shares[v] = shared_queries[my_q + v * HALVES];
#endif

  const uint block = KEYS_PER_LANE * LANES;
#ifdef NEW_ENTRY
  const uvec2 range = SplitRange(positions[0], positions[0] - 1, split, block);  // before the newest, which may be the first
#else
  const uvec2 range = SplitRange(positions[0], positions[ROWS - 1], split, block);
#endif
  for (uint begin = range.x; begin < range.y; begin += block) {
    float scores[ROWS][KEYS_PER_LANE];
    uint key_index[KEYS_PER_LANE];
    const uint entries = BlockBegin(begin);
    [[unroll]] for (uint k = 0; k < KEYS_PER_LANE; ++k) {
      key_index[k] = k_begin + EntryAt(entries + k * LANES + lane) * VECTORS;
      [[unroll]] for (uint r = 0; r < ROWS; ++r) scores[r][k] = 0.0;
    }
    for (uint v = 0; v < VECTORS; ++v) {
      KvVector keys[KEYS_PER_LANE];
      [[unroll]] for (uint k = 0; k < KEYS_PER_LANE; ++k) keys[k] = LoadKv(key_index[k] + v);
#if ROWS * HALVES > 4
      // More parts than the narrowest subgroup has lanes.
      const vec4 share = SHARE(v);
      vec4 share_high = share;
      if (LANES < ROWS * HALVES) {
        const uint i = min(LANES + lane, ROWS * HALVES - 1);
        uint high_q = q_begin[ROWS - 1];
        [[unroll]] for (uint r = 0; r + 1 < ROWS; ++r) {
          if (i / HALVES == r) high_q = q_begin[r];
        }
        share_high = QUERY_VECTOR(high_q + i % HALVES + v * HALVES);
      }
#else
      const vec4 share = SHARE(v);
      const vec4 share_high = share;
#endif
      [[unroll]] for (uint r = 0; r < ROWS; ++r) {
        [[unroll]] for (uint h = 0; h < HALVES; ++h) {
          const uint i = r * HALVES + h;
          vec4 q;
          if (i < LANES) {
            q = subgroupShuffle(share, i);
          } else {
            q = subgroupShuffle(share_high, i - LANES);
          }
          [[unroll]] for (uint k = 0; k < KEYS_PER_LANE; ++k) {
            scores[r][k] += keys[k].part[h].x * q.x;
            scores[r][k] += keys[k].part[h].y * q.y;
            scores[r][k] += keys[k].part[h].z * q.z;
            scores[r][k] += keys[k].part[h].w * q.w;
          }
        }
      }
    }

    [[unroll]] for (uint r = 0; r < ROWS; ++r) {
      float block_maximum = kMasked;
      [[unroll]] for (uint k = 0; k < KEYS_PER_LANE; ++k) {
        const uint position = begin + k * LANES + lane;
        const bool seen = position < range.y && Sees(positions[r], position);
        scores[r][k] = seen ? Capped(scores[r][k] * p.scale) : kMasked;
        block_maximum = max(block_maximum, scores[r][k]);
      }
      FOLD(block_maximum, 1, max)
      const float new_maximum = max(maximum[r], block_maximum);
      const float correction = exp(maximum[r] - new_maximum);
      maximum[r] = new_maximum;
      weight[r] *= correction;
      [[unroll]] for (uint k = 0; k < KEYS_PER_LANE; ++k) {
        // Masked scores stay exact zeros even while nothing but masked ones was seen.
        scores[r][k] = scores[r][k] > 0.5 * kMasked ? exp(scores[r][k] - new_maximum) : 0.0;
        weight[r] += scores[r][k];
      }
      [[unroll]] for (uint v = 0; v < MAX_VECTORS_PER_LANE; ++v) {
        if (v < VECTORS_PER_LANE) {
          [[unroll]] for (uint h = 0; h < HALVES; ++h) sums[r][v][h] *= correction;
        }
      }
    }

    for (uint i = 0; i < KEYS_PER_GROUP; ++i) {
      const uint source = i * KEY_GROUPS + (KEY_GROUPS > 1 ? lane / VECTORS : 0);
      [[unroll]] for (uint k = 0; k < KEYS_PER_LANE; ++k) {
        const uint entry = v_begin + EntryAt(entries + k * LANES + source) * VECTORS + lane % VECTORS;
        float weights[ROWS];
        [[unroll]] for (uint r = 0; r < ROWS; ++r) weights[r] = subgroupShuffle(scores[r][k], source);
        [[unroll]] for (uint v = 0; v < MAX_VECTORS_PER_LANE; ++v) {
          if (v < VECTORS_PER_LANE) {
            const KvVector value = LoadKv(entry + v * LANES);
            [[unroll]] for (uint r = 0; r < ROWS; ++r)
              [[unroll]] for (uint h = 0; h < HALVES; ++h) sums[r][v][h] += weights[r] * value.part[h];
          }
        }
      }
    }
  }

  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    FOLD(weight[r], 1, ADD)
    [[unroll]] for (uint h = 0; h < HALVES; ++h) {
      FOLD(sums[r][0][h], VECTORS, ADD)
    }
  }
  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    const uvec2 token_head = TokenAndHead(span, kv_head, row_begin + r);
    if (tile < tiles_per_head * p.n_kv_heads && row_begin + r < SpanRows() && lane < VECTORS) {
      const uint row = token_head.x * p.n_heads + token_head.y;
      const uint part = (row * p.n_splits + split) * (HEAD_DIM + 2);
      [[unroll]] for (uint v = 0; v < MAX_VECTORS_PER_LANE; ++v) {
        if (v < VECTORS_PER_LANE) {
          [[unroll]] for (uint h = 0; h < HALVES; ++h) {
            [[unroll]] for (uint i = 0; i < 4; ++i) {
              const uint dim = (v * LANES + lane) * VECTOR_DIMS + h * 4 + i;
              if (p.keeps_parts == 0) {
                result[row * HEAD_DIM + dim] = sums[r][v][h][i] / weight[r];
              } else {
                scratch[part + dim] = PART_WORD(sums[r][v][h][i]);
              }
            }
          }
        }
      }
      if (p.keeps_parts != 0 && lane == 0) {
        scratch[part + HEAD_DIM] = PART_WORD(maximum[r]);
        scratch[part + HEAD_DIM + 1] = PART_WORD(weight[r]);
      }
    }
  }
#ifdef NEW_ENTRY
  if (p.keeps_parts != 0 && IsLast(span * gl_NumWorkGroups.x + tile, p.n_splits)) {
    for (uint r = 0; r < ROWS; ++r) {
      const uvec2 token_head = TokenAndHead(span, kv_head, row_begin + r);
      if (row_begin + r < SpanRows()) JoinRow(lane, token_head.x * p.n_heads + token_head.y);
    }
  }
#endif
}
