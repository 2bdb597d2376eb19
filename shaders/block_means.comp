// Means of an index's rows over blocks of consecutive groups, of those groups that can be chosen: an index of type f16 with a
// row for each block, which score.comp takes for one. Of each token, as its last block may be shorter than another's.
//
// Macros: INDEX_F16, INDEX_INT8 or INDEX_INT4.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "shared/index_params.h"
#include "shared/step_params.h"

layout(constant_id = 0) const uint RANK = 24;
layout(constant_id = 1) const uint GROUP = 4;  // entries of a group
layout(local_size_x_id = 2, local_size_y = 1, local_size_z = 1) in;
layout(constant_id = 3) const uint ROW_VECTORS = 0;  // rows are whole vectors
#include "include/read_only.glsl"
layout(push_constant) uniform Params { ScoreParams p; };
READ_ONLY(0, index)
layout(set = 0, binding = 1, std430) buffer Means { uint means[]; };
layout(set = 0, binding = 2, std140) uniform Step { StepParams stepp; };
#include "include/choosable.glsl"
#define INDEX_BEGIN 0  // means lie at p.index_begin
#include "include/index_words.glsl"

#define STEP_WORDS 4  // of a row, that an invocation takes

const uint STEPS = (WORDS + STEP_WORDS - 1) / STEP_WORDS;
const uint MEAN_WORDS = (RANK + 1) / 2;

// Words 4 * step .. of an entry's row; zeros beyond its last.
uvec4 LoadStep(uint first_group, uint entry, uint step) {
  if (ROW_VECTORS != 0) return index_uvec4((first_group * GROUP + entry) * (WORDS / 4) + step);
  uvec4 words = uvec4(0);
  [[unroll]] for (uint w = 0; w < STEP_WORDS; ++w) {
    if (STEP_WORDS * step + w < WORDS) words[w] = LoadWord(first_group, entry, STEP_WORDS * step + w);
  }
  return words;
}

void main() {
  const uint token = gl_WorkGroupID.z;
  const uint first_group = stepp.tokens[token].sequence * p.n_groups;
  const uint n_groups =
      ChoosableEntries(stepp.tokens[token].position, p.window_tokens, p.group_tokens, p.n_groups) / p.group_tokens;
  const uint n_blocks = (n_groups + p.block_groups - 1) / p.block_groups;
  const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
  for (uint i = gl_GlobalInvocationID.x; i < n_blocks * STEPS; i += stride) {
    const uint block = i / STEPS;
    const uint step = i % STEPS;
    const uint begin = block * p.block_groups * GROUP;
    const uint end = min((block + 1) * p.block_groups, n_groups) * GROUP;
    float sums[STEP_WORDS * PER_WORD];
    [[unroll]] for (uint c = 0; c < STEP_WORDS * PER_WORD; ++c) sums[c] = 0.0;
    for (uint entry = begin; entry < end; ++entry) {
      const uvec4 words = LoadStep(first_group, entry, step);
      [[unroll]] for (uint w = 0; w < STEP_WORDS; ++w) {
        [[unroll]] for (uint j = 0; j < PER_WORD; ++j) sums[w * PER_WORD + j] += Value(words[w], j);
      }
    }
    const float factor = 1.0 / float(end - begin);
    const uint to = p.index_begin + (token * p.scores_stride + block) * MEAN_WORDS;
    [[unroll]] for (uint c = 0; c < STEP_WORDS * PER_WORD; c += 2) {
      const uint column = step * STEP_WORDS * PER_WORD + c;
      if (column < RANK) means[to + column / 2] = packHalf2x16(factor * vec2(sums[c], sums[c + 1]));
    }
  }
}
