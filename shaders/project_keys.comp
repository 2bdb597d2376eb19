// out[t, column] = K of entry t . side[., column] - bias[column]: the keys of entries, projected. Tiles of 32 entries and
// 32 columns, four by four to an invocation.
//
// Macros: SOURCE_F16 or SOURCE_F32 (the K entries of a KV buffer's first sequence).
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "shared/index_params.h"

#define LOCAL_SIZE 64
layout(constant_id = 0) const uint VECTOR_COLUMNS = 1;  // rank is a multiple of 4
layout(constant_id = 1) const uint HALF_SIDE = 0;       // key_side is f16
layout(local_size_x = LOCAL_SIZE) in;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { ProjectKeysParams p; };
READ_ONLY(0, rows)
READ_ONLY(1, side)
READ_ONLY(2, bias)
layout(set = 0, binding = 3, std430) writeonly buffer Output { float result[]; };

#define COLUMN_LANES 8
#define ROWS 32
#define DIMS 32  // at a time

#include "include/index_side.glsl"

float LoadRow(uint row, uint dim) {
  const uint plane = dim / p.head_dim * 2;
  const uint at = (plane * p.n_ctx + p.first_token + row) * p.head_dim + dim % p.head_dim;
#if defined(SOURCE_F16)
  const vec2 pair = unpackHalf2x16(rows_uint(at / 2));
  return at % 2 == 0 ? pair.x : pair.y;
#else
  return uintBitsToFloat(rows_uint(at));
#endif
}

void Store(uint row, uint column, vec4 sum) {
  [[unroll]] for (uint i = 0; i < 4; ++i) {
    if (row < p.n_tokens && column + i < p.rank) result[row * p.rank + column + i] = sum[i] - bias_float(column + i);
  }
}

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
