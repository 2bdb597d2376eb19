// EstimateWrites. What the parts of a plan say of a whole context is shared out over its tokens.
#include <algorithm>
#include <string_view>

#include "platform/base/units.h"
#include "runtime/engine/offloaded/prefill_spill.h"
#include "runtime/engine/session/session_writes.h"
#include "runtime/kv/serve/kv_stores.h"
#include "runtime/store/state_file.h"

namespace kvrun {
namespace {

// Of one sequence.
struct Written {
  const KvPlan& plan;
  const ModelConfig& config;
  const WriteShape& shape;

  uint64_t n_lists() const { return uint64_t{config.n_kv_layers()} * plan.heads_per_sequence(); }
  uint64_t Padded(uint64_t bytes) const { return RoundUp<uint64_t>(bytes, shape.block_bytes); }

  // Whole groups, once each.
  uint64_t GroupBytes(uint32_t begin, uint32_t end) const {
    const uint32_t group = plan.record.group_tokens;
    return n_lists() * (end / group - begin / group) * Padded(plan.record.size_bytes());
  }
  // The clusters that a prompt is divided into, in whole blocks.
  uint64_t ClusterBytes(const ClustersPlan& clusters, uint32_t n_entries) const {
    const KvRecordShape& record = plan.slots.record;
    const uint32_t n_records = CeilDiv(clusters.mean_entries, record.group_tokens);
    return n_lists() * CeilDiv(n_entries, clusters.mean_entries) * Padded(n_records * record.size_bytes());
  }
  // While decoding, the block that an entry comes to.
  uint64_t JoiningBytes(uint32_t n_entries) const {
    return n_lists() * n_entries * Padded(plan.entry_record().size_bytes());
  }
  uint64_t RecordBytes(const PromptToWrite& prompt) const {
    const uint32_t end = prompt.end + prompt.n_answer;
    if (!HasKeptRecords(plan)) return 0;
    const ClustersPlan* const clusters = plan.clusters();
    const bool in_clusters = clusters != nullptr && clusters->layout != ClusterLayout::kSequence;
    if (!in_clusters) return GroupBytes(prompt.begin, end);
    return ClusterBytes(*clusters, prompt.end - prompt.begin) + JoiningBytes(prompt.n_answer);
  }

  // Of the plan's parts that a state has, those that grow with the text, or those that do not.
  uint64_t StateParts(bool growing) const {
    constexpr std::string_view kGrowing[] = {"index", "checksums", "clusters", "kv", "seals", "sequence"};
    constexpr std::string_view kFixed[] = {"window",       "means", "adapters",  "static",
                                           "static lists", "kept",  "kept lists"};
    uint64_t bytes = 0;
    for (const KvPart& part : plan.parts) {
      const bool is_one =
          growing ? std::find(std::begin(kGrowing), std::end(kGrowing), part.name) != std::end(kGrowing)
                  : std::find(std::begin(kFixed), std::end(kFixed), part.name) != std::end(kFixed);
      if (is_one) bytes += part.bytes / plan.n_sequences;
    }
    return bytes;
  }
  uint64_t Growth(uint64_t n_tokens) const {
    return StateParts(true) * std::min<uint64_t>(n_tokens, plan.n_ctx) / plan.n_ctx;
  }
  // A save when the prompt is read and one after the answer. Of each list that grows the last chunk is
  // written again.
  uint64_t SaveBytes(const PromptToWrite& prompt) const {
    if (!shape.is_kept) return 0;
    const uint64_t after_prompt = Growth(prompt.end - prompt.begin) + StateParts(false);
    const uint64_t tails = std::min(Growth(prompt.end), n_lists() * kStateChunkBytes / 2);
    return after_prompt + Growth(prompt.n_answer) + StateParts(false) + tails;
  }
};

}  // namespace

uint64_t EstimateWrites(const KvPlan& plan, const ModelConfig& config, const WriteShape& shape,
                        const PromptToWrite& prompt) {
  const Written written{plan, config, shape};
  return written.RecordBytes(prompt) + written.SaveBytes(prompt) +
         PrefillSpill::WrittenBytes(plan, config, prompt.begin, prompt.end, shape.block_bytes);
}

}  // namespace kvrun
