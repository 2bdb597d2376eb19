// Which entries of each stream (a sequence, or a KV head of one, which chooses on its own) are in the static
// set: those that a prompt's end attends to most. Knows positions and attention, not bytes.
//
// Threads: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/kv/contracts/kv_index.h"
#include "runtime/kv/contracts/prompt_entries.h"
#include "runtime/kv/groups/static_precisions.h"
#include "runtime/kv/plan/kv_plan.h"

namespace kvrun {

class StaticChoice {
 public:
  // Of a prompt, the last rows that say what is in the set. (PRKV's are those of its window, 64.)
  static constexpr uint32_t kObservedRows = 32;

  // Empty. The plan must outlive it, and may change its share (StaticShare::by_prompt) before Settle.
  StaticChoice(const KvPlan& plan, uint32_t n_layers);

  // A layer of a prompt: what its last rows attend to most before the window, over the heads of a stream, or,
  // where precision goes by score, ARKV's heavy hitters; of equal ones the newer. Pinned groups are left out:
  // they are attended to anyway.
  Status Choose(uint32_t layer, const KvRange& prompt, PromptEntries& entries);
  // For benchmarks: evenly spaced ones, of the first `end` entries.
  void ChooseEvenly(uint32_t sequence, uint32_t end);
  // Entries from `end` on are in it no more.
  void Truncate(uint32_t sequence, uint32_t end);
  // Of the prompts so far, where the plan asks for it: the share of a selection by their first observed row
  // that one by their last row has too, in whole groups (PRKV's Eq. 4 and 5; a row's KV heads are means of
  // their query heads, as in Choose). Nothing where no prompt could say.
  std::optional<double> measured_share() const;

  // What was open is settled: the share, and how many of each layer keep their precision: [n_layers].
  // (Where prompts have not said the share yet, a later one may.)
  std::vector<PrecisionShares> Settle();

  // Ascending. Before Settle there are none where something is open.
  std::span<const uint32_t> positions(uint32_t layer, uint32_t stream,
                                      KeptTier tier = KeptTier::kOriginal) const {
    return tiers_[static_cast<size_t>(tier)][ListOf(layer, stream)];
  }
  // Of both precisions, ascending.
  std::vector<uint32_t> AllPositions(uint32_t layer, uint32_t stream) const;
  // The best first, settled or not.
  std::span<const uint32_t> ranked(uint32_t layer, uint32_t stream) const {
    return ranked_[ListOf(layer, stream)];
  }
  const StaticPrecisions& precisions() const { return precisions_; }

  Status VisitState(StateVisitor& visitor);

 private:
  struct Overlap {
    uint64_t sum = 0;
    uint64_t n_heads = 0;
    uint64_t n_entries = 0;  // of selections
  };
  using Lists = std::vector<std::vector<uint32_t>>;  // [n_layers, n_streams]

  size_t ListOf(uint32_t layer, uint32_t stream) const { return size_t{layer} * plan_.n_streams + stream; }
  uint32_t model_heads() const { return plan_.record.n_heads * plan_.heads_per_sequence(); }
  uint32_t most_entries() const;
  void ScoreStream(uint32_t head, uint32_t end, std::span<const float> mass, uint32_t n_rows,
                   std::span<float> scores) const;
  void KeepLargest(std::span<const float> scores, uint32_t begin, uint32_t n, std::vector<uint32_t>* kept);
  Status Rank(uint32_t layer, const KvRange& prompt, uint32_t begin, uint32_t end, PromptEntries& entries);
  Status MeasureOverlap(uint32_t end, PromptEntries& entries);
  void Split(uint32_t layer, uint32_t stream, const PrecisionShares& counts);

  const KvPlan& plan_;
  uint32_t n_layers_;
  StaticPrecisions precisions_;
  bool has_share_;  // of the plan: prompts have nothing more to say of it
  Lists ranked_;
  std::array<Lists, kKeptTiers.size()> tiers_;
  std::optional<Overlap> overlap_;  // of the prompts so far
  std::vector<uint32_t> order_;
};

}  // namespace kvrun
