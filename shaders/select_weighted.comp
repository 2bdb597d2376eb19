// Chooses groups by score until their weight is spent: the pinned ones, and of the others that weigh anything those with
// the largest scores, the lower group where scores are equal, before the first with which they would weigh too much. One
// workgroup per list. With per_weight, a group's score is divided by its weight.
//
// The largest key that not all groups of which can be chosen, together with those above it, is found four bits at a time:
// the weights of the groups that reach it are summed by how far they do. Then each invocation writes the chosen ones of a
// range of consecutive groups. Groups are extents of several entries, so that there are few.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/index_params.h"
#include "shared/step_params.h"

#define MAX_LOCAL_SIZE 128
#define BINS 17  // the last: beyond the range
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { SelectGroupsParams p; };
READ_ONLY(0, scores)
READ_ONLY(1, weights)
layout(set = 0, binding = 2, std430) writeonly buffer Chosen { uint chosen[]; };
layout(set = 0, binding = 3, std140) uniform Step { StepParams stepp; };
#include "include/choosable.glsl"

shared uint bins[BINS];          // weights of groups, by how far they reach the range's bottom
shared uint bottom;              // of the range that the key is in
shared uint above;               // what groups with larger keys weigh
shared uvec2 own[MAX_LOCAL_SIZE];

uint lane = gl_LocalInvocationIndex;
uint lanes = gl_WorkGroupSize.x;
uint scores_begin;
uint weights_begin;

uint Weight(uint group) { return weights_uint(weights_begin + group); }

// In the order of scores, from 1 on.
uint Key(uint group) {
  float score = scores_float(scores_begin + group);
  if (p.per_weight != 0) score /= float(max(Weight(group), 1u));
  const uint bits = floatBitsToUint(score);
  return max((bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u, 1u);
}

// Of all earlier invocations.
uint EarlierSum(bool second) {
  uint sum = 0;
  for (uint other = 0; other < lane; ++other) sum += second ? own[other].y : own[other].x;
  return sum;
}

void main() {
  const uint token = gl_WorkGroupID.x / p.n_lists;
  const uint list = gl_WorkGroupID.x % p.n_lists;
  const uint n_groups =
      ChoosableEntries(stepp.tokens[token].position, p.window_tokens, p.group_tokens, p.n_groups) / p.group_tokens;
  const uint n_pinned = min(p.n_pinned, n_groups);
  const uint out_begin = gl_WorkGroupID.x * p.list_words;
  scores_begin = p.scores_begin + gl_WorkGroupID.x * p.scores_stride;
  weights_begin = (stepp.tokens[token].sequence * p.n_lists + list) * p.n_groups;
  // An invocation's groups: consecutive.
  const uint per_lane = (n_groups - n_pinned + lanes - 1) / lanes;
  const uint begin = min(n_pinned + lane * per_lane, n_groups);
  const uint end = min(begin + per_lane, n_groups);

  if (lane == 0) {
    bottom = 0;
    above = 0;
  }
  // Groups that reach `bottom` weigh more than most_weight, or it is 0; those beyond the range do not.
  for (int shift = 28; shift >= 0; shift -= 4) {
    for (uint bin = lane; bin < BINS; bin += lanes) bins[bin] = 0;
    barrier();
    for (uint group = begin; group < end; ++group) {
      const uint weight = Weight(group);
      const uint key = Key(group);
      if (weight != 0 && key >= bottom) atomicAdd(bins[min((key - bottom) >> shift, BINS - 1)], weight);
    }
    barrier();
    if (lane == 0) {
      uint sum = 0;
      uint bin = BINS - 1;
      for (; bin > 0 && sum + bins[bin] <= p.most_weight; --bin) sum += bins[bin];
      bottom += bin << shift;
      above = sum;
    }
    barrier();
  }

  const uint tie = bottom;
  uvec2 found = uvec2(0);  // groups that are surely chosen, and the weight of those whose key is the tie's
  for (uint group = begin; group < end; ++group) {
    const uint weight = Weight(group);
    const uint key = Key(group);
    if (weight != 0 && key > tie) ++found.x;
    if (key == tie) found.y += weight;
  }
  own[lane] = found;
  barrier();
  const uint sure_before = EarlierSum(false);
  const uint ties_weigh_before = above + EarlierSum(true);
  barrier();
  // As many of them as fit.
  uint weight_so_far = ties_weigh_before;
  uint n_ties = 0;
  for (uint group = begin; group < end; ++group) {
    if (Key(group) != tie || Weight(group) == 0) continue;
    weight_so_far += Weight(group);
    if (weight_so_far <= p.most_weight) ++n_ties;
  }
  own[lane].y = n_ties;
  barrier();
  uint at = out_begin + 1 + n_pinned + sure_before + EarlierSum(true);
  weight_so_far = ties_weigh_before;
  for (uint group = begin; group < end; ++group) {
    const uint weight = Weight(group);
    const uint key = Key(group);
    if (weight == 0) continue;
    if (key == tie) weight_so_far += weight;
    if (key > tie || (key == tie && weight_so_far <= p.most_weight)) chosen[at++] = group;
  }
  if (lane == lanes - 1) chosen[out_begin] = at - out_begin - 1;
  for (uint group = lane; group < n_pinned; group += lanes) chosen[out_begin + 1 + group] = group;
}
