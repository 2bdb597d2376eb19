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
layout(set = 0, binding = 2, std430) readonly buffer Sums { float sums[]; };
// [n_moments, n_kv_heads, mass_stride].
layout(set = 0, binding = 3, std430) buffer Mass { float mass[]; };
layout(set = 0, binding = 4, std140) uniform Step { StepParams stepp; };
#include "include/mass.glsl"

void main() {
  const uint entry = gl_GlobalInvocationID.x;
  const uint kv_head = gl_WorkGroupID.y;
  const uint group = p.n_heads / p.n_kv_heads;
  if (entry < p.n_entries) {
    float joined[KVRUN_MAX_MASS_MOMENTS];
    [[unroll]] for (uint m = 0; m < KVRUN_MAX_MASS_MOMENTS; ++m) joined[m] = 0.0;
    for (uint row = 0; row < p.n_rows; ++row) {
      if (stepp.tokens[row].position >= p.tile_begin + entry) {
        float given[KVRUN_MAX_MASS_MOMENTS];
        [[unroll]] for (uint m = 0; m < KVRUN_MAX_MASS_MOMENTS; ++m) given[m] = 0.0;
        for (uint head = kv_head * group; head < (kv_head + 1) * group; ++head) {
          const uint sum = (row * p.n_heads + head) * 2;
          AddWeight(exp(ScoreOf(row, head, entry) - sums[sum]) / sums[sum + 1], given);
        }
        [[unroll]] for (uint m = 0; m < KVRUN_MAX_MASS_MOMENTS; ++m) {
          joined[m] = Joined(joined[m], given[m] * HeadFactor(group));
        }
      }
    }
    [[unroll]] for (uint m = 0; m < KVRUN_MAX_MASS_MOMENTS; ++m) {
      if (m < p.form.n_moments) {
        const uint at = (m * p.n_kv_heads + kv_head) * p.mass_stride + p.mass_begin + entry;
        mass[at] = Joined(mass[at], joined[m]);
      }
    }
  }
}
