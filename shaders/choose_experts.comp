// The n_used largest of a row's logits, the lower one of equals, and their softmax. One workgroup per row.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/layer_params.h"

#define LOCAL_SIZE 64
layout(local_size_x = LOCAL_SIZE) in;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { ChooseExpertsParams p; };
READ_ONLY(0, logits)
layout(set = 0, binding = 1, std430) writeonly buffer Ids { uint ids[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Weights { float weights[]; };

const float kChosen = -3e38;  // and what is no number

shared float remaining[KVRUN_MAX_EXPERTS];
shared float best_logits[LOCAL_SIZE];
shared uint best_ids[LOCAL_SIZE];
shared float chosen[KVRUN_MAX_USED_EXPERTS];

bool IsBetter(float logit, uint id, float than, uint than_id) {
  return logit > than || (logit == than && id < than_id);
}

// Of the remaining, by all lanes together.
void FindBest(uint lane) {
  float best = remaining[min(lane, p.n_experts - 1)];
  uint best_id = min(lane, p.n_experts - 1);
  for (uint i = lane + LOCAL_SIZE; i < p.n_experts; i += LOCAL_SIZE) {
    if (IsBetter(remaining[i], i, best, best_id)) {
      best = remaining[i];
      best_id = i;
    }
  }
  best_logits[lane] = best;
  best_ids[lane] = best_id;
  barrier();
  for (uint n = LOCAL_SIZE / 2; n > 0; n /= 2) {
    if (lane < n && IsBetter(best_logits[lane + n], best_ids[lane + n], best_logits[lane], best_ids[lane])) {
      best_logits[lane] = best_logits[lane + n];
      best_ids[lane] = best_ids[lane + n];
    }
    barrier();
  }
}

void main() {
  const uint lane = gl_LocalInvocationIndex;
  const uint row = gl_WorkGroupID.x;
  for (uint i = lane; i < p.n_experts; i += LOCAL_SIZE) {
    const float logit = logits_float(row * p.n_experts + i);
    remaining[i] = logit > kChosen ? logit : kChosen;
  }
  barrier();
  for (uint j = 0; j < p.n_used; ++j) {
    FindBest(lane);
    if (lane == 0) {
      ids[row * p.n_used + j] = best_ids[0];
      chosen[j] = best_logits[0];
      // Below all others, also where those are no numbers.
      remaining[best_ids[0]] = uintBitsToFloat(0xff800000u);
    }
    barrier();
  }
  if (lane < p.n_used) {
    float sum = 0.0;
    for (uint j = 0; j < p.n_used; ++j) sum += exp(chosen[j] - chosen[0]);
    weights[row * p.n_used + lane] = exp(chosen[lane] - chosen[0]) / sum;
  }
}
