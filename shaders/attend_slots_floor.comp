// output = softmax(Q K^T * scale) V with an online softmax over the entries that a mapping table names; a workgroup
// computes ROWS query heads of a token that share a KV head. Any types, any even head size, no subgroup operations:
// scores pass through shared memory. Scores: invocations lie along entries. Weighted sum of V: along pairs of
// dimensions.
//
// Macros: ROWS.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "shared/slot_params.h"
#include "shared/step_params.h"

layout(constant_id = 0) const uint K_TYPE = KVRUN_KV_F16;
layout(constant_id = 1) const uint V_TYPE = KVRUN_KV_F16;
layout(constant_id = 2) const uint HAS_BIASES = 0;
layout(constant_id = 3) const uint KEEPS_SCORES = 0;
layout(constant_id = 4) const uint HAS_CAP = 0;

#define LOCAL_SIZE 64
#define MAX_HEAD_DIM 256
#define MAX_PAIRS_PER_LANE (MAX_HEAD_DIM / 2 / LOCAL_SIZE)
#define BLOCK_PAIRS (KVRUN_INT4_BLOCK / 2)
layout(local_size_x = LOCAL_SIZE) in;
#include "include/attend_slots.glsl"
#include "include/kv_record.glsl"
#include "include/kv_decode.glsl"

shared float scores[ROWS * LOCAL_SIZE];
shared float weights[ROWS * LOCAL_SIZE];
shared uint values[LOCAL_SIZE];        // where each entry's row of V begins, in words
shared uint value_scales[LOCAL_SIZE];  // and its scales, in halves

// Block by block, as each may have a scale of its own.
void AddScores(uint row, uint scales, uint q_begin[ROWS], inout float score[ROWS]) {
  const uint pairs = p.record.head_dim / 2;
  for (uint begin = 0; begin < pairs; begin += BLOCK_PAIRS) {
    float part[ROWS];
    [[unroll]] for (uint r = 0; r < ROWS; ++r) part[r] = 0.0;
    const uint end = min(begin + BLOCK_PAIRS, pairs);
    for (uint i = begin; i < end; ++i) {
      const vec2 k = LoadPair(K_TYPE, row, i);
      [[unroll]] for (uint r = 0; r < ROWS; ++r) {
        part[r] += k.x * qkv_float(q_begin[r] + 2 * i) + k.y * qkv_float(q_begin[r] + 2 * i + 1);
      }
    }
    const float scale = LoadScale(K_TYPE, scales + ScaleOfElement(K_TYPE, 2 * begin));
    [[unroll]] for (uint r = 0; r < ROWS; ++r) score[r] += part[r] * scale;
  }
}

void main() {
  const uint lane = gl_LocalInvocationIndex;
  const uint group = p.n_heads / p.n_kv_heads;
  const uint tiles_per_head = (group + ROWS - 1) / ROWS;
  const uint kv_head = gl_WorkGroupID.x / tiles_per_head;
  const uint row_begin = (gl_WorkGroupID.x % tiles_per_head) * ROWS;
  const uint split = gl_WorkGroupID.y;
  const uint token = gl_WorkGroupID.z;
  const uint head_dim = p.record.head_dim;
  const uint pairs = head_dim / 2;

  uint q_begin[ROWS];
  float maximum[ROWS];
  float weight[ROWS];
  vec2 sums[ROWS][MAX_PAIRS_PER_LANE];
  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    q_begin[r] = token * p.qkv_stride + HeadOf(kv_head, row_begin + r) * head_dim;
    maximum[r] = kMasked;
    weight[r] = 0.0;
    [[unroll]] for (uint i = 0; i < MAX_PAIRS_PER_LANE; ++i) sums[r][i] = vec2(0.0);
  }

  const uint stream = StreamOf(token, kv_head);
  const uvec2 range = SplitRange(NumberOfEntries(stream), split, p.split_block);
  for (uint begin = range.x; begin < range.y; begin += LOCAL_SIZE) {
    const uint index = begin + lane;
    const uvec2 at = RecordAndRow(stream, kv_head, min(index, range.y - 1));
    values[lane] = at.x + p.record.v_begin + at.y * p.record.v_row_words;
    value_scales[lane] = 2 * at.x + p.record.v_scales_begin + at.y * p.record.v_row_scales;
    float bias = 0.0;
    if (HAS_BIASES != 0) bias = BiasOf(stream, min(index, range.y - 1));
    float score[ROWS];
    [[unroll]] for (uint r = 0; r < ROWS; ++r) score[r] = 0.0;
    AddScores(at.x + at.y * p.record.k_row_words, 2 * at.x + p.record.k_scales_begin + at.y * p.record.k_row_scales,
              q_begin, score);
    [[unroll]] for (uint r = 0; r < ROWS; ++r) {
      score[r] = index < range.y ? AddBias(Capped(score[r] * p.scale), bias) : kMasked;
      scores[r * LOCAL_SIZE + lane] = score[r];
      if (KEEPS_SCORES != 0 && index < range.y) KeepScore(token, kv_head, row_begin + r, index, score[r]);
    }
    barrier();
    [[unroll]] for (uint r = 0; r < ROWS; ++r) {
      float new_maximum = maximum[r];
      for (uint k = 0; k < LOCAL_SIZE; ++k) new_maximum = max(new_maximum, scores[r * LOCAL_SIZE + k]);
      const float correction = exp(maximum[r] - new_maximum);
      maximum[r] = new_maximum;
      weights[r * LOCAL_SIZE + lane] = exp(score[r] - new_maximum);
      weight[r] *= correction;
      [[unroll]] for (uint i = 0; i < MAX_PAIRS_PER_LANE; ++i) sums[r][i] *= correction;
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
          const vec2 v = LoadPair(V_TYPE, values[k], pair);
          const float scale = LoadScale(V_TYPE, value_scales[k] + ScaleOfElement(V_TYPE, 2 * pair));
          [[unroll]] for (uint r = 0; r < ROWS; ++r) sums[r][i] += w[r] * scale * v;
        }
      }
    }
    barrier();
  }

  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    if (row_begin + r < group) {
      const uint row = token * p.n_heads + HeadOf(kv_head, row_begin + r);
      const uint to = KeepsParts() ? PartOf(row, split) * (head_dim + 2) : row * head_dim;
      const float factor = KeepsParts() ? 1.0 : 1.0 / weight[r];
      [[unroll]] for (uint i = 0; i < MAX_PAIRS_PER_LANE; ++i) {
        const uint pair = i * LOCAL_SIZE + lane;
        if (pair < pairs) {
          result[to + 2 * pair] = sums[r][i].x * factor;
          result[to + 2 * pair + 1] = sums[r][i].y * factor;
        }
      }
      if (KeepsParts() && lane == 0) {
        result[to + head_dim] = maximum[r];
        result[to + head_dim + 1] = weight[r];
      }
    }
  }
}
