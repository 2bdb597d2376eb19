// As select_groups.comp, for devices on which a loop costs less than a barrier: one workgroup per list, of as few
// invocations as run at once, without atomics. The smallest chosen score is found by counting how many scores reach
// each of seven values that divide the range that it must be in, until a value divides the groups, or is the score.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "shared/index_params.h"
#include "shared/step_params.h"

#define MAX_LOCAL_SIZE 32
#define VALUES 7
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { SelectGroupsParams p; };
READ_ONLY(0, scores)
layout(set = 0, binding = 1, std430) writeonly buffer Chosen { uint chosen[]; };
layout(set = 0, binding = 2, std140) uniform Step { StepParams stepp; };
#include "include/choosable.glsl"
#include "include/score_keys.glsl"

shared uint counts[VALUES * MAX_LOCAL_SIZE];  // [value, invocation]
shared uvec2 own[MAX_LOCAL_SIZE];  // groups that are surely chosen, and those whose score is the smallest chosen

uint lane = gl_LocalInvocationIndex;
uint lanes = gl_WorkGroupSize.x;

void main() {
  const uint token = gl_WorkGroupID.x / p.n_lists;
  const uint n_groups =
      ChoosableEntries(stepp.tokens[token].position, p.window_tokens, p.group_tokens, p.n_groups) / p.group_tokens;
  const uint n_chosen = min(p.n_chosen, n_groups);
  const uint n_pinned = min(p.n_pinned, n_chosen);
  const uint n_wanted = n_chosen - n_pinned;
  const uint out_begin = gl_WorkGroupID.x * (1 + p.n_chosen);
  const uint scores_begin = (p.scores_begin + gl_WorkGroupID.x * p.scores_stride) / 4;
  // An invocation's groups: consecutive, in vectors.
  const uint n_vectors = (n_groups + 3) / 4;
  const uint per_lane = (n_vectors + lanes - 1) / lanes;
  const uint begin = min(lane * per_lane, n_vectors);
  const uint end = min(begin + per_lane, n_vectors);
  if (lane == 0) chosen[out_begin] = n_chosen;
  for (uint group = lane; group < n_pinned; group += lanes) chosen[out_begin + 1 + group] = group;

  // n_wanted keys, and no fewer than in [low, high), are at least `low`; n_above, fewer, at least `high`.
  uint low = 1;
  uint high = 0xffffffffu;
  uint n_above = 0;
  bool is_divided = n_chosen == n_groups;  // exactly n_wanted keys are at least `low`
  while (!is_divided && high - low > 1) {
    const uint step = max((high - low) / (VALUES + 1), 1);
    uvec4 reach[VALUES];
    [[unroll]] for (uint i = 0; i < VALUES; ++i) reach[i] = uvec4(0);
    for (uint v = begin; v < end; ++v) {
      const uvec4 keys = Keys(scores_begin, v, n_pinned, n_groups);
      [[unroll]] for (uint i = 0; i < VALUES; ++i) {
        reach[i] += uvec4(greaterThanEqual(keys, uvec4(low + min((i + 1) * step, high - low))));
      }
    }
    [[unroll]] for (uint i = 0; i < VALUES; ++i) {
      counts[i * MAX_LOCAL_SIZE + lane] = (reach[i].x + reach[i].y) + (reach[i].z + reach[i].w);
    }
    barrier();
    uint from = low;
    uint to = high;
    [[unroll]] for (uint i = 0; i < VALUES; ++i) {
      uint n = 0;
      for (uint other = 0; other < lanes; ++other) n += counts[i * MAX_LOCAL_SIZE + other];
      const uint value = low + min((i + 1) * step, high - low);
      if (n >= n_wanted) {
        from = value;
        is_divided = n == n_wanted;
      } else if (value < to) {
        to = value;
        n_above = n;
      }
    }
    low = from;
    high = to;
    barrier();
  }
  const uint sure_from = is_divided ? low : high;
  const uint tie = is_divided ? 0xffffffffu : low;  // no key is so large
  const uint ties_wanted = is_divided ? 0 : n_wanted - n_above;

  uvec4 sure = uvec4(0);
  uvec4 tied = uvec4(0);
  for (uint v = begin; v < end; ++v) {
    const uvec4 keys = Keys(scores_begin, v, n_pinned, n_groups);
    sure += uvec4(greaterThanEqual(keys, uvec4(sure_from)));
    tied += uvec4(equal(keys, uvec4(tie)));
  }
  own[lane] = uvec2((sure.x + sure.y) + (sure.z + sure.w), (tied.x + tied.y) + (tied.z + tied.w));
  barrier();
  uvec2 earlier = uvec2(0);
  for (uint other = 0; other < lane; ++other) earlier += own[other];
  uint ties = earlier.y;
  uint at = out_begin + 1 + n_pinned + earlier.x + min(ties, ties_wanted);
  for (uint v = begin; v < end; ++v) {
    const uvec4 keys = Keys(scores_begin, v, n_pinned, n_groups);
    uint mask = 0;
    [[unroll]] for (uint i = 0; i < 4; ++i) {
      const bool is_tie = keys[i] == tie;
      if (keys[i] >= sure_from || (is_tie && ties < ties_wanted)) mask |= 1u << i;
      if (is_tie) ++ties;
    }
    while (mask != 0) {
      chosen[at++] = 4 * v + findLSB(mask);
      mask &= mask - 1;
    }
  }
}
