// out[t, column] = row t . side[., column] - bias_float(column): the keys of entries, projected.
//
//   ROWS=1  one row; invocations lie along columns, four each, and divide the dimensions. With DIRECT a workgroup is
//           COLUMN_LANES invocations, each of which takes all dimensions
//   ROWS=32 tiles of 32 rows and 32 columns, four by four to an invocation
//
// Macros: ROWS; SOURCE_ROWS (float rows), SOURCE_F16 or SOURCE_F32 (the K entries of a KV buffer's first sequence).
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "shared/index_params.h"

#define LOCAL_SIZE 64
layout(constant_id = 0) const uint VECTOR_COLUMNS = 1;  // rank is a multiple of 4
#if ROWS == 1
layout(constant_id = 1) const uint DIRECT = 0;  // needs whole vectors of rows: n_dims, row_begin, row_stride
layout(local_size_x_id = 2, local_size_y = 1, local_size_z = 1) in;  // LOCAL_SIZE or COLUMN_LANES
#else
layout(local_size_x = LOCAL_SIZE) in;
#endif
#include "include/read_only.glsl"
layout(push_constant) uniform Params { ProjectKeysParams p; };
READ_ONLY(0, rows)
READ_ONLY(1, side)
READ_ONLY(2, bias)
layout(set = 0, binding = 3, std430) writeonly buffer Output { float result[]; };

#define COLUMN_LANES 8
#define DIMS 32  // at a time

#include "include/index_side.glsl"

float LoadRow(uint row, uint dim) {
#if defined(SOURCE_ROWS)
  return uintBitsToFloat(rows_uint(row * p.row_stride + p.row_begin + dim));
#else
  const uint plane = dim / p.head_dim * 2;
  const uint at = (plane * p.n_ctx + p.row_begin + row) * p.head_dim + dim % p.head_dim;
#if defined(SOURCE_F16)
  const vec2 pair = unpackHalf2x16(rows_uint(at / 2));
  return at % 2 == 0 ? pair.x : pair.y;
#else
  return uintBitsToFloat(rows_uint(at));
#endif
#endif
}

void Store(uint row, uint column, vec4 sum) {
  [[unroll]] for (uint i = 0; i < 4; ++i) {
    if (row < p.n_tokens && column + i < p.rank) result[row * p.rank + column + i] = sum[i] - bias_float(column + i);
  }
}

#if ROWS == 1
#define SLICES (LOCAL_SIZE / COLUMN_LANES)
shared vec4 partial_sums[LOCAL_SIZE];

void main() {
  const uint lane = gl_LocalInvocationIndex;
  const uint column = gl_WorkGroupID.x * (4 * COLUMN_LANES) + lane % COLUMN_LANES * 4;
  const uint slice = lane / COLUMN_LANES;
  const uint row = gl_WorkGroupID.y;
  vec4 sum = vec4(0.0);
  if (DIRECT != 0) {
    for (uint dim = 0; dim < p.n_dims; dim += 4) {
      const vec4 values = rows_vec4((row * p.row_stride + p.row_begin + dim) / 4);
      [[unroll]] for (uint d = 0; d < 4; ++d) sum += values[d] * LoadSide(dim + d, column, p.rank);
    }
    Store(row, column, sum);
    return;
  }
  for (uint dim = slice; dim < p.n_dims; dim += SLICES) sum += LoadRow(row, dim) * LoadSide(dim, column, p.rank);
  partial_sums[lane] = sum;
  barrier();
  [[unroll]] for (uint s = 1; s < SLICES; ++s) sum += partial_sums[s * COLUMN_LANES + lane % COLUMN_LANES];
  if (slice == 0) Store(row, column, sum);
}
#else
shared vec4 tile[DIMS * ROWS / 4];  // [dim, row]

void main() {
  const uint lane = gl_LocalInvocationIndex;
  const uint column = gl_WorkGroupID.x * (4 * COLUMN_LANES) + lane % COLUMN_LANES * 4;
  const uint row_begin = gl_WorkGroupID.y * ROWS;
  vec4 sums[4];  // by row
  [[unroll]] for (uint r = 0; r < 4; ++r) sums[r] = vec4(0.0);
  for (uint begin = 0; begin < p.n_dims; begin += DIMS) {
    // Neighbouring invocations take neighbouring dimensions.
    for (uint i = lane; i < DIMS * ROWS / 4; i += LOCAL_SIZE) {
      const uint dim = min(begin + i % DIMS, p.n_dims - 1);
      const uint row = row_begin + i / DIMS * 4;
      const uint last = p.n_tokens - 1;
      tile[i % DIMS * (ROWS / 4) + i / DIMS] = vec4(LoadRow(min(row, last), dim), LoadRow(min(row + 1, last), dim),
                                                    LoadRow(min(row + 2, last), dim), LoadRow(min(row + 3, last), dim));
    }
    barrier();
    for (uint d = 0; d < min(p.n_dims - begin, DIMS); ++d) {
      const vec4 side = LoadSide(begin + d, column, p.rank);
      const vec4 keys = tile[d * (ROWS / 4) + lane / COLUMN_LANES];
      [[unroll]] for (uint r = 0; r < 4; ++r) sums[r] += keys[r] * side;
    }
    barrier();
  }
  [[unroll]] for (uint r = 0; r < 4; ++r) Store(row_begin + lane / COLUMN_LANES * 4 + r, column, sums[r]);
}
#endif
