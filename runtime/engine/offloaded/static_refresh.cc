#include "runtime/engine/offloaded/static_refresh.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>

namespace kvrun {

StaticRefresh::StaticRefresh(const RecordCache& cache, LayerStates& states, uint32_t n_vocab,
                             ComputePrompt compute_prompt, BeginDecode begin_decode)
    : cache_(cache),
      n_vocab_(n_vocab),
      states_(states),
      compute_prompt_(std::move(compute_prompt)),
      begin_decode_(std::move(begin_decode)) {
  const KvPlan& plan = cache.plan();
  if (!plan.has_statics()) return;
  report_.emplace();
  if (statics().steps == 0) return;
  if (!states.are_none()) {
    if (!plan.states.has_aside) return;
    asides_.resize(plan.n_sequences);
  }
  recent_.resize(plan.n_sequences);
  for (RecentTokens& recent : recent_) recent.ids.reserve(statics().observed_rows + 1);
}

// States are set aside after the choice before.
uint32_t StaticRefresh::most_rows() const {
  return asides_.empty() ? statics().observed_rows : std::min(statics().observed_rows, statics().steps);
}

// The sequence's last tokens from `begin` on. Their states are set back to there.
Status StaticRefresh::ComputeAgain(uint32_t sequence, uint32_t begin, uint32_t end) {
  RecentTokens& recent = recent_[sequence];
  if (!asides_.empty()) KVRUN_RETURN_IF_ERROR(states_.Restore(sequence, *asides_[sequence].states));
  std::vector<StepRow> rows;
  for (uint32_t position = begin; position < end; ++position) {
    rows.push_back({recent.At(position), position, sequence});
  }
  KVRUN_RETURN_IF_ERROR(compute_prompt_(rows));
  recent.chosen_at = end;
  return SetAside(sequence);
}

// States are where the row is: other layers alone go on up to there.
Status StaticRefresh::CatchUp(std::span<const StepRow> rows) {
  for (const StepRow& row : rows) {
    if (recent_.empty() || cache_.length(row.sequence) >= row.position) continue;
    const RecentTokens& recent = recent_[row.sequence];
    const uint32_t length = cache_.length(row.sequence);
    if (row.position > recent.end || length < recent.begin()) continue;
    if (!asides_.empty() && asides_[row.sequence].position != length) continue;
    KVRUN_RETURN_IF_ERROR(ComputeAgain(row.sequence, length, asides_.empty() ? recent.end : row.position));
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
    const auto n = std::min<uint32_t>(static_cast<uint32_t>(recent.ids.size()), most_rows());
    if (n < 2) continue;
    if (!asides_.empty() && asides_[row.sequence].position != row.position - n) {
      recent.chosen_at = row.position;  // its next turn
      KVRUN_RETURN_IF_ERROR(SetAside(row.sequence));
      continue;
    }
    KVRUN_RETURN_IF_ERROR(ComputeAgain(row.sequence, row.position - n, row.position));
    ++report_->n_chosen_again;
    is_chosen = true;
  }
  if (!is_chosen) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(begin_decode_());  // which reads the set, and may lay pages
  report_->milliseconds +=
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  return Status::Ok();
}

void StaticRefresh::Add(std::span<const StepRow> rows) {
  for (const StepRow& row : rows) {
    recent_[row.sequence].Add(row, statics().observed_rows);
    if (asides_.empty()) continue;
    Aside& aside = asides_[row.sequence];
    if (aside.position && row.position < *aside.position) aside.position.reset();
  }
}

Status StaticRefresh::Note(std::span<const StepRow> rows) {
  if (recent_.empty()) return Status::Ok();
  Add(rows);
  for (const StepRow& row : rows) KVRUN_RETURN_IF_ERROR(SetAside(row.sequence));
  return Status::Ok();
}

Status StaticRefresh::NotePrompt(std::span<const StepRow> rows) {
  if (recent_.empty()) return Status::Ok();
  Add(rows);
  recent_[rows[0].sequence].chosen_at = rows.back().position + 1;
  return SetAside(rows[0].sequence);
}

// The states as they are, if the tokens from here on are those that will be computed again. Without memory
// for them the set stays as it is.
Status StaticRefresh::SetAside(uint32_t sequence) {
  if (asides_.empty()) return Status::Ok();
  const RecentTokens& recent = recent_[sequence];
  if (recent.end + most_rows() != recent.chosen_at + statics().steps) return Status::Ok();
  Aside& aside = asides_[sequence];
  aside.position.reset();
  if (!aside.states) {
    Result<LayerStates::Copy> made = states_.MakeCopy();
    if (!made.ok()) return Status::Ok();
    aside.states = std::move(made).value();
  }
  KVRUN_RETURN_IF_ERROR(states_.Save(sequence, *aside.states));
  aside.position = recent.end;
  return Status::Ok();
}

Status StaticRefresh::VisitState(StateVisitor& visitor, std::span<const uint32_t> lengths) {
  for (uint32_t i = 0; i < lengths.size(); ++i) {
    if (!recent_.empty()) KVRUN_RETURN_IF_ERROR(VisitSequence(visitor, i, lengths[i]));
    const uint32_t length = cache_.length(i);
    if (length >= lengths[i]) continue;  // what is more was truncated
    if (!recent_.empty() && recent_[i].begin() <= length && recent_[i].end >= lengths[i]) continue;
    if (visitor.is_loading()) {
      return {StatusCode::kCorrupt,
              fmt::format("sequence {} has {} entries of {} tokens", i, length, lengths[i])};
    }
    return {
        StatusCode::kUnsupported,
        fmt::format("sequence {} cannot be saved while {} of its {} tokens wait to be computed again: feed "
                    "or generate first",
                    i, lengths[i] - length, lengths[i])};
  }
  return Status::Ok();
}

Status StaticRefresh::VisitSequence(StateVisitor& visitor, uint32_t i, uint32_t length) {
  enum Item : uint16_t { kEnds, kIds };
  constexpr uint32_t kNone = UINT32_MAX;
  constexpr uint32_t kAside = 16000;  // behind all copies of ResumingPass
  RecentTokens& recent = recent_[i];
  std::array<uint32_t, 3> ends = {recent.end, recent.chosen_at, kNone};
  if (!asides_.empty() && asides_[i].position) ends[2] = *asides_[i].position;
  // Another plan may choose sets by prompts alone.
  if (visitor.is_loading() && !visitor.Has({StatePart::kPass, kEnds, 0, i})) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(visitor.Array({StatePart::kPass, kEnds, 0, i}, std::span<uint32_t>(ends)));
  KVRUN_RETURN_IF_ERROR(visitor.Vector({StatePart::kPass, kIds, 0, i}, &recent.ids, recent.ids.capacity()));
  if (visitor.is_loading()) {
    recent.end = ends[0];
    recent.chosen_at = ends[1];
    const auto is_id = [this](TokenId id) { return id >= 0 && static_cast<uint32_t>(id) < n_vocab_; };
    if (recent.end < recent.ids.size() || !std::all_of(recent.ids.begin(), recent.ids.end(), is_id)) {
      return {StatusCode::kCorrupt, fmt::format("the last {} tokens of sequence {}, up to {}, cannot be",
                                                recent.ids.size(), i, recent.end)};
    }
  }
  // A plan for another budget may set none aside.
  if (ends[2] == kNone || asides_.empty()) return Status::Ok();
  if (ends[2] > std::max(length, cache_.length(i))) {
    return {StatusCode::kCorrupt, fmt::format("states of sequence {} were set aside at {}", i, ends[2])};
  }
  Aside& aside = asides_[i];
  if (!aside.states) {
    KVRUN_ASSIGN_OR_RETURN(aside.states, states_.MakeCopy());
  }
  KVRUN_RETURN_IF_ERROR(states_.VisitCopy(visitor, i, kAside, *aside.states));
  aside.position = ends[2];
  return Status::Ok();
}

std::optional<StaticReport> StaticRefresh::report() const {
  std::optional<StaticReport> report = report_;
  if (report) report->repaged_bytes = cache_.reports().repaged_bytes();
  return report;
}

}  // namespace kvrun
