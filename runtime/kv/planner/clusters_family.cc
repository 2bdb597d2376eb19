// Clusters of entries on flash, whose keys are alike.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "platform/base/units.h"
#include "runtime/kv/clusters/cluster_rows.h"
#include "runtime/kv/clusters/sequence_clusters.h"
#include "runtime/kv/plan/kv_names.h"
#include "runtime/kv/planner/describe_plan.h"
#include "runtime/kv/planner/kv_family.h"
#include "runtime/kv/planner/kv_plan_clusters.h"
#include "runtime/kv/planner/kv_plan_options.h"
#include "runtime/kv/planner/settle.h"
#include "runtime/store/row_store.h"
#include "shaders/shared/step_params.h"

namespace kvrun {
namespace {

constexpr double kLeastShareOfSmallClusters = 1.0 / 8;
constexpr uint64_t kClusterChecksumBytes = 8;  // and how many records there are
constexpr uint64_t kStagedClusters = 6;        // of the largest size: most are a quarter of it
// Not measured, but for what docs/methods/dynakv.md says.
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
constexpr uint32_t kMostClusters = 100'000;  // of a stream of a layer

Status InvalidClusters(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

Status CheckClusters(const KvPlan& plan, std::optional<uint32_t> n_chosen) {
  if (plan.n_streams > KVRUN_MAX_STEP_TOKENS) {
    return InvalidClusters(fmt::format(
        "the KV method {} takes at most {} sequences of a model with {} KV heads, not {}", plan.method.name,
        KVRUN_MAX_STEP_TOKENS / plan.heads_per_sequence(), plan.heads_per_sequence(), plan.n_sequences));
  }
  if (plan.of_clusters().n_clusters > kMostClusters) {
    return InvalidClusters(
        fmt::format("there would be {} clusters of {} entries on average, and there can be {}: raise "
                    "--kv-cluster, or shorten the context",
                    plan.of_clusters().n_clusters, plan.of_clusters().mean_entries, kMostClusters));
  }
  if (uint64_t{plan.of_clusters().n_clusters} * plan.of_clusters().max_entries < plan.n_ctx) {
    return InvalidClusters(
        fmt::format("the index would have room for {} clusters of up to {} entries, and the context has {}: "
                    "raise --kv-cluster-room or --kv-cluster-max, or shorten the context",
                    plan.of_clusters().n_clusters, plan.of_clusters().max_entries, plan.n_ctx));
  }
  if (n_chosen && *n_chosen < plan.records_per_extent()) {
    return InvalidClusters(
        fmt::format("a cluster of up to {} entries takes {} slots, and {} would be selected: raise "
                    "--kv-select, or lower --kv-cluster-max",
                    plan.of_clusters().max_entries, plan.records_per_extent(), *n_chosen));
  }
  return Status::Ok();
}

class Clusters final : public KvFamily {
 public:
  void Begin(KvPlan& plan) const override { plan.family = ClustersPlan{}; }

  Status CheckOptions(const KvOptions& options) const override {
    if (!options.heads || *options.heads == HeadReduction::kPerKvHead) return Status::Ok();
    return {StatusCode::kInvalidArgument,
            fmt::format("--kv-heads {} does not go with the KV method {}, whose clusters are of one KV "
                        "head each: leave it out",
                        HeadReductionName(*options.heads), options.method)};
  }

  std::vector<uint32_t> Sizes(const PlanDraft& draft) const override {
    if (draft.options.cluster_entries) return {*draft.options.cluster_entries};
    const double share =
        static_cast<double>(draft.plan.budget.bytes) / static_cast<double>(draft.plan.budget.full_bytes);
    std::vector<uint32_t> sizes = {24, 32, 48, 64};
    if (share >= kLeastShareOfSmallClusters) sizes.insert(sizes.begin(), 16);
    return sizes;
  }

  Status Settle(PlanDraft& draft) const override {
    SettleRecord(/*is_selected=*/true, 0, draft);
    const uint32_t sinks = SinksOf(draft);
    SettleShape(sinks, draft);
    SettleChoice(sinks, "cluster", draft);
    SettleCounts(draft.plan.n_choosable(), draft);
    KVRUN_RETURN_IF_ERROR(CheckChoice(draft.options, draft.plan, draft.n_chosen));
    KVRUN_RETURN_IF_ERROR(CheckClusters(draft.plan, draft.n_chosen));
    return CheckCounts(draft.options, draft.plan, draft.n_chosen, draft.n_cache_slots);
  }

  uint32_t SlotsOf(const KvPlan& plan, uint32_t entries) const override {
    if (entries >= plan.n_ctx) return plan.n_choosable();
    const uint32_t slot_tokens = plan.slots.record.group_tokens;
    const double unfilled = 1.0 + (slot_tokens - 1) / (2.0 * plan.of_clusters().mean_entries);
    return std::min(plan.n_choosable(), static_cast<uint32_t>(entries * unfilled / slot_tokens));
  }
  uint32_t LeastEntries(const PlanDraft& draft) const override { return LeastSelected(draft); }
  // Clusters that find no slots go through the pool.
  uint32_t LeastChosen(const PlanDraft& draft) const override {
    const KvPlan& plan = draft.plan;
    const uint32_t least = draft.fills_budget() ? SlotsOf(plan, LeastEntries(draft)) : 0;
    return std::min(std::max(least, plan.records_per_extent()), plan.n_choosable());
  }
  bool pools_small_selections() const override { return true; }

  void ShapeIndex(const PlanDraft& /*draft*/, const PlanRow& /*row*/, KvPlan& plan) const override {
    plan.index = CentroidIndexShape(plan);
  }
  void SetCounts(const PlanDraft& draft, uint32_t n_chosen, uint32_t n_cache_slots,
                 KvPlan& plan) const override {
    SetSlots(draft, n_chosen, n_cache_slots, plan);
  }
  // In no cluster.
  void SetExactGroups(KvPlan& plan) const override {
    plan.window.n_exact_groups = plan.of_clusters().n_sinks;
  }

  void SizeParts(const KvSizeInput& input, KvPlan& plan) const override;
  uint64_t PromptBytes(const KvSizeInput& input, const KvPlan& plan) const override {
    return ClusterQueryBytes(input, plan);
  }
  uint64_t LayerEndBytes(const KvSizeInput& /*input*/, const KvPlan& plan) const override {
    return ClusterPromptBytes(plan);
  }
  uint64_t ImageBytes(const KvPlan& plan) const override { return ClusterImageBytes(plan); }

  std::string Describe(const KvPlan& plan) const override {
    const ClustersPlan& clusters = plan.of_clusters();
    std::string text = DescribeOnFlash(
        plan,
        fmt::format(" in clusters of {} on average, {} at most ({} sinks, up to {} pending),",
                    clusters.mean_entries, clusters.max_entries, clusters.n_sinks, clusters.max_pending));
    text += fmt::format("; index {} x {}", plan.index.rank, KvTypeName(plan.index.type));
    if (clusters.rows_on_flash) text += " on flash";
    return text + DescribeScores(plan) + DescribePrefill(plan);
  }

 private:
  static void SettleShape(uint32_t sinks, PlanDraft& draft);
};

// Shape and room of clusters: what a record is, too, as that is of one entry here.
void Clusters::SettleShape(uint32_t sinks, PlanDraft& draft) {
  const KvOptions& options = draft.options;
  KvPlan& plan = draft.plan;
  ClustersPlan& clusters = plan.of_clusters();
  plan.slots.record.has_positions = true;
  plan.record.group_tokens = 1;
  clusters.n_sinks = std::min(sinks, plan.n_ctx);
  clusters.mean_entries = draft.size;
  uint32_t most = std::min(kMeansOfLargestCluster * clusters.mean_entries, kMostClusterEntries);
  // A selection ends before the first cluster that does not fit: any one has to.
  if (options.select_entries) {
    const uint32_t slots = *options.select_entries / plan.slots.record.group_tokens;
    most = std::min(most, slots * plan.slots.record.group_tokens);
  }
  clusters.max_entries = std::max(options.max_cluster_entries.value_or(most), kLeastMaxClusterEntries);
  const uint32_t mean = std::min(clusters.mean_entries, clusters.max_entries);
  clusters.n_clusters = options.cluster_room.value_or(
      static_cast<uint32_t>(std::ceil(kClusterRoom * plan.n_ctx / mean)) + kSpareClusters);
  clusters.max_pending = options.pending_entries.value_or(kPendingEntries);
  clusters.upkeep_clusters = options.upkeep_clusters.value_or(
      static_cast<uint32_t>(std::ceil(kUpkeepShare * draft.model.n_layers * draft.model.n_kv_heads)));
  // What is pending together is one cluster at first.
  if (options.cluster_update == ClusterUpdate::kLocal && !options.max_cluster_entries) {
    clusters.max_entries = std::max(clusters.max_entries, clusters.max_pending);
  }
  if (options.cluster_update == ClusterUpdate::kLocal) {
    clusters.max_pending = std::min(clusters.max_pending, clusters.max_entries);
  }
  clusters.threshold_factor = static_cast<float>(options.split_factor.value_or(kSplitFactor));
  clusters.layout = options.cluster_layout.value_or(ClusterLayout::kDualHead);
  clusters.update = options.cluster_update.value_or(ClusterUpdate::kAdaptive);
  clusters.rows_on_flash = options.rows_on_flash.value_or(false);
}

void Clusters::SizeParts(const KvSizeInput& input, KvPlan& plan) const {
  plan.parts.clear();
  AddPart("index", ScaleBytes(input, plan) + CentroidIndexBytes(input, plan), plan);
  AddSlotParts(input, plan);
  // A window lies nowhere else.
  AddTails(input, plan.window.n_slots, plan);
  AddTables(input, ClusterListBytes(plan), plan);
  AddPart("clusters", ClusterBytes(input, plan), plan);
  AddPart("kept", KeptBytes(input, plan), plan);
  const bool in_sequence = plan.of_clusters().layout == ClusterLayout::kSequence;
  const uint64_t of_a_stream = in_sequence ? plan.n_stored_groups() * kChecksumBytes
                                           : plan.of_clusters().n_clusters * kClusterChecksumBytes;
  const uint64_t of_rows = plan.of_clusters().rows_on_flash ? RowStore::kBytesOfList : 0;
  AddPart("checksums", uint64_t{input.model.n_layers} * plan.n_streams * (of_a_stream + of_rows), plan);
  const uint64_t extent_bytes =
      RoundUp<uint64_t>(plan.records_per_extent() * plan.slots.record.size_bytes(), input.io_alignment_bytes);
  const uint64_t n_streams = uint64_t{input.model.n_layers} * plan.n_streams;
  if (in_sequence) {
    AddSeals(input, n_streams * plan.n_stored_groups(), plan.record.size_bytes(), plan);
  } else {
    AddPageSeals(input, n_streams * plan.of_clusters().n_clusters * extent_bytes, plan);
  }
  if (plan.of_clusters().rows_on_flash) {
    const RowStoreShape rows = ClusterRows::StoreShape(plan, input.model.n_layers);
    const uint64_t stride = RoundUp<uint64_t>(rows.list_bytes, input.io_alignment_bytes);
    AddPageSeals(input, uint64_t{rows.n_layers} * rows.n_lists * stride, plan);
  }
  if (in_sequence) AddPart("sequence", SequenceClusters::MapBytes(plan, input.model.n_layers), plan);
  const uint64_t n_clusters = plan.of_clusters().n_clusters;
  // Clusters are scored for their weight, too.
  AddPart("scores",
          RowScoreBytes(input, plan, n_clusters * plan.index.rows()) + plan.n_streams * n_clusters * 8 +
              ChoiceListBytes(plan),
          plan);
  plan.of_clusters().row_staging_bytes = RowStagingBytes(input, plan);
  AddStaging(input, plan.slots.record.size_bytes() * plan.records_per_extent(), kStagedClusters, plan,
             plan.of_clusters().row_staging_bytes);
}

}  // namespace

const KvFamily& ClustersFamily() {
  static const Clusters family;
  return family;
}

}  // namespace kvrun
