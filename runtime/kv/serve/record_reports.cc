#include "runtime/kv/serve/record_reports.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "platform/base/check.h"
#include "runtime/kv/replay/replayed_selector.h"

namespace kvrun {

void RecordReports::ResetStats() {
  parts_.server->ResetStats();
  parts_.repaged_bytes = 0;
}

std::optional<ClusterReport> RecordReports::clusters() const {
  if (parts_.family.upkeep == nullptr) return std::nullopt;
  ClusterReport report = parts_.family.upkeep->clusters();
  report.wanted_in_text = attended_.wanted_in_text();
  return report;
}

std::optional<KeptReport> RecordReports::kept() const {
  const Evictor* const evictor = parts_.family.evictor;
  return evictor != nullptr ? std::optional(evictor->kept()) : std::nullopt;
}

void RecordReports::ReplaySelection(double repeated_share) {
  const KvPlan& plan = parts_.plan;
  if (parts_.selector == nullptr || parts_.family.extents != nullptr || plan.static_share().by_prompt) return;
  // What is replayed has no scores: it repeats as much as the limit would have it.
  if (plan.limits_reads() && plan.choice.n_chosen > plan.choice.n_pinned) {
    const double unpinned = plan.choice.n_chosen - plan.choice.n_pinned;
    repeated_share = std::max(repeated_share, 1.0 - plan.slots.reads_per_layer / unpinned);
  }
  parts_.selector =
      std::make_unique<ReplayedSelector>(std::move(parts_.selector), plan, parts_.n_layers, repeated_share);
  parts_.server->SetSelector(*parts_.selector);
}

void RecordReports::BeginReadLog() {
  if (parts_.family.reader == nullptr || parts_.family.extents != nullptr) return;
  parts_.server->SetReader(read_log_.emplace(*parts_.family.reader));
}

Result<RepeatedReads> RecordReports::RepeatReads() {
  if (!read_log_ || !parts_.has_store()) return RepeatedReads();
  parts_.server->SetReader(*parts_.family.reader);
  KVRUN_CHECK(parts_.in_decode());  // the slots that were read into are there
  const GroupStoreStats before = store_stats();
  const auto begin = std::chrono::steady_clock::now();
  KVRUN_ASSIGN_OR_RETURN(const uint64_t n_batches, read_log_->Repeat());
  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - begin;
  read_log_.reset();
  return RepeatedReads{.fetches = n_batches,
                       .reads = store_stats().reads - before.reads,
                       .read_bytes = store_stats().read_bytes - before.read_bytes,
                       .milliseconds = elapsed.count()};
}

}  // namespace kvrun
