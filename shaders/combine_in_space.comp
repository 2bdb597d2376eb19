// As combine_splits.comp, and the result out of the records' space: D H result + mean value. A workgroup per row.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/op_params.h"
#include "shared/step_params.h"

#define LOCAL_SIZE 64
layout(local_size_x = LOCAL_SIZE) in;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { CombineInSpaceParams p; };
READ_ONLY(0, scratch)
layout(set = 0, binding = 1, std430) writeonly buffer Output { float result[]; };
READ_ONLY(2, means)
layout(set = 0, binding = 3, std140) uniform Step { StepParams stepp; };

#include "include/entry_space.glsl"

shared float joined[KVRUN_MOST_ELEMENTS];
shared float halfway[KVRUN_MOST_ELEMENTS];

void JoinSplits(uint row) {
  const uint stride = p.head_dim + 2;
  const uint begin = row * p.n_splits * stride;
  float maximum = -1e30;
  for (uint s = 0; s < p.n_splits; ++s) maximum = max(maximum, scratch_float(begin + s * stride + p.head_dim));
  for (uint i = gl_LocalInvocationIndex; i < p.head_dim; i += LOCAL_SIZE) {
    float value = 0.0;
    float weight = 0.0;
    for (uint s = 0; s < p.n_splits; ++s) {
      const uint part = begin + s * stride;
      const float factor = exp(scratch_float(part + p.head_dim) - maximum);
      value += factor * scratch_float(part + i);
      weight += factor * scratch_float(part + p.head_dim + 1);
    }
    joined[i] = value / weight;
  }
}

#define SPACE_ROW joined
#define SPACE_HALFWAY halfway
#define SPACE_LANE gl_LocalInvocationIndex
#define SPACE_LANES LOCAL_SIZE
#include "include/out_of_space.glsl"

void main() {
  const uint row = gl_WorkGroupID.x;
  JoinSplits(row);
  barrier();
  const uint sequence = stepp.tokens[row / p.n_heads].sequence;
  const uint kv_head = row % p.n_heads / (p.n_heads / p.n_kv_heads);
  const uint mean = p.means_begin + ((sequence * p.n_kv_heads + kv_head) * 2 + 1) * p.head_dim;
  const uint block = HadamardBlock(p.head_dim);
  const uint low = 1u << (findMSB(block) / 2);
  MultiplyLow(p.head_dim, low);
  barrier();
  const float factor = 1.0 / sqrt(float(block));
  for (uint i = gl_LocalInvocationIndex; i < p.head_dim; i += LOCAL_SIZE) {
    result[row * p.head_dim + i] = SignOf(i) * HighElement(i, low, block / low) * factor + means_float(mean + i);
  }
}
