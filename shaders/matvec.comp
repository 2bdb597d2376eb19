// output[row] = sum over columns of weight[row, column] * input[column], of one token, on a GPU. A workgroup has the rows
// that lie side by side in a packed matrix, a lane each (ROWS of them); SPLITS of such lanes divide the columns. The
// input is in shared memory, a tile of columns at a time, so no lane hands anything to another but through that.
//
// NORM: the input is multiplied with a norm's weights as it is loaded, and results with 1 / its root mean square at the
// end, so that nothing waits for the sum. GATE: a lane has a row of the gate and the same of what it gates.
//
// Macros: WEIGHT_<TYPE>, ROWS (1 or 2).
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require

#include "shared/op_params.h"

layout(constant_id = 0) const uint SPLITS = 1;
layout(constant_id = 1) const uint NORM = 0;
layout(constant_id = 2) const uint VECTOR_INPUT = 1;  // n_cols is a multiple of 4
layout(local_size_x_id = 3, local_size_y = 1, local_size_z = 1) in;
layout(constant_id = 4) const uint GATE = 0;  // KVRUN_GATE_..., with two rows

#include "include/read_only.glsl"
#include "include/activation.glsl"
layout(push_constant) uniform Params { MatMulParams p; };

#include "include/packed_weights.glsl"
READ_ONLY(1, inputs)
layout(set = 0, binding = 2, std430) buffer Output { float result[]; };
READ_ONLY(3, constants)  // the norm's weights, biases, or both in turn
#define MAY_BRANCH 1
#include "include/product_input.glsl"

#define LANES KVRUN_ROW_INTERLEAVE
#define TILE_BLOCKS 64  // of 32 columns
// Blocks of a row whose weights are loaded before the first is used.
#if QUANT_VECTORS == 1
#define UNROLL 4
#elif QUANT_VECTORS == 2
#define UNROLL 2
#else
#define UNROLL 1
#endif

shared vec4 shared_input[TILE_BLOCKS * 8];
#ifndef FLOAT_WEIGHTS
shared vec2 shared_sums[TILE_BLOCKS];  // of each half of a block's input
#endif
shared float shared_parts[ROWS * KVRUN_MATVEC_LOCAL_SIZE];

// Adds what a block's weights and input make.
float BlockProduct(Block block, uvec4 quants[QUANT_VECTORS], uint place) {
#ifdef FLOAT_WEIGHTS
  float sum = 0.0;
  [[unroll]] for (uint j = 0; j < 8; ++j) {
    sum += dot(BlockWeights(block, quants[j / GROUPS_PER_VECTOR], j), shared_input[place * 8 + j]);
  }
  return sum;
#else
  vec2 dots = vec2(0.0);
  [[unroll]] for (uint j = 0; j < 8; ++j) {
    const vec4 x = shared_input[place * 8 + j];
    const vec4 q = RawQuants(block, quants[j / GROUPS_PER_VECTOR], j);
    dots[j / 4] += q.x * x.x;
    dots[j / 4] += q.y * x.y;
    dots[j / 4] += q.z * x.z;
    dots[j / 4] += q.w * x.w;
  }
  const vec2 sums = shared_sums[place];
#ifdef HALVES
  const vec2 low = RawScale(block, 0);
  const vec2 high = RawScale(block, 1);
  return low.x * dots.x + low.y * sums.x + high.x * dots.y + high.y * sums.y;
#else
  const vec2 both = RawScale(block, 0);
  return both.x * (dots.x + dots.y) + both.y * (sums.x + sums.y);
#endif
#endif
}

// The sum of what all invocations of the workgroup have.
float SumOfAll(float value) {
  shared_parts[gl_LocalInvocationIndex] = value;
  barrier();
  const uint lane = gl_LocalInvocationIndex % LANES;
  float sum = 0.0;
  for (uint i = 0; i < SPLITS; ++i) sum += shared_parts[i * LANES + lane];
  barrier();
  if (gl_LocalInvocationIndex < LANES) shared_parts[lane] = sum;
  barrier();
  sum = 0.0;
  for (uint i = 0; i < LANES; ++i) sum += shared_parts[i];
  barrier();
  return sum;
}

void main() {
  const uint lane = gl_LocalInvocationIndex % LANES;
  const uint split = gl_LocalInvocationIndex / LANES;
  const uint row_begin = gl_WorkGroupID.x * LANES * (GATE != 0 ? 1 : ROWS) + lane;
  const uint n_rows = GATE != 0 ? 2 * p.n_rows : p.n_rows;
  const uint row_last = (n_rows + LANES - 1) / LANES * LANES - 1;
  uint rows[ROWS];
  float sums[ROWS];
  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    rows[r] = min(row_begin + r * (GATE != 0 ? p.n_rows : LANES), row_last);
    sums[r] = 0.0;
  }

  float squares = 0.0;
  const uint n_blocks = p.planes.n_chunks * 2;
  for (uint tile = 0; tile < n_blocks; tile += TILE_BLOCKS) {
    const uint tile_blocks = min(TILE_BLOCKS, n_blocks - tile);
    if (tile != 0) barrier();
    for (uint i = gl_LocalInvocationIndex; i < tile_blocks * 8; i += gl_WorkGroupSize.x) {
      vec4 x = LoadInput(0, tile * 8 + i);
      if (NORM != 0) {
        squares += SquaresOf(x, tile * 8 + i);
        x *= NormWeights(tile * 8 + i);
      }
      shared_input[i] = x;
    }
    barrier();
#ifndef FLOAT_WEIGHTS
    for (uint i = gl_LocalInvocationIndex; i < tile_blocks; i += gl_WorkGroupSize.x) {
      vec4 low = vec4(0.0);
      vec4 high = vec4(0.0);
      [[unroll]] for (uint j = 0; j < 4; ++j) {
        low += shared_input[i * 8 + j];
        high += shared_input[i * 8 + 4 + j];
      }
      shared_sums[i] = vec2((low.x + low.y) + (low.z + low.w), (high.x + high.y) + (high.z + high.w));
    }
    barrier();
#endif
    for (uint first = split * UNROLL; first < tile_blocks; first += SPLITS * UNROLL) {
      Block blocks[UNROLL][ROWS];
      uvec4 quants[UNROLL][ROWS][QUANT_VECTORS];
      [[unroll]] for (uint u = 0; u < UNROLL; ++u) {
        const uint block = tile + min(first + u, tile_blocks - 1);
        [[unroll]] for (uint r = 0; r < ROWS; ++r) {
          blocks[u][r] = LoadBlock(p.planes, rows[r], block);
          [[unroll]] for (uint i = 0; i < QUANT_VECTORS; ++i) {
            quants[u][r][i] = LoadQuants(p.planes, rows[r], block, i);
          }
        }
      }
      [[unroll]] for (uint u = 0; u < UNROLL; ++u) {
        if (first + u < tile_blocks) {
          [[unroll]] for (uint r = 0; r < ROWS; ++r) {
            sums[r] += BlockProduct(blocks[u][r], quants[u][r], first + u);
          }
        }
      }
    }
  }

  const float factor = NORM != 0 ? NormFactor(SumOfAll(squares)) : 1.0;
  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    shared_parts[r * KVRUN_MATVEC_LOCAL_SIZE + gl_LocalInvocationIndex] = sums[r];
  }
  barrier();
  if (split != 0) return;
  float values[ROWS];
  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    values[r] = 0.0;
    for (uint s = 0; s < SPLITS; ++s) {
      values[r] += shared_parts[r * KVRUN_MATVEC_LOCAL_SIZE + s * LANES + lane];
    }
    values[r] *= factor;
  }
#if ROWS == 2
  if (GATE != 0) {
    if (row_begin < p.n_rows) {
      result[p.output_offset + row_begin] = Activated(values[0], GATE == KVRUN_GATE_GELU) * values[1];
    }
    return;
  }
#endif
  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    const uint row = row_begin + r * LANES;
    if (row < p.n_rows) {
      float value = values[r];
      if (p.has_bias != 0) value += constants_float(p.bias_offset + row);
      if (p.accumulate != 0) value += result[p.output_offset + row];
      result[p.output_offset + row] = value;
    }
  }
}
