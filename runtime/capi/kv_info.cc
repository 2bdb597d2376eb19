#include "runtime/capi/kv_info.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "runtime/kv/plan/kv_names.h"
#include "runtime/kv/planner/describe_plan.h"
#include "runtime/kv/planner/kv_option_table.h"

namespace kvrun::capi {
namespace {

// The largest first.
Json PartsInfo(const KvPlan& plan) {
  std::vector<KvPart> parts = plan.parts;
  std::stable_sort(parts.begin(), parts.end(),
                   [](const KvPart& a, const KvPart& b) { return a.bytes > b.bytes; });
  Json info = Json::array();
  for (const KvPart& part : parts) {
    info.push_back({{"name", part.name},
                    {"bytes", part.bytes},
                    {"prefill", part.in_prefill},
                    {"decode", part.in_decode}});
  }
  return info;
}

Json StatesInfo(const KvPlan& plan) {
  const StatesPlan& states = plan.states;
  if (states.sequence_bytes == 0) return Json();
  return {{"bytes", states.bytes(plan.n_sequences)},
          {"copies", states.n_copies},
          {"tokens_per_copy", states.tokens_per_copy(plan.n_ctx)}};
}

Json SizesInfo(const KvPlan& plan) {
  constexpr uint64_t kNoBudget = std::numeric_limits<uint64_t>::max();
  return {{"method", plan.method.name},
          {"full_bytes", plan.budget.full_bytes},
          {"budget_bytes", plan.budget.bytes == kNoBudget ? Json() : Json(plan.budget.bytes)},
          {"prefill_bytes", plan.prefill_bytes()},
          {"decode_bytes", plan.decode_bytes()},
          {"parts", PartsInfo(plan)},
          {"states", StatesInfo(plan)}};
}

Json ClustersInfo(const ClustersPlan& clusters) {
  return {{"cluster", clusters.mean_entries},
          {"cluster_max", clusters.max_entries},
          {"cluster_room", clusters.n_clusters},
          {"pending", clusters.max_pending},
          {"upkeep", clusters.upkeep_clusters},
          {"split", clusters.threshold_factor},
          {"update", ClusterUpdateName(clusters.update)},
          {"layout", ClusterLayoutName(clusters.layout)},
          {"representatives", clusters.rows_on_flash ? "flash" : "memory"}};
}

bool GoesByScore(const KvPlan& plan) { return plan.method.goes_by_score(); }

Json StaticInfo(const KvPlan& plan) {
  const StaticPlan& statics = plan.of_groups().statics;
  const bool is_by_score = GoesByScore(plan);
  return {{"entries", statics.n_entries},
          {"share", statics.share.share},
          {"by_prompt", statics.share.by_prompt},
          {"steps", statics.steps},
          {"repage", statics.lays_pages},
          {"precisions", is_by_score ? Json(KeptPrecisionsName(statics.precisions)) : Json()},
          {"moments", is_by_score ? Json(AttentionMomentsName(statics.moments)) : Json()},
          {"observed_rows", statics.observed_rows}};
}

Json ReadingInfo(const ReadingPlan& reading) {
  const bool has_times = reading.layer_us > 0.0;
  return {{"hide", reading.hide},
          {"reads_per_layer", reading.reads},
          {"read_us", has_times ? Json(reading.read_us) : Json()},
          {"layer_us", has_times ? Json(reading.layer_us) : Json()},
          {"limited_by", reading.is_limited_by_time ? "time" : "budget"}};
}

Json KeptInfo(const KvPlan& plan, const KeptPlan& kept) {
  const bool is_by_score = GoesByScore(plan);
  return {{"entries", kept.n_entries},
          {"most_entries", kept.most_entries},
          {"shares", KeptSharesName(kept.shares)},
          {"precisions", is_by_score ? Json(KeptPrecisionsName(kept.precisions)) : Json()},
          {"moments", is_by_score ? Json(AttentionMomentsName(kept.moments)) : Json()},
          {"observed_rows", kept.observed_rows}};
}

Json Ratio(double part, double whole) { return whole > 0.0 ? Json(part / whole) : Json(); }

Json PerRun(const WantedRuns& wanted) {
  return Ratio(static_cast<double>(wanted.entries), static_cast<double>(wanted.runs));
}

Json ClusterReportInfo(const ClusterReport& report) {
  return {
      {"clusters", report.clusters},
      {"entries", report.entries},
      {"pending", report.pending},
      {"variance", report.variance},
      {"cluster_variance", report.cluster_variance},
      {"divisions", report.divisions},
      {"forced_loads", report.forced_loads},
      {"put_off", report.put_off},
      {"joined_for_room", report.joined_for_room},
      {"stored_entries", report.moves.new_entries},
      {"moved_entries", report.moves.moved_entries},
      {"rewritten_entries", report.moves.rewritten_entries},
      {"loaded_entries", report.moves.loaded_entries},
      {"moved_without_gaps", report.moves.naive_entries},
      {"pages_written", report.moves.pages_written},
      {"pages_loaded", report.moves.pages_read},
      {"pages_without_gaps", report.moves.naive_pages},
      {"records_per_run", Ratio(static_cast<double>(report.records_read), static_cast<double>(report.runs))},
      {"wanted_per_cluster",
       Ratio(static_cast<double>(report.wanted.entries), static_cast<double>(report.wanted_clusters))},
      {"wanted_per_run", PerRun(report.wanted)},
      {"wanted_per_run_in_text", PerRun(report.wanted_in_text)}};
}

Json KeptReportInfo(const KeptReport& report) {
  return {{"original", report.original},
          {"low", report.low},
          {"evicted", report.evicted},
          {"lowered", report.lowered},
          {"original_shares", report.original_shares}};
}

std::string ModeText(const IoMode& mode) {
  return fmt::format("{} {}", IoBackendName(mode.backend), mode.direct ? "direct" : "buffered");
}

Json LayersInfo(const KvStats& stats) {
  Json layers = Json::array();
  for (size_t i = 0; i < stats.layer_loads.size(); ++i) {
    layers.push_back({{"loads", stats.layer_loads[i]}, {"ms", stats.layer_fetch_ms[i]}});
  }
  return layers;
}

}  // namespace

namespace {

// Null where all layers select as many.
Json LayersInfo(const KvPlan& plan) {
  if (!plan.has_layer_shares) return Json();
  Json entries = Json::array();
  for (const KvLayerPlan& layer : plan.layers) {
    const int64_t more = int64_t{layer.n_chosen} - plan.choice.n_chosen;  // or fewer
    entries.push_back(plan.selected_entries() + more * plan.record.group_tokens);
  }
  return entries;
}

}  // namespace

Json KvOptionsInfo() {
  Json info = Json::array();
  for (const KvOptionRow& row : KvOptionRows()) {
    Json option = {{"name", row.name},
                   {"value", row.value},
                   {"audience", KvOptionAudienceName(row.audience)},
                   {"config", !row.config.comment.empty()},
                   {"help", row.help}};
    if (row.most > 0) option.update({{"least", row.least}, {"most", row.most}});
    if (row.words != nullptr) option["words"] = row.words();
    if (row.words_of_comparisons != nullptr) option["comparisons"] = row.words_of_comparisons();
    info.push_back(std::move(option));
  }
  return info;
}

Json KvPlanInfo(const KvPlan& plan) {
  const bool has_index = plan.method.has_index();
  Json info = {{"line", DescribePlan(plan)}};
  info.update(SizesInfo(plan));
  info["on_flash"] = plan.method.is_on_flash();
  info["group"] = plan.slots.record.group_tokens;
  info["select"] = plan.selected_entries();
  info["window"] = plan.window.n_entries;
  info["sinks"] = plan.sink_entries();
  info["layer_select"] = LayersInfo(plan);
  info["reuse"] = plan.slots.n_cache_slots;
  info["rank"] = plan.index.rank;
  info["index"] = has_index ? Json(KvTypeName(plan.index.type)) : Json();
  info["heads"] = has_index ? Json(HeadReductionName(plan.choice.heads)) : Json();
  info["mass"] = plan.choice.mass_share > 0.0F ? Json(plan.choice.mass_share) : Json();
  info["sample"] = plan.choice.n_sampled * plan.record.group_tokens;
  info["seed"] = plan.choice.sample_seed;
  info["reads"] = plan.slots.reads_per_layer;
  info["adapt"] = plan.choice.n_usual > 0;
  info["reading"] = plan.reading() != nullptr ? ReadingInfo(*plan.reading()) : Json();
  const ClustersPlan* const clusters = plan.clusters();
  const KeptPlan* const kept = plan.kept();
  info["clusters"] = clusters != nullptr ? ClustersInfo(*clusters) : Json();
  info["kept"] = kept != nullptr ? KeptInfo(plan, *kept) : Json();
  info["static"] = plan.has_statics() ? StaticInfo(plan) : Json();
  info["policy"] = plan.slots.policy.empty() ? Json() : Json(plan.slots.policy);
  info["k_type"] = KvTypeName(plan.record.k_type);
  info["v_type"] = KvTypeName(plan.record.v_type);
  info["rotate"] = plan.rotates;
  info["notes"] = plan.notes.for_people;
  info["details"] = plan.notes.for_experts;
  info["adapter_kind"] = plan.method.has_adapters() ? Json(AdapterKindName(plan.adapter.kind)) : Json();
  return info;
}

Json KvReportInfo(const KvReport& report, uint64_t decode_tokens, bool with_layers) {
  const KvStats& stats = report.stats;
  const GroupStoreStats& store = report.store;
  const auto read_bytes = static_cast<double>(store.read_bytes);
  Json info = {{"line", DescribePlan(report.plan)}};
  info.update(SizesInfo(report.plan));
  info["chosen_groups"] = stats.chosen_groups;
  const uint64_t group = report.plan.record.group_tokens;
  info["entries_per_layer"] = stats.choices == 0
                                  ? Json()
                                  : Json{{"mean", static_cast<double>(stats.chosen_groups * group) /
                                                      static_cast<double>(stats.choices)},
                                         {"least", stats.least_groups * group},
                                         {"most", stats.most_groups * group}};
  info["drawn_groups"] = stats.drawn_groups;
  info["own_hits"] = stats.hit_groups;
  info["stand_in_groups"] = stats.stand_in_groups;
  info["pool_reads"] = stats.pool_groups;
  info["hit_rate"] = Ratio(static_cast<double>(stats.hit_groups), static_cast<double>(stats.chosen_groups));
  info["kept"] = report.kept ? KeptReportInfo(*report.kept) : Json();
  if (report.statics) {
    info["static"] = StaticInfo(report.plan);
    info["static"]["chosen_again"] = report.statics->n_chosen_again;
    info["static"]["chosen_again_ms"] = report.statics->milliseconds;
    info["static"]["repaged_bytes"] = report.statics->repaged_bytes;
  }
  const LaterPromptsReport& later = report.later_prompts;
  info["later_prompts"] = {{"exact", later.n_exact},
                           {"selected", later.n_selected},
                           {"selected_share", Ratio(later.share_sum, static_cast<double>(later.n_selected))}};
  info["clusters"] = report.clusters ? ClusterReportInfo(*report.clusters) : Json();
  info["io_mode"] = report.io ? Json(ModeText(*report.io)) : Json();
  info["io_notes"] = report.io ? Json(report.io->notes) : Json::array();
  info["reads"] = store.reads;
  info["read_bytes"] = store.read_bytes;
  info["records_read_again"] = store.records_read_again;
  info["mean_read_bytes"] = Ratio(read_bytes, static_cast<double>(store.reads));
  info["read_mbps"] = Ratio(read_bytes / 1e3, store.read_wait_ms);
  info["bytes_written"] = store.written_bytes;
  info["stall_ms_per_token"] = Ratio(stats.stall_ms, static_cast<double>(decode_tokens));
  info["io_hidden"] =
      stats.io_ms > 0.0 ? Json(std::clamp(1.0 - stats.stall_ms / stats.io_ms, 0.0, 1.0)) : Json();
  if (with_layers) info["layers"] = LayersInfo(stats);
  return info;
}

}  // namespace kvrun::capi
