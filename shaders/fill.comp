#version 450
// Writes one value to a range of words.
#include "shared/fill.h"

layout(local_size_x_id = 0) in;

layout(std430, set = 0, binding = 0) buffer Words { uint words[]; };

layout(push_constant) uniform Push { FillParams p; };

void main() {
  const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
  for (uint i = gl_GlobalInvocationID.x; i < p.count; i += stride) {
    words[p.first + i] = p.value;
  }
}
