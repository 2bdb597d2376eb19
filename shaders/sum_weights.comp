// sums[row, head] = the largest score of the tile's entries that the row sees and the sum of exp(score - largest), joined
// with what is there of other tiles. A workgroup computes one; invocations take every LOCAL_SIZE-th entry.
//
// Macros: KV_F16 or KV_F32, what the entries are read as.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/mass_params.h"
#include "shared/step_params.h"

#define LOCAL_SIZE 64
layout(local_size_x = LOCAL_SIZE) in;
#include "include/row_mass.glsl"
layout(set = 0, binding = 2, std430) buffer Sums { float sums[]; };
layout(set = 0, binding = 3, std140) uniform Step { StepParams stepp; };

const float kMasked = -1e30;

shared float maxima[LOCAL_SIZE];
shared float weights[LOCAL_SIZE];

void main() {
  const uint lane = gl_LocalInvocationIndex;
  const uint head = gl_WorkGroupID.x;
  const uint row = gl_WorkGroupID.y;
  const uint position = stepp.tokens[row].position;
  const uint n_seen = position < p.tile_begin ? 0 : min(position - p.tile_begin + 1, p.n_entries);
  float maximum = kMasked;
  float weight = 0.0;
  for (uint entry = lane; entry < n_seen; entry += LOCAL_SIZE) {
    const float score = ScoreOf(row, head, entry);
    if (score > maximum) {
      weight = weight * exp(maximum - score) + 1.0;
      maximum = score;
    } else {
      weight += exp(score - maximum);
    }
  }
  maxima[lane] = maximum;
  weights[lane] = weight;
  barrier();
  // A tile of which nothing is seen leaves what is there as it is.
  if (lane == 0 && (n_seen > 0 || p.is_first != 0)) {
    const uint at = (row * p.n_heads + head) * 2;
    const float largest_before = p.is_first != 0 ? kMasked : sums[at];
    float largest = largest_before;
    for (uint k = 0; k < LOCAL_SIZE; ++k) largest = max(largest, maxima[k]);
    float sum = p.is_first != 0 ? 0.0 : sums[at + 1] * exp(largest_before - largest);
    for (uint k = 0; k < LOCAL_SIZE; ++k) sum += weights[k] * exp(maxima[k] - largest);
    sums[at] = largest;
    sums[at + 1] = sum;
  }
}
