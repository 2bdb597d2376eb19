// Rows of z that a workgroup of score.comp makes by itself, from the query as it is before its norm and rotation, into
// shared_z; the first workgroup leaves them for the kernels that follow. Push constants `q` tell of the query.
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
