// result[i] = x[tokens[i].output_row].
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/op_params.h"
#include "shared/step_params.h"

layout(local_size_x = 64) in;
layout(push_constant) uniform Params { GatherParams p; };
layout(set = 0, binding = 0, std430) readonly buffer X { float x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Output { float result[]; };
layout(set = 0, binding = 2, std140) uniform Step { StepParams stepp; };

void main() {
  const uint row = gl_GlobalInvocationID.x / p.n_cols;
  const uint column = gl_GlobalInvocationID.x % p.n_cols;
  if (row < p.n_rows) result[row * p.n_cols + column] = x[stepp.tokens[row].output_row * p.n_cols + column];
}
