#include "runtime/engine/offloaded/static_refresh.h"

#include <algorithm>
#include <chrono>

namespace kvrun {

StaticRefresh::StaticRefresh(const RecordCache& cache, ComputePrompt compute_prompt, BeginDecode begin_decode)
    : cache_(cache), compute_prompt_(std::move(compute_prompt)), begin_decode_(std::move(begin_decode)) {
  const KvPlan& plan = cache.plan();
  if (!plan.has_statics()) return;
  report_.emplace();
  if (statics().steps == 0) return;
  recent_.resize(plan.n_sequences);
  for (RecentTokens& recent : recent_) recent.ids.reserve(statics().observed_rows + 1);
}

// The sequence's last tokens from `begin` on.
Status StaticRefresh::ComputeAgain(uint32_t sequence, uint32_t begin) {
  const RecentTokens& recent = recent_[sequence];
  std::vector<StepRow> rows;
  for (uint32_t position = begin; position < recent.end; ++position) {
    rows.push_back({recent.At(position), position, sequence});
  }
  KVRUN_RETURN_IF_ERROR(compute_prompt_(rows));
  recent_[sequence].chosen_at = recent.end;
  return Status::Ok();
}

Status StaticRefresh::CatchUp(std::span<const StepRow> rows) {
  for (const StepRow& row : rows) {
    if (recent_.empty() || cache_.length(row.sequence) >= row.position) continue;
    const RecentTokens& recent = recent_[row.sequence];
    const uint32_t length = cache_.length(row.sequence);
    if (row.position > recent.end || length < recent.begin()) continue;
    KVRUN_RETURN_IF_ERROR(ComputeAgain(row.sequence, length));
  }
  return Status::Ok();
}

// Source: PRKV, algorithm 1; the window's queries are made anew, as nothing keeps them.
Status StaticRefresh::ChooseAgain(std::span<const StepRow> rows) {
  const KvPlan& plan = cache_.plan();
  if (recent_.empty() || plan.choice.n_chosen >= plan.n_groups()) return Status::Ok();
  // Few rows are no prompt to learn from.
  if (cache_.index() != nullptr && !cache_.index()->is_ready()) return Status::Ok();
  const auto begin = std::chrono::steady_clock::now();
  bool is_chosen = false;
  for (const StepRow& row : rows) {
    RecentTokens& recent = recent_[row.sequence];
    recent.chosen_at = std::min(recent.chosen_at, row.position);
    if (row.position - recent.chosen_at < statics().steps || recent.end != row.position) continue;
    const auto n = std::min<uint32_t>(static_cast<uint32_t>(recent.ids.size()), statics().observed_rows);
    if (n < 2) continue;
    KVRUN_RETURN_IF_ERROR(ComputeAgain(row.sequence, row.position - n));
    ++report_->n_chosen_again;
    is_chosen = true;
  }
  if (!is_chosen) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(begin_decode_());  // which reads the set, and may lay pages
  report_->milliseconds +=
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  return Status::Ok();
}

void StaticRefresh::Note(std::span<const StepRow> rows) {
  if (recent_.empty()) return;
  for (const StepRow& row : rows) recent_[row.sequence].Add(row, statics().observed_rows);
}

void StaticRefresh::NotePrompt(std::span<const StepRow> rows) {
  Note(rows);
  if (!recent_.empty()) recent_[rows[0].sequence].chosen_at = rows.back().position + 1;
}

std::optional<StaticReport> StaticRefresh::report() const {
  std::optional<StaticReport> report = report_;
  if (report) report->repaged_bytes = cache_.repaged_bytes();
  return report;
}

}  // namespace kvrun
