// Which entries a method that evicts keeps: rules, as rows of a table, and shares of a budget. Pure functions
// over what attention entries have received (MassForm); they know no files, devices or records.
//
// Sources: H2O (arXiv 2306.14048), SnapKV (arXiv 2404.14469), DefensiveKV (arXiv 2510.13334), LazyEviction
// (arXiv 2506.15969), ARKV (section IV-E), Ada-KV (arXiv 2407.11550), LAVa (arXiv 2509.09754).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"

namespace kvrun {

// The entries of one stream that could be evicted; all spans have as many elements, or
// none where the rule does not look at it.
struct KeptView {
  std::span<const uint32_t> positions = {};
  std::span<const float> mass = {};     // first moments
  std::span<const float> squares = {};  // second moments
  // How many rows these were gathered over: those that could see the entry.
  std::span<const uint32_t> n_rows = {};
  // The last position whose row gave the entry more than kRecurrenceWeight (its own, where none did), and the
  // longest time between two such rows, in rows.
  std::span<const uint32_t> seen_at = {};  // at most `now`
  std::span<const uint32_t> longest_gap = {};
  uint32_t now = 0;  // how many entries the sequence has; no seen_at is greater
};

struct KeepRule {
  std::string_view name;
  // What is gathered of a prompt's rows, and then in each step; without evicts_prompt no score asks for what
  // steps give.
  MassForm prompt_form;
  MassForm step_form;
  // Whether a prompt's mass is that of its last rows (the observation window) or that of all of its rows.
  bool observes_last_rows = true;
  // Scores of a prompt's entries are replaced by the largest of so many neighbours, the entry in the middle:
  // what surrounds an important entry matters, too. Odd; 1: none.
  uint32_t pool_entries = 1;
  // What is generated competes with the prompt for its places; otherwise a prompt's entries stay, and of what
  // is generated the oldest goes first.
  bool evicts_prompt = true;
  // When there is no room, so many parts of a hundred of the entries are evicted together; 0: one.
  uint32_t evicted_percent = 0;
  bool tracks_recurrence = false;  // KeptView::seen_at and longest_gap
  // One score for each entry; the larger stay. Finite, whatever the device computed.
  void (*score)(const KeptView& view, std::span<float> scores);
};

// Of each entry, while decoding: how many moments of its mass are gathered. None where a prompt's entries
// stay whatever is attended to.
inline uint32_t StepMoments(const KeepRule& rule) {
  return rule.evicts_prompt ? rule.step_form.n_moments : 0;
}
std::span<const KeepRule> KeepRules();
// An unknown name is answered with the known ones.
Result<const KeepRule*> FindKeepRule(std::string_view name);

// A row that gives an entry more than this says that it is needed again (LazyEviction).
inline constexpr float kRecurrenceWeight = 1e-4F;

// scores: of entries at consecutive positions. See KeepRule::pool_entries; at the ends, of those that there
// are.
void PoolLargest(uint32_t pool_entries, std::span<float> scores);

// The n entries that stay, as ascending indices: those with the largest scores; of equal ones the newer.
std::vector<uint32_t> LargestScores(std::span<const float> scores, uint32_t n);

// --- Shares of a layer's entries for its KV heads.
// Ada-KV: the `total` largest of all heads' scores together decide how many each head has; `floor_share` (its
// safeguard; 0.2 there) of an equal share is every head's, and of the count that scores give it a head has
// the rest. Of equal scores the newer count. scores: [n_heads, n]. The shares add up to min(total, n_heads *
// n), and none exceeds n.
std::vector<uint32_t> AdaptiveHeadShares(std::span<const float> scores, uint32_t n_heads, uint32_t total,
                                         double floor_share);

// --- Shares of layers.
// LAVa: a layer's share grows with the entropy of its normalised scores, divided by the logarithm of how many
// there are. 0 to 1; of one score, or where none is above 0, it is 0.
double ScoreEntropy(std::span<const float> scores);
// [n_layers], in proportion to `weights` (finite, not negative; all 0: equal shares); they add up to `total`
// exactly, and each is at least `least` and at most `most`, where total allows it (n_layers * least <= total
// <= n_layers * most; otherwise kInvalidArgument). What bounds take from a layer or give it, the others have
// or give, in proportion.
Result<std::vector<uint32_t>> LayerShares(std::span<const double> weights, uint32_t total, uint32_t least,
                                          uint32_t most);

}  // namespace kvrun
