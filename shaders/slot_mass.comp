// Joins what the rows of a step give to the entries of one source into its mass (SlotSource::mass), by the scores that
// attention over slots kept. One invocation per token, KV head and entry that the mapping table may name; what a row's
// weights are divided by is found once for a workgroup. Rows are of different sequences, and a slot is in one table
// once: no two invocations write the same.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "shared/mass_params.h"
#include "shared/step_params.h"

#define LOCAL_SIZE 64
layout(local_size_x = LOCAL_SIZE) in;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { SlotMassParams p; };
// Parts [n_tokens * n_heads, n_parts, head_dim + 2], see combine_splits.comp; from scores_begin on the scores
// [n_tokens * n_heads, scores_stride].
READ_ONLY(0, scratch)
READ_ONLY(1, table)
// [n_moments, n_lists, list_entries].
layout(set = 0, binding = 2, std430) buffer Mass { float mass[]; };
layout(set = 0, binding = 3, std140) uniform Step { StepParams stepp; };
#include "include/mass.glsl"

shared float maxima[LOCAL_SIZE];  // of a tile of the KV head's query heads
shared float totals[LOCAL_SIZE];

// A row's largest score and its sum of weights, of all its parts.
vec2 JoinParts(uint row) {
  const uint stride = p.head_dim + 2;
  const uint begin = row * p.n_parts * stride + p.head_dim;
  float maximum = -1e30;
  for (uint s = 0; s < p.n_parts; ++s) maximum = max(maximum, scratch_float(begin + s * stride));
  float total = 0.0;
  for (uint s = 0; s < p.n_parts; ++s) {
    total += exp(scratch_float(begin + s * stride) - maximum) * scratch_float(begin + s * stride + 1);
  }
  return vec2(maximum, total);
}

void main() {
  const uint lane = gl_LocalInvocationIndex;
  const uint index = gl_WorkGroupID.x * LOCAL_SIZE + lane;
  const uint kv_head = gl_WorkGroupID.y;
  const uint token = gl_WorkGroupID.z;
  const uint sequence = stepp.tokens[token].sequence;
  const uint stream = sequence * (p.n_kv_heads / p.record_heads) + kv_head / p.record_heads;
  const uint of_stream = stream * p.table_stride;
  const uint n_slots = table_uint(of_stream);
  const uint nth = index / p.group_tokens;
  const uint entry = index % p.group_tokens;
  bool counts = nth < n_slots;
  uint slot = 0;
  if (counts) {
    slot = table_uint(of_stream + 2 + nth);
    if (p.has_biases != 0) {
      counts = entry <= slot >> 24;
      slot &= 0xffffff;
    } else if (nth + 1 == n_slots) {
      counts = entry < table_uint(of_stream + 1);
    }
  }

  const uint group = p.n_heads / p.n_kv_heads;
  const uint first_row = token * p.n_heads + kv_head * group;
  const uint n_rows = gl_WorkGroupID.x * LOCAL_SIZE < n_slots * p.group_tokens ? group : 0;
  float given[KVRUN_MAX_MASS_MOMENTS];
  [[unroll]] for (uint m = 0; m < KVRUN_MAX_MASS_MOMENTS; ++m) given[m] = 0.0;
  for (uint begin = 0; begin < n_rows; begin += LOCAL_SIZE) {
    const uint n = min(n_rows - begin, LOCAL_SIZE);
    if (lane < n) {
      const vec2 sum = JoinParts(first_row + begin + lane);
      maxima[lane] = sum.x;
      totals[lane] = sum.y;
    }
    barrier();
    for (uint r = 0; counts && r < n; ++r) {
      const float score = scratch_float(p.scores_begin + (first_row + begin + r) * p.scores_stride + index);
      AddWeight(exp(score - maxima[r]) / totals[r], given);
    }
    barrier();
  }
  if (counts) {
    const uint list = p.n_lists == 1 ? 0 : sequence * p.n_kv_heads + kv_head;
    const float factor = HeadFactor(group);
    [[unroll]] for (uint m = 0; m < KVRUN_MAX_MASS_MOMENTS; ++m) {
      if (m < p.form.n_moments) {
        const uint at = (m * p.n_lists + list) * p.list_entries + slot * p.group_tokens + entry;
        mass[at] = Joined(mass[at], given[m] * factor);
      }
    }
  }
}
