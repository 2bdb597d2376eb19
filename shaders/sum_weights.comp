// sums[row, head] = the largest score of the tile's entries that the row sees and the sum of exp(score - largest), joined
// with what is there of other tiles. A workgroup computes those of QUERIES queries of a KV head; invocations take every
// LOCAL_SIZE-th entry.
//
// Macros: KV_F16 or KV_F32, what the entries are read as.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "shared/mass_params.h"
#include "shared/step_params.h"

#define LOCAL_SIZE 64
layout(local_size_x = LOCAL_SIZE) in;
#include "include/row_mass.glsl"
layout(set = 0, binding = 2, std430) buffer Sums { float sums[]; };
layout(set = 0, binding = 3, std140) uniform Step { StepParams stepp; };

const float kMasked = -1e30;

shared float maxima[QUERIES * LOCAL_SIZE];
shared float weights[QUERIES * LOCAL_SIZE];

// Of the tile's entries, by a query; none by one past the end.
uint CountSeen(uint query) {
  if (query >= NumberOfQueries()) return 0;
  const uint position = stepp.tokens[RowOf(query)].position;
  return position < p.tile_begin ? 0 : min(position - p.tile_begin + 1, p.n_entries);
}

// A tile of which nothing is seen leaves what is there as it is.
void JoinSums(uint at, uint slice, uint n_seen) {
  if (n_seen > 0 || p.is_first != 0) {
    const float largest_before = p.is_first != 0 ? kMasked : sums[at];
    float largest = largest_before;
    for (uint k = 0; k < LOCAL_SIZE; ++k) largest = max(largest, maxima[slice + k]);
    float sum = p.is_first != 0 ? 0.0 : sums[at + 1] * exp(largest_before - largest);
    for (uint k = 0; k < LOCAL_SIZE; ++k) sum += weights[slice + k] * exp(maxima[slice + k] - largest);
    sums[at] = largest;
    sums[at + 1] = sum;
  }
}

void main() {
  const uint lane = gl_LocalInvocationIndex;
  const uint first = gl_WorkGroupID.x * QUERIES;
  const uint kv_head = gl_WorkGroupID.y;
  uint n_seen[QUERIES];
  float maximum[QUERIES];
  float weight[QUERIES];
  uint most = 0;
  [[unroll]] for (uint q = 0; q < QUERIES; ++q) {
    n_seen[q] = CountSeen(first + q);
    most = max(most, n_seen[q]);
    maximum[q] = kMasked;
    weight[q] = 0.0;
  }
  for (uint entry = lane; entry < most; entry += LOCAL_SIZE) {
    float scores[QUERIES];
    ScoreEntry(kv_head, first, entry, scores);
    [[unroll]] for (uint q = 0; q < QUERIES; ++q) {
      if (entry < n_seen[q]) {
        const float difference = scores[q] - maximum[q];
        const float factor = exp(-abs(difference));
        weight[q] = difference > 0.0 ? weight[q] * factor + 1.0 : weight[q] + factor;
        maximum[q] = max(maximum[q], scores[q]);
      }
    }
  }
  [[unroll]] for (uint q = 0; q < QUERIES; ++q) {
    maxima[q * LOCAL_SIZE + lane] = maximum[q];
    weights[q * LOCAL_SIZE + lane] = weight[q];
  }
  barrier();
  if (lane < QUERIES && first + lane < NumberOfQueries()) {
    JoinSums(PlaceOf(kv_head, first + lane) * 2, lane * LOCAL_SIZE, CountSeen(first + lane));
  }
}
