#include "runtime/engine/measure/needle_evaluation.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "runtime/engine/session/session_kv.h"
#include "runtime/engine/text/sampler.h"
#include "runtime/kv/serve/record_cache.h"

namespace kvrun {

Status NeedleEvaluation::Ask(std::span<const NeedleDocument> documents, const NeedleAnswers& answers) {
  for (const NeedleDocument& document : documents) {
    const bool is_last = &document == &documents.back();
    KVRUN_RETURN_IF_ERROR(AskFull(document, answers.full));
    for (size_t i = 0; i < answers.runs.size(); ++i) {
      NeedleRun& run = answers.runs[i];
      if (!run.status.ok()) continue;
      run.status = AskRun(document, &run);
      if (run.status.code() == StatusCode::kCancelled) return run.status;
      if (is_last || !run.status.ok()) answers.done(i);
    }
  }
  return Status::Ok();
}

Status NeedleEvaluation::AskFull(const NeedleDocument& document, std::vector<bool>* right) {
  const std::lock_guard lock(*device_mutex_);
  full_.reset();  // one at a time
  KVRUN_ASSIGN_OR_RETURN(full_, PrefillInMemory(model_, weights_, device_, document.ids, n_ctx_, progress_));
  return AskAll(*full_, document, right).status();
}

Status NeedleEvaluation::AskRun(const NeedleDocument& document, NeedleRun* run) {
  const std::lock_guard lock(*device_mutex_);
  KVRUN_ASSIGN_OR_RETURN(OffloadedPassOptions options,
                         PrepareOffloadedPass(model_, run->settings, n_ctx_, 1, &layer_time_));
  const bool computes_prompt = NeedsPromptQueries(options.plan);
  if (!computes_prompt) options.import = full_.get();
  options.n_import = static_cast<uint32_t>(document.ids.size());
  run->notes = options.plan.notes.All();
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<ForwardPass> pass,
                         CreateOffloadedPass(model_, weights_, device_, std::move(options)));
  if (computes_prompt) {
    ForwardStep prompt;
    prompt.Add(SpanKind::kPrompt, document.ids, 0, 0);
    pass->SetProgress(progress_);
    KVRUN_RETURN_IF_ERROR(pass->Run(prompt, {}, {}));
  }
  KVRUN_ASSIGN_OR_RETURN(run->n_steps, AskAll(*pass, document, &run->right));
  if (const std::optional<KvReport> report = pass->kv_report()) run->report = *report;
  return Status::Ok();
}

Result<uint32_t> NeedleEvaluation::AskAll(ForwardPass& pass, const NeedleDocument& document,
                                          std::vector<bool>* right) {
  const auto position = static_cast<uint32_t>(document.ids.size());
  uint32_t n_steps = 0;
  for (const Needle& needle : document.needles) {
    KVRUN_ASSIGN_OR_RETURN(const bool is_right, AskOne(pass, position, needle, &n_steps));
    right->push_back(is_right);
  }
  return n_steps;
}

// Greedy: as long as the answer is right, what is fed next is the value.
Result<bool> NeedleEvaluation::AskOne(ForwardPass& pass, uint32_t position, const Needle& needle,
                                      uint32_t* n_steps) {
  std::vector<float> logits(pass.n_vocab());
  const size_t n_question = needle.question.size();
  std::vector<TokenId> ids = needle.question;
  ids.insert(ids.end(), needle.value.begin(), needle.value.end() - 1);
  for (size_t i = 0; i < ids.size();) {
    if (progress_ && progress_(i, ids.size())) {
      return Status(StatusCode::kCancelled, "the evaluation was cancelled");
    }
    const size_t n = i < n_question ? std::min<size_t>(n_at_once_, n_question - i) : 1;
    ForwardStep step;
    step.Add(n > 1 ? SpanKind::kPrompt : SpanKind::kDecode, std::span(ids).subspan(i, n),
             position + static_cast<uint32_t>(i), 0);
    const auto output = static_cast<uint32_t>(n - 1);
    KVRUN_RETURN_IF_ERROR(pass.Run(step, {&output, 1}, logits));
    KVRUN_RETURN_IF_ERROR(CheckFinite(logits));
    i += n;
    *n_steps += static_cast<uint32_t>(n);
    if (i < n_question) continue;
    const auto first_choice = std::max_element(logits.begin(), logits.end()) - logits.begin();
    if (first_choice != needle.value[i - n_question]) return false;
  }
  return true;
}

}  // namespace kvrun
