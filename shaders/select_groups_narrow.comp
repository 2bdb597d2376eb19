// As select_groups.comp, for devices on which a loop costs less than a barrier: one workgroup per list, of as few
// invocations as run at once, without atomics. The smallest chosen score is found by counting how many scores reach
// each of seven values that divide the range that it must be in, until a value divides the groups, or is the score.
// With MASS scores are summed as well, in the same order each time: a larger value then never has a larger sum.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "shared/index_params.h"
#include "shared/step_params.h"

#define MAX_LOCAL_SIZE 32
#define VALUES 7
#define TOGETHER 4  // vectors of scores that are read at a time
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { SelectGroupsParams p; };
READ_ONLY(0, scores)
layout(set = 0, binding = 1, std430) writeonly buffer Chosen { uint chosen[]; };
layout(set = 0, binding = 2, std140) uniform Step { StepParams stepp; };
#include "include/choosable.glsl"
#define CANDIDATE_WORD(i) scores_uint(i)
#include "include/score_stages.glsl"

// Finite floats in their order: keys from kLow to below kHigh.
#ifdef MASS
const uint kLow = 0x80000000u;  // zero: there are no smaller ones
#else
const uint kLow = 0x00800000u;
#endif
const uint kHigh = 0xff800000u;

float FloatOf(uint key) { return uintBitsToFloat((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key); }

// Scores of groups 4 * vector ..; less than any finite one for those that are pinned or cannot be chosen.
vec4 Scores(uint scores_begin, uint vector, uint first, uint end) {
  const vec4 values = scores_vec4(scores_begin + vector);
  const uvec4 groups = 4 * vector + uvec4(0, 1, 2, 3);
  const bvec4 is_candidate = lessThan(groups - first, uvec4(end - first));  // those before `first` are huge
  return mix(vec4(uintBitsToFloat(0xff800000u)), values, is_candidate);
}

shared uint counts[VALUES * MAX_LOCAL_SIZE];  // [value, invocation]
#ifdef MASS
shared float masses[VALUES * MAX_LOCAL_SIZE];
#endif
shared uvec2 own[MAX_LOCAL_SIZE];  // groups that are surely chosen, and those whose score is the smallest chosen

uint lane = gl_LocalInvocationIndex;
uint lanes = gl_WorkGroupSize.x;

#ifdef MASS
float Sum(vec4 values) { return (values.x + values.y) + (values.z + values.w); }

// Of all invocations' sums.
float SumOfLanes(uint value) {
  float sum = 0.0;
  for (uint other = 0; other < lanes; ++other) sum += masses[value * MAX_LOCAL_SIZE + other];
  return sum;
}

// The sum of the pinned groups' scores, and that of the others.
vec2 SumAll(uint scores_begin, uint begin, uint end, uint n_pinned, uint n_groups) {
  vec4 pinned = vec4(0.0);
  vec4 others = vec4(0.0);
  for (uint v = begin; v < end; ++v) {
    pinned += max(Scores(scores_begin, v, 0, n_pinned), vec4(0.0));
    others += max(Scores(scores_begin, v, n_pinned, n_groups), vec4(0.0));
  }
  masses[lane] = Sum(pinned);
  masses[MAX_LOCAL_SIZE + lane] = Sum(others);
  barrier();
  const vec2 sums = vec2(SumOfLanes(0), SumOfLanes(1));
  barrier();
  return sums;
}
#endif

void main() {
  const uint token = gl_WorkGroupID.x / p.n_lists;
  const uint candidates = p.candidates_begin + token * p.candidate_words;
  const uint n_old =
      ChoosableEntries(stepp.tokens[token].position, p.window_tokens, p.group_tokens, p.n_groups) / p.group_tokens;
  const uint n_groups = ScoredGroups(p.stage, candidates, n_old);
  const uint most_chosen = p.stage == KVRUN_SCORE_FIRST ? 0 : stepp.most_chosen;
  const uint n_chosen = min(MostChosen(most_chosen, p.n_chosen), n_groups);
  const uint n_pinned = min(p.n_pinned, n_chosen);
  const uint n_wanted = n_chosen - n_pinned;
  const uint out_begin = p.chosen_begin + gl_WorkGroupID.x * p.list_words;
  const uint scores_begin = (p.scores_begin + gl_WorkGroupID.x * p.scores_stride) / 4;
  // An invocation's groups: consecutive, in vectors.
  const uint n_vectors = (n_groups + 3) / 4;
  const uint per_lane = (n_vectors + lanes - 1) / lanes;
  const uint begin = min(lane * per_lane, n_vectors);
  const uint end = min(begin + per_lane, n_vectors);
#ifndef MASS
  if (lane == 0) chosen[out_begin] = n_chosen;
#endif
  for (uint group = lane; group < n_pinned; group += lanes) {
    chosen[out_begin + 1 + group] = group;
    if (p.tell_at != 0) {
      chosen[out_begin + 1 + group + p.tell_at] = floatBitsToUint(scores_float(4 * scores_begin + group));
    }
  }

  // At least n_wanted scores reach that of the key `low`; n_above, fewer, that of `high`.
  uint low = kLow;
  uint high = kHigh;
  uint n_above = 0;
#ifdef MASS
  // "At least n_wanted": in number, or in mass. Exactly the chosen ones reach `low` once it is divided.
  const vec2 all = SumAll(scores_begin, begin, end, n_pinned, n_groups);
  const float mass_wanted = p.mass_share * (all.x + all.y) - all.x;
  uint n_low = n_groups - n_pinned;
  float mass_above = 0.0;
  bool is_divided = n_wanted == 0;
  if (is_divided) {
    low = kHigh;  // none
    n_low = 0;
  }
#else
  bool is_divided = n_chosen == n_groups;  // exactly n_wanted reach `low`
#endif
  while (!is_divided && high - low > 1) {
    const uint step = max((high - low) / (VALUES + 1), 1);
    uvec4 reach[VALUES];
    float values[VALUES];
#ifdef MASS
    vec4 mass[VALUES];
#endif
    [[unroll]] for (uint i = 0; i < VALUES; ++i) {
      reach[i] = uvec4(0);
#ifdef MASS
      mass[i] = vec4(0.0);
#endif
      values[i] = FloatOf(low + min((i + 1) * step, high - low));
    }
    for (uint v = begin; v < end; v += TOGETHER) {
      vec4 scores[TOGETHER];
      [[unroll]] for (uint k = 0; k < TOGETHER; ++k) {
        scores[k] = Scores(scores_begin, min(v + k, end - 1), n_pinned, v + k < end ? n_groups : n_pinned);
      }
      [[unroll]] for (uint k = 0; k < TOGETHER; ++k) {
        [[unroll]] for (uint i = 0; i < VALUES; ++i) {
          const bvec4 does_reach = greaterThanEqual(scores[k], vec4(values[i]));
          reach[i] += uvec4(does_reach);
#ifdef MASS
          mass[i] += mix(vec4(0.0), scores[k], does_reach);
#endif
        }
      }
    }
    [[unroll]] for (uint i = 0; i < VALUES; ++i) {
      counts[i * MAX_LOCAL_SIZE + lane] = (reach[i].x + reach[i].y) + (reach[i].z + reach[i].w);
#ifdef MASS
      masses[i * MAX_LOCAL_SIZE + lane] = Sum(mass[i]);
#endif
    }
    barrier();
    uint from = low;
    uint to = high;
    [[unroll]] for (uint i = 0; i < VALUES; ++i) {
      uint n = 0;
      for (uint other = 0; other < lanes; ++other) n += counts[i * MAX_LOCAL_SIZE + other];
      const uint value = low + min((i + 1) * step, high - low);
#ifdef MASS
      const float sum = SumOfLanes(i);
      const bool is_enough = n > 0 && sum >= mass_wanted;
      if (value < to && (n >= n_wanted || is_enough)) {
        from = value;
        n_low = n;
        is_divided = n == n_wanted && !is_enough;
      } else if (value < to) {
        to = value;
        n_above = n;
        mass_above = sum;
      }
    }
    is_divided = is_divided || n_low - n_above == 1;
#else
      if (n >= n_wanted) {
        from = value;
        is_divided = n == n_wanted;
      } else if (value < to) {
        to = value;
        n_above = n;
      }
    }
#endif
    low = from;
    high = to;
    barrier();
  }
  const float sure_from = FloatOf(is_divided ? low : high);
  const float tie = FloatOf(is_divided ? kHigh : low);  // infinite: none
#ifdef MASS
  // Of equal masses as many as are enough, one at least.
  uint ties_wanted = is_divided ? 0 : min(n_wanted, n_low) - n_above;
  const float mass_left = mass_wanted - mass_above;
  if (!is_divided && mass_left <= 0.0) {
    ties_wanted = 1;
  } else if (!is_divided && mass_left < tie * float(ties_wanted)) {
    ties_wanted = min(ties_wanted, uint(ceil(mass_left / tie)));
  }
  if (lane == 0) chosen[out_begin] = n_pinned + (is_divided ? n_low : n_above + ties_wanted);
#else
  const uint ties_wanted = is_divided ? 0 : n_wanted - n_above;
#endif

  uvec4 sure = uvec4(0);
  uvec4 tied = uvec4(0);
  for (uint v = begin; v < end; ++v) {
    const vec4 values = Scores(scores_begin, v, n_pinned, n_groups);
    sure += uvec4(greaterThanEqual(values, vec4(sure_from)));
    tied += uvec4(equal(values, vec4(tie)));
  }
  own[lane] = uvec2((sure.x + sure.y) + (sure.z + sure.w), (tied.x + tied.y) + (tied.z + tied.w));
  barrier();
  uvec2 earlier = uvec2(0);
  for (uint other = 0; other < lane; ++other) earlier += own[other];
  uint ties = earlier.y;
  uint at = out_begin + 1 + n_pinned + earlier.x + min(ties, ties_wanted);
  for (uint v = begin; v < end; ++v) {
    const vec4 values = Scores(scores_begin, v, n_pinned, n_groups);
    uint mask = 0;
    [[unroll]] for (uint i = 0; i < 4; ++i) {
      const bool is_tie = values[i] == tie;
      if (values[i] >= sure_from || (is_tie && ties < ties_wanted)) mask |= 1u << i;
      if (is_tie) ++ties;
    }
    while (mask != 0) {
      if (p.tell_at != 0) chosen[at + p.tell_at] = floatBitsToUint(values[findLSB(mask)]);
      chosen[at++] = GroupAt(p.stage, candidates, 4 * v + findLSB(mask));
      mask &= mask - 1;
    }
  }
}
