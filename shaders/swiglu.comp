// result[t, i] = activation(gate[t, i]) * up[t, i], gate and up side by side in one row.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/op_params.h"

layout(local_size_x = 64) in;
layout(constant_id = 0) const uint VECTOR_COLUMNS = 1;  // n_ff is a multiple of 4
layout(constant_id = 1) const uint IS_GELU = 0;         // by tanh; else silu
#include "include/activation.glsl"
#include "include/read_only.glsl"
layout(push_constant) uniform Params { SwiGluParams p; };
READ_ONLY(0, gate_up)
layout(set = 0, binding = 1, std430) writeonly buffer R4 { vec4 result4[]; };
layout(set = 0, binding = 1, std430) writeonly buffer R1 { float result1[]; };

float Gate(float x) { return Activated(x, IS_GELU != 0); }

void main() {
  const uint n = VECTOR_COLUMNS != 0 ? p.n_ff / 4 : p.n_ff;
  const uint token = gl_GlobalInvocationID.x / n;
  const uint i = gl_GlobalInvocationID.x % n;
  if (token < p.n_tokens) {
    if (VECTOR_COLUMNS != 0) {
      const vec4 g = gate_up_vec4(token * 2 * n + i);
      result4[token * n + i] =
          vec4(Gate(g.x), Gate(g.y), Gate(g.z), Gate(g.w)) * gate_up_vec4(token * 2 * n + n + i);
    } else {
      const float g = gate_up_float(token * 2 * n + i);
      result1[token * n + i] = Gate(g) * gate_up_float(token * 2 * n + n + i);
    }
  }
}
