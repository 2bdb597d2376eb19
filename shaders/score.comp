// Scores the entries (rows) of an index that can be chosen: the products of their rows with rows of z. An invocation scores
// four consecutive entries at a time, so that a value of z is used four times.
//
//   ROWS    per workgroup and row of z, the reference and the sum of a softmax over the entries that it scored
//   GROUPS  each group's score: the largest of its entries', or their sum, each the sum of its softmaxes over the rows
//   SUM     each group's largest product with the one row of z
//
// A softmax needs all products before it can weigh one. They are computed twice: kept, they would take more memory than
// the index, and reading them back costs as much. Products are logarithms to base 2, references whole numbers.
//
// Workgroups take units (groups, or as many of them as make four entries) in turn: there are as many workgroups as keep
// the device busy, whatever room the index has.
//
// Macros: INDEX_F16, INDEX_INT8 or INDEX_INT4; ROWS, GROUPS or SUM; HEADS, rows of z at a time. PROJECTS, with ROWS: each
// workgroup makes the rows of z by itself, from the query as it is before its norm and rotation, and the first one leaves
// them for GROUPS. That saves a dispatch, where one costs more than the same sums by every workgroup.
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
// PROJECTS:
layout(constant_id = 6) const uint HAS_NORM = 0;
layout(constant_id = 7) const uint TILE_ROWS = 1;  // neighbours of one KV head, whose side is read once; they divide HEADS
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

#if defined(INDEX_F16)
#define BITS 16
#elif defined(INDEX_INT8)
#define BITS 8
#else
#define BITS 4
#endif
#define PER_WORD (32 / BITS)

// With HOIST the first columns are written out. Not by loops for the driver to unroll: some take minutes.
#define BLOCK_COLUMNS 32
#define BLOCK_WORDS (BLOCK_COLUMNS / PER_WORD)
// Of the loop over the others: whole vectors of columns.
#define STEP_WORDS (BITS == 16 ? 2 : 1)
#define STEP_COLUMNS (STEP_WORDS * PER_WORD)
// With z in registers the four entries take turns: a loop that is four times as long does not fit into what a
// processor keeps of decoded instructions, and runs at half the speed.
// Shared memory is too small for z, which is read where it lies.
const bool WIDE = RANK > KVRUN_SHARED_INDEX_RANK;
const bool ONE_BY_ONE = HEADS > 1 && HOIST != 0 && RANK <= BLOCK_COLUMNS;
// Where z lies when an invocation takes it into registers.
#ifdef PROJECTS
const bool HAS_SHARED_Z = true;
#else
const bool HAS_SHARED_Z = !ONE_BY_ONE && !WIDE;
#endif
// Of one entry's row.
const uint WORDS = (RANK * BITS + 31) / 32;
// Of a row of shared_z: whole vectors.
const uint COLUMNS = (RANK + 31) / 32 * 32;
const uint UNIT_GROUPS = GROUP == 1 ? 4 : GROUP == 2 ? 2 : 1;
const uint UNIT = UNIT_GROUPS * GROUP;
const uint UNIT_QUADS = (UNIT + 3) / 4;

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

// 32 bits of an entry's row from column k * PER_WORD on; zeros beyond its last.
uint LoadWord(uint sequence, uint entry, uint k) {
  const uint bit = (entry % GROUP) * RANK * BITS + 32 * k;
  const uint at = (sequence * p.n_groups + entry / GROUP) * p.group_words + bit / 32;
  uint word = index_uint(at);
  if (RANK * BITS % 32 != 0) {
    const uint shift = bit % 32;
    if (shift != 0) word = word >> shift | index_uint(at + 1) << (32 - shift);
    if (k == WORDS - 1) word &= (1u << (RANK * BITS % 32)) - 1;
  }
  return word;
}

// Those of four entries; past the last, that one again.
uvec4 LoadWords(uint sequence, uint entry, uint last, uint k) {
  return uvec4(LoadWord(sequence, entry, k), LoadWord(sequence, min(entry + 1, last), k),
               LoadWord(sequence, min(entry + 2, last), k), LoadWord(sequence, min(entry + 3, last), k));
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

#ifdef PROJECTS
const uint VECTOR_COLUMNS = RANK % 4 == 0 ? 1 : 0;
#include "include/index_side.glsl"
#include "include/query_heads.glsl"
#include "include/query_rows.glsl"

shared vec4 shared_inputs[HEADS * KVRUN_MAX_PROJECTED_HEAD_DIM / 4];  // [row, head_dim]

// A row of z may not be read where it lies: it is shared.
vec4 LoadZ(uint row, uint column) { return vec4(0.0); }

// Rows [row_begin, row_begin + n_rows) of z into shared_z, zeros beyond the last column.
void ProjectRows(uint token, uint sequence, uint row_begin, uint n_rows) {
  const uint lane = gl_LocalInvocationIndex;
  const uint lanes = gl_WorkGroupSize.x;
  const uint heads = q.n_heads / q.n_rows;  // of a row
  const uint group = q.n_heads / q.n_kv_heads;
  const uint vectors = q.head_dim / 4;
  if (HAS_NORM != 0) FindNorms(token * q.n_heads + row_begin * heads, n_rows * heads);
  for (uint i = lane; i < n_rows * vectors; i += lanes) {
    shared_inputs[i] = InputVector(token, row_begin + i / vectors, i % vectors * 4);
  }
  barrier();
  for (uint i = lane; i < HEADS / TILE_ROWS * (COLUMNS / 4); i += lanes) {
    const uint tile = i / (COLUMNS / 4) * TILE_ROWS;
    const uint column = i % (COLUMNS / 4) * 4;
    const uint dims = (row_begin + min(tile, n_rows - 1)) * heads / group * q.head_dim;  // of query_side
    vec4 sums[TILE_ROWS];
    [[unroll]] for (uint r = 0; r < TILE_ROWS; ++r) sums[r] = vec4(0.0);
    for (uint v = 0; v < vectors && column < RANK; ++v) {
      vec4 values[TILE_ROWS];
      [[unroll]] for (uint r = 0; r < TILE_ROWS; ++r) values[r] = shared_inputs[min(tile + r, n_rows - 1) * vectors + v];
      [[unroll]] for (uint d = 0; d < 4; ++d) {
        const vec4 side = LoadSide(dims + 4 * v + d, column, RANK);
        [[unroll]] for (uint r = 0; r < TILE_ROWS; ++r) sums[r] += values[r][d] * side;
      }
    }
    [[unroll]] for (uint r = 0; r < TILE_ROWS; ++r) {
      vec4 z = sums[r];
      if (q.is_affine != 0) z += LoadSide(q.n_kv_heads * q.head_dim, column, RANK);
      [[unroll]] for (uint c = 0; c < 4; ++c) {
        const bool is_column = column + c < RANK;
        z[c] = is_column ? q.scale * z[c] * scales_float(sequence * RANK + min(column + c, RANK - 1)) : 0.0;
        if (is_column && gl_WorkGroupID.x == 0 && tile + r < n_rows) {
          out1[p.z_begin + (token * p.n_rows + row_begin + tile + r) * RANK + column + c] = z[c];
        }
      }
      shared_z[i % (COLUMNS / 4) + (tile + r) * (COLUMNS / 4)] = z;
    }
  }
}
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

float Value(uint word, uint j) {
#if defined(INDEX_F16)
  return unpackHalf2x16(j == 0 ? word : word >> 16).x;
#else
  return float(int(word << (32 - BITS - BITS * j)) >> (32 - BITS));
#endif
}

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
  const uint old =
      ChoosableEntries(stepp.tokens[token].position, p.window_tokens, p.group_tokens, p.n_groups) / p.group_tokens * GROUP;

#ifdef PROJECTS
  ProjectRows(token, sequence, row_begin, min(row_end - row_begin, HEADS));
#else
  for (uint i = lane; HAS_SHARED_Z && i < HEADS * COLUMNS / 4; i += lanes) {
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
        if (!HAS_SHARED_Z && 4 * i < RANK) {
          z[h * BLOCK_COLUMNS / 4 + i] = LoadZ(token * p.n_rows + min(row_begin + h, row_end - 1), 4 * i);
        } else if (4 * i < RANK) {
          z[h * BLOCK_COLUMNS / 4 + i] = shared_z[h * (COLUMNS / 4) + i];
        }
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
    vec4 best = vec4(MASS != 0 ? 0.0 : -3e38);
    for (uint first = 0; first < UNIT; first += 4) {
      const uint entry = unit * UNIT + first;
      vec4 scores[HEADS];
      vec4 total = vec4(0.0);
      [[unroll]] for (uint h = 0; h < HEADS; ++h) scores[h] = vec4(0.0);
      if (HOIST != 0) {
        uvec4 words[BLOCK_WORDS];  // [k]: word k of each of the four entries
        if (WHOLE_VECTORS != 0 && WORDS <= BLOCK_WORDS) {
          uvec4 rows[BLOCK_WORDS];
          const uint at = (sequence * p.n_groups * GROUP + entry) / 4 * WORDS;
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
        } else {
          [[unroll]] for (uint k = 0; k < BLOCK_WORDS; ++k) {
            if (k < WORDS) words[k] = LoadWords(sequence, entry, last, k);
          }
        }
        if (ONE_BY_ONE) {
          for (uint e = 0; e < 4; ++e) {
            float score[HEADS];
            [[unroll]] for (uint h = 0; h < HEADS; ++h) score[h] = 0.0;
            [[unroll]] for (uint k = 0; k < BLOCK_WORDS; ++k) {
              if (k < WORDS) {
                const uint word = words[k][e];
                [[unroll]] for (uint j = 0; j < PER_WORD; ++j) {
                  const uint column = k * PER_WORD + j;
                  const float value = Value(word, j);
                  [[unroll]] for (uint h = 0; h < HEADS; ++h) {
                    score[h] += z[h * BLOCK_COLUMNS / 4 + column / 4][column % 4] * value;
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
        } else
        [[unroll]] for (uint k = 0; k < BLOCK_WORDS; ++k) {
          if (k < WORDS) {
            [[unroll]] for (uint j = 0; j < PER_WORD; ++j) {
              const uint column = k * PER_WORD + j;
              const vec4 values = Values(words[k], j);
              [[unroll]] for (uint h = 0; h < HEADS; ++h) {
                scores[h] += z[h * BLOCK_COLUMNS / 4 + column / 4][column % 4] * values;
              }
            }
          }
        }
      }
      for (uint k = HOIST != 0 ? BLOCK_WORDS : 0; k < WORDS; k += STEP_WORDS) {
        vec4 values[STEP_COLUMNS];
        [[unroll]] for (uint w = 0; w < STEP_WORDS; ++w) {
          const uvec4 words = k + w < WORDS ? LoadWords(sequence, entry, last, k + w) : uvec4(0);
          [[unroll]] for (uint j = 0; j < PER_WORD; ++j) values[w * PER_WORD + j] = Values(words, j);
        }
        [[unroll]] for (uint h = 0; h < HEADS; ++h) {
          [[unroll]] for (uint c = 0; c < STEP_COLUMNS; c += 4) {
            vec4 factors;
            if (WIDE) {
              factors = LoadZ(token * p.n_rows + min(row_begin + h, row_end - 1), k * PER_WORD + c);
            } else {
              factors = shared_z[h * (COLUMNS / 4) + (k * PER_WORD + c) / 4];
            }
            [[unroll]] for (uint i = 0; i < 4; ++i) scores[h] += factors[i] * values[c + i];
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
        sums[h] = sums[h] * Power(references[h] - reference) + ((weights.x + weights.y) + (weights.z + weights.w));
        references[h] = reference;
      }
    }
  }
#else
#if defined(GROUPS)
      [[unroll]] for (uint h = 0; h < HEADS; ++h) {
        if (!ONE_BY_ONE) total += sums[h] * exp2(scores[h] - references[h]);
      }
      // Of the rows that did not fit: left here by the dispatch before, and for the next.
      const uint at = p.totals_begin / 4 + ((token * gl_NumWorkGroups.y + list) * p.n_units + unit) * UNIT_QUADS + first / 4;
      if (p.first_row != 0) total += out4[at];
      if (row_begin + HEADS < row_end) out4[at] = total;
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
