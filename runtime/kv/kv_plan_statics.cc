#include "runtime/kv/kv_plan_statics.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/kv/static_set.h"

namespace kvrun {
namespace {

// Whole ones of `n`; what floats lack of a whole one is none of it.
uint32_t ShareOf(double share, uint32_t n) { return static_cast<uint32_t>(share * n + 1e-6); }

}  // namespace

void ShareWithStatics(uint32_t n_total, double share, bool is_asked, KvPlan& plan) {
  StaticPlan& statics = plan.statics;
  statics.n_total = n_total;
  statics.n_entries = 0;
  plan.n_chosen = n_total;
  if (share == 0.0) return;
  if (n_total >= plan.n_groups()) {
    if (is_asked) statics.n_entries = ShareOf(share, plan.n_ctx);
    return;
  }
  const uint32_t least = std::min(plan.n_pinned + 1, n_total);
  const uint32_t n_static = ShareOf(share, n_total - std::min(plan.n_pinned, n_total));
  plan.n_chosen = std::max(least, n_total - n_static);
  statics.n_entries = (n_total - plan.n_chosen) * plan.record.group_tokens;
}

void ChangeStaticShare(double share, KvPlan& plan) {
  ShareWithStatics(plan.statics.n_total, share, false, plan);
  plan.statics.share.share = share;
  plan.n_cache_slots = plan.n_chosen;
}

std::string DescribeStatics(const KvPlan& plan) {
  const StaticPlan& statics = plan.statics;
  std::string text = fmt::format(", {} that stay", statics.n_entries);
  if (statics.share.by_prompt) text += " until the first prompt says how many";
  if (statics.steps > 0) text += fmt::format(" (chosen again every {} tokens)", statics.steps);
  return text;
}

void AddStaticParts(const KvSizeInput& input, KvPlan& plan) {
  if (!plan.has_statics()) return;
  const uint64_t layers = input.model.n_layers;
  const uint64_t n = plan.statics.n_entries;
  const uint64_t entries = layers * plan.n_streams * n;
  SlotShape shape;
  shape.n_streams = plan.n_streams;
  shape.table_slots = static_cast<uint32_t>(n);
  plan.parts.push_back({"static", entries * plan.entry_record().size_bytes(), false, true});
  plan.parts.push_back({"static tables",
                        layers * shape.table_bytes() + StaticSet::kGroupsAtOnce * plan.record.size_bytes(),
                        false, true});
  // Positions, and those that an index has taken out; of rows of entries, with what they were.
  const bool has_rows = plan.method.has_index() && !plan.method.has_pages();
  const uint64_t row_bytes = has_rows ? uint64_t{plan.index.rank} * sizeof(uint16_t) + sizeof(uint32_t) : 0;
  plan.parts.push_back({"static lists",
                        entries * 2 * sizeof(uint32_t) + layers * plan.n_sequences * n * row_bytes, true,
                        true});
}

std::vector<KvPart> PartsOfAnyShare(const std::vector<KvPart>& none, const std::vector<KvPart>& all) {
  std::vector<KvPart> parts = all;
  for (const KvPart& part : none) {
    const auto same = std::find_if(parts.begin(), parts.end(),
                                   [&part](const KvPart& other) { return other.name == part.name; });
    if (same == parts.end()) {
      parts.push_back(part);
    } else if (part.name != "slots") {  // an entry of the set takes no less than one of a group
      same->bytes = std::max(same->bytes, part.bytes);
    }
  }
  return parts;
}

uint64_t StaticPromptBytes(const KvSizeInput& input, const KvPlan& plan) {
  if (!plan.has_statics()) return 0;
  // The device's and a copy; sums over heads; order. For the share, those of two rows more.
  const uint64_t values = (plan.statics.share.by_prompt ? 4 : 2) * uint64_t{input.model.n_kv_heads} + 3;
  return uint64_t{plan.n_ctx} * values * sizeof(float);
}

}  // namespace kvrun
