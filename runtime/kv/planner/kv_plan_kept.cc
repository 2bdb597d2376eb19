#include "runtime/kv/planner/kv_plan_kept.h"

#include <fmt/format.h>

#include <algorithm>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/kv/math/layer_attention.h"
#include "runtime/kv/memory/kept_lists.h"
#include "runtime/kv/plan/kv_names.h"
#include "runtime/store/spill_file.h"
#include "shaders/shared/step_params.h"

namespace kvrun {
namespace {

// Where a prompt's last rows are observed, and where all are: as many at most, evenly spaced.
constexpr uint32_t kLastRows = ArkvConstants().observed_rows;
constexpr uint32_t kSampledRows = 256;

const KeepRule& RuleOf(const KvPlan& plan) { return **FindKeepRule(plan.method.keep_rule); }

uint64_t KeptTableBytes(const KvPlan& plan, uint64_t table_slots) {
  SlotShape shape;
  shape.n_streams = plan.n_streams;
  shape.table_slots = static_cast<uint32_t>(table_slots);
  return shape.table_bytes();
}

// What each entry weighs in a step, until it has been added to its mass (on the CPU in blocks of 64 entries
// and rows of 8 query heads, with a maximum each).
uint64_t WeightBytes(const KvSizeInput& input, const KvPlan& plan) {
  const uint64_t blocks = 3 + (2 * uint64_t{plan.of_kept().most_entries} + plan.window.n_slots) / 64;
  const uint64_t head_tiles = CeilDiv(input.model.n_heads / input.model.n_kv_heads, 8U);
  return plan.n_streams * blocks * head_tiles * 8 * 65 * sizeof(float);
}

// What is stored in 8 bits or fewer stays as it is.
KvType LowType(KvType type) { return type == KvType::kF16 || type == KvType::kF32 ? KvType::kFp8 : type; }

bool HasLowRecords(const KvPlan& plan) {
  return plan.method.goes_by_score() && plan.of_kept().precisions != KeptPrecisions::kOriginal;
}

}  // namespace

void SetKept(uint32_t n, KvPlan& plan) {
  KeptPlan& kept = plan.of_kept();
  plan.SetCounts(n, 0);
  plan.slots.n_pool_slots = 0;
  kept.n_entries = n;
  kept.low_record = plan.record;
  if (plan.method.goes_by_score()) {
    kept.low_record.k_type = LowType(plan.record.k_type);
    kept.low_record.v_type = LowType(plan.record.v_type);
  }
  uint64_t most = n;
  if (HasLowRecords(plan) && kept.precisions == KeptPrecisions::kBytes) {
    most = most * plan.record.size_bytes() / kept.low_record.size_bytes();
  }
  // A layer has at most twice its share, a head twice the even one of its layer, or half as much again.
  if (kept.shares == KeptShares::kHeads) most *= 2;
  if (kept.shares == KeptShares::kLayers) most *= 3;
  kept.most_entries = static_cast<uint32_t>(std::min<uint64_t>(most, plan.n_ctx));
  kept.samples_rows = !RuleOf(plan).observes_last_rows;
  kept.observed_rows = std::min(plan.n_ctx, kept.samples_rows ? kSampledRows : kLastRows);
}

void SizeKeptParts(const KvSizeInput& input, KvPlan& plan) {
  const KeptPlan& kept = plan.of_kept();
  const KeepRule& rule = RuleOf(plan);
  const uint64_t lists = uint64_t{input.model.n_layers} * plan.n_streams;
  const bool all_low = plan.method.goes_by_score() && kept.precisions == KeptPrecisions::kQuantised;
  const uint64_t record_bytes = all_low ? kept.low_record.size_bytes() : plan.record.size_bytes();
  const uint64_t mass_bytes = StepMoments(rule) * sizeof(float);
  // Places of both precisions at most.
  const uint64_t places =
      HasLowRecords(plan) && !all_low ? uint64_t{kept.n_entries} + kept.most_entries : kept.n_entries;
  uint64_t tables = KeptTableBytes(plan, kept.most_entries);
  if (HasLowRecords(plan)) tables += KeptTableBytes(plan, kept.most_entries);
  const uint64_t list_entry = sizeof(uint32_t) * (rule.tracks_recurrence ? 3 : 1) + mass_bytes;
  const uint64_t window_entry = plan.window.record.size_bytes() + mass_bytes;

  plan.parts.clear();
  plan.parts.push_back({"kept", lists * kept.n_entries * record_bytes, false, true});
  plan.parts.push_back(
      {"kept tables", input.model.n_layers * tables + lists * places * mass_bytes, false, true});
  // Once aside and once in use, while the one becomes the other; and what a list is looked at with.
  const uint64_t scratch = (2 * uint64_t{kept.most_entries} + 1) * 9 * sizeof(float);
  plan.parts.push_back({"kept lists", 2 * lists * kept.most_entries * list_entry + scratch, true, true});
  plan.parts.push_back({"window", lists * plan.window.n_slots * window_entry, true, true});
  if (plan.rotates) plan.parts.push_back({"means", MeanBytes(input, plan), true, true});
  plan.parts.push_back({"tails", lists / plan.n_sequences * plan.window.record.size_bytes(), true, false});
  plan.parts.push_back(
      {"tables", input.model.n_layers * KeptTableBytes(plan, plan.window.n_slots), true, true});
  plan.parts.push_back({"scores", WeightBytes(input, plan), false, true});
  plan.parts.push_back({"staging",
                        SpillFile::kBufferBytes +
                            lists * (VaultListBytes(plan) / SpillFile::kOffsetAlignment) * sizeof(uint32_t) +
                            kept.most_entries * plan.record.size_bytes(),
                        true, true});
  AddPageSeals(input, lists * VaultListBytes(plan), plan);
}

uint64_t ObservedRowBytes(const KvSizeInput& input, const KvPlan& plan) {
  const uint64_t row_bytes = uint64_t{input.model.n_heads} * input.model.head_dim * sizeof(float);
  const uint64_t tapped_bytes =
      row_bytes + 2 * uint64_t{input.model.n_kv_heads} * input.model.head_dim * sizeof(float);
  // As they are tapped, with K and V; as they are kept, and given to the device; and each one's sum.
  return plan.observed_rows() *
             (tapped_bytes + 2 * row_bytes + input.model.n_heads * 2 * sizeof(float) + sizeof(uint32_t)) +
         2 * sizeof(StepParams);
}

uint64_t KeptPromptBytes(const KvSizeInput& input, const KvPlan& plan) {
  const uint64_t moments = plan.method.goes_by_score() ? 4 : RuleOf(plan).prompt_form.n_moments;
  // The device's and a copy; then the copy with scores, and what a head's are made of.
  const uint64_t heads = input.model.n_kv_heads;
  return uint64_t{plan.n_ctx} * sizeof(float) * std::max(2 * moments * heads, (2 * moments + 1) * heads + 12);
}

std::string DescribeKept(const KvPlan& plan) {
  const KeptPlan& kept = plan.of_kept();
  const bool keeps_all = kept.n_entries >= plan.n_ctx;
  std::string text =
      keeps_all ? fmt::format("; all {} entries of each list are kept", plan.n_ctx)
                : fmt::format("; {} of {} entries of each list are kept", kept.n_entries, plan.n_ctx);
  text += fmt::format(" beside a window of {}", plan.window.n_entries);
  if (plan.method.goes_by_score()) {
    // Where all have room, none has its precision lowered.
    const bool lowers_none = keeps_all && kept.precisions != KeptPrecisions::kQuantised;
    switch (lowers_none ? KeptPrecisions::kOriginal : kept.precisions) {
      case KeptPrecisions::kBytes: text += ", the best of them exact and as many of 8 bits as fit"; break;
      case KeptPrecisions::kEntries: text += ", the best of them exact, the others in 8 bits"; break;
      case KeptPrecisions::kOriginal: text += ", exact"; break;
      case KeptPrecisions::kQuantised: text += ", in 8 bits"; break;
    }
  }
  if (kept.shares != KeptShares::kEven) text += fmt::format(", shares by {}", KeptSharesName(kept.shares));
  return text;
}

}  // namespace kvrun
