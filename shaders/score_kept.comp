// Scores of groups, of what score.comp kept of each row of z: the sum over rows of each group's share of the row's softmax.
// An invocation scores four consecutive groups at a time.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/index_params.h"
#include "shared/step_params.h"

#define TOGETHER 64  // rows whose softmaxes are shared

layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;
layout(constant_id = 1) const uint STAGE = KVRUN_SCORE_ALL;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { ScoreParams p; };
READ_ONLY(0, scratch)
layout(set = 0, binding = 1, std430) buffer Out4 { vec4 out4[]; };
layout(set = 0, binding = 2, std140) uniform Step { StepParams stepp; };
#include "include/choosable.glsl"
#define CANDIDATE_WORD(i) scratch_uint(i)
#include "include/score_stages.glsl"

shared float sums[TOGETHER];  // of rows' softmaxes, their logarithms

// Of one row's softmax, from those of all workgroups.
float LogarithmOfSum(uint row) {
  vec2 all = vec2(-16777216.0, 0.0);
  for (uint i = 0; i < p.n_workgroups; ++i) {
    const vec2 one = scratch_vec2(p.softmaxes_begin / 2 + row * p.n_workgroups + i);
    const float reference = max(all.x, one.x);
    all = vec2(reference, all.y * exp2(all.x - reference) + one.y * exp2(one.x - reference));
  }
  return all.x + log2(all.y);
}

void main() {
  const uint lane = gl_LocalInvocationIndex;
  const uint lanes = gl_WorkGroupSize.x;
  const uint list = gl_WorkGroupID.y;
  const uint token = gl_WorkGroupID.z;
  const uint n_groups =
      ChoosableEntries(stepp.tokens[token].position, p.window_tokens, p.group_tokens, p.n_groups) / p.group_tokens;
  const uint n_vectors = (ScoredGroups(STAGE, p.candidates_begin + token * p.candidate_words, n_groups) + 3) / 4;
  const uint first_row = token * p.n_rows + list * p.list_rows;
  const uint to = (p.scores_begin + (token * gl_NumWorkGroups.y + list) * p.scores_stride) / 4;
  for (uint begin = 0; begin < p.list_rows; begin += TOGETHER) {
    const uint n = min(p.list_rows - begin, TOGETHER);
    for (uint r = lane; r < n; r += lanes) sums[r] = LogarithmOfSum(first_row + begin + r);
    barrier();
    for (uint v = gl_WorkGroupID.x * lanes + lane; v < n_vectors; v += gl_NumWorkGroups.x * lanes) {
      vec4 total = vec4(0.0);
      if (begin != 0) total = out4[to + v];
      for (uint r = 0; r < n; ++r) {
        total += exp2(scratch_vec4((p.kept_begin + (first_row + begin + r) * p.scores_stride) / 4 + v) - sums[r]);
      }
      out4[to + v] = mix(vec4(0.0), total, greaterThan(total, vec4(0.0)));  // no NaNs
    }
    barrier();
  }
}
