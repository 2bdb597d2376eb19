// What options, the method and the model decide before sizes are tried.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "platform/base/units.h"
#include "runtime/kv/planner/kv_plan_options.h"
#include "runtime/kv/planner/kv_planner.h"

namespace kvrun {
namespace {

constexpr double kShareBeforePrompts = 0.25;  // of the static set, where prompts say it
constexpr uint32_t kLeastKept = 16;           // of a list: as many as the smallest window has
constexpr std::string_view kDefaultPolicy = "lru";
constexpr std::string_view kDefaultClusterPolicy = "cluster";
// Of clusters. Not measured, but for what docs/methods/dynakv.md says.
constexpr uint32_t kMostClusterEntries = 1024;
constexpr uint32_t kMeansOfLargestCluster = 4;
constexpr uint32_t kLeastMaxClusterEntries = 2;  // what is divided has two
constexpr double kClusterRoom = 1.25;            // divisions while decoding take room, too
constexpr uint32_t kSpareClusters = 8;
// Of the lists. A third of them has a cluster to store for each token, more in bursts
// (docs/methods/dynakv.md).
constexpr double kUpkeepShare = 2.0 / 3.0;
constexpr uint32_t kPendingEntries = 16;  // as in DynaKV's Figure 11
// With it clusters stay as large as they were on average, on two texts (docs/methods/dynakv.md): with 1.5
// they grow, with 1.1 there is no room in the end.
constexpr double kSplitFactor = 1.25;

}  // namespace

// The group's size, pinned groups, and what of M and C is given.
Status Planner::Settle() {
  const KvMethod& method = base_.method;
  KvRecordShape& record = base_.record;
  const uint32_t usual_tokens = method.selects() ? options_.default_group_tokens : kWholeGroupTokens;
  record.group_tokens = options_.group_tokens.value_or(
      group_tokens_ > 0 ? group_tokens_ : method.defaults.group_tokens.value_or(usual_tokens));
  record.head_dim = model_.head_dim;
  base_.heads = options_.heads.value_or(method.defaults.heads.value_or(HeadReduction::kSoftmax));
  const bool per_head = method.selects() && base_.heads == HeadReduction::kPerKvHead;
  record.n_heads = per_head ? 1 : model_.n_kv_heads;
  base_.n_streams = base_.n_sequences * (per_head ? model_.n_kv_heads : 1);
  base_.slot_record = record;
  if (method.evicts()) {
    SettleKept();
    return Status::Ok();
  }
  const uint32_t n_groups = base_.n_groups();
  if (!method.selects()) {
    n_chosen_ = n_groups;
    n_cache_slots_ = 0;
    return Status::Ok();
  }
  const uint32_t sinks = options_.sink_entries.value_or(method.defaults.sink_entries.value_or(kSinkEntries));
  if (method.has_clusters()) {
    SettleClusters(sinks);
  } else {
    base_.n_pinned = static_cast<uint32_t>(
        std::min<uint64_t>(CeilDiv(uint64_t{sinks}, uint64_t{record.group_tokens}), n_groups));
  }
  const AdapterKind usual_kind = sinks == 0 ? AdapterKind::kQuery : AdapterKind::kQueryCentred;
  base_.adapter_kind = options_.adapter_kind.value_or(method.defaults.adapter_kind.value_or(usual_kind));
  base_.policy = method.has_clusters() ? kDefaultClusterPolicy : kDefaultPolicy;
  if (!options_.policy.empty()) base_.policy = options_.policy;
  base_.mass_share = static_cast<float>(options_.mass_share.value_or(0.0));
  const bool samples = options_.sample_entries.value_or(0) > 0;
  const bool usually_by_mass = method.defaults.goes_by_mass && base_.heads != HeadReduction::kSum;
  base_.group_score =
      options_.mass_share || samples || usually_by_mass ? GroupScore::kMass : method.group_score;
  base_.sample_seed = options_.sample_seed.value_or(0);
  KVRUN_RETURN_IF_ERROR(SettleStatics());
  SettleSelection();
  return CheckSelection(options_, base_, n_chosen_, n_cache_slots_);
}

// What is selected shares its entries with the static set.
Status Planner::SettleStatics() {
  StaticPlan& statics = base_.statics;
  const KvDefaults& defaults = base_.method.defaults;
  double usual_share = may_choose_statics() ? *defaults.static_share_of_budget : defaults.static_share;
  if (options_.sample_entries.value_or(0) > 0) usual_share = 0.0;
  statics.share = options_.static_share.value_or(StaticShare{.share = usual_share});
  if (leaves_statics_out_) statics.share = {};
  statics.steps = options_.static_steps.value_or(defaults.static_steps);
  statics.lays_pages = options_.static_repage.value_or(false);
  statics.precisions = options_.kept_precisions.value_or(KeptPrecisions::kBytes);
  statics.moments = options_.attention_moments.value_or(AttentionMoments::kKeys);
  const bool goes_by_score = base_.method.goes_by_score();
  if (goes_by_score && (statics.share.by_prompt || options_.reuse_groups)) {
    return {
        StatusCode::kInvalidArgument,
        fmt::format("the KV method {} has a slot for each selected group, and a static set of a share that "
                    "is said: leave --kv-reuse and --kv-static prompt out",
                    base_.method.name)};
  }
  if (!statics.share.by_prompt) return Status::Ok();
  statics.share.share = kShareBeforePrompts;
  if (!options_.reuse_groups) return Status::Ok();
  return {
      StatusCode::kInvalidArgument,
      "with --kv-static prompt the first prompt says how many groups are selected, and each has a slot of "
      "its own: leave --kv-reuse out, or say a share"};
}

// Shape and room of clusters: what a record is, too, as that is of one entry here.
void Planner::SettleClusters(uint32_t sinks) {
  ClusterPlan& clusters = base_.clusters;
  base_.slot_record.has_positions = true;
  base_.record.group_tokens = 1;
  const uint32_t n_ctx = base_.n_ctx;
  clusters.n_sinks = std::min(sinks, n_ctx);
  clusters.mean_entries = cluster_entries_;
  uint32_t most = std::min(kMeansOfLargestCluster * clusters.mean_entries, kMostClusterEntries);
  // A selection ends before the first cluster that does not fit: any one has to.
  if (options_.select_entries) {
    const uint32_t slots = *options_.select_entries / base_.slot_record.group_tokens;
    most = std::min(most, slots * base_.slot_record.group_tokens);
  }
  clusters.max_entries = std::max(options_.max_cluster_entries.value_or(most), kLeastMaxClusterEntries);
  const uint32_t mean = std::min(clusters.mean_entries, clusters.max_entries);
  clusters.n_clusters = options_.cluster_room.value_or(
      static_cast<uint32_t>(std::ceil(kClusterRoom * n_ctx / mean)) + kSpareClusters);
  clusters.max_pending = options_.pending_entries.value_or(kPendingEntries);
  clusters.upkeep_clusters = options_.upkeep_clusters.value_or(
      static_cast<uint32_t>(std::ceil(kUpkeepShare * model_.n_layers * model_.n_kv_heads)));
  // What is pending together is one cluster at first.
  if (options_.cluster_update == ClusterUpdate::kLocal && !options_.max_cluster_entries) {
    clusters.max_entries = std::max(clusters.max_entries, clusters.max_pending);
  }
  if (options_.cluster_update == ClusterUpdate::kLocal) {
    clusters.max_pending = std::min(clusters.max_pending, clusters.max_entries);
  }
  clusters.threshold_factor = static_cast<float>(options_.split_factor.value_or(kSplitFactor));
  clusters.layout = options_.cluster_layout.value_or(ClusterLayout::kDualHead);
  clusters.update = options_.cluster_update.value_or(ClusterUpdate::kAdaptive);
  clusters.rows_on_flash = options_.rows_on_flash.value_or(false);
}

// Entries by themselves, of each KV head.
void Planner::SettleKept() {
  base_.record.group_tokens = 1;
  base_.record.n_heads = 1;
  base_.n_streams = base_.n_sequences * model_.n_kv_heads;
  base_.slot_record = base_.record;
  base_.kept.shares = options_.kept_shares.value_or(KeptShares::kEven);
  base_.kept.precisions = options_.kept_precisions.value_or(KeptPrecisions::kBytes);
  base_.kept.moments = options_.attention_moments.value_or(AttentionMoments::kKeys);
  std::optional<uint32_t> entries = options_.select_entries;
  if (!entries && !has_budget()) entries = base_.n_ctx;
  if (entries) n_chosen_ = n_cache_slots_ = std::clamp(*entries, 1U, base_.n_ctx);
}

// M for so many entries.
uint32_t Planner::SlotsOf(uint32_t entries) const {
  const uint32_t slot_tokens = base_.slot_record.group_tokens;
  if (!base_.method.has_clusters()) {
    return static_cast<uint32_t>(
        std::min<uint64_t>(uint64_t{base_.n_pinned} + entries / slot_tokens, base_.n_groups()));
  }
  if (entries >= base_.n_ctx) return base_.n_choosable();
  const double unfilled = 1.0 + (slot_tokens - 1) / (2.0 * base_.clusters.mean_entries);
  return std::min(base_.n_choosable(), static_cast<uint32_t>(entries * unfilled / slot_tokens));
}

uint32_t Planner::LeastEntries() const {
  if (evicts()) return std::min(kFewKept, base_.n_ctx);
  if (fills_window()) return std::min(kLeastWindow, base_.n_ctx);
  const double falling = kMostLeastOfShare * std::sqrt(kMostOfShareUntil / base_.n_ctx);
  const uint32_t of_share =
      static_cast<uint32_t>(std::clamp<double>(falling, kLeastOfShare, kMostLeastOfShare));
  return std::min(options_.budget_fraction ? of_share : kLeastOfBytes, CeilDiv(base_.n_ctx, kLeastShare));
}

// The smallest selection: of an own choice, what does not miss too much; else one extent beside the pinned
// ones, or few that are kept. Clusters that find no slots go through the pool.
uint32_t Planner::LeastChosen() const {
  if (evicts()) return std::min(options_.budget_fraction ? kFewKept : kLeastKept, base_.n_ctx);
  if (base_.method.has_clusters()) {
    const uint32_t least = fills_budget() ? SlotsOf(LeastEntries()) : 0;
    return std::min(std::max(least, base_.records_per_cluster()), base_.n_choosable());
  }
  return fills_budget() ? SlotsOf(std::max(LeastEntries(), base_.slot_record.group_tokens))
                        : std::min(base_.n_pinned + 1, base_.n_groups());
}

// The largest selection, in groups, that is chosen where nobody says one.
uint32_t Planner::MostWorth() const {
  if (model_.layer_products == 0) return base_.n_choosable();
  const double per_entry = 2.0 * model_.n_heads * model_.head_dim;
  const double share = static_cast<double>(base_.budget_bytes) / static_cast<double>(base_.full_bytes);
  const double entries = std::max(kAttentionShare * static_cast<double>(model_.layer_products) / per_entry,
                                  kShareOfBudget * share * base_.n_ctx);
  return SlotsOf(std::max(kSurelyPaying, static_cast<uint32_t>(std::min(entries, 1e9))));
}

void Planner::SettleSelection() {
  const uint32_t n_groups = base_.n_choosable();
  if (!base_.method.counts_groups()) {
    n_chosen_ = n_cache_slots_ = base_.n_pinned;
    return;
  }
  std::optional<uint32_t> entries = options_.select_entries;
  if (!entries && !has_budget()) entries = kPaperEntries;
  if (entries) n_chosen_ = SlotsOf(*entries);
  if (options_.reuse_groups) n_cache_slots_ = std::min(*options_.reuse_groups, n_groups);
  base_.reuse_limits_selection = !n_chosen_ && n_cache_slots_ && *n_cache_slots_ < n_groups;
}

}  // namespace kvrun
