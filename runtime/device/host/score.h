// How scoring an index is laid out in ScoreArgs::scratch, and the choice that follows from the scores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/device/device.h"
#include "runtime/device/host/thread_pool.h"

namespace kvrun::host {

// A row of z is a projected query, of one head or of several added up. In floats from the beginning of
// scratch: z [n_tokens, n_rows, rank]; of one token's softmaxes, reference and sum over each span's entries
// [kScoreSpans, n_rows, 2]; scores [n_tokens, n_lists, n_groups]; with ChooseByWeight::per_weight as many
// more, divided. With two stages, of one token: the first stage's rows of z [n_first_rows, first_columns],
// its scores [n_groups], and the index's rows of the candidates; and candidates [n_tokens, candidate_words],
// their number and they, ascending. Scores are then those of the candidates, one after another.
struct ScoreLayout {
  uint32_t n_rows = 0;   // of z, per token
  uint32_t n_lists = 0;  // of chosen groups, per token: each adds up n_rows / n_lists rows
  size_t softmaxes_begin = 0;
  size_t scores_begin = 0;
  size_t divided_begin = 0;
  uint32_t n_first_rows = 0;
  size_t first_z_begin = 0;
  size_t first_scores_begin = 0;
  size_t candidates_begin = 0;
  size_t candidate_words = 0;
  size_t copy_begin = 0;
  size_t n_floats = 0;
};
ScoreLayout LayOutScores(const ScoreArgs& args);

// What can be chosen is cut into so many spans, however many workers share them: sums, and so choices, are
// the same for any number.
inline constexpr size_t kScoreSpans = 32;

// Normalises and rotates args.query in place, and writes z of all tokens, times the factors that scores take.
void ProjectQueries(ThreadPool& pool, const ScoreArgs& args, const ScoreLayout& layout);

// Groups of a sequence that ends with `position` that can be chosen.
uint32_t ChoosableGroups(const ScoreArgs& args, uint32_t position);

// Whether not all of so many groups are candidates.
bool HasStages(const ScoreArgs& args, uint32_t n_groups);

// Where there are two stages: the first stage's rows of z of a token; the candidates by its scores, of a
// token that can choose from n_groups, ascending; and what was selected.
void MeanQueries(const ScoreArgs& args, const ScoreLayout& layout, size_t token);
std::span<const uint32_t> SelectCandidates(const ScoreArgs& args, const ScoreLayout& layout, size_t token,
                                           uint32_t n_groups);
std::span<const uint32_t> CandidatesOf(const ScoreArgs& args, const ScoreLayout& layout, size_t token);

// Writes to `chosen` how many groups are chosen, and which, ascending: the first n_pinned, and of the others
// those with the largest scores, the lower of equals. Scores are no NaNs. mass_share: as in ChooseByMass;
// scores are then at least 0.
void SelectGroups(const float* scores, uint32_t n_groups, uint32_t n_pinned, uint32_t n_chosen,
                  float mass_share, uint32_t* chosen);

// quotients[i] = scores[i] / weights[i], of n groups; of those without weight, the score.
void DivideByWeights(const float* scores, const uint32_t* weights, size_t n, float* quotients);

// The same by weight: as ChooseByWeight says, of n_groups that can be chosen.
void SelectWeighted(const float* scores, const uint32_t* weights, uint32_t n_groups, uint32_t n_pinned,
                    uint32_t most_weight, uint32_t* chosen);

// Of one list: groups drawn from those that were not chosen, as ChooseAndSample says. `choice`
// [list.words()]: has the chosen groups, the first n_pinned or more among them.
void SampleGroups(const float* scores, uint32_t n_groups, const ChoiceList& list, uint32_t offset,
                  uint32_t* choice);

}  // namespace kvrun::host
