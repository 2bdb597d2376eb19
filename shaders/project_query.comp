// z[token, row, column] = scale * sum of query_float(token, head, i) * query_side[KV head of head, i, column] over the row's
// heads and i, times the column's scale in the index. Heads of one KV head are added up before they are multiplied. With
// is_affine, query_side's last row is added to the sum.
//
// A workgroup computes 32 columns of up to four rows that share their KV heads: invocations lie along columns, four
// each, and divide the dimensions. With DIRECT nothing is shared: a workgroup is COLUMN_LANES invocations, each of which
// takes all dimensions.
//
// Macros: ROTATES, the query is neither normalised nor rotated yet (rotate_query.comp): each workgroup does so with what
// it reads.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "shared/index_params.h"
#include "shared/step_params.h"

#define LOCAL_SIZE 32
#define COLUMN_LANES 8
#define SLICES (LOCAL_SIZE / COLUMN_LANES)
layout(constant_id = 0) const uint VECTOR_COLUMNS = 1;  // rank is a multiple of 4
layout(constant_id = 1) const uint DIRECT = 0;          // needs head_dim to be a multiple of 4
layout(local_size_x_id = 2, local_size_y = 1, local_size_z = 1) in;  // LOCAL_SIZE or COLUMN_LANES
layout(constant_id = 3) const uint HALF_SIDE = 0;       // query_side is f16
layout(constant_id = 4) const uint HAS_NORM = 0;        // ROTATES
#include "include/read_only.glsl"
layout(push_constant) uniform Params { ProjectQueryParams q; };
READ_ONLY(0, query)
READ_ONLY(1, side)
READ_ONLY(2, scales)
layout(set = 0, binding = 3, std430) writeonly buffer Scratch { float z[]; };
#ifdef ROTATES
// [n_tokens, rotary_dim / 2]: cosine and sine of the row's angle, times the magnitude.
READ_ONLY(4, angles)
READ_ONLY(5, norms)
layout(set = 0, binding = 6, std140) uniform Step { StepParams stepp; };
#else
layout(set = 0, binding = 4, std140) uniform Step { StepParams stepp; };
#endif

shared vec4 inputs[LOCAL_SIZE];                 // [dimension]: of four rows
shared vec4 partial_sums[4 * LOCAL_SIZE];       // [row, slice, lane of a slice]
#include "include/index_side.glsl"

#include "include/query_heads.glsl"
#include "include/query_rows.glsl"

void Store(uint token, uint row, uint column, vec4 sum) {
  const uint sequence = stepp.tokens[token].sequence;
  if (q.is_affine != 0) sum += LoadSide(q.n_kv_heads * q.head_dim, column, q.rank);
  [[unroll]] for (uint i = 0; i < 4; ++i) {
    if (column + i < q.rank) {
      z[q.z_begin + (token * q.n_rows + row) * q.rank + column + i] =
          q.scale * sum[i] * scales_float(sequence * q.rank + column + i);
    }
  }
}

void main() {
  const uint lane = gl_LocalInvocationIndex;
  const uint column = gl_WorkGroupID.x * (4 * COLUMN_LANES) + lane % COLUMN_LANES * 4;
  const uint token = gl_WorkGroupID.z;
  const uint group = q.n_heads / q.n_kv_heads;  // heads of a KV head
  const uint heads = q.n_heads / q.n_rows;      // of a row
  const uint sharing = max(group / heads, 1);   // rows of a KV head
  const uint tiles = (sharing + 3) / 4;
  const uint row_begin = gl_WorkGroupID.y / tiles * sharing + gl_WorkGroupID.y % tiles * 4;
  const uint n_rows = min(sharing - gl_WorkGroupID.y % tiles * 4, 4);
  const uint dim_begin = row_begin * heads / group * q.head_dim;  // of query_side
  const uint n_dims = max(heads / group, 1) * q.head_dim;

#ifdef ROTATES
  if (HAS_NORM != 0) FindNorms(token * q.n_heads + row_begin * heads, n_rows * heads);
#endif

  vec4 sums[4];
  [[unroll]] for (uint r = 0; r < 4; ++r) sums[r] = vec4(0.0);
  if (DIRECT != 0) {
    for (uint dim = 0; dim < n_dims; dim += 4) {
      vec4 values[4];
      [[unroll]] for (uint r = 0; r < 4; ++r) values[r] = InputVector(token, row_begin + min(r, n_rows - 1), dim);
      [[unroll]] for (uint d = 0; d < 4; ++d) {
        const vec4 side = LoadSide(dim_begin + dim + d, column, q.rank);
        [[unroll]] for (uint r = 0; r < 4; ++r) sums[r] += values[r][d] * side;
      }
    }
    [[unroll]] for (uint r = 0; r < 4; ++r) {
      if (r < n_rows) Store(token, row_begin + r, column, sums[r]);
    }
    return;
  }
  for (uint begin = 0; begin < n_dims; begin += LOCAL_SIZE) {
    vec4 input4 = vec4(0.0);
    if (begin + lane < n_dims) {
      input4.x = Input(token, row_begin, begin + lane);
      if (n_rows > 1) input4.y = Input(token, row_begin + 1, begin + lane);
      if (n_rows > 2) input4.z = Input(token, row_begin + 2, begin + lane);
      if (n_rows > 3) input4.w = Input(token, row_begin + 3, begin + lane);
    }
    inputs[lane] = input4;
    barrier();
    for (uint k = lane / COLUMN_LANES; k < min(n_dims - begin, LOCAL_SIZE); k += SLICES) {
      const vec4 side = LoadSide(dim_begin + begin + k, column, q.rank);
      const vec4 values = inputs[k];
      [[unroll]] for (uint r = 0; r < 4; ++r) sums[r] += values[r] * side;
    }
    barrier();
  }
  [[unroll]] for (uint r = 0; r < 4; ++r) partial_sums[r * LOCAL_SIZE + lane] = sums[r];
  barrier();
  // Invocation (row, column) adds up the slices.
  const uint r = lane / COLUMN_LANES;
  vec4 sum = vec4(0.0);
  [[unroll]] for (uint s = 0; s < SLICES; ++s) {
    sum += partial_sums[r * LOCAL_SIZE + s * COLUMN_LANES + lane % COLUMN_LANES];
  }
  if (r < n_rows) Store(token, row_begin + r, column, sum);
}
