#include "runtime/engine/measure/evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <utility>

#include "runtime/engine/session/session_kv.h"
#include "runtime/engine/text/sampler.h"
#include "runtime/kv/serve/record_cache.h"

namespace kvrun {
namespace {

// Recall is measured in one step of so many: the exact attention is computed by the host.
constexpr uint32_t kStepsPerProbe = 8;

Status Cancelled() { return {StatusCode::kCancelled, "the evaluation was cancelled"}; }

// As a prompt from two tokens on.
Evaluation::FeedRows FeedTo(ForwardPass& pass) {
  return [&pass](uint32_t position, std::span<const TokenId> ids, std::span<float> logits) -> Status {
    const auto n = static_cast<uint32_t>(ids.size());
    ForwardStep rows;
    rows.Add(n > 1 ? SpanKind::kPrompt : SpanKind::kDecode, ids, position, 0);
    std::vector<uint32_t> outputs(n);
    std::iota(outputs.begin(), outputs.end(), 0U);
    for (uint32_t done = 0; done < n;) {
      const uint32_t some = std::min(n - done, pass.max_output_rows());
      const auto of_some = std::span<const uint32_t>(outputs).subspan(done, some);
      const auto to = logits.subspan(size_t{done} * pass.n_vocab(), size_t{some} * pass.n_vocab());
      KVRUN_RETURN_IF_ERROR(done == 0 ? pass.Run(rows, of_some, to) : pass.MoreLogits(of_some, to));
      done += some;
    }
    return Status::Ok();
  };
}

}  // namespace

Result<std::unique_ptr<Evaluation>> Evaluation::Create(const Model& model,
                                                       std::shared_ptr<const DeviceWeights> weights,
                                                       Device& device, std::mutex* device_mutex,
                                                       std::span<const TokenId> ids,
                                                       const EvaluationOptions& options,
                                                       const Progress& progress) {
  const uint32_t n_ctx = options.n_ctx;
  const uint32_t n_steps = options.n_steps;
  if (n_steps == 0 || n_ctx < n_steps + 2 || ids.size() < n_ctx) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format(
            "cannot evaluate {} tokens at the end of a context of {} with a text of {} tokens: give a "
            "text of at least {} tokens, and evaluate at most {} of them",
            n_steps, n_ctx, ids.size(), n_ctx, n_ctx < 2 ? 0 : n_ctx - 2));
  }
  std::unique_ptr<Evaluation> evaluation(new Evaluation(model, std::move(weights), device, device_mutex));
  evaluation->ids_.assign(ids.begin(), ids.end());
  evaluation->n_ctx_ = n_ctx;
  evaluation->n_steps_ = n_steps;
  evaluation->n_at_once_ = std::clamp(options.n_at_once, 1U, n_steps);
  evaluation->measures_recall_ = options.measures_recall && evaluation->n_at_once_ == 1;
  const std::lock_guard lock(*device_mutex);
  KVRUN_RETURN_IF_ERROR(evaluation->Prefill(progress));
  return evaluation;
}

Status Evaluation::Prefill(const Progress& progress) {
  const auto of_all = [&](uint32_t before) -> Progress {
    return [&, before](uint64_t done, uint64_t) { return progress && progress(before + done, n_ctx_); };
  };
  const std::span<const TokenId> prompt = std::span(ids_).first(n_prefill());
  KVRUN_ASSIGN_OR_RETURN(full_, PrefillInMemory(model_, weights_, device_, prompt, n_ctx_, of_all(0)));
  if (measures_recall_) KVRUN_RETURN_IF_ERROR(full_->KeepInputs());
  n_vocab_ = full_->n_vocab();
  full_logits_.reserve(n_steps_ * n_vocab_);
  StepHooks hooks;
  hooks.after = [this](uint32_t, std::span<const float> logits) {
    full_logits_.insert(full_logits_.end(), logits.begin(), logits.end());
    if (measures_recall_) full_->AppendInputs(&full_inputs_);
  };
  KVRUN_RETURN_IF_ERROR(FeedSteps(FeedTo(*full_), of_all(n_prefill()), hooks, &full_seconds_));
  return measures_recall_ ? ReadKeys() : Status::Ok();
}

Status Evaluation::ReadKeys() {
  std::vector<const Buffer*> layers;
  for (uint32_t i = 0; i < model_.config.n_kv_layers(); ++i) layers.push_back(full_->kv(i));
  KVRUN_ASSIGN_OR_RETURN(keys_, HostKeys::Read(device_, model_.config, layers, full_->kv_shape(), n_ctx_));
  return Status::Ok();
}

Status Evaluation::RunPrompt(ForwardPass& pass) {
  ForwardStep prompt;
  prompt.Add(SpanKind::kPrompt, std::span(ids_).first(n_prefill()), 0, 0);
  return pass.Run(prompt, {}, {});
}

Status Evaluation::FeedSteps(const FeedRows& feed, const Progress& progress, const StepHooks& hooks,
                             double* seconds) {
  using Clock = std::chrono::steady_clock;
  std::vector<float> logits(n_at_once_ * n_vocab_);
  Clock::duration elapsed{};
  for (uint32_t step = 0; step < n_steps_; step += n_at_once_) {
    if (progress && progress(step, n_steps_)) return Cancelled();
    if (hooks.before) hooks.before(step);
    const uint32_t n = std::min(n_at_once_, n_steps_ - step);
    const Clock::time_point begin = Clock::now();
    const uint32_t position = n_prefill() + step;
    KVRUN_RETURN_IF_ERROR(feed(position, std::span(ids_).subspan(position, n), logits));
    elapsed += Clock::now() - begin;
    for (uint32_t i = 0; i < n; ++i) {
      const auto of_row = std::span<const float>(logits).subspan(i * n_vocab_, n_vocab_);
      KVRUN_RETURN_IF_ERROR(CheckFinite(of_row));
      if (hooks.after) hooks.after(step + i, of_row);
    }
  }
  *seconds = std::chrono::duration<double>(elapsed).count();
  return Status::Ok();
}

void Evaluation::AddStep(uint32_t step, std::span<const float> logits, LogitsComparison* comparison) const {
  const size_t next = n_prefill() + step + 1;
  comparison->Add(std::span(full_logits_).subspan(step * logits.size(), logits.size()), logits,
                  next < ids_.size() ? std::optional(ids_[next]) : std::nullopt);
}

Result<EvaluationResult> Evaluation::Compare(const FeedRows& feed, const Progress& progress) {
  EvaluationResult result;
  result.logits = LogitsComparison(n_steps_);
  StepHooks hooks;
  hooks.after = [&](uint32_t step, std::span<const float> logits) { AddStep(step, logits, &result.logits); };
  double seconds = 0.0;
  KVRUN_RETURN_IF_ERROR(FeedSteps(feed, progress, hooks, &seconds));
  result.decode_tps = n_steps_ / seconds;
  result.decode_tps_full = n_steps_ / full_seconds_;
  return result;
}

Result<EvaluationResult> Evaluation::Run(const KvSettings& settings, const Progress& progress) {
  const std::lock_guard lock(*device_mutex_);
  EvaluationResult result;
  KVRUN_ASSIGN_OR_RETURN(OffloadedPassOptions options,
                         PrepareOffloadedPass(model_, settings, n_ctx_, 1, &layer_time_));
  const bool computes_prompt = NeedsPromptQueries(options.plan);
  if (!computes_prompt) options.import = full_.get();
  options.n_import = n_prefill();
  result.notes = options.plan.notes.All();
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<ForwardPass> pass,
                         CreateOffloadedPass(model_, weights_, device_, std::move(options)));
  if (computes_prompt) KVRUN_RETURN_IF_ERROR(RunPrompt(*pass));
  LogitsComparison comparison(n_steps_);
  StepHooks hooks;
  hooks.before = [&](uint32_t step) {
    RecordCache* const cache = pass->record_cache();
    if (cache != nullptr && step % kStepsPerProbe == 0) cache->reports().CountTextRuns();
  };
  hooks.after = [&](uint32_t step, std::span<const float> logits) { AddStep(step, logits, &comparison); };
  double seconds = 0.0;
  const uint32_t n_passes = measures_recall_ ? 2 : 1;
  const auto of_both = [&](uint32_t before) -> Progress {
    return [&, before](uint64_t done, uint64_t) {
      return progress && progress(before + done, uint64_t{n_passes} * n_steps_);
    };
  };
  KVRUN_RETURN_IF_ERROR(FeedSteps(FeedTo(*pass), of_both(0), hooks, &seconds));
  result.logits = comparison;
  result.decode_tps = n_steps_ / seconds;
  result.decode_tps_full = n_steps_ / full_seconds_;
  if (const std::optional<KvReport> report = pass->kv_report()) result.report = *report;
  if (!measures_recall_) return result;
  pass.reset();  // one at a time is within the budget
  KVRUN_ASSIGN_OR_RETURN(result.recall, MeasureRecall(settings, of_both(n_steps_)));
  return result;
}

// What the method chooses on full's states: each layer is given full's input, so that an early choice does
// not change what later layers ask for.
Result<Recall> Evaluation::MeasureRecall(const KvSettings& settings, const Progress& progress) {
  KVRUN_ASSIGN_OR_RETURN(OffloadedPassOptions options,
                         PrepareOffloadedPass(model_, settings, n_ctx_, 1, &layer_time_));
  const bool computes_prompt = options.plan.observed_rows() > 0;
  if (!computes_prompt) options.import = full_.get();
  options.n_import = n_prefill();
  const KvPlan plan = options.plan;
  const auto probe = std::make_shared<StepProbe>();
  options.probe = probe;
  RecallMeter recall(model_.config, plan, keys_);
  const size_t n_inputs = full_inputs_.size() / n_steps_;
  const StepHooks hooks = {.before =
                               [&](uint32_t step) {
                                 const auto begin =
                                     full_inputs_.begin() + static_cast<std::ptrdiff_t>(step * n_inputs);
                                 probe->wanted = true;
                                 probe->inputs.assign(begin, begin + static_cast<std::ptrdiff_t>(n_inputs));
                               },
                           .after =
                               [&](uint32_t step, std::span<const float>) {
                                 if (step % kStepsPerProbe == 0) recall.Add(*probe);
                               }};
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<ForwardPass> pass,
                         CreateOffloadedPass(model_, weights_, device_, std::move(options)));
  if (computes_prompt) KVRUN_RETURN_IF_ERROR(RunPrompt(*pass));
  double seconds = 0.0;
  KVRUN_RETURN_IF_ERROR(FeedSteps(FeedTo(*pass), progress, hooks, &seconds));
  return recall.Mean();
}

}  // namespace kvrun
