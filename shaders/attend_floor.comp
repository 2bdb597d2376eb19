// output = softmax(Q K^T * scale) V with an online softmax; a workgroup computes ROWS query rows that share a KV
// head. Any even head size, no subgroup operations: scores pass through shared memory. Scores: invocations lie
// along positions. Weighted sum of V: along pairs of dimensions.
//
// Macros: ROWS, KV_F16 or KV_F32.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "shared/op_params.h"
#include "shared/step_params.h"

#define LOCAL_SIZE 64
#define MAX_HEAD_DIM 256
#define MAX_PAIRS_PER_LANE (MAX_HEAD_DIM / 2 / LOCAL_SIZE)
layout(local_size_x = LOCAL_SIZE) in;
layout(constant_id = 0) const uint HAS_CAP = 0;
layout(constant_id = 1) const uint HAS_WINDOW = 0;
#include "include/attend.glsl"

shared float scores[ROWS * LOCAL_SIZE];
shared float weights[ROWS * LOCAL_SIZE];

// Dimensions 2i and 2i + 1 of the entry at `entry`.
vec2 LoadPair(uint entry, uint i) {
#ifdef KV_F16
  return unpackHalf2x16(kv_uint(entry * (p.head_dim / 2) + i));
#else
  const uint at = entry * p.head_dim + 2 * i;
  return vec2(uintBitsToFloat(kv_uint(at)), uintBitsToFloat(kv_uint(at + 1)));
#endif
}

void main() {
  const uint lane = gl_LocalInvocationIndex;
  const uint tiles_per_head = (SpanRows() + ROWS - 1) / ROWS;
  const uint kv_head = gl_WorkGroupID.x / tiles_per_head;
  const uint row_begin = (gl_WorkGroupID.x % tiles_per_head) * ROWS;
  const uint split = gl_WorkGroupID.y;
  const uint span = gl_WorkGroupID.z;
  const uint stream = BoundStream(span, kv_head);
  if (stream >= p.n_streams) return;
  const uint pairs = p.head_dim / 2;

  uint positions[ROWS];
  uint q_begin[ROWS];
  float maximum[ROWS];
  float weight[ROWS];
  vec2 sums[ROWS][MAX_PAIRS_PER_LANE];
  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    const uvec2 token_head = TokenAndHead(span, kv_head, row_begin + r);
    positions[r] = stepp.tokens[token_head.x].position;
    q_begin[r] = token_head.x * p.qkv_stride + token_head.y * p.head_dim;
    maximum[r] = kMasked;
    weight[r] = 0.0;
    [[unroll]] for (uint i = 0; i < MAX_PAIRS_PER_LANE; ++i) sums[r][i] = vec2(0.0);
  }
  const uint k_begin = stream * 2 * p.n_ctx;
  const uint v_begin = k_begin + p.n_ctx;

  const uvec2 range = SplitRange(positions[0], positions[ROWS - 1], split, LOCAL_SIZE);
  for (uint begin = range.x; begin < range.y; begin += LOCAL_SIZE) {
    float score[ROWS];
    [[unroll]] for (uint r = 0; r < ROWS; ++r) score[r] = 0.0;
    const uint position = begin + lane;
    const uint entries = BlockBegin(begin);
    const uint key = k_begin + EntryAt(entries + lane);
    for (uint i = 0; i < pairs; ++i) {
      const vec2 k = LoadPair(key, i);
      [[unroll]] for (uint r = 0; r < ROWS; ++r) {
        score[r] += k.x * qkv_float(q_begin[r] + 2 * i) + k.y * qkv_float(q_begin[r] + 2 * i + 1);
      }
    }
    [[unroll]] for (uint r = 0; r < ROWS; ++r) {
      const bool seen = position < range.y && Sees(positions[r], position);
      score[r] = seen ? Capped(score[r] * p.scale) : kMasked;
      scores[r * LOCAL_SIZE + lane] = score[r];
    }
    barrier();
    float correction[ROWS];
    [[unroll]] for (uint r = 0; r < ROWS; ++r) {
      float new_maximum = maximum[r];
      for (uint k = 0; k < LOCAL_SIZE; ++k) new_maximum = max(new_maximum, scores[r * LOCAL_SIZE + k]);
      correction[r] = exp(maximum[r] - new_maximum);
      maximum[r] = new_maximum;
      // Masked scores stay exact zeros even while nothing but masked ones was seen.
      weights[r * LOCAL_SIZE + lane] = score[r] > 0.5 * kMasked ? exp(score[r] - new_maximum) : 0.0;
      weight[r] *= correction[r];
      [[unroll]] for (uint i = 0; i < MAX_PAIRS_PER_LANE; ++i) sums[r][i] *= correction[r];
    }
    barrier();
    const uint n_keys = min(range.y - begin, LOCAL_SIZE);
    for (uint k = 0; k < n_keys; ++k) {
      float w[ROWS];
      [[unroll]] for (uint r = 0; r < ROWS; ++r) {
        w[r] = weights[r * LOCAL_SIZE + k];
        weight[r] += w[r];
      }
      [[unroll]] for (uint i = 0; i < MAX_PAIRS_PER_LANE; ++i) {
        const uint pair = i * LOCAL_SIZE + lane;
        if (pair < pairs) {
          const vec2 v = LoadPair(v_begin + EntryAt(entries + k), pair);
          [[unroll]] for (uint r = 0; r < ROWS; ++r) sums[r][i] += w[r] * v;
        }
      }
    }
    barrier();
  }

  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    const uvec2 token_head = TokenAndHead(span, kv_head, row_begin + r);
    const uint row = token_head.x * p.n_heads + token_head.y;
    const uint part = (row * p.n_splits + split) * (p.head_dim + 2);
    [[unroll]] for (uint i = 0; i < MAX_PAIRS_PER_LANE; ++i) {
      const uint pair = i * LOCAL_SIZE + lane;
      if (pair < pairs && row_begin + r < SpanRows()) {
        if (p.keeps_parts == 0) {
          result[row * p.head_dim + 2 * pair] = sums[r][i].x / weight[r];
          result[row * p.head_dim + 2 * pair + 1] = sums[r][i].y / weight[r];
        } else {
          scratch[part + 2 * pair] = sums[r][i].x;
          scratch[part + 2 * pair + 1] = sums[r][i].y;
        }
      }
    }
    if (p.keeps_parts != 0 && lane == 0 && row_begin + r < SpanRows()) {
      scratch[part + p.head_dim] = maximum[r];
      scratch[part + p.head_dim + 1] = weight[r];
    }
  }
}
