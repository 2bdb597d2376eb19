// How groups are chosen by their scores: what a group's score is, where the choice ends, and what comes with
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "runtime/device/buffer.h"

namespace kvrun {

// A group's score: the largest of its rows', or their sum (a softmax's mass; not with HeadReduction::kSum).
enum class GroupScore : uint8_t { kLargest, kMass };

// Where a choice of one list lies: words from the list's first. The number of chosen groups, and they,
// ascending. Where groups are sampled, the number of those, they, ascending, and the bits of the bias of each
// (a float). Where scores are told, which is not with samples, the bits of that of each chosen group (a
// float), in their order.
struct ChoiceList {
  uint32_t n_chosen = 0;
  uint32_t n_sampled = 0;
  bool tells_scores = false;

  // Rounding may make one more of them.
  constexpr uint32_t most_sampled() const { return n_sampled == 0 ? 0 : n_sampled + 1; }
  constexpr uint32_t sampled_begin() const { return 1 + n_chosen; }
  constexpr uint32_t biases_begin() const { return sampled_begin() + 1 + most_sampled(); }
  constexpr uint32_t scores_begin() const { return 1 + n_chosen; }
  constexpr uint32_t words() const {
    if (n_sampled > 0) return biases_begin() + most_sampled();
    return 1 + n_chosen + (tells_scores ? n_chosen : 0);
  }
};

// Two stages. First all groups that can be chosen are scored by few products: by one row of each KV head, the
// mean of its heads' (kSoftmax; with kSum and kGqa by the rows that there are), of which the first
// first_columns count, as if those behind were zeros. Candidates are the pinned groups and those with the
// largest scores (the lower of equals), n_candidates together. Then all is as with one stage, but that
// candidates alone are scored and can be chosen: softmaxes and masses are over these. Where no more groups
// can be chosen than n_candidates, nothing differs from one stage. For one list per token: not with
// kPerKvHead.
struct ScoreStages {
  uint32_t n_candidates = 0;   // 1 or more, and no fewer than ScoreArgs::n_chosen
  uint32_t first_columns = 0;  // 1 to the index's rank
};

// The n_chosen best by GroupScore::kLargest.
struct ChooseByLargest {
  bool tells_scores = false;               // as in ChoiceList
  std::optional<ScoreStages> stages = {};  // none: one stage
};

// The best by GroupScore::kMass. mass_share above 0: the choice ends, best group first, where the pinned ones
// and it have this share of the sum of all scores; n_chosen is the most then. (Top-p; at 0 as many are chosen
// as there may be.)
struct ChooseByMass {
  float mass_share = 0.0F;
  bool tells_scores = false;               // as in ChoiceList
  std::optional<ScoreStages> stages = {};  // none: one stage
};

// As by mass. Of the other groups that could be chosen, about n_sampled are drawn at random, at most one
// more: group g with a probability p_g in proportion to the square root of its score, but from 1/1024 to 1,
// and all somewhat less where they come to more than n_sampled (or 1, where there are no more groups). What
// is attended to with the bias -log p_g stands for all of them: sums over entries of exp(score + bias), and
// of these times V, are what they are over all groups, on average. Systematic: running sums of p_g are cut at
// u, u + 1, .., with u from seed, the token's position and the list's place in the token.
struct ChooseAndSample {
  float mass_share = 0.0F;  // as in ChooseByMass
  uint32_t n_sampled = 0;   // 1 to KVRUN_MAX_SAMPLED
  uint32_t seed = 0;
};

// Of groups that differ in size, such as clusters. The choice ends, best group first, before the first with
// which those that are not pinned would weigh more than most_weight; what weighs 0 is not chosen.
// StepParams::most_chosen does not matter.
struct ChooseByWeight {
  GroupScore group_score = GroupScore::kLargest;
  // kShared or kDevice, uint32 [n_sequences, kPerKvHead ? n_kv_heads : 1, n_groups], what each weighs; of a
  // list less than 2^32 together.
  const Buffer* weights = nullptr;
  uint32_t most_weight = 0;  // n_chosen - n_pinned or less
  // Which groups are best is said by score / weight, as the device divides floats.
  bool per_weight = false;
};

using ChoiceRule = std::variant<ChooseByLargest, ChooseByMass, ChooseAndSample, ChooseByWeight>;

inline GroupScore GroupScoreOf(const ChoiceRule& rule) {
  if (const auto* by_weight = std::get_if<ChooseByWeight>(&rule)) return by_weight->group_score;
  return std::holds_alternative<ChooseByLargest>(rule) ? GroupScore::kLargest : GroupScore::kMass;
}

// 0: no share ends the choice.
inline float MassShareOf(const ChoiceRule& rule) {
  if (const auto* by_mass = std::get_if<ChooseByMass>(&rule)) return by_mass->mass_share;
  const auto* and_sample = std::get_if<ChooseAndSample>(&rule);
  return and_sample != nullptr ? and_sample->mass_share : 0.0F;
}

// Null: there is one stage.
inline const ScoreStages* StagesOf(const ChoiceRule& rule) {
  const auto of = [](const auto* kind) { return kind->stages ? &*kind->stages : nullptr; };
  if (const auto* by_largest = std::get_if<ChooseByLargest>(&rule)) return of(by_largest);
  const auto* by_mass = std::get_if<ChooseByMass>(&rule);
  return by_mass != nullptr ? of(by_mass) : nullptr;
}

inline ChoiceList ChoiceListOf(const ChoiceRule& rule, uint32_t n_chosen) {
  ChoiceList list{.n_chosen = n_chosen};
  if (const auto* by_largest = std::get_if<ChooseByLargest>(&rule))
    list.tells_scores = by_largest->tells_scores;
  if (const auto* by_mass = std::get_if<ChooseByMass>(&rule)) list.tells_scores = by_mass->tells_scores;
  if (const auto* and_sample = std::get_if<ChooseAndSample>(&rule)) list.n_sampled = and_sample->n_sampled;
  return list;
}

}  // namespace kvrun
