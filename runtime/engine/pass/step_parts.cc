#include "runtime/engine/pass/step_parts.h"

#include <algorithm>
#include <numeric>

#include "platform/base/check.h"

namespace kvrun {
namespace {

bool IsPrompt(const KvSpan& span) { return span.kind == SpanKind::kPrompt; }

}  // namespace

Status StepParts::Run(const ForwardStep& step, std::span<const uint32_t> outputs, std::span<float> logits,
                      const Compute& compute) {
  const std::span<const KvSpan> spans = step.kv().spans;
  KVRUN_CHECK(logits.size() == outputs.size() * n_vocab_);
  for (const uint32_t output : outputs) KVRUN_CHECK(output < step.size());
  const size_t n_rows = step.size();
  if (step.is_one_part()) return compute({IsPrompt(spans[0]), step.rows(), 0, n_rows}, outputs, logits);
  size_t n_done = 0;
  uint32_t first = 0;
  for (const KvSpan& span : spans) {
    if (IsPrompt(span)) {
      numbers_.resize(span.n_rows);
      std::iota(numbers_.begin(), numbers_.end(), first);
      KVRUN_RETURN_IF_ERROR(
          RunPart({true, step.rows().subspan(first, span.n_rows), n_done, n_rows}, outputs, logits, compute));
      n_done += span.n_rows;
    }
    first += span.n_rows;
  }
  for (uint32_t round = 0; GatherRound(step, round); ++round) {
    KVRUN_RETURN_IF_ERROR(RunPart({false, rows_, n_done, n_rows}, outputs, logits, compute));
    n_done += rows_.size();
  }
  return Status::Ok();
}

bool StepParts::GatherRound(const ForwardStep& step, uint32_t round) {
  rows_.clear();
  numbers_.clear();
  uint32_t first = 0;
  for (const KvSpan& span : step.kv().spans) {
    if (!IsPrompt(span) && round < span.n_rows) {
      rows_.push_back(step.rows()[first + round]);
      numbers_.push_back(first + round);
    }
    first += span.n_rows;
  }
  return !rows_.empty();
}

Status StepParts::RunPart(const StepPart& part, std::span<const uint32_t> outputs, std::span<float> logits,
                          const Compute& compute) {
  outputs_.clear();
  places_.clear();
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto found = std::lower_bound(numbers_.begin(), numbers_.end(), outputs[i]);
    if (found == numbers_.end() || *found != outputs[i]) continue;
    outputs_.push_back(static_cast<uint32_t>(found - numbers_.begin()));
    places_.push_back(i);
  }
  logits_.resize(outputs_.size() * n_vocab_);
  KVRUN_RETURN_IF_ERROR(compute(part, outputs_, logits_));
  for (size_t i = 0; i < places_.size(); ++i) {
    std::copy_n(logits_.begin() + static_cast<ptrdiff_t>(i * n_vocab_), n_vocab_,
                logits.begin() + static_cast<ptrdiff_t>(places_[i] * n_vocab_));
  }
  return Status::Ok();
}

}  // namespace kvrun
