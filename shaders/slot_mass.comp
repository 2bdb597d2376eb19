// Joins what the rows of a step give to the entries of one source into its mass (SlotSource::mass), by the scores that
// attention over slots kept. A workgroup has a token, a KV head, and ENTRIES of those that the mapping table may name;
// each invocation finds what its rows' weights are divided by, then goes through them, four neighbours at a time. Rows
// are of different sequences, and a slot is in one table once: no two invocations write the same.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "shared/mass_params.h"
#include "shared/step_params.h"

// What is known when a pipeline is made: on a CPU conditions are no branches, and both sides take time.
layout(constant_id = 0) const uint SINGLE_ENTRIES = 0;  // each slot has one
layout(constant_id = 1) const uint HAS_BIASES = 0;
layout(constant_id = 2) const uint MOMENTS = 2;
layout(constant_id = 3) const uint ROWS = 4;       // of the KV head's query heads, at once
layout(constant_id = 4) const uint MANY_ROWS = 0;  // it has more
layout(constant_id = 5) const uint ENTRIES = 256;  // a multiple of 4 times the workgroup's size
layout(local_size_x_id = 6, local_size_y = 1, local_size_z = 1) in;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { SlotMassParams p; };
// Parts [n_tokens * n_heads, n_parts, head_dim + 2], see combine_splits.comp; from scores_begin on the scores
// [n_tokens * n_heads, scores_stride], both multiples of 4.
READ_ONLY(0, scratch)
READ_ONLY(1, table)
// [n_moments, n_lists, list_entries].
layout(set = 0, binding = 2, std430) buffer Mass { float mass[]; };
layout(set = 0, binding = 3, std140) uniform Step { StepParams stepp; };
#include "include/mass.glsl"

// A row's largest score and its sum of weights, of all its parts.
vec2 JoinParts(uint row) {
  const uint stride = (p.head_dim + 2) / 2;
  const uint begin = row * p.n_parts * stride + p.head_dim / 2;
  float maximum = -1e30;
  for (uint s = 0; s < p.n_parts; ++s) maximum = max(maximum, scratch_vec2(begin + s * stride).x);
  float total = 0.0;
  for (uint s = 0; s < p.n_parts; ++s) {
    const vec2 part = scratch_vec2(begin + s * stride);
    total += exp(part.x - maximum) * part.y;
  }
  return vec2(maximum, total);
}

// Those of n rows from `first` on.
void FindSums(uint first, uint n, out vec2 sums[ROWS]) {
  [[unroll]] for (uint r = 0; r < ROWS; ++r) sums[r] = JoinParts(first + min(r, n - 1));
}

// With HAS_BIASES those that do not count are among them.
uint NumberOfEntries(uint of_stream) {
  const uint n_slots = table_uint(of_stream);
  if (HAS_BIASES != 0) return n_slots * p.group_tokens;
  return n_slots == 0 ? 0 : (n_slots - 1) * p.group_tokens + table_uint(of_stream + 1);
}

// Where the mass of the `index`-th entry of a table lies in a list; ~0 where it does not count.
uint PlaceOf(uint of_stream, uint index) {
  const uint nth = index / p.group_tokens;
  const uint entry = index - nth * p.group_tokens;
  uint slot = table_uint(of_stream + 2 + nth);
  if (HAS_BIASES != 0) {
    if (entry > slot >> 24) return ~0u;
    slot &= 0xffffff;
  }
  return slot * p.group_tokens + entry;
}

// Of the four entries from `index` on; ~0 from `end` on, which is not 0.
uvec4 PlacesOf(uint of_stream, uint index, uint end) {
  uvec4 places = uvec4(~0u);
  if (SINGLE_ENTRIES != 0 && HAS_BIASES == 0) {
    const uint word = of_stream + 2 + min(index, end - 1);
    const uvec4 low = table_uvec4(word / 4);
    const bool is_in_next = word % 4 + min(end - min(index, end), 4u) > 4;  // what follows may be no table
    const uvec4 high = is_in_next ? table_uvec4(word / 4 + 1) : low;
    if (word % 4 == 0) places = low;
    if (word % 4 == 1) places = uvec4(low.yzw, high.x);
    if (word % 4 == 2) places = uvec4(low.zw, high.xy);
    if (word % 4 == 3) places = uvec4(low.w, high.xyz);
    return mix(uvec4(~0u), places, lessThan(index + uvec4(0, 1, 2, 3), uvec4(end)));
  }
  [[unroll]] for (uint i = 0; i < 4; ++i) {
    if (index + i < end) places[i] = PlaceOf(of_stream, index + i);
  }
  return places;
}

void main() {
  const uint kv_head = gl_WorkGroupID.y;
  const uint token = gl_WorkGroupID.z;
  const uint sequence = stepp.tokens[token].sequence;
  const uint stream = sequence * (p.n_kv_heads / p.record_heads) + kv_head / p.record_heads;
  const uint of_stream = stream * p.table_stride;
  const uint group = p.n_heads / p.n_kv_heads;
  const uint first_row = token * p.n_heads + kv_head * group;
  const uint list = p.n_lists == 1 ? 0 : sequence * p.n_kv_heads + kv_head;
  const float factor = HeadFactor(group);

  const uint first = gl_WorkGroupID.x * ENTRIES;
  const uint end = min(first + ENTRIES, NumberOfEntries(of_stream));
  vec2 sums[ROWS];
  if (MANY_ROWS == 0) FindSums(first_row, group, sums);
  for (uint begin = first; begin < end; begin += 4 * gl_WorkGroupSize.x) {
    const uint index = begin + 4 * gl_LocalInvocationIndex;
    vec4 given[KVRUN_MAX_SLOT_MASS_MOMENTS];
    [[unroll]] for (uint m = 0; m < KVRUN_MAX_SLOT_MASS_MOMENTS; ++m) given[m] = vec4(0.0);
    for (uint tile = 0; tile < group; tile += ROWS) {
      const uint n = min(group - tile, ROWS);
      if (MANY_ROWS != 0) FindSums(first_row + tile, n, sums);
      [[unroll]] for (uint r = 0; r < ROWS; ++r) {
        const uint row = first_row + tile + min(r, n - 1);
        const vec4 scores = scratch_vec4((p.scores_begin + row * p.scores_stride + min(index, end - 1)) / 4);
        if (r < n) AddWeights(exp(scores - sums[r].x) / sums[r].y, given);
      }
    }
    const uvec4 places = PlacesOf(of_stream, index, end);
    [[unroll]] for (uint i = 0; i < 4; ++i) {
      if (places[i] != ~0u) {
        [[unroll]] for (uint m = 0; m < KVRUN_MAX_SLOT_MASS_MOMENTS; ++m) {
          if (m < MOMENTS) {
            const uint at = (m * p.n_lists + list) * p.list_entries + places[i];
            mass[at] = Joined(mass[at], given[m][i] * factor);
          }
        }
      }
    }
  }
}
