#include "runtime/kv/planner/describe_plan.h"

#include <fmt/format.h>

#include "platform/base/units.h"
#include "runtime/kv/plan/kv_names.h"
#include "runtime/kv/planner/kv_family.h"
#include "runtime/kv/planner/kv_plan_reading.h"

namespace kvrun {

std::string DescribePlan(const KvPlan& plan) {
  const std::string budget =
      plan.budget.bytes == UINT64_MAX ? "no budget" : "budget " + FormatBytes(plan.budget.bytes);
  const double part =
      100.0 * static_cast<double>(plan.decode_bytes()) / static_cast<double>(plan.budget.full_bytes);
  std::string text =
      fmt::format("{}: {} in decoding ({:.1f} % of f16), {} in prefill, {}; K {}, V {}", plan.method.name,
                  FormatBytes(plan.decode_bytes()), part, FormatBytes(plan.prefill_bytes()), budget,
                  KvTypeName(plan.record.k_type), KvTypeName(plan.record.v_type));
  if (plan.rotates) text += ", rotated";
  text += FamilyOf(plan.method).Describe(plan);
  if (plan.states.sequence_bytes > 0) {
    text += fmt::format("; states {}: {} copies, one per about {} tokens",
                        FormatBytes(plan.states.bytes(plan.n_sequences)), plan.states.n_copies,
                        plan.states.tokens_per_copy(plan.n_ctx));
    if (plan.n_sequences > 1) text += " of each sequence";
    if (plan.states.has_aside) text += ", and one to choose the static set again";
  }
  return text;
}

std::string DescribeOnFlash(const KvPlan& plan, const std::string& extents) {
  const auto entries = [&plan](uint32_t n_some) { return plan.EntriesOfSlots(n_some); };
  std::string text = plan.choice.n_chosen == plan.n_choosable()
                         ? fmt::format("; all {} entries", plan.n_ctx)
                         : fmt::format("; {} of {} entries", entries(plan.choice.n_chosen), plan.n_ctx);
  if (plan.has_layer_shares) {
    text += fmt::format(" on average, {} to {} by layer", entries(plan.least_chosen()),
                        entries(plan.most_chosen()));
  }
  if (plan.choice.is_limited_by_reuse) {
    text += fmt::format(" (no more, as the reuse buffer was given {} groups)", plan.slots.n_cache_slots);
  }
  if (plan.choice.n_usual > 0) text += fmt::format(" at most, {} at first", entries(plan.choice.n_usual));
  if (plan.reading() != nullptr) text += DescribeReading(plan);
  if (plan.reading() == nullptr && plan.choice.is_limited_by_attention)
    text += " (as many as are worth the time that attention takes)";
  if (plan.limits_reads() && plan.reading() == nullptr)
    text += fmt::format(" (a layer reads {:.3g} groups a token)", plan.slots.reads_per_layer);
  text += extents + fmt::format(" and a window of {}", plan.window.n_entries);
  if (!plan.slots.policy.empty()) {
    const std::string cached = plan.slots.n_cache_slots == plan.n_choosable()
                                   ? "all"
                                   : fmt::format("{}", entries(plan.slots.n_cache_slots));
    text += fmt::format(", {} in the cache ({})", cached, plan.slots.policy);
    if (plan.slots.n_pool_slots > 0) {
      text += fmt::format(", a pool of {} x {} for the rest", plan.pool_parts(),
                          entries(plan.slots.n_pool_slots));
    }
  }
  return text;
}

std::string DescribeScores(const KvPlan& plan) {
  std::string text = fmt::format(", heads {}", HeadReductionName(plan.choice.heads));
  if (plan.choice.mass_share > 0.0F) text += fmt::format(", to a mass of {}", plan.choice.mass_share);
  return text;
}

std::string DescribePrefill(const KvPlan& plan) {
  return fmt::format("; prefill in tiles of {}{}", plan.prefill.tile_tokens,
                     plan.prefill.spills_hidden ? ", hidden states on flash" : "");
}

}  // namespace kvrun
