#include "runtime/kv/planner/kv_plan_statics.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/kv/groups/static_pages.h"
#include "runtime/kv/groups/static_set.h"

namespace kvrun {

namespace {

// Whole ones of `n`; what floats lack of a whole one is none of it.
uint32_t ShareOf(double share, uint32_t n) { return static_cast<uint32_t>(share * n + 1e-6); }

// What is stored in 4 bits stays as it is.
KvType LowerType(KvType type) {
  const bool is_float = type == KvType::kF16 || type == KvType::kF32;
  return is_float ? KvType::kFp8 : KvType::kInt4;
}

void ShapeStatics(KvPlan& plan) {
  StaticPlan& statics = plan.of_groups().statics;
  statics.observed_rows = plan.has_statics() ? std::min(plan.n_ctx, StaticChoice::kObservedRows) : 0;
  statics.most_entries = statics.n_entries;
  if (!plan.method.goes_by_score()) return;
  statics.low_record = plan.entry_record();
  statics.low_record.k_type = LowerType(plan.record.k_type);
  statics.low_record.v_type = LowerType(plan.record.v_type);
  if (statics.precisions != KeptPrecisions::kBytes) return;
  const uint64_t most =
      statics.n_entries * plan.entry_record().size_bytes() / statics.low_record.size_bytes();
  statics.most_entries = static_cast<uint32_t>(std::min<uint64_t>(most, plan.n_ctx));
}

}  // namespace

void ShareWithStatics(uint32_t n_total, double share, bool is_asked, KvPlan& plan) {
  StaticPlan& statics = plan.of_groups().statics;
  statics.n_total = n_total;
  statics.n_entries = 0;
  uint32_t n_chosen = n_total;
  if (n_total >= plan.n_groups()) {
    if (is_asked) statics.n_entries = ShareOf(share, plan.n_ctx);
  } else {
    const uint32_t least = std::min(plan.choice.n_pinned + 1, n_total);
    const uint32_t n_static = ShareOf(share, n_total - std::min(plan.choice.n_pinned, n_total));
    n_chosen = std::max(least, n_total - n_static);
    statics.n_entries = (n_total - n_chosen) * plan.record.group_tokens;
  }
  plan.SetCounts(n_chosen, n_chosen);
  ShapeStatics(plan);
}

void ChangeStaticShare(double share, KvPlan& plan) {
  ShareWithStatics(plan.of_groups().statics.n_total, share, false, plan);
  plan.of_groups().statics.share.share = share;
}

std::string DescribeStatics(const KvPlan& plan) {
  const StaticPlan& statics = plan.of_groups().statics;
  std::string text = fmt::format(", {} that stay", statics.n_entries);
  if (statics.share.by_prompt) text += " until the first prompt says how many";
  if (statics.steps > 0) text += fmt::format(" (chosen again every {} tokens)", statics.steps);
  if (statics.lays_pages) text += ", the others in pages laid anew";
  return text;
}

void AddStaticParts(const KvSizeInput& input, KvPlan& plan) {
  if (!plan.has_statics()) return;
  const uint64_t lists = uint64_t{input.model.n_layers} * plan.n_streams;
  const StaticPlan& statics = plan.of_groups().statics;
  const uint64_t entry_bytes = plan.entry_record().size_bytes();
  const uint64_t low_bytes = statics.low_record.size_bytes();
  SlotShape shape;
  shape.n_streams = plan.n_streams;
  shape.table_slots = statics.n_entries;
  uint64_t tables = shape.table_bytes();
  uint64_t of_list = statics.n_entries * entry_bytes;
  if (plan.method.goes_by_score()) {
    // Either source has a place at least.
    const bool is_low = statics.precisions == KeptPrecisions::kQuantised;
    of_list = statics.n_entries * (is_low ? low_bytes : entry_bytes) + entry_bytes + low_bytes;
    shape.table_slots = statics.most_entries + 1;
    tables += shape.table_bytes();
  }
  plan.parts.push_back({"static", lists * of_list, false, true});
  // Groups that are read, also for pages, and pages that are written.
  const uint64_t n_records =
      StaticSet::kGroupsAtOnce + (statics.lays_pages ? 2 * StaticPages::kGroupsAtOnce : 0);
  uint64_t of_pages = 0;
  if (statics.lays_pages) {
    of_pages = lists * StaticPages::kListBytes +
               uint64_t{plan.n_streams} * statics.n_total * sizeof(GroupFetch) +
               uint64_t{plan.n_groups()} * sizeof(uint32_t);
  }
  const uint64_t n_bytes = input.model.n_layers * tables + n_records * plan.record.size_bytes() + of_pages;
  plan.parts.push_back({"static tables", n_bytes, false, true});
  // Positions by rank and ascending, and those that an index has taken out; of rows of entries, with what
  // they were.
  const bool has_rows = plan.method.has_index() && !plan.method.has_pages();
  const uint64_t row_bytes = has_rows ? uint64_t{plan.index.rank} * sizeof(uint16_t) + sizeof(uint32_t) : 0;
  const uint64_t n_lists = statics.lays_pages ? 4 : 3;  // what pages were laid without
  plan.parts.push_back({"static lists",
                        statics.most_entries * (lists * n_lists * sizeof(uint32_t) +
                                                input.model.n_layers * plan.n_sequences * row_bytes),
                        true, true});
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
  // The device's and a copy; then the copy with scores and order. For the share, those of two rows more.
  const uint64_t heads = input.model.n_kv_heads;
  uint64_t moments = 1;
  if (plan.method.goes_by_score())
    moments = plan.of_groups().statics.moments == AttentionMoments::kRows ? 4 : 2;
  if (plan.of_groups().statics.share.by_prompt) moments += 1;
  return uint64_t{plan.n_ctx} * sizeof(float) * std::max(2 * moments * heads, (moments + 1) * heads + 3);
}

}  // namespace kvrun
