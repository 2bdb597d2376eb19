#include "runtime/engine/forward/resuming_pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace kvrun {
namespace {

// While tokens are generated, a copy is made after so many.
constexpr uint32_t kGeneratedTokens = 512;

}  // namespace

ResumingPass::ResumingPass(std::unique_ptr<ForwardPass> pass, uint32_t n_sequences, uint32_t n_ctx,
                           uint32_t n_copies)
    : pass_(std::move(pass)),
      sequences_(n_sequences),
      places_(n_sequences, n_sequences * n_copies),
      copies_(size_t{n_sequences} * n_copies) {
  for (Sequence& sequence : sequences_)
    sequence.ids.reserve(n_ctx);  // no list grows while tokens are generated
  pass_->layer_states()->SetSavings(
      [this](uint32_t sequence, std::span<const uint32_t> ends) { return ChooseSavings(sequence, ends); });
}

Status ResumingPass::Run(const ForwardStep& step, std::span<const uint32_t> outputs,
                         std::span<float> logits) {
  work_ = {.n_repeated = 0, .n_all = step.size(), .n_of_step = step.size()};
  for (const KvSpan& span : step.kv().spans) {
    if (span.sequence >= sequences_.size()) {
      return {StatusCode::kInternal, fmt::format("there is no sequence {}", span.sequence)};
    }
    work_.n_all += MissingBefore(span.sequence, span.first_position);
  }
  for (const KvSpan& span : step.kv().spans) {
    KVRUN_RETURN_IF_ERROR(ComeTo(span.sequence, span.first_position));
  }
  KVRUN_RETURN_IF_ERROR(Compute(step, outputs, logits));
  size_t row = 0;
  for (const KvSpan& span : step.kv().spans) {
    std::vector<TokenId>& ids = sequences_[span.sequence].ids;
    for (uint32_t i = 0; i < span.n_rows; ++i) ids.push_back(step.rows()[row++].id);
  }
  return Status::Ok();
}

// A sequence whose states are not known (kUnknown) goes on from a copy.
Status ResumingPass::VisitState(StateVisitor& visitor, std::span<const uint32_t> lengths) {
  constexpr uint32_t kUnknown = UINT32_MAX;
  enum Item : uint16_t { kPosition = 100, kIds };
  std::vector<uint32_t> positions(sequences_.size());
  for (uint32_t i = 0; i < sequences_.size(); ++i) {
    Sequence& sequence = sequences_[i];
    positions[i] = sequence.position.value_or(kUnknown);
    KVRUN_RETURN_IF_ERROR(visitor.Value({StatePart::kSequence, kPosition, 0, i}, &positions[i]));
    KVRUN_RETURN_IF_ERROR(
        visitor.Vector({StatePart::kSequence, kIds, 0, i}, &sequence.ids, sequence.ids.capacity()));
    if (positions[i] != kUnknown && positions[i] > sequence.ids.size()) {
      return {StatusCode::kCorrupt, fmt::format("the layers of sequence {} have read {} tokens of {}", i,
                                                positions[i], sequence.ids.size())};
    }
    sequence.position = positions[i] == kUnknown ? std::nullopt : std::optional(positions[i]);
    KVRUN_RETURN_IF_ERROR(VisitCopies(visitor, i));
  }
  // Layers with KV have entries as far as tokens count, the others states as far as they have gone.
  std::replace(positions.begin(), positions.end(), kUnknown, 0U);
  KVRUN_RETURN_IF_ERROR(pass_->layer_states()->VisitState(visitor, positions));
  return pass_->VisitState(visitor, lengths);
}

// Where a copy finds no place or memory any more, the text before it is computed again.
Status ResumingPass::VisitCopies(StateVisitor& visitor, uint32_t nth) {
  enum Item : uint16_t { kPlaces = 102 };
  std::vector<uint32_t> places;
  for (const CopyPlaces::Place& place : places_.of(nth)) places.push_back(place.position);
  KVRUN_RETURN_IF_ERROR(
      visitor.Vector({StatePart::kSequence, kPlaces, 0, nth}, &places, sequences_[nth].ids.capacity()));
  if (!std::is_sorted(places.begin(), places.end(), std::less_equal<>()) ||
      (!places.empty() && (places.front() == 0 || places.back() > sequences_[nth].ids.size()))) {
    return {StatusCode::kCorrupt, fmt::format("copies of sequence {} are of no place in it", nth)};
  }
  for (uint32_t i = 0; i < places.size(); ++i) {
    if (visitor.is_loading() && (!places_.Keep(nth, places[i]) || !MakeCopies(nth))) continue;
    const auto kept = places_.of(nth);
    const auto place = std::find_if(kept.begin(), kept.end(),
                                    [&](const CopyPlaces::Place& one) { return one.position == places[i]; });
    if (place == kept.end()) continue;
    KVRUN_RETURN_IF_ERROR(pass_->layer_states()->VisitCopy(visitor, nth, i, *copies_[place->slot]));
  }
  return Status::Ok();
}

void ResumingPass::Cut(uint32_t sequence, uint32_t length) {
  pass_->Cut(sequence, length);
  if (sequence < sequences_.size()) places_.Cut(sequence, length);
}

void ResumingPass::SetProgress(StepProgress progress) {
  if (!progress) return pass_->SetProgress({});
  pass_->SetProgress([this, progress = std::move(progress)](uint64_t done, uint64_t /*total*/) {
    const uint64_t n_done = std::min(work_.n_repeated + done, work_.n_all);
    return progress(n_done * work_.n_of_step / work_.n_all, work_.n_of_step);
  });
}

uint32_t ResumingPass::MissingBefore(uint32_t nth, uint32_t position) const {
  if (position == 0 || sequences_[nth].position == position) return 0;
  uint32_t last = 0;
  for (const CopyPlaces::Place& place : places_.of(nth)) {
    if (place.position <= position) last = place.position;
  }
  return position - last;
}

Status ResumingPass::ComeTo(uint32_t nth, uint32_t position) {
  Sequence& sequence = sequences_[nth];
  if (position > sequence.ids.size()) {
    return {StatusCode::kInternal,
            fmt::format("sequence {} has {} tokens, and goes on at {}", nth, sequence.ids.size(), position)};
  }
  sequence.ids.resize(position);
  places_.Cut(nth, position);
  if (position == 0) {
    sequence.position = 0;  // operations begin with nothing there
    return Status::Ok();
  }
  if (sequence.position == position) return Status::Ok();
  const uint32_t begin = position - MissingBefore(nth, position);
  sequence.position.reset();
  if (begin > 0) {
    const auto kept = places_.of(nth);
    KVRUN_RETURN_IF_ERROR(pass_->layer_states()->Restore(nth, *copies_[kept.back().slot]));
  }
  sequence.position = begin;
  return Repeat(nth, begin, position);
}

Status ResumingPass::Repeat(uint32_t nth, uint32_t begin, uint32_t end) {
  for (uint32_t position = begin; position < end; position += static_cast<uint32_t>(repeated_.size())) {
    const std::span<const TokenId> ids = sequences_[nth].ids;
    const uint32_t n = std::min(end - position, pass_->max_rows());
    repeated_.Clear();
    repeated_.Add(SpanKind::kPrompt, ids.subspan(position, n), position, nth);
    KVRUN_RETURN_IF_ERROR(Compute(repeated_, {}, {}));
    recomputed_tokens_ += n;
    work_.n_repeated += n;
  }
  return Status::Ok();
}

Status ResumingPass::Compute(const ForwardStep& step, std::span<const uint32_t> outputs,
                             std::span<float> logits) {
  const std::vector<KvSpan>& spans = step.kv().spans;
  for (const KvSpan& span : spans) {
    const bool begins = span.kind == SpanKind::kPrompt && span.first_position > 0;
    if (begins) KVRUN_RETURN_IF_ERROR(Keep(span.sequence, span.first_position));
  }
  for (const KvSpan& span : spans) sequences_[span.sequence].position.reset();
  computed_ = &step;
  const Status ran = pass_->Run(step, outputs, logits);
  computed_ = nullptr;
  if (!ran.ok()) {
    for (const KvSpan& span : spans) places_.Cut(span.sequence, span.first_position);
    return ran;
  }
  for (const KvSpan& span : spans) KVRUN_RETURN_IF_ERROR(NoteComputed(span));
  return Status::Ok();
}

Status ResumingPass::NoteComputed(const KvSpan& span) {
  sequences_[span.sequence].position = span.end();
  const auto kept = places_.of(span.sequence);
  const uint32_t last_kept = kept.empty() ? 0 : kept.back().position;
  const bool keeps = span.kind == SpanKind::kPrompt || span.end() - last_kept >= kGeneratedTokens;
  return keeps ? Keep(span.sequence, span.end()) : Status::Ok();
}

Status ResumingPass::Begin(const StepRow& row) {
  work_ = {.n_repeated = 0, .n_all = 1 + MissingBefore(0, row.position), .n_of_step = 1};
  KVRUN_RETURN_IF_ERROR(ComeTo(0, row.position));
  return pass_->step_member()->Begin(row);
}

void ResumingPass::Submit() {
  sequences_[0].position.reset();
  pass_->step_member()->Submit();
}

Status ResumingPass::End(const StepRow& row) {
  KVRUN_RETURN_IF_ERROR(pass_->step_member()->End(row));
  KVRUN_RETURN_IF_ERROR(NoteComputed({row.sequence, row.position, 1, SpanKind::kDecode}));
  sequences_[0].ids.push_back(row.id);
  return Status::Ok();
}

Status ResumingPass::Keep(uint32_t nth, uint32_t position) {
  if (!places_.Keep(nth, position)) return Status::Ok();
  if (!MakeCopies(nth) && !places_.Keep(nth, position)) return Status::Ok();
  const Status saved = pass_->layer_states()->Save(nth, *copies_[places_.of(nth).back().slot]);
  if (!saved.ok()) places_.Cut(nth, position - 1);
  return saved.code() == StatusCode::kOutOfMemory ? Status::Ok() : saved;
}

std::vector<LayerStates::Saving> ResumingPass::ChooseSavings(uint32_t nth, std::span<const uint32_t> ends) {
  if (computed_ == nullptr) return {};
  const std::vector<KvSpan>& spans = computed_->kv().spans;
  const auto span = std::find_if(spans.begin(), spans.end(), [&](const KvSpan& of) {
    return of.kind == SpanKind::kPrompt && of.sequence == nth && of.end() == ends.back();
  });
  if (span == spans.end()) return {};
  do {
    places_.Cut(nth, span->first_position);
    for (const uint32_t end : ends) places_.Keep(nth, end);
  } while (!MakeCopies(nth));
  std::vector<LayerStates::Saving> savings;
  for (const CopyPlaces::Place& place : places_.of(nth)) {
    if (place.position > span->first_position) savings.push_back({place.position, &*copies_[place.slot]});
  }
  return savings;
}

bool ResumingPass::MakeCopies(uint32_t nth) {
  for (const CopyPlaces::Place& place : places_.of(nth)) {
    std::optional<LayerStates::Copy>& copy = copies_[place.slot];
    if (copy) continue;
    Result<LayerStates::Copy> made = pass_->layer_states()->MakeCopy();
    if (made.ok()) {
      copy = std::move(made).value();
      continue;
    }
    for (uint32_t slot = 0; slot < copies_.size(); ++slot) {
      if (!copies_[slot]) places_.Withdraw(slot);
    }
    return false;
  }
  return true;
}

}  // namespace kvrun
