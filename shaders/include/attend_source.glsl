// Attention of a subgroup's rows to its part of one source's entries. Included once for each source of a kernel, with
// what include/slot_table.glsl needs, and macros: K_TYPE, V_TYPE (KVRUN_KV_...); RECORDS(kind), how its records are
// read. Needs: K_DIMS divides HEAD_DIM; V_DIMS divides SUM_DIMS.

uvec4 OF_SOURCE(LoadV)(uint index) {
#if V_TYPE == KVRUN_KV_INT4
  return uvec4(RECORDS(uvec2)(index), 0, 0);
#else
  return RECORDS(uvec4)(index);
#endif
}

float OF_SOURCE(LoadScale)(uint half_index) {
  return HalfValue(RECORDS(uint)(half_index / 2) >> (16 * (half_index % 2)));
}

// To entries [range.x, range.y), of which there are some. Loops end at the bottom: with the condition at the top
// Mesa's CPU driver goes through the body once more, in which all lanes are masked.
void OF_SOURCE(AttendToRange)(uint token, uint kv_head, uint row_begin, uint stream, uvec2 range) {
  const uint lane = gl_LocalInvocationIndex;
  // Lane i of share s reads part (s * LANES + i) % K_PARTS of row (s * LANES + i) / K_PARTS.
  uint my_q[SHARES];
  [[unroll]] for (uint s = 0; s < SHARES; ++s) {
    const uint i = min(s * LANES + lane, ROWS * K_PARTS - 1);
    my_q[s] = (token * p.qkv_stride + HeadOf(kv_head, row_begin + i / K_PARTS) * HEAD_DIM) / 4 + i % K_PARTS;
  }

  const KvRecordLayout record = SOURCE_LAYOUT;
  for (uint begin = range.x;;) {
    float scores[ROWS][KEYS_PER_LANE];
    uint keys[KEYS_PER_LANE];          // in vectors of K
    uint key_scales[KEYS_PER_LANE];    // in halves
    uint values[KEYS_PER_LANE];        // in vectors of V
    uint value_scales[KEYS_PER_LANE];  // in halves
    [[unroll]] for (uint k = 0; k < KEYS_PER_LANE; ++k) {
      const uvec2 at = OF_SOURCE(RecordAndRow)(stream, kv_head, min(begin + k * LANES + lane, range.y - 1));
      keys[k] = at.x / 4 + at.y * K_VECTORS;
      key_scales[k] = 2 * at.x + record.k_scales_begin + at.y * record.k_row_scales;
      values[k] = (at.x + record.v_begin) / V_LOAD_WORDS + at.y * (HEAD_DIM / V_DIMS);
      value_scales[k] = 2 * at.x + record.v_scales_begin + at.y * record.v_row_scales;
      [[unroll]] for (uint r = 0; r < ROWS; ++r) scores[r][k] = 0.0;
    }
    for (uint v = 0;;) {
      uvec4 vectors[KEYS_PER_LANE];
      [[unroll]] for (uint k = 0; k < KEYS_PER_LANE; ++k) vectors[k] = RECORDS(uvec4)(keys[k] + v);
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
        const float scale = OF_SOURCE(LoadScale)(key_scales[k] + v);
        [[unroll]] for (uint r = 0; r < ROWS; ++r) scores[r][k] += parts[r][k] * scale;
#else
        [[unroll]] for (uint r = 0; r < ROWS; ++r) scores[r][k] = parts[r][k];
#endif
      }
      if (++v == K_VECTORS) break;
    }

    float factors[KEYS_PER_LANE];
    float biases[KEYS_PER_LANE];
    [[unroll]] for (uint k = 0; k < KEYS_PER_LANE; ++k) {
      biases[k] = 0.0;
      if (HAS_BIASES != 0) biases[k] = OF_SOURCE(BiasOf)(stream, min(begin + k * LANES + lane, range.y - 1));
      factors[k] = p.scale * TypeFactor(K_TYPE);
#if K_TYPE == KVRUN_KV_FP8 || K_TYPE == KVRUN_KV_INT8
      factors[k] *= OF_SOURCE(LoadScale)(key_scales[k]);
#endif
    }
    [[unroll]] for (uint r = 0; r < ROWS; ++r) {
      float block_maximum = kMasked;
      [[unroll]] for (uint k = 0; k < KEYS_PER_LANE; ++k) {
        const uint index = begin + k * LANES + lane;
        scores[r][k] = index < range.y ? OF_SOURCE(AddBias)(Capped(scores[r][k] * factors[k]), biases[k]) : kMasked;
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
          [[unroll]] for (uint h = 0; h < SUM_PARTS; ++h) sums[r][v][h] *= correction;
        }
      }
    }
#if V_TYPE == KVRUN_KV_FP8 || V_TYPE == KVRUN_KV_INT8
    [[unroll]] for (uint k = 0; k < KEYS_PER_LANE; ++k) {
      const float scale = OF_SOURCE(LoadScale)(value_scales[k]) * TypeFactor(V_TYPE);
      [[unroll]] for (uint r = 0; r < ROWS; ++r) scores[r][k] *= scale;
    }
#endif

    for (uint i = 0;;) {
      const uint source = i * KEY_GROUPS + (KEY_GROUPS > 1 ? lane / SUM_VECTORS : 0);
      [[unroll]] for (uint k = 0; k < KEYS_PER_LANE; ++k) {
        const uint entry = subgroupShuffle(values[k], source) + lane % SUM_VECTORS * V_LOADS;
#if V_TYPE == KVRUN_KV_INT4
        const uint scales = subgroupShuffle(value_scales[k], source);
#endif
        float weights[ROWS];
        [[unroll]] for (uint r = 0; r < ROWS; ++r) weights[r] = subgroupShuffle(scores[r][k], source);
        [[unroll]] for (uint v = 0; v < MAX_VECTORS_PER_LANE; ++v) {
          if (v < VECTORS_PER_LANE) {
#if V_TYPE == KVRUN_KV_INT4
            const float scale =
                OF_SOURCE(LoadScale)(scales + (lane % SUM_VECTORS + v * LANES) * SUM_DIMS / KVRUN_INT4_BLOCK);
#else
            const float scale = 1.0;
#endif
            [[unroll]] for (uint l = 0; l < V_LOADS; ++l) {
              const uvec4 vector = OF_SOURCE(LoadV)(entry + v * LANES * V_LOADS + l);
              [[unroll]] for (uint h = 0; h < V_PARTS; ++h) {
                const vec4 value = DecodePart(V_TYPE, vector, h);
                [[unroll]] for (uint r = 0; r < ROWS; ++r) sums[r][v][l * V_PARTS + h] += (weights[r] * scale) * value;
              }
            }
          }
        }
      }
      if (++i == KEYS_PER_GROUP) break;
    }
    begin += KEYS_PER_LANE * LANES;
    if (begin >= range.y) break;
  }
}

// To those of [range.x, range.y) that are this source's: entries from `first` on, as many as it has.
void OF_SOURCE(AttendTo)(uint token, uint kv_head, uint row_begin, uvec2 range, uint first, uint n_entries) {
  const uvec2 own = clamp(range, uvec2(first), uvec2(first + n_entries)) - first;
  if (own.x < own.y) {
    OF_SOURCE(AttendToRange)(token, kv_head, row_begin, OF_SOURCE(StreamOf)(token, kv_head), own);
  }
}
