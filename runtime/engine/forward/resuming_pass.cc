#include "runtime/engine/forward/resuming_pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvrun {
namespace {

// While tokens are generated, a copy is made after so many.
constexpr uint32_t kGeneratedTokens = 512;

}  // namespace

ResumingPass::ResumingPass(std::unique_ptr<ForwardPass> pass, uint32_t n_sequences, uint32_t n_copies)
    : pass_(std::move(pass)), n_copies_(n_copies), sequences_(n_sequences) {}

Status ResumingPass::Run(const ForwardStep& step, std::span<const uint32_t> outputs,
                         std::span<float> logits) {
  const std::span<const StepRow> rows = step.rows();
  for (const KvSpan& span : step.kv().spans) {
    if (span.sequence >= sequences_.size()) {
      return {StatusCode::kInternal, fmt::format("there is no sequence {}", span.sequence)};
    }
    KVRUN_RETURN_IF_ERROR(ComeTo(span.sequence, span.first_position));
  }
  for (const KvSpan& span : step.kv().spans) sequences_[span.sequence].position.reset();
  KVRUN_RETURN_IF_ERROR(pass_->Run(step, outputs, logits));
  size_t row = 0;
  for (const KvSpan& span : step.kv().spans) {
    Sequence& sequence = sequences_[span.sequence];
    for (uint32_t i = 0; i < span.n_rows; ++i) sequence.ids.push_back(rows[row++].id);
    sequence.position = span.end();
    const uint32_t last_kept = sequence.kept.empty() ? 0 : sequence.kept.back().position;
    if (span.kind == SpanKind::kPrompt || span.end() - last_kept >= kGeneratedTokens) {
      KVRUN_RETURN_IF_ERROR(Keep(span.sequence, span.end()));
    }
  }
  return Status::Ok();
}

Status ResumingPass::ComeTo(uint32_t nth, uint32_t position) {
  Sequence& sequence = sequences_[nth];
  if (position > sequence.ids.size()) {
    return {StatusCode::kInternal,
            fmt::format("sequence {} has {} tokens, and goes on at {}", nth, sequence.ids.size(), position)};
  }
  sequence.ids.resize(position);
  while (!sequence.kept.empty() && sequence.kept.back().position > position) sequence.kept.pop_back();
  if (position == 0) {
    sequence.position = 0;  // operations begin with nothing there
    return Status::Ok();
  }
  if (sequence.position == position) return Status::Ok();
  sequence.position.reset();
  uint32_t begin = 0;
  if (!sequence.kept.empty()) {
    begin = sequence.kept.back().position;
    KVRUN_RETURN_IF_ERROR(pass_->layer_states()->Restore(nth, sequence.kept.back().states));
  }
  KVRUN_RETURN_IF_ERROR(Repeat(nth, begin, position));
  sequence.position = position;
  return Status::Ok();
}

Status ResumingPass::Repeat(uint32_t nth, uint32_t begin, uint32_t end) {
  const std::span<const TokenId> ids = sequences_[nth].ids;
  for (uint32_t position = begin; position < end; position += static_cast<uint32_t>(repeated_.size())) {
    const uint32_t n = std::min(end - position, pass_->max_rows());
    repeated_.Clear();
    repeated_.Add(SpanKind::kPrompt, ids.subspan(position, n), position, nth);
    KVRUN_RETURN_IF_ERROR(pass_->Run(repeated_, {}, {}));
  }
  return Status::Ok();
}

// Where there are as many copies as may be, that one goes whose neighbours are closest to each other, for how
// far it is from the end.
Status ResumingPass::Keep(uint32_t nth, uint32_t position) {
  std::vector<Kept>& kept = sequences_[nth].kept;
  if (n_copies_ == 0 || (!kept.empty() && kept.back().position == position)) return Status::Ok();
  Kept made;
  if (kept.size() < n_copies_) {
    KVRUN_ASSIGN_OR_RETURN(made.states, pass_->layer_states()->MakeCopy());
  } else {
    size_t least = 0;
    double least_gap = 0.0;
    for (size_t i = 0; i < kept.size(); ++i) {
      const uint32_t before = i == 0 ? 0 : kept[i - 1].position;
      const uint32_t after = i + 1 < kept.size() ? kept[i + 1].position : position;
      const double gap = static_cast<double>(after - before) / (position - kept[i].position);
      if (i == 0 || gap < least_gap) {
        least = i;
        least_gap = gap;
      }
    }
    made = std::move(kept[least]);
    kept.erase(kept.begin() + static_cast<ptrdiff_t>(least));
  }
  made.position = position;
  KVRUN_RETURN_IF_ERROR(pass_->layer_states()->Save(nth, made.states));
  kept.push_back(std::move(made));
  return Status::Ok();
}

}  // namespace kvrun
