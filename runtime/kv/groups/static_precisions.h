// How precisely a static set keeps its entries (StaticPlan::precisions). With one precision, all alike. By
// score (ARKV), the share of a layer's entries that keep theirs follows from the attention of prompts.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/kv/contracts/prompt_entries.h"
#include "runtime/kv/math/layer_attention.h"
#include "runtime/kv/memory/kept_lists.h"
#include "runtime/kv/plan/kv_plan.h"

namespace kvrun {

class StaticPrecisions {
 public:
  // The plan must outlive it.
  StaticPrecisions(const KvPlan& plan, uint32_t n_layers);

  bool go_by_score() const { return plan_.method.goes_by_score(); }
  // An entry, in each tier.
  const KvRecordShape& record_of(KeptTier tier) const {
    return tier == KeptTier::kLow ? plan_.of_groups().statics.low_record : entry_record_;
  }

  // What is asked of a prompt's attention, of a layer: [n_moments, n_kv_heads, end].
  MassForm mass_form() const;
  void NoteAttention(uint32_t layer, uint32_t sequence, uint32_t end, std::span<const float> mass,
                     uint32_t n_rows);
  // ARKV's share of what keeps its precision (OriginalShares), the mean of sequences: [n_layers]; empty where
  // there is one precision.
  std::vector<double> original_shares() const;
  // How many entries of a stream are in each tier. original_shares: as above, or empty.
  PrecisionShares CountsOf(uint32_t layer, std::span<const double> original_shares) const;

  Status VisitState(StateVisitor& visitor);

 private:
  uint32_t model_heads() const { return plan_.record.n_heads * plan_.heads_per_sequence(); }

  const KvPlan& plan_;
  uint32_t n_layers_;
  KvRecordShape entry_record_;
  std::vector<LayerAttention> attention_;  // [n_sequences, n_layers], where precision goes by score
  std::vector<bool> has_attention_;        // [n_sequences]
};

}  // namespace kvrun
