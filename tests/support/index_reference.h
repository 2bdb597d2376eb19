// The scalar references of the operations on the index (runtime/device/device.h): plain loops that follow the
// contracts, sums in double.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/device/device.h"
#include "shaders/shared/step_params.h"
#include "tests/support/scalar_reference.h"

namespace kvrun::testing {

// What a column of a row stands for, without its scale. Row r of a sequence is of group r / shape.rows().
float IndexValue(std::span<const uint32_t> index, const IndexShape& shape, uint32_t sequence, uint32_t row,
                 uint32_t column);

// Entries of a sequence that ends with `position`, that belong to groups that can be chosen.
uint32_t ChoosableEntriesReference(uint32_t position, uint32_t window_tokens, uint32_t group_tokens);

struct ScoreReferenceArgs {
  AttentionReferenceArgs attention;   // norms: q_norm
  std::span<const float> query;       // [n_tokens, n_heads * head_dim]
  std::span<const float> query_side;  // as IndexSides::query_side; not with kSigned
  std::span<const float> scales;      // [n_sequences, rank]
  std::span<const uint32_t> index;
  IndexShape shape;
  HeadReduction reduction = HeadReduction::kSoftmax;
  GroupScore group_score = GroupScore::kLargest;
  uint32_t window_tokens = 0;
  QueryForm query_form = QueryForm::kProjected;
};

struct GroupScores {
  std::vector<double> scores;  // of every group that can be chosen
  // The largest sum of magnitudes of an index row's products, of those added up in one score before any
  // softmax: what errors of a score are proportional to.
  double magnitude = 0.0;
};

// Lists [n_tokens, kPerKvHead ? n_kv_heads : 1].
std::vector<GroupScores> ScoreGroupsReference(const ScoreReferenceArgs& args);

// The first of two stages, of one list per token: every group's scores by mean queries and first columns.
std::vector<GroupScores> ScoreFirstReference(const ScoreReferenceArgs& args, uint32_t first_columns);

// The second stage: the scores of `candidates`, ascending groups of each token, one after another.
// candidates_of_token[t] empty: of all groups.
std::vector<GroupScores> ScoreCandidatesReference(const ScoreReferenceArgs& args,
                                                  std::span<const std::vector<uint32_t>> candidates_of_token);

// The n_chosen groups with the largest scores, the lower of equals, the first n_pinned among them; ascending.
std::vector<uint32_t> SelectGroupsReference(std::span<const float> scores, uint32_t n_pinned,
                                            uint32_t n_chosen);

// The pinned groups, and of the others that weigh anything the best, until they would weigh too much:
// ascending. per_weight: the best are those with the largest score / weight.
std::vector<uint32_t> SelectWeightedReference(std::span<const float> scores,
                                              std::span<const uint32_t> weights, uint32_t n_pinned,
                                              uint32_t most_weight, bool per_weight = false);

// What a choice has of the sum of all scores: pinned groups included; without the worst of those that are not
// pinned; and how many those are.
struct ChosenMass {
  double share = 0.0;
  double without_worst = 0.0;
  size_t n_free = 0;
};
ChosenMass ChosenMassReference(std::span<const double> scores, uint32_t n_pinned,
                               std::span<const uint32_t> chosen);

// Whether ChooseByMass::mass_share ends a choice where it should, where shares are found to within
// `tolerance`: the pinned groups and one more at least, n_chosen at most; no fewer than reach the share, and
// no more.
::testing::AssertionResult EndsAtMassShare(std::span<const double> scores, uint32_t n_pinned,
                                           uint32_t n_chosen, float mass_share, double tolerance,
                                           std::span<const uint32_t> chosen);

// [n_rows, rank]: row . key_side - bias.
std::vector<double> ProjectReference(std::span<const float> rows, uint32_t n_dims,
                                     std::span<const float> key_side, std::span<const float> bias);

// What is added to GramArgs::sums: [dim + 1, dim].
std::vector<double> GramReference(const GramArgs& args, std::span<const float> rows);

}  // namespace kvrun::testing
