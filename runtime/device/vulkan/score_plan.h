// How scoring an index is divided among dispatches, and where each leaves its results in the scratch buffer:
// a pure function of shapes, tested without a device.
#pragma once

#include <cstdint>
#include <string_view>

#include "platform/vulkan/device_plan.h"
#include "runtime/device/device.h"

namespace kvrun {

// A row of z is a projected query, of one head or of several added up. An entry is a row of the
// index. A unit is a group, or as many of them as make four entries (shaders/score.comp).

// Scores of groups, by rows of z. Words from the beginning of scratch: reference and sum of the softmax
// over a workgroup's entries float [tokens, n_rows, workgroups, 2]; where it keeps, of each group the
// logarithm of its sum in a row's softmax, float [tokens, n_rows, scores_stride], else where rows do not fit
// into one dispatch, what was added up so far, float [tokens, n_lists, n_units, entries of a unit in whole
// vectors]; scores float [tokens * n_lists, scores_stride]. With kSum, scores are all.
struct ScorePass {
  uint32_t stage = 0;   // KVRUN_SCORE_ALL, .._FIRST or .._CANDIDATES
  uint32_t n_rows = 0;  // of z, per token
  uint32_t heads = 1;   // rows of z that one invocation multiplies with
  uint32_t z_begin = 0;
  uint32_t n_units = 0;
  uint32_t scores_stride = 0;     // groups, rounded up to vectors
  bool keeps = false;             // else products are computed twice
  uint32_t workgroups = 0;        // that share a token's entries; of rows' softmaxes, where there are any
  uint32_t group_workgroups = 0;  // likewise, of groups' scores
  uint32_t softmaxes_begin = 0;
  uint32_t kept_begin = 0;
  uint32_t totals_begin = 0;
  uint32_t scores_begin = 0;
};

struct ScorePlan {
  uint32_t n_rows = 0;   // of z, per token
  uint32_t n_lists = 0;  // of chosen groups, per token: each adds up n_rows / n_lists rows
  uint32_t z_begin = 0;  // of scratch, in words: z float [tokens, n_rows, rank]
  ScorePass groups;      // all that can be chosen, or the candidates
  // Where there may be groups that are no candidates: means of rows of z, float [tokens, n_first_rows, rank];
  // scores of all groups by these; lists of candidates, [tokens, candidate_words].
  bool has_stages = false;
  uint32_t n_first_rows = 0;
  uint32_t first_z_begin = 0;
  ScorePass first;
  uint32_t candidates_begin = 0;
  uint32_t candidate_words = 0;
  uint64_t scratch_words = 0;

  bool rotates_in_projection = false;  // else the query is rotated first, in place
  bool projects_in_scores = false;     // else by a dispatch of its own, before
  uint32_t project_tile_rows = 1;      // neighbours of one KV head that an invocation projects together
  bool hoist = false;                  // z into registers
  uint32_t local_size = 0;
  uint32_t narrow_select_lanes = 0;  // of select_groups_narrow; 0: select_groups

  // Rows that each list adds up.
  uint32_t list_rows(const ScorePass& pass) const { return pass.n_rows / n_lists; }
};

// Of a device: whether its plans may have projects_in_scores.
bool MayProjectInScores(const DevicePlan& plan, bool is_cpu);

ScorePlan PlanScore(const DevicePlan& plan, bool is_cpu, const ScoreArgs& args);

// "int4": how variants name an index's type.
std::string_view IndexTypeName(KvType type);

}  // namespace kvrun
