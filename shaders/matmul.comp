// output[t, row] = sum over columns of weight[row, column] * input[t, column], on packed quantised weights.
//
// Lanes lie along rows: each lane decodes its own ROWS rows and multiplies them with TOKENS tokens, so a decoded
// weight is used TOKENS times and a lane's words are its neighbour's. The inputs are the same for all lanes:
//   PATH_SUBGROUP  each lane loads a share of the tile and hands it out with subgroup shuffles
//   otherwise      every lane reads them itself, from one address
//
// Of one token, that of CPUs which run shaders (matvec.comp is that of GPUs), with a norm and a gate as there.
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

// Lanes per row tile, of which a workgroup has several: the subgroup's width with PATH_SUBGROUP.
layout(constant_id = 0) const uint LANES = 32;
layout(constant_id = 1) const uint NORM = 0;          // with one token
layout(constant_id = 2) const uint VECTOR_INPUT = 1;  // n_cols is a multiple of 4
layout(local_size_x_id = 3, local_size_y = 1, local_size_z = 1) in;
layout(constant_id = 4) const uint GATE = 0;  // KVRUN_GATE_..., with one token

#include "include/activation.glsl"
#include "include/read_only.glsl"
layout(push_constant) uniform Params { MatMulParams p; };

#include "include/packed_weights.glsl"
READ_ONLY(1, inputs)
layout(set = 0, binding = 2, std430) buffer Output { float result[]; };
READ_ONLY(3, constants)  // the norm's weights, biases, or both in turn
#ifdef PATH_SUBGROUP
#define MAY_BRANCH 1
#endif
#include "include/product_input.glsl"

// With one token a weight is used once: cheaper to scale each block's dot product than each weight.
#if TOKENS == 1 && defined(AFFINE_BLOCKS)
#define SCALE_ONCE 1
#endif
#if TOKENS == 1
#define TILE_ROWS (GATE != 0 ? ROWS / 2 : ROWS)
// Row r of a tile's lane: with a gate, the second half is what the first gates.
#define ROW_OF(r) (row_begin + r % TILE_ROWS * LANES + r / TILE_ROWS * p.n_rows)
#else
#define TILE_ROWS ROWS
#define ROW_OF(r) (row_begin + r * LANES)
#endif

#ifdef PATH_SUBGROUP
float SumOfLanes(float value) {
  for (uint i = 1; i < LANES; i *= 2) value += subgroupShuffleXor(value, i);
  return value;
}
#endif

void main() {
  const uint lane = gl_LocalInvocationIndex % LANES;
  const uint tile = gl_LocalInvocationIndex / LANES;
  const uint row_begin = (gl_WorkGroupID.x * (gl_WorkGroupSize.x / LANES) + tile) * TILE_ROWS * LANES + lane;
  const uint token_begin = gl_WorkGroupID.y * TOKENS;
  const uint n_rows = GATE != 0 ? 2 * p.n_rows : p.n_rows;
  const uint row_last = (n_rows + KVRUN_ROW_INTERLEAVE - 1) / KVRUN_ROW_INTERLEAVE * KVRUN_ROW_INTERLEAVE - 1;

  uint rows[ROWS];
  float sums[ROWS][TOKENS];
  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    rows[r] = min(ROW_OF(r), row_last);
    [[unroll]] for (uint t = 0; t < TOKENS; ++t) sums[r][t] = 0.0;
  }

  const uint n_blocks = p.planes.n_chunks * 2;
#if TOKENS == 1
  float squares = 0.0;  // of this lane's part, or of all
#endif
  for (uint block = 0; block < n_blocks; ++block) {
#ifdef PATH_SUBGROUP
    // The tile's vectors (token, v) = (i / 8, i % 8), i = slot * LANES + lane.
    vec4 shares[2 * TOKENS];
    [[unroll]] for (uint slot = 0; slot < 2 * TOKENS; ++slot) {
      if (slot * LANES < 8 * TOKENS) {
        const uint i = min(slot * LANES + lane, 8 * TOKENS - 1);
        shares[slot] = LoadInput(token_begin + i / 8, block * 8 + i % 8);
#if TOKENS == 1
        if (NORM != 0) {
          if (slot * LANES + lane < 8) squares += SquaresOf(shares[slot], block * 8 + i);
          shares[slot] *= NormWeights(block * 8 + i);
        }
#endif
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
#if TOKENS == 1
        if (NORM != 0) {
          squares += SquaresOf(x[t], block * 8 + j);
          x[t] *= NormWeights(block * 8 + j);
        }
#endif
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
  if (NORM != 0) {
#ifdef PATH_SUBGROUP
    squares = SumOfLanes(squares);
#endif
    const float factor = NormFactor(squares);
    [[unroll]] for (uint r = 0; r < ROWS; ++r) sums[r][0] *= factor;
  }
  if (GATE != 0) {
    [[unroll]] for (uint r = 0; r < ROWS / 2; ++r) {
      const uint row = row_begin + r * LANES;
      if (row < p.n_rows) {
        result[p.output_offset + row] = Activated(sums[r][0], GATE == KVRUN_GATE_GELU) * sums[r + ROWS / 2][0];
      }
    }
    return;
  }
#endif

  // Some drivers read push constants anew in each branch.
  const MatMulParams end = p;
  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    const uint row = row_begin + r * LANES;
    [[unroll]] for (uint t = 0; t < TOKENS; ++t) {
      if (row < end.n_rows && token_begin + t < end.n_tokens) {
        const uint at = (token_begin + t) * end.output_stride + end.output_offset + row;
        float value = sums[r][t];
        if (end.has_bias != 0) value += constants_float(end.bias_offset + row);
        if (end.accumulate != 0) value += result[at];
        result[at] = value;
      }
    }
  }
}
