// output[t, row] = sum over columns of weight[row, column] * input[t, column], on packed quantised weights.
//
// Lanes lie along rows: each lane decodes its own ROWS rows and multiplies them with TOKENS tokens, so a decoded
// weight is used TOKENS times and a lane's words are its neighbour's. The inputs are the same for all lanes:
//   PATH_SUBGROUP  each lane loads a share of the tile and hands it out with subgroup shuffles
//   otherwise      every lane reads them itself, from one address
//
// Macros: WEIGHT_<TYPE>, ROWS, TOKENS, PATH_SUBGROUP; PATH_TEXEL (read_only.glsl).
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#ifdef PATH_SUBGROUP
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#endif

#include "shared/op_params.h"

// Lanes per row tile: the subgroup's width with PATH_SUBGROUP. Tiles per workgroup, of which SPLITS share rows
// and divide the columns.
#ifndef LANES
layout(constant_id = 0) const uint LANES = 32;
#endif
layout(constant_id = 1) const uint SPLITS = 1;
layout(constant_id = 2) const uint VECTOR_INPUT = 1;  // n_cols is a multiple of 4
layout(local_size_x_id = 3, local_size_y = 1, local_size_z = 1) in;

#include "include/read_only.glsl"
layout(push_constant) uniform Params { MatMulParams p; };

#include "include/packed_weights.glsl"
READ_ONLY(1, inputs)
layout(set = 0, binding = 2, std430) buffer Output { float result[]; };
READ_ONLY(3, bias)

#define MAX_LOCAL_SIZE 128
// With one token a weight is used once: cheaper to scale each block's dot product than each weight.
#if TOKENS == 1 && defined(AFFINE_BLOCKS)
#define SCALE_ONCE 1
#endif
#if TOKENS == 1
shared float partial_sums[ROWS * MAX_LOCAL_SIZE];
#endif

// Columns 4v .. 4v+3 of a token's row. Only rows of float types may be no whole number of vectors; a branch for them
// is kept out of the other kernels, where some drivers take minutes to compile dozens of them.
vec4 LoadInput(uint token, uint v) {
  const uint t = min(token, p.n_tokens - 1);
#if !defined(FLOAT_WEIGHTS)
  return inputs_vec4(t * (p.n_cols / 4) + v);
#else
  const uint base = t * p.n_cols + 4 * v;
#ifdef PATH_SUBGROUP
  if (VECTOR_INPUT != 0) return inputs_vec4(base / 4);
#endif
  return vec4(inputs_float(base), inputs_float(base + 1), inputs_float(base + 2), inputs_float(base + 3));
#endif
}

void main() {
  const uint lane = gl_LocalInvocationIndex % LANES;
  const uint tile = gl_LocalInvocationIndex / LANES;
  const uint split = tile % SPLITS;
  const uint tiles_of_rows = gl_WorkGroupSize.x / LANES / SPLITS;
  const uint row_begin = (gl_WorkGroupID.x * tiles_of_rows + tile / SPLITS) * ROWS * LANES + lane;
  const uint token_begin = gl_WorkGroupID.y * TOKENS;
  const uint row_last = (p.n_rows + KVRUN_ROW_INTERLEAVE - 1) / KVRUN_ROW_INTERLEAVE * KVRUN_ROW_INTERLEAVE - 1;

  uint rows[ROWS];
  float sums[ROWS][TOKENS];
  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    rows[r] = min(row_begin + r * LANES, row_last);
    [[unroll]] for (uint t = 0; t < TOKENS; ++t) sums[r][t] = 0.0;
  }

  const uint n_blocks = p.planes.n_chunks * 2;
  for (uint block = split; block < n_blocks; block += SPLITS) {
#ifdef PATH_SUBGROUP
    // The tile's vectors (token, v) = (i / 8, i % 8), i = slot * LANES + lane.
    vec4 shares[2 * TOKENS];
    [[unroll]] for (uint slot = 0; slot < 2 * TOKENS; ++slot) {
      if (slot * LANES < 8 * TOKENS) {
        const uint i = min(slot * LANES + lane, 8 * TOKENS - 1);
        shares[slot] = LoadInput(token_begin + i / 8, block * 8 + i % 8);
      }
    }
#endif
    Block blocks[ROWS];
    uvec4 quants[ROWS];
#ifdef SCALE_ONCE
    float input_sum = 0.0;
    float dots[ROWS];
    [[unroll]] for (uint r = 0; r < ROWS; ++r) dots[r] = 0.0;
#endif
    [[unroll]] for (uint r = 0; r < ROWS; ++r) blocks[r] = LoadBlock(p.planes, rows[r], block);
    [[unroll]] for (uint j = 0; j < 8; ++j) {
      vec4 x[TOKENS];
      [[unroll]] for (uint t = 0; t < TOKENS; ++t) {
#ifdef PATH_SUBGROUP
        const uint i = t * 8 + j;
        x[t] = subgroupShuffle(shares[i / LANES], i % LANES);
#else
        x[t] = LoadInput(token_begin + t, block * 8 + j);
#endif
      }
      [[unroll]] for (uint r = 0; r < ROWS; ++r) {
        if (j % GROUPS_PER_VECTOR == 0) quants[r] = LoadQuants(p.planes, rows[r], block, j / GROUPS_PER_VECTOR);
#ifdef SCALE_ONCE
        const vec4 q = BlockQuants(blocks[r], quants[r], j);
        dots[r] += q.x * x[0].x;
        dots[r] += q.y * x[0].y;
        dots[r] += q.z * x[0].z;
        dots[r] += q.w * x[0].w;
#else
        const vec4 w = BlockWeights(blocks[r], quants[r], j);
        [[unroll]] for (uint t = 0; t < TOKENS; ++t) {
          sums[r][t] += w.x * x[t].x;
          sums[r][t] += w.y * x[t].y;
          sums[r][t] += w.z * x[t].z;
          sums[r][t] += w.w * x[t].w;
        }
#endif
      }
#ifdef SCALE_ONCE
      input_sum += (x[0].x + x[0].y) + (x[0].z + x[0].w);
#endif
    }
#ifdef SCALE_ONCE
    [[unroll]] for (uint r = 0; r < ROWS; ++r) {
      sums[r][0] += blocks[r].scale * dots[r] + blocks[r].offset * input_sum;
    }
#endif
  }

#if TOKENS == 1
  if (SPLITS > 1) {
    [[unroll]] for (uint r = 0; r < ROWS; ++r) {
      partial_sums[r * MAX_LOCAL_SIZE + gl_LocalInvocationIndex] = sums[r][0];
    }
    barrier();
    [[unroll]] for (uint r = 0; r < ROWS; ++r) {
      float sum = 0.0;
      for (uint s = 0; s < SPLITS; ++s) {
        sum += partial_sums[r * MAX_LOCAL_SIZE + (tile / SPLITS * SPLITS + s) * LANES + lane];
      }
      sums[r][0] = sum;
    }
  }
#endif

  // Some drivers read push constants anew in each branch.
  const MatMulParams end = p;
  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    const uint row = row_begin + r * LANES;
    [[unroll]] for (uint t = 0; t < TOKENS; ++t) {
      if (row < end.n_rows && token_begin + t < end.n_tokens && split == 0) {
        const uint at = (token_begin + t) * end.output_stride + end.output_offset + row;
        float value = sums[r][t];
        if (end.has_bias != 0) value += bias_float(end.bias_offset + row);
        if (end.accumulate != 0) value += result[at];
        result[at] = value;
      }
    }
  }
}
