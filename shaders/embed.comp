// result[t] = scale * row tokens[t].id of a packed table. One invocation per token and block of 32 columns. A table in
// several slices takes a dispatch each; rows outside of the slice are left alone.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "shared/op_params.h"
#include "shared/step_params.h"

layout(local_size_x = 64) in;
layout(push_constant) uniform Params { EmbedParams p; };
#include "include/read_only.glsl"
#include "include/packed_weights.glsl"
layout(set = 0, binding = 1, std430) writeonly buffer Output { float result[]; };
layout(set = 0, binding = 2, std140) uniform Step { StepParams stepp; };

void main() {
  const uint n_blocks = p.planes.n_chunks * 2;
  const uint token = gl_GlobalInvocationID.x / n_blocks;
  const uint block = gl_GlobalInvocationID.x % n_blocks;
  if (token < p.n_tokens) {
    const uint row = stepp.tokens[token].id - p.row_begin;  // wraps below the slice
    if (row < p.n_rows) {
      const Block b = LoadBlock(p.planes, row, block);
      uvec4 quants;
      [[unroll]] for (uint j = 0; j < 8; ++j) {
        if (j % GROUPS_PER_VECTOR == 0) quants = LoadQuants(p.planes, row, block, j / GROUPS_PER_VECTOR);
        const vec4 w = BlockWeights(b, quants, j);
        const uint column = block * 32 + 4 * j;
        [[unroll]] for (uint i = 0; i < 4; ++i) {
          if (column + i < p.n_cols) result[token * p.n_cols + column + i] = p.scale * w[i];
        }
      }
    }
  }
}
