// Scores the entries (rows) of an index that can be chosen: the products of their rows with rows of z. An invocation scores
// four consecutive entries at a time, so that a value of z is used four times.
//
//   ROWS    per workgroup and row of z, the reference and the sum of a softmax over the entries that it scored
//   GROUPS  each group's score: the largest of its entries', or their sum, each the sum of its softmaxes over the rows
//   SUM     each group's largest product with the one row of z
//
// A softmax needs all products before it can weigh one. Where a group's score is its entries' sum (and of single entries),
// ROWS keeps, of each row, the logarithm of each group's sum: score_kept.comp then adds up all rows. Else products are
// computed twice: kept, they would take more memory than the index. Products are logarithms to base 2, references whole
// numbers.
//
// Workgroups take units (groups, or as many of them as make four entries) in turn: there are as many workgroups as keep
// the device busy, whatever room the index has.
//
// Macros: INDEX_F16, INDEX_INT8 or INDEX_INT4; ROWS, GROUPS or SUM; HEADS, rows of z at a time. PROJECTS, with ROWS: each
// workgroup makes the rows of z by itself, from the query as it is before its norm and rotation, and the first one leaves
// them for what follows. That saves a dispatch, where one costs more than the same sums by every workgroup.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "shared/index_params.h"
#include "shared/step_params.h"

layout(constant_id = 0) const uint RANK = 24;
layout(constant_id = 1) const uint GROUP = 4;  // entries of a group: its tokens, or fewer
// z in registers: for drivers on which each read of shared memory is a loop over the lanes.
layout(constant_id = 2) const uint HOIST = 1;
layout(local_size_x_id = 3, local_size_y = 1, local_size_z = 1) in;
layout(constant_id = 4) const uint WHOLE_VECTORS = 1;  // four entries are WORDS vectors that lie side by side
layout(constant_id = 5) const uint MASS = 0;           // GROUPS: a group's score is its entries' sum
layout(constant_id = 6) const uint STAGE = KVRUN_SCORE_ALL;
layout(constant_id = 7) const uint KEEPS = 0;  // ROWS: what score_kept.comp needs
// PROJECTS:
layout(constant_id = 8) const uint HAS_NORM = 0;
layout(constant_id = 9) const uint TILE_ROWS = 1;  // neighbours of one KV head, whose side is read once; they divide HEADS
layout(constant_id = 10) const uint HALF_SIDE = 0;  // query_side is f16
#include "include/read_only.glsl"
READ_ONLY(0, index)
#ifdef PROJECTS
#define ROTATES
#define OUT_BINDING 6
#define STEP_BINDING 7
layout(push_constant) uniform Params { ScoreParams p; ProjectQueryParams q; };  // ProjectScoreParams
READ_ONLY(1, query)
READ_ONLY(2, side)
READ_ONLY(3, scales)
READ_ONLY(4, angles)
READ_ONLY(5, norms)
#else
#define OUT_BINDING 2
#define STEP_BINDING 3
layout(push_constant) uniform Params { ScoreParams p; };
READ_ONLY(1, scratch)
#endif
layout(set = 0, binding = OUT_BINDING, std430) buffer Out1 { float out1[]; };
layout(set = 0, binding = OUT_BINDING, std430) buffer Out2 { vec2 out2[]; };
layout(set = 0, binding = OUT_BINDING, std430) buffer Out4 { vec4 out4[]; };
layout(set = 0, binding = STEP_BINDING, std140) uniform Step { StepParams stepp; };
#include "include/choosable.glsl"
#ifdef PROJECTS  // before there are candidates
#define CANDIDATE_WORD(i) 0
#else
#define CANDIDATE_WORD(i) scratch_uint(i)
#endif
#include "include/score_stages.glsl"

// With HOIST z is in registers, up to so many columns of it. They are written out: not by loops for the driver to unroll,
// of which some take minutes.
#if HEADS > 3
#define BLOCK_COLUMNS 64
#else
#define BLOCK_COLUMNS 128
#endif
#include "include/index_words.glsl"
#define BLOCK_WORDS (BLOCK_COLUMNS / PER_WORD)
// Else columns are taken by four words of a row, and of these by whole vectors of columns.
#define STEP_WORDS 4
#define VALUE_WORDS (BITS == 16 ? 2 : 1)
#define VALUE_COLUMNS (VALUE_WORDS * PER_WORD)
// Shared memory is too small for z, which is read where it lies.
const bool WIDE = RANK > KVRUN_SHARED_INDEX_RANK;
// Of a row of shared_z: whole vectors.
const uint COLUMNS = (RANK + 31) / 32 * 32;
const uint UNIT_GROUPS = GROUP == 1 ? 4 : GROUP == 2 ? 2 : 1;
const uint UNIT = UNIT_GROUPS * GROUP;
const uint UNIT_QUADS = (UNIT + 3) / 4;
// Four entries of which each begins with a vector.
const uint ROW_VECTORS = WORDS % 4 == 0 ? WHOLE_VECTORS : 0;

const float kSmallest = -16777216.0;

shared vec4 shared_z[HEADS * KVRUN_SHARED_INDEX_RANK / 4];
#ifdef ROWS
shared int shared_references[HEADS];
shared uint shared_sums[HEADS];
#endif
#ifdef GROUPS
shared float shared_references[HEADS];
shared float shared_factors[HEADS];
#endif

// 2 to the power of a whole number of at most 0.
float Power(float exponent) { return uintBitsToFloat(uint(int(max(exponent, -126.0)) + 127) << 23); }

// Of sums of powers of 2, which may be zero.
vec2 Logarithm(vec2 sums) { return log2(max(sums, vec2(1e-37))); }

// Where an entry lies that is counted so.
uint EntryAt(uint list, uint entry) {
  if (STAGE != KVRUN_SCORE_CANDIDATES) return entry;
  return GroupAt(STAGE, list, entry / GROUP) * GROUP + entry % GROUP;
}

// Word k of four entries.
uvec4 LoadWords(uint first_group, uvec4 entries, uint k) {
  return uvec4(LoadWord(first_group, entries.x, k), LoadWord(first_group, entries.y, k),
               LoadWord(first_group, entries.z, k), LoadWord(first_group, entries.w, k));
}

// One of a step's words, by a number that is no constant: arrays are then slow memory on some devices.
uvec4 WordsAt(uvec4 words[STEP_WORDS], uint w) {
  const uvec4 first = w == 0 ? words[0] : words[1];
  return w < 2 ? first : w == 2 ? words[2] : words[3];
}

#ifdef PROJECTS
#include "include/score_projection.glsl"
#else
// Four columns of a row of z; zeros beyond the last.
vec4 LoadZ(uint row, uint column) {
  const uint at = p.z_begin + row * RANK + column;
  if (RANK % 4 == 0) return column < RANK ? scratch_vec4(at / 4) : vec4(0.0);
  vec4 value = vec4(0.0);
  [[unroll]] for (uint c = 0; c < 4; ++c) {
    if (column + c < RANK) value[c] = scratch_float(at + c);
  }
  return value;
}
#endif

void main() {
  const uint lane = gl_LocalInvocationIndex;
  const uint lanes = gl_WorkGroupSize.x;
  const uint token = gl_WorkGroupID.z;
  // Rows of z: [row_begin, row_end), of which there are at most HEADS.
#ifdef GROUPS
  const uint list = gl_WorkGroupID.y;
  const uint row_begin = list * p.list_rows + p.first_row;
  const uint row_end = (list + 1) * p.list_rows;
#else
  const uint row_begin = gl_WorkGroupID.y * HEADS;
  const uint row_end = p.n_rows;
#endif
  const uint sequence = stepp.tokens[token].sequence;
  const uint candidates = p.candidates_begin + token * p.candidate_words;
  const uint n_groups =
      ChoosableEntries(stepp.tokens[token].position, p.window_tokens, p.group_tokens, p.n_groups) / p.group_tokens;
  const uint old = ScoredGroups(STAGE, candidates, n_groups) * GROUP;
  const uint first_group = sequence * p.n_groups;  // of the index

#ifdef PROJECTS
  ProjectRows(token, sequence, row_begin, min(row_end - row_begin, HEADS));
#else
  for (uint i = lane; !WIDE && i < HEADS * COLUMNS / 4; i += lanes) {
    shared_z[i] = LoadZ(token * p.n_rows + min(row_begin + i / (COLUMNS / 4), row_end - 1), i % (COLUMNS / 4) * 4);
  }
#endif
#ifdef ROWS
  for (uint h = lane; h < HEADS; h += lanes) {
    shared_references[h] = int(kSmallest);
    shared_sums[h] = 0;
  }
#endif
#ifdef GROUPS
  for (uint h = lane; h < HEADS; h += lanes) {
    const uint row = token * p.n_rows + min(row_begin + h, row_end - 1);
    vec2 all = vec2(kSmallest, 0.0);
    for (uint i = 0; i < p.n_workgroups; ++i) {
      const vec2 one = scratch_vec2(p.softmaxes_begin / 2 + row * p.n_workgroups + i);
      const float reference = max(all.x, one.x);
      all = vec2(reference, all.y * Power(all.x - reference) + one.y * Power(one.x - reference));
    }
    shared_references[h] = all.x;
    shared_factors[h] = row_begin + h < row_end ? 1.0 / all.y : 0.0;
  }
#endif
  barrier();
  vec4 z[HEADS * BLOCK_COLUMNS / 4];
  if (HOIST != 0) {
    [[unroll]] for (uint h = 0; h < HEADS; ++h) {
      [[unroll]] for (uint i = 0; i < BLOCK_COLUMNS / 4; ++i) {
        z[h * BLOCK_COLUMNS / 4 + i] = vec4(0.0);
        if (4 * i < RANK) z[h * BLOCK_COLUMNS / 4 + i] = shared_z[h * (COLUMNS / 4) + i];
      }
    }
  }
  float references[HEADS];
  float sums[HEADS];  // GROUPS: what a weight is multiplied with
  [[unroll]] for (uint h = 0; h < HEADS; ++h) {
#if defined(GROUPS)
    references[h] = shared_references[h];
    sums[h] = shared_factors[h];
#else
    references[h] = kSmallest;
    sums[h] = 0.0;
#endif
  }

  const uint stride = gl_NumWorkGroups.x * lanes;
  for (uint unit = gl_WorkGroupID.x * lanes + lane; unit * UNIT < old; unit += stride) {
    const uint last = min(unit * UNIT + UNIT, old) - 1;
#ifdef ROWS
    float unit_sums[HEADS];
#else
    vec4 best = vec4(MASS != 0 ? 0.0 : -3e38);
#endif
    for (uint first = 0; first < UNIT; first += 4) {
      const uint entry = unit * UNIT + first;
      // Where the four lie; past the last, that one again.
      uvec4 entries = min(uvec4(entry, entry + 1, entry + 2, entry + 3), uvec4(last));
      if (GROUP > 2 || WHOLE_VECTORS != 0) {  // in one group, or side by side as all are
        entries = EntryAt(candidates, entry) + (entries - entry);
      } else {
        [[unroll]] for (uint e = 0; e < 4; ++e) entries[e] = EntryAt(candidates, entries[e]);
      }
      // Of whole vectors.
      const uint at = (first_group * GROUP + entries.x) / 4 * WORDS;
      vec4 scores[HEADS];
      vec4 total = vec4(0.0);
      [[unroll]] for (uint h = 0; h < HEADS; ++h) scores[h] = vec4(0.0);
      if (HOIST != 0) {
        uvec4 words[BLOCK_WORDS];  // [k]: word k of each of the four entries
        if (WHOLE_VECTORS != 0 && ROW_VECTORS == 0) {
          uvec4 rows[BLOCK_WORDS];
          [[unroll]] for (uint k = 0; k < BLOCK_WORDS; ++k) {
            if (k < WORDS) rows[k] = index_uvec4(at + k);
          }
          [[unroll]] for (uint k = 0; k < BLOCK_WORDS; ++k) {
            if (k < WORDS) {
              words[k] = uvec4(rows[k / 4][k % 4], rows[(WORDS + k) / 4][(WORDS + k) % 4],
                               rows[(2 * WORDS + k) / 4][(2 * WORDS + k) % 4],
                               rows[(3 * WORDS + k) / 4][(3 * WORDS + k) % 4]);
            }
          }
        }
        // The four take turns: a loop that is four times as long does not fit into what a processor keeps of decoded
        // instructions, and runs at half the speed.
        for (uint e = 0; e < 4; ++e) {
          float score[HEADS];
          [[unroll]] for (uint h = 0; h < HEADS; ++h) score[h] = 0.0;
          [[unroll]] for (uint v = 0; v < BLOCK_WORDS / 4; ++v) {
            if (4 * v < WORDS) {
              uvec4 vector;
              if (ROW_VECTORS != 0) vector = index_uvec4(at + e * (WORDS / 4) + v);
              [[unroll]] for (uint w = 0; w < 4; ++w) {
                const uint k = 4 * v + w;
                if (k < WORDS) {
                  uint word;
                  if (ROW_VECTORS != 0) {
                    word = vector[w];
                  } else if (WHOLE_VECTORS != 0) {
                    word = words[k][e];
                  } else {
                    word = LoadWord(first_group, entries[e], k);
                  }
                  [[unroll]] for (uint j = 0; j < PER_WORD; ++j) {
                    const uint column = k * PER_WORD + j;
                    const float value = Value(word, j);
                    [[unroll]] for (uint h = 0; h < HEADS; ++h) {
                      score[h] += z[h * BLOCK_COLUMNS / 4 + column / 4][column % 4] * value;
                    }
                  }
                }
              }
            }
          }
#ifdef GROUPS
          float one = 0.0;
          [[unroll]] for (uint h = 0; h < HEADS; ++h) one += sums[h] * exp2(score[h] - references[h]);
          total[e] = one;
#else
          [[unroll]] for (uint h = 0; h < HEADS; ++h) scores[h][e] = score[h];
#endif
        }
      } else {
        for (uint k = 0; k < WORDS; k += STEP_WORDS) {
          uvec4 words[STEP_WORDS];
          if (WHOLE_VECTORS != 0 && WORDS <= STEP_WORDS) {
            uvec4 rows[STEP_WORDS];
            [[unroll]] for (uint w = 0; w < STEP_WORDS; ++w) rows[w] = w < WORDS ? index_uvec4(at + w) : uvec4(0);
            [[unroll]] for (uint w = 0; w < STEP_WORDS; ++w) {
              words[w] = uvec4(0);
              if (w < WORDS) {
                words[w] = uvec4(rows[w / 4][w % 4], rows[(WORDS + w) / 4][(WORDS + w) % 4],
                                 rows[(2 * WORDS + w) / 4][(2 * WORDS + w) % 4],
                                 rows[(3 * WORDS + w) / 4][(3 * WORDS + w) % 4]);
              }
            }
          } else if (ROW_VECTORS != 0) {
            uvec4 rows[4];
            [[unroll]] for (uint e = 0; e < 4; ++e) rows[e] = index_uvec4(at + (e * WORDS + k) / 4);
            [[unroll]] for (uint w = 0; w < STEP_WORDS; ++w) words[w] = uvec4(rows[0][w], rows[1][w], rows[2][w], rows[3][w]);
          } else {
            [[unroll]] for (uint w = 0; w < STEP_WORDS; ++w) {
              words[w] = k + w < WORDS ? LoadWords(first_group, entries, k + w) : uvec4(0);
            }
          }
          for (uint w = 0; w < STEP_WORDS; w += VALUE_WORDS) {
            if (k + w < WORDS) {
              vec4 values[VALUE_COLUMNS];
              [[unroll]] for (uint c = 0; c < VALUE_COLUMNS; ++c) {
                values[c] = Values(WordsAt(words, w + c / PER_WORD), c % PER_WORD);
              }
              [[unroll]] for (uint h = 0; h < HEADS; ++h) {
                [[unroll]] for (uint c = 0; c < VALUE_COLUMNS; c += 4) {
                  const uint column = (k + w) * PER_WORD + c;
                  vec4 factors;
                  if (WIDE) {
                    factors = LoadZ(token * p.n_rows + min(row_begin + h, row_end - 1), column);
                  } else {
                    factors = shared_z[h * (COLUMNS / 4) + column / 4];
                  }
                  [[unroll]] for (uint i = 0; i < 4; ++i) scores[h] += factors[i] * values[c + i];
                }
              }
            }
          }
        }
      }
#if defined(ROWS)
      const bvec4 is_entry = lessThanEqual(uvec4(entry, entry + 1, entry + 2, entry + 3), uvec4(last));
      [[unroll]] for (uint h = 0; h < HEADS; ++h) {
        const vec4 score = mix(vec4(kSmallest), scores[h], is_entry);
        const float reference =
            max(references[h], ceil(max(max(score.x, score.y), max(score.z, score.w))));
        const vec4 weights = exp2(score - reference);
        const float factor = Power(references[h] - reference);
        const float sum = (weights.x + weights.y) + (weights.z + weights.w);
        sums[h] = sums[h] * factor + sum;
        references[h] = reference;
        if (KEEPS != 0 && GROUP > 2) {
          unit_sums[h] = first == 0 ? sum : unit_sums[h] * factor + sum;
        } else if (KEEPS != 0) {
          const uint to = p.kept_begin + (token * p.n_rows + min(row_begin + h, row_end - 1)) * p.scores_stride;
          if (GROUP == 1) out4[to / 4 + unit] = score;
          if (GROUP == 2) out2[to / 2 + unit] = Logarithm(vec2(weights.x + weights.y, weights.z + weights.w)) + reference;
        }
      }
    }
    if (KEEPS != 0 && GROUP > 2) {
      // Past the last row it is that one again: on a CPU a condition costs more.
      [[unroll]] for (uint h = 0; h < HEADS; ++h) {
        out1[p.kept_begin + (token * p.n_rows + min(row_begin + h, row_end - 1)) * p.scores_stride + unit] =
            Logarithm(vec2(unit_sums[h])).x + references[h];
      }
    }
  }
#else
#if defined(GROUPS)
      [[unroll]] for (uint h = 0; h < HEADS; ++h) {
        if (HOIST == 0) total += sums[h] * exp2(scores[h] - references[h]);
      }
      // Of the rows that did not fit: left here by the dispatch before, and for the next.
      const uint totals_at =
          p.totals_begin / 4 + ((token * gl_NumWorkGroups.y + list) * p.n_units + unit) * UNIT_QUADS + first / 4;
      if (p.first_row != 0) total += out4[totals_at];
      if (row_begin + HEADS < row_end) out4[totals_at] = total;
#else
      total = scores[0];
#endif
      if (MASS == 0) {
        best = max(best, total);
      } else if (GROUP % 4 == 0 || GROUP <= 2) {
        best += total;
      } else {  // the last of four entries may not be there
        best += mix(vec4(0.0), total, lessThanEqual(uvec4(entry, entry + 1, entry + 2, entry + 3), uvec4(last)));
      }
    }
    if (MASS != 0) best = mix(vec4(0.0), best, greaterThan(best, vec4(0.0)));  // no NaNs
#if defined(GROUPS)
    const uint scores_at = p.scores_begin + (token * gl_NumWorkGroups.y + list) * p.scores_stride;
#else
    const uint scores_at = p.scores_begin + token * p.scores_stride;
#endif
    if (GROUP == 1) {
      out4[scores_at / 4 + unit] = best;
    } else if (GROUP == 2) {
      out2[scores_at / 2 + unit] =
          MASS != 0 ? best.xz + best.yw : vec2(max(best.x, best.y), max(best.z, best.w));
    } else {
      out1[scores_at + unit] =
          MASS != 0 ? (best.x + best.y) + (best.z + best.w) : max(max(best.x, best.y), max(best.z, best.w));
    }
  }
#endif

#ifdef ROWS
  [[unroll]] for (uint h = 0; h < HEADS; ++h) atomicMax(shared_references[h], int(references[h]));
  barrier();
  // Whole numbers, so that the sum does not depend on the order. A workgroup's entries have weights of at most 1.
  const uint n_units = (old + UNIT - 1) / UNIT;
  const uint most_entries = (n_units + stride - 1) / stride * lanes * UNIT;
  const float scale = float(1u << (30 - findMSB(most_entries | 1)));
  [[unroll]] for (uint h = 0; h < HEADS; ++h) {
    const float sum = sums[h] * Power(references[h] - float(shared_references[h]));
    atomicAdd(shared_sums[h], uint(round(sum * scale)));
  }
  barrier();
  for (uint h = lane; h < HEADS && row_begin + h < row_end; h += lanes) {
    out2[p.softmaxes_begin / 2 + (token * p.n_rows + row_begin + h) * p.n_workgroups + gl_WorkGroupID.x] =
        vec2(float(shared_references[h]), float(shared_sums[h]) / scale);
  }
#endif
}
