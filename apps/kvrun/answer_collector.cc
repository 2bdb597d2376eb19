#include "apps/kvrun/answer_collector.h"

#include <new>
#include <utility>

#include "apps/common/files.h"
#include "apps/common/interrupt.h"

namespace kvrun::cli {

LibraryOptions::LibraryOptions(const GenerationOptions& generation) : values(generation.values) {
  for (const std::string& text : generation.stop) stops_.push_back(text.c_str());
  values.stop = stops_.data();
  values.n_stop = stops_.size();
  values.ignore_end = generation.ignore_end ? 1 : 0;
}

AnswerCollector::AnswerCollector(const GenerationOptions& generation, Reasoning reasoning, PieceSink sink)
    : library_(generation), reasoning_(std::move(reasoning)), sink_(std::move(sink)) {
  if (library_.values.n_logprobs > 0) library_.values.logprobs = OnLogprobs;
  library_.values.logprobs_user = this;
}

void AnswerCollector::OnPart(void* user, int is_reasoning, const char* text, size_t text_bytes) {
  auto* list = static_cast<PartList*>(user);
  try {
    list->parts.push_back({is_reasoning != 0, {text, text_bytes}});
  } catch (...) {
    list->has_failed = true;  // nothing may be thrown through the library
  }
}

// At least one part, of no text where nothing is known yet.
std::vector<AnswerCollector::Part> AnswerCollector::PartsOf(int32_t token, std::string_view text) {
  PartList list;
  if (reasoning_ == nullptr) {
    list.parts.push_back({false, std::string(text)});
  } else {
    Check(kvrun_reasoning_next(reasoning_.get(), token, text.data(), text.size(), OnPart, &list));
  }
  if (list.has_failed) throw std::bad_alloc();
  if (list.parts.empty()) list.parts.push_back({is_reasoning_, ""});
  return std::move(list.parts);
}

// The last part has the token and its log-probabilities.
void AnswerCollector::Take(const std::vector<Part>& parts, int32_t token, const StepLogprobs* logprobs) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    const bool is_last = i + 1 == parts.size();
    is_reasoning_ = part.is_reasoning;
    (part.is_reasoning ? answer_.reasoning : answer_.text) += part.text;
    if (!sink_ || stdout_error_ != 0) continue;
    stdout_error_ = sink_({is_last ? token : -1, part.text, part.is_reasoning, is_last ? logprobs : nullptr});
  }
}

void AnswerCollector::OnLogprobs(void* user, uint32_t /*sequence*/, kvrun_token_logprob taken,
                                 const kvrun_token_logprob* likeliest, size_t n) {
  auto* collector = static_cast<AnswerCollector*>(user);
  try {
    collector->logprobs_ = {taken, {likeliest, likeliest + n}};
  } catch (...) {
    collector->failure_ = std::current_exception();  // OnToken ends the call
  }
}

int AnswerCollector::OnToken(void* user, uint32_t /*sequence*/, int32_t token, const char* text,
                             size_t text_bytes) {
  auto* collector = static_cast<AnswerCollector*>(user);
  try {
    collector->TakeToken(token, {text, text_bytes});
  } catch (...) {
    collector->failure_ = std::current_exception();
  }
  return collector->failure_ != nullptr || collector->stdout_error_ != 0 || Interrupted() ? 1 : 0;
}

void AnswerCollector::TakeToken(int32_t token, std::string_view text) {
  const bool has_logprobs = token >= 0 && logprobs_.taken.token == token && !logprobs_.likeliest.empty();
  if (token >= 0) answer_.tokens.push_back(token);
  answer_.written += text;
  if (has_logprobs) answer_.logprobs.push_back(logprobs_);
  Take(PartsOf(token, text), token, has_logprobs ? &logprobs_ : nullptr);
}

Answer AnswerCollector::Finish(kvrun_finish finish) {
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  if (stdout_error_ == 0 && reasoning_ != nullptr) {
    PartList list;
    Check(kvrun_reasoning_end(reasoning_.get(), OnPart, &list));
    if (list.has_failed) throw std::bad_alloc();
    Take(list.parts, -1, nullptr);
  }
  if (stdout_error_ != 0) ThrowStdoutError(stdout_error_);
  answer_.finish = finish;
  return std::move(answer_);
}

Answer Generate(const Session& session, const GenerationOptions& generation, Reasoning reasoning,
                const PieceSink& sink) {
  AnswerCollector collector(generation, std::move(reasoning), sink);
  constexpr uint32_t kOnly = 0;
  kvrun_generate_result result = {0, KVRUN_FINISH_CANCELLED};
  const kvrun_status status = kvrun_session_generate(session.get(), &kOnly, 1, collector.options(),
                                                     AnswerCollector::OnToken, &collector, &result);
  if (status != KVRUN_CANCELLED && collector.stdout_error() == 0) Check(status);
  return collector.Finish(result.finish);
}

}  // namespace kvrun::cli
