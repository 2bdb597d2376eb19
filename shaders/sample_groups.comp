// Draws groups from those that a choice left out, each with a probability in proportion to the square root of its score:
// systematic sampling (shared/sample_params.h). Behind the choice it writes how many were drawn, which, ascending, and
// minus the logarithm of each one's probability. One workgroup per list; each invocation has a range of consecutive
// groups, and walks along the chosen ones beside it.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/index_params.h"
#include "shared/sample_params.h"
#include "shared/step_params.h"

#define MAX_LOCAL_SIZE 128
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { SampleGroupsParams p; };
READ_ONLY(0, scores)
layout(set = 0, binding = 1, std430) buffer Chosen { uint chosen[]; };
layout(set = 0, binding = 2, std140) uniform Step { StepParams stepp; };
#include "include/choosable.glsl"

shared uint counts[MAX_LOCAL_SIZE];
shared float rests[MAX_LOCAL_SIZE];

uint lane = gl_LocalInvocationIndex;
uint lanes = gl_WorkGroupSize.x;
uint scores_begin;
uint list_begin;
uint first_chosen;  // of the chosen groups, the first that is not before this invocation's range
uint begin;
uint end;

float Root(uint group) { return sqrt(max(scores_float(scores_begin + group), 0.0)); }

// Moves `next` along the chosen groups, and says whether the group is one.
bool IsChosen(uint group, inout uint next) {
  if (next >= chosen[list_begin] || chosen[list_begin + 1 + next] != group) return false;
  ++next;
  return true;
}

uint Units(float root, float factor) {
  const float units = root * factor * float(KVRUN_SAMPLE_UNIT);
  return uint(clamp(units, float(KVRUN_LEAST_SAMPLE_UNITS), float(KVRUN_SAMPLE_UNIT)));
}

// Of all invocations, or of those before `to`.
uint SumCounts(uint to) {
  uint sum = 0;
  for (uint other = 0; other < to; ++other) sum += counts[other];
  return sum;
}

// A group's probability is its root times this, where that is less than one.
float FindFactor() {
  float factor = 0.0;
  uint n_sure_before = 0xffffffffu;
  for (uint round = 0; round < KVRUN_SAMPLE_ROUNDS; ++round) {
    uint n_sure = 0;
    float rest = 0.0;
    uint next = first_chosen;
    for (uint group = begin; group < end; ++group) {
      if (IsChosen(group, next)) continue;
      const float root = Root(group);
      if (root * factor >= 1.0) ++n_sure;
      else rest += root;
    }
    counts[lane] = n_sure;
    rests[lane] = rest;
    barrier();
    n_sure = SumCounts(lanes);
    rest = 0.0;
    for (uint other = 0; other < lanes; ++other) rest += rests[other];
    barrier();
    // All invocations agree.
    if (n_sure == n_sure_before || n_sure >= p.n_sampled || !(rest > 0.0)) break;
    n_sure_before = n_sure;
    factor = float(p.n_sampled - n_sure) / rest;
  }
  return factor;
}

void main() {
  const uint token = gl_WorkGroupID.x / p.n_lists;
  const uint list = gl_WorkGroupID.x % p.n_lists;
  const uint n_groups =
      ChoosableEntries(stepp.tokens[token].position, p.window_tokens, p.group_tokens, p.n_groups) / p.group_tokens;
  const uint most = p.n_sampled + 1;
  const uint list_words = 2 + p.n_chosen + 2 * most;
  list_begin = gl_WorkGroupID.x * list_words;
  scores_begin = p.scores_begin + gl_WorkGroupID.x * p.scores_stride;
  const uint n_others = n_groups - chosen[list_begin];
  const uint per_lane = (n_groups + lanes - 1) / lanes;
  begin = min(lane * per_lane, n_groups);
  end = min(begin + per_lane, n_groups);
  first_chosen = 0;
  for (uint after = chosen[list_begin]; first_chosen < after;) {
    const uint middle = (first_chosen + after) / 2;
    if (chosen[list_begin + 1 + middle] < begin) first_chosen = middle + 1;
    else after = middle;
  }

  const bool takes_all = n_others <= p.n_sampled;
  const float factor = takes_all ? 0.0 : FindFactor();
  float share = 1.0;
  if (!takes_all) {
    uint all = 0;
    uint next = first_chosen;
    for (uint group = begin; group < end; ++group) {
      if (!IsChosen(group, next)) all += Units(Root(group), factor);
    }
    counts[lane] = all;
    barrier();
    // The least probabilities may make the sum too large: all are made smaller then.
    share = min(1.0, float(p.n_sampled) * float(KVRUN_SAMPLE_UNIT) / float(SumCounts(lanes)));
    barrier();
  }
#define UNITS(group) (takes_all ? KVRUN_SAMPLE_UNIT : max(1u, uint(float(Units(Root(group), factor)) * share)))

  uint own = 0;
  uint next = first_chosen;
  for (uint group = begin; group < end; ++group) {
    if (!IsChosen(group, next)) own += UNITS(group);
  }
  counts[lane] = own;
  barrier();
  const uint offset = takes_all ? 0 : SampleOffset(p.seed, stepp.tokens[token].position, list);
  uint sum = SumCounts(lane);
  const uint sampled_begin = list_begin + 1 + p.n_chosen;
  if (lane == lanes - 1) chosen[sampled_begin] = min(DrawsBefore(sum + own, offset), most);
  next = first_chosen;
  for (uint group = begin; group < end; ++group) {
    if (IsChosen(group, next)) continue;
    const uint units = UNITS(group);
    const uint draw = DrawsBefore(sum, offset);
    sum += units;
    if (DrawsBefore(sum, offset) == draw || draw >= most) continue;
    chosen[sampled_begin + 1 + draw] = group;
    chosen[sampled_begin + 1 + most + draw] = floatBitsToUint(log(float(KVRUN_SAMPLE_UNIT) / float(units)));
  }
}
