// sums[i, j] += sum over vectors v of v[i] v[j], and sums[dim, j] += sum of v[j]. A workgroup computes 64 by 32 of them,
// an invocation 8 by 4, and writes each also where i and j are exchanged; tiles that hold no i <= j do nothing.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "shared/index_params.h"

#define LOCAL_SIZE 64
#define TILE_I 64
#define TILE_J 32
#define VECTORS 16  // at a time
layout(local_size_x = LOCAL_SIZE) in;
layout(constant_id = 0) const uint VECTOR_ROWS = 1;  // first_column, row_stride and dim are multiples of 4
layout(push_constant) uniform Params { AccumulateGramParams p; };
layout(set = 0, binding = 0, std430) readonly buffer Rows4 { vec4 rows4[]; };
layout(set = 0, binding = 0, std430) readonly buffer Rows1 { float rows1[]; };
layout(set = 0, binding = 1, std430) buffer Sums { float sums[]; };

shared vec4 tile_i[VECTORS * TILE_I / 4];
shared vec4 tile_j[VECTORS * TILE_J / 4];

// Elements i .. i + 3 of a vector; zeros beyond its end, and beyond the last vector.
vec4 Load(uint vector, uint i) {
  vec4 value = vec4(0.0);
  if (vector < p.n_vectors) {
    const uint begin = (p.first_row + vector / p.n_blocks) * p.row_stride + p.first_column + vector % p.n_blocks * p.dim;
    if (VECTOR_ROWS != 0) {
      if (i < p.dim) value = rows4[(begin + i) / 4];
    } else {
      [[unroll]] for (uint k = 0; k < 4; ++k) {
        if (i + k < p.dim) value[k] = rows1[begin + i + k];
      }
    }
  }
  return value;
}

void Add(uint at, float value) { sums[p.sums_offset + at] += value; }

void main() {
  const uint lane = gl_LocalInvocationIndex;
  const uint begin_i = gl_WorkGroupID.x * TILE_I;
  const uint begin_j = gl_WorkGroupID.y * TILE_J;
  const uint lane_i = lane / 8 * 2;  // in vectors of 4
  const uint lane_j = lane % 8;
  vec4 products[8];
  vec4 total = vec4(0.0);
  [[unroll]] for (uint k = 0; k < 8; ++k) products[k] = vec4(0.0);
  const uint n_vectors = begin_i < begin_j + TILE_J ? p.n_vectors : 0;
  for (uint vector = 0; vector < n_vectors; vector += VECTORS) {
    for (uint n = lane; n < VECTORS * TILE_I / 4; n += LOCAL_SIZE) {
      tile_i[n] = Load(vector + n / (TILE_I / 4), begin_i + n % (TILE_I / 4) * 4);
    }
    for (uint n = lane; n < VECTORS * TILE_J / 4; n += LOCAL_SIZE) {
      tile_j[n] = Load(vector + n / (TILE_J / 4), begin_j + n % (TILE_J / 4) * 4);
    }
    barrier();
    for (uint n = 0; n < VECTORS; ++n) {
      const vec4 a = tile_i[n * (TILE_I / 4) + lane_i];
      const vec4 b = tile_i[n * (TILE_I / 4) + lane_i + 1];
      const vec4 c = tile_j[n * (TILE_J / 4) + lane_j];
      [[unroll]] for (uint k = 0; k < 4; ++k) {
        products[k] += a[k] * c;
        products[k + 4] += b[k] * c;
      }
      total += c;
    }
    barrier();
  }
  const uint first_i = begin_i + 4 * lane_i;
  const uint first_j = begin_j + 4 * lane_j;
  [[unroll]] for (uint k = 0; k < 8; ++k) {
    [[unroll]] for (uint n = 0; n < 4; ++n) {
      const uint i = first_i + k;
      const uint j = first_j + n;
      if (i <= j && j < p.dim) {
        Add(i * p.dim + j, products[k][n]);
        if (i < j) Add(j * p.dim + i, products[k][n]);
      }
    }
  }
  [[unroll]] for (uint n = 0; n < 4; ++n) {
    if (begin_i == 0 && lane_i == 0 && first_j + n < p.dim) Add(p.dim * p.dim + first_j + n, total[n]);
  }
}
