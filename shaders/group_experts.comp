// Brings uses of the same expert together (GroupExpertsParams), so that a matrix product reads its weights once for
// several of them. One workgroup. In which order an expert's uses come does not matter, and may be any.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/layer_params.h"

#define LOCAL_SIZE 64
#define LANE_EXPERTS (KVRUN_MAX_EXPERTS / LOCAL_SIZE)
layout(local_size_x = LOCAL_SIZE) in;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { GroupExpertsParams p; };
READ_ONLY(0, ids)
layout(set = 0, binding = 1, std430) writeonly buffer Groups { uint groups[]; };

shared uint counts[KVRUN_MAX_EXPERTS];    // then how many are placed
shared uint starts[KVRUN_MAX_EXPERTS];    // of an expert's uses
shared uvec2 lane_sums[LOCAL_SIZE];       // uses and groups of a lane's experts

uint ExpertOf(uint i) { return min(ids_uint(p.first_use + i), p.n_experts - 1); }
uint GroupsOf(uint count) { return (count + p.group_uses - 1) / p.group_uses; }

void WriteGroups(uint expert, uint count, uint start, uint first_group) {
  for (uint i = 0; i < GroupsOf(count); ++i) {
    const uint at = 4 + 2 * (first_group + i);
    groups[at] = expert | min(count - i * p.group_uses, p.group_uses) << 16;
    groups[at + 1] = start + i * p.group_uses;
  }
}

// Where each expert's uses and groups begin; a lane has LANE_EXPERTS neighbours.
void PlaceExperts(uint lane) {
  uvec2 sums = uvec2(0);
  for (uint i = 0; i < LANE_EXPERTS; ++i) {
    const uint count = counts[lane * LANE_EXPERTS + i];
    sums += uvec2(count, GroupsOf(count));
  }
  lane_sums[lane] = sums;
  barrier();
  uvec2 at = uvec2(0);
  for (uint i = 0; i < lane; ++i) at += lane_sums[i];
  if (lane == LOCAL_SIZE - 1) groups[0] = at.y + sums.y;
  for (uint i = 0; i < LANE_EXPERTS; ++i) {
    const uint expert = lane * LANE_EXPERTS + i;
    const uint count = counts[expert];
    WriteGroups(expert, count, at.x, at.y);
    starts[expert] = at.x;
    counts[expert] = 0;
    at += uvec2(count, GroupsOf(count));
  }
}

void main() {
  const uint lane = gl_LocalInvocationIndex;
  for (uint i = lane; i < KVRUN_MAX_EXPERTS; i += LOCAL_SIZE) counts[i] = 0;
  barrier();
  for (uint i = lane; i < p.n_uses; i += LOCAL_SIZE) atomicAdd(counts[ExpertOf(i)], 1);
  barrier();
  PlaceExperts(lane);
  barrier();
  for (uint i = lane; i < p.n_uses; i += LOCAL_SIZE) {
    const uint expert = ExpertOf(i);
    groups[p.uses_begin + starts[expert] + atomicAdd(counts[expert], 1)] = p.first_use + i;
  }
}
