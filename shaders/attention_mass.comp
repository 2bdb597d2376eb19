// Joins what rows give to a tile's entries into their mass: weights by the sums of sum_weights.comp over all tiles. One
// invocation per KV head and entry.
//
// Macros: KV_F16 or KV_F32, what the entries are read as.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "shared/mass_params.h"
#include "shared/step_params.h"

layout(local_size_x = 64) in;
#include "include/row_mass.glsl"
READ_ONLY(2, sums)
// [n_moments, n_kv_heads, mass_stride].
layout(set = 0, binding = 3, std430) buffer Mass { float mass[]; };
layout(set = 0, binding = 4, std140) uniform Step { StepParams stepp; };
#include "include/mass.glsl"

bool Sees(uint query, uint entry) { return stepp.tokens[RowOf(query)].position >= p.tile_begin + entry; }

void main() {
  const uint entry = gl_GlobalInvocationID.x;
  const uint kv_head = gl_WorkGroupID.y;
  const uint n_queries = entry < p.n_entries ? NumberOfQueries() : 0;
  float joined[KVRUN_MAX_MASS_MOMENTS];
  float given[KVRUN_MAX_MASS_MOMENTS];  // by the row whose heads it is the turn of
  [[unroll]] for (uint m = 0; m < KVRUN_MAX_MASS_MOMENTS; ++m) joined[m] = given[m] = 0.0;
  for (uint first = 0; first < n_queries; first += QUERIES) {
    bool is_seen[QUERIES];
    bool any_seen = false;
    [[unroll]] for (uint q = 0; q < QUERIES; ++q) {
      is_seen[q] = first + q < n_queries && Sees(min(first + q, n_queries - 1), entry);
      any_seen = any_seen || is_seen[q];
    }
    if (any_seen) {
      float scores[QUERIES];
      ScoreEntry(kv_head, first, entry, scores);
      [[unroll]] for (uint q = 0; q < QUERIES; ++q) {
        if (is_seen[q]) {
          const uint query = first + q;
          const vec2 sum = sums_vec2(PlaceOf(kv_head, query));
          AddWeight(exp(scores[q] - sum.x) / sum.y, given);
          if (query % Group() == Group() - 1) {
            [[unroll]] for (uint m = 0; m < KVRUN_MAX_MASS_MOMENTS; ++m) {
              joined[m] = Joined(joined[m], given[m] * HeadFactor(Group()));
              given[m] = 0.0;
            }
          }
        }
      }
    }
  }
  if (entry < p.n_entries) {
    [[unroll]] for (uint m = 0; m < KVRUN_MAX_MASS_MOMENTS; ++m) {
      if (m < p.form.n_moments) {
        const uint at = (m * p.n_kv_heads + kv_head) * p.mass_stride + p.mass_begin + entry;
        mass[at] = Joined(mass[at], joined[m]);
      }
    }
  }
}
