#include "apps/kvserve/answer_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "apps/common/failure.h"
#include "apps/common/succeeds.h"
#include "apps/kvserve/service.h"

namespace kvrun::serve {
namespace {

using namespace std::chrono_literals;
using cli::Succeeds;

constexpr size_t kMostAnswers = 16;  // of a request, prompts times n
constexpr auto kSilence = 15s;       // before a client is told that it goes on
constexpr auto kProgressEvery = 250ms;

const char* FinishReason(kvrun_finish finish) {
  return finish == KVRUN_FINISH_LENGTH || finish == KVRUN_FINISH_CONTEXT_FULL ? "length" : "stop";
}

}  // namespace

// One answer. Its calls come from the scheduler, one at a time; the job's mutex is held in them.
struct AnswerJob::Lane {
  std::shared_ptr<AnswerJob> job;  // until it has ended
  uint32_t index = 0;
  uint64_t request = 0;  // of the scheduler
  bool is_first_of_prompt = false;
  bool has_begun = false;  // a piece was sent
  bool has_ended = false;
  struct ReasoningCloser {
    void operator()(kvrun_reasoning* of_lane) const { kvrun_reasoning_close(of_lane); }
  };
  std::unique_ptr<kvrun_reasoning, ReasoningCloser> reasoning;  // of a chat
  // Of the token at hand.
  std::string text;
  std::string thought;
  std::vector<StepLogprobs> pending;  // of tokens whose text is not certain yet
  uint64_t text_offset = 0;
  uint64_t n_thought = 0;
  Choice choice;  // the whole, where it is not streamed
};

AnswerJob::AnswerJob(std::shared_ptr<const Backend> backend, CompletionRequest request,
                     std::shared_ptr<HttpReply> reply)
    : held_(std::move(backend)), backend_(*held_), request_(std::move(request)), reply_(std::move(reply)) {
  head_ = {.is_chat = request_.is_chat,
           .id = NewReplyId(request_.is_chat),
           .created_s = std::time(nullptr),
           .model = backend_.model_name};
  for (const auto& [token, bias] : request_.sampling.logit_bias) biases_.push_back({token, bias});
  for (const std::string& stop : request_.stop) stops_.push_back(stop.c_str());
}

AnswerJob::~AnswerJob() = default;

// The scheduler refuses these, too, but cannot name the field.
void AnswerJob::CheckVocabulary() const {
  const uint32_t n_vocab = kvrun_model_vocab_size(backend_.model->get());
  const auto check = [&](int32_t id, const char* param) {
    if (static_cast<uint32_t>(id) < n_vocab) return;
    throw ApiError(400,
                   fmt::format("\"{}\" has the token id {}: the model's vocabulary has {} tokens, from 0",
                               param, id, n_vocab),
                   param, "invalid_value");
  };
  for (const auto& [id, bias] : request_.sampling.logit_bias) check(id, "logit_bias");
  for (const CompletionRequest::Prompt& prompt : request_.prompts) {
    for (const int32_t id : prompt.ids) check(id, "prompt");
  }
}

std::vector<std::vector<int32_t>> AnswerJob::Encode() const {
  std::vector<std::vector<int32_t>> prompts;
  if (request_.is_chat) {
    prompts.push_back(backend_.encode_chat(request_.messages, request_.template_variables));
  }
  for (const CompletionRequest::Prompt& prompt : request_.prompts)
    prompts.push_back(prompt.is_ids ? prompt.ids : backend_.encode_text(prompt.text));
  return prompts;
}

kvrun_generate_options AnswerJob::GenerateOptionsOf(size_t n_prompt_tokens) const {
  kvrun_generate_options options = request_.is_chat ? backend_.defaults : backend_.text_defaults;
  const SamplingRequest& asked = request_.sampling;
  const auto take = [](const auto& value, auto* to) {
    if (value) *to = *value;
  };
  take(asked.temperature, &options.temperature);
  take(asked.top_p, &options.top_p);
  take(asked.top_k, &options.top_k);
  take(asked.min_p, &options.min_p);
  take(asked.presence_penalty, &options.presence_penalty);
  take(asked.frequency_penalty, &options.frequency_penalty);
  take(asked.repeat_penalty, &options.repetition_penalty);
  take(asked.seed, &options.seed);
  if (!asked.seed && !backend_.has_seed)
    options.seed = static_cast<uint64_t>(Clock::now().time_since_epoch().count());
  options.logit_bias = biases_.data();
  options.n_logit_bias = biases_.size();
  if (!stops_.empty()) {
    options.stop = stops_.data();
    options.n_stop = stops_.size();
  }
  if (n_prompt_tokens >= backend_.n_ctx) {
    throw ApiError(
        400,
        fmt::format("the prompt has {} tokens, and the server's context is {}: shorten it, or start the "
                    "server with a longer one (--ctx)",
                    n_prompt_tokens, backend_.n_ctx),
        request_.is_chat ? "messages" : "prompt", "context_length_exceeded");
  }
  const auto room = static_cast<uint32_t>(backend_.n_ctx - n_prompt_tokens);
  options.max_tokens = std::min(request_.max_tokens.value_or(backend_.most_answer), room);
  options.n_logprobs = request_.n_logprobs ? std::max(*request_.n_logprobs, 1U) : 0;
  options.logprobs = options.n_logprobs > 0 ? OnLogprobs : nullptr;
  return options;
}

void AnswerJob::Start() {
  CheckVocabulary();
  const std::vector<std::vector<int32_t>> prompts = Encode();
  if (prompts.size() * request_.n > kMostAnswers) {
    throw ApiError(400,
                   fmt::format("{} answers were asked for; there can be {} in a request",
                               prompts.size() * request_.n, kMostAnswers),
                   "n", "invalid_value");
  }
  // A body of any size must not stay as long as the request waits.
  request_.messages = request_.template_variables = Json();
  request_.prompts.clear();
  try {
    // The scheduler's calls wait until the reply has begun.
    const std::lock_guard lock(mutex_);
    MakeLanes(prompts);
    for (uint32_t i = 0; i < lanes_.size(); ++i) AddLane(i, prompts[i / request_.n]);
    if (request_.stream) reply_->BeginEvents();
    for (uint32_t i = 0; request_.echo && i < lanes_.size(); ++i)
      Echo(lanes_[i].get(), cli::Detokenize(*backend_.model, prompts[i / request_.n]));
  } catch (...) {
    CancelAll();
    throw;
  }
  reply_->OnGone([weak = weak_from_this()] {
    if (const auto job = weak.lock()) job->CancelAll();
  });
}

void AnswerJob::MakeLanes(const std::vector<std::vector<int32_t>>& prompts) {
  for (const std::vector<int32_t>& prompt : prompts) {
    usage_.prompt_tokens += prompt.size();
    for (uint32_t i = 0; i < request_.n; ++i) {
      auto lane = std::make_unique<Lane>();
      lane->index = static_cast<uint32_t>(lanes_.size());
      lane->is_first_of_prompt = i == 0;
      lane->choice.index = lane->index;
      lane->choice.has_logprobs = request_.n_logprobs.has_value();
      lanes_.push_back(std::move(lane));
    }
  }
}

void AnswerJob::Echo(Lane* lane, const std::string& prompt) {
  if (!request_.stream) {
    lane->choice.text = prompt;
    return;
  }
  lane->has_begun = true;
  Piece piece;
  piece.index = lane->index;
  piece.is_first = true;
  piece.text = prompt;
  SendEvent(PieceJson(head_, piece, request_.include_usage));
}

void AnswerJob::AddLane(uint32_t index, const std::vector<int32_t>& prompt) {
  Lane* const lane = lanes_[index].get();
  kvrun_generate_options options = GenerateOptionsOf(prompt.size());
  options.seed += index % request_.n;
  options.logprobs_user = lane;
  if (request_.is_chat) {
    kvrun_reasoning* reasoning = nullptr;
    cli::Check(kvrun_reasoning_begin(backend_.model->get(), prompt.data(), prompt.size(), &reasoning));
    lane->reasoning.reset(reasoning);
  }
  kvrun_request_events events = {};
  events.struct_size = sizeof(events);
  events.user = lane;
  events.progress = OnProgress;
  events.token = OnToken;
  events.end = OnEnd;
  lane->job = shared_from_this();
  const kvrun_status status = kvrun_scheduler_add(backend_.scheduler, prompt.data(), prompt.size(), &options,
                                                  &events, &lane->request);
  if (status == KVRUN_OK) return;
  lane->job.reset();
  cli::Check(status);
}

void AnswerJob::Tick() {
  const std::lock_guard lock(mutex_);
  if (!request_.stream || n_ended_ == lanes_.size() || Clock::now() - last_sent_ < kSilence) return;
  reply_->SendComment("the answer is under way");
  last_sent_ = Clock::now();
}

void AnswerJob::OnProgress(void* user, uint64_t done, uint64_t total, uint64_t cached) {
  auto* lane = static_cast<Lane*>(user);
  (void)Succeeds([&] { lane->job->Progress(done, total, cached); });
}

void AnswerJob::Progress(uint64_t done, uint64_t total, uint64_t cached) {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  if (!request_.return_progress || !request_.stream || has_failed_) return;
  if (done < total && now - last_progress_ < kProgressEvery) return;
  last_progress_ = now;
  const auto time_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now - began_).count();
  SendEvent(ProgressChunk(head_, total, cached, done, static_cast<uint64_t>(time_ms)));
}

void AnswerJob::OnLogprobs(void* user, uint32_t /*sequence*/, kvrun_token_logprob taken,
                           const kvrun_token_logprob* likeliest, size_t n_likeliest) {
  auto* lane = static_cast<Lane*>(user);
  const AnswerJob& job = *lane->job;
  (void)Succeeds([&] {
    StepLogprobs step;
    step.taken = {cli::TextOfToken(*job.backend_.model, taken.token), taken.logprob};
    const size_t n_wanted = std::min<size_t>(n_likeliest, job.request_.n_logprobs.value_or(0));
    for (size_t i = 0; i < n_wanted; ++i)
      step.likeliest.push_back(
          {cli::TextOfToken(*job.backend_.model, likeliest[i].token), likeliest[i].logprob});
    lane->pending.push_back(std::move(step));
  });
}

int AnswerJob::OnToken(void* user, uint32_t /*sequence*/, int32_t token, const char* text,
                       size_t text_bytes) {
  auto* lane = static_cast<Lane*>(user);
  bool goes_on = false;
  const bool succeeds = Succeeds([&] { goes_on = lane->job->TakeToken(lane, token, {text, text_bytes}); });
  return succeeds && goes_on ? 0 : 1;
}

bool AnswerJob::TakeToken(Lane* lane, int32_t token, std::string_view text) {
  const std::lock_guard lock(mutex_);
  if (is_gone_ || has_failed_) return false;
  lane->text.clear();
  lane->thought.clear();
  const bool is_split =
      lane->reasoning != nullptr &&
      kvrun_reasoning_next(lane->reasoning.get(), token, text.data(), text.size(), OnPart, lane) == KVRUN_OK;
  if (!is_split) lane->text.assign(text);
  if (!lane->thought.empty()) ++lane->n_thought;
  Flush(lane, "");
  return true;
}

void AnswerJob::OnPart(void* user, int is_reasoning, const char* text, size_t text_bytes) {
  auto* lane = static_cast<Lane*>(user);
  (is_reasoning != 0 ? lane->thought : lane->text).append(text, text_bytes);
}

// What of the lane is at hand. A piece has the log-probabilities of one token: those of tokens without text
// go before the one with it.
void AnswerJob::Flush(Lane* lane, std::string_view finish_reason) {
  if (!request_.stream) {
    lane->choice.text += lane->text;
    lane->choice.reasoning += lane->thought;
    for (StepLogprobs& step : lane->pending) lane->choice.logprobs.push_back(std::move(step));
    lane->pending.clear();
    return;
  }
  const bool says = !lane->text.empty() || !lane->thought.empty() || !lane->pending.empty();
  if (!says && finish_reason.empty()) return;
  const size_t n_pieces = std::max<size_t>(lane->pending.size(), 1);
  for (size_t i = 0; i < n_pieces; ++i) {
    const bool is_last = i + 1 == n_pieces;
    Piece piece;
    piece.index = lane->index;
    piece.is_first = !std::exchange(lane->has_begun, true);
    if (is_last) {
      piece.text = lane->text;
      piece.reasoning = lane->thought;
      piece.finish_reason = finish_reason;
    }
    if (i < lane->pending.size()) {
      piece.logprobs = &lane->pending[i];
      piece.text_offset = lane->text_offset;
      lane->text_offset += CountCharacters(lane->pending[i].taken.text);
    }
    SendEvent(PieceJson(head_, piece, request_.include_usage));
  }
  lane->pending.clear();
}

void AnswerJob::OnEnd(void* user, kvrun_status status, const char* message,
                      const kvrun_generate_result* result, const char* stats_json) {
  auto* lane = static_cast<Lane*>(user);
  const std::shared_ptr<AnswerJob> job = std::move(lane->job);  // it may be the last that holds it
  (void)Succeeds([&] {
    job->End(lane, status, message == nullptr ? "" : message, *result, cli::ParseJson(stats_json));
  });
}

void AnswerJob::End(Lane* lane, kvrun_status status, const std::string& message,
                    const kvrun_generate_result& result, const Json& stats) {
  const std::lock_guard lock(mutex_);
  lane->has_ended = true;
  ++n_ended_;
  if (has_failed_ || is_gone_) return;
  if (status == KVRUN_CANCELLED) return Fail({503, "the server is about to end"});
  if (status != KVRUN_OK) return Fail(ErrorOf(status, message));
  if (result.finish == KVRUN_FINISH_CANCELLED) return Fail({500, "the answer could not be passed on"});
  lane->text.clear();
  lane->thought.clear();
  if (lane->reasoning != nullptr) (void)kvrun_reasoning_end(lane->reasoning.get(), OnPart, lane);
  Flush(lane, FinishReason(result.finish));
  lane->choice.finish_reason = FinishReason(result.finish);
  usage_.completion_tokens += result.n_tokens;
  usage_.reasoning_tokens += lane->n_thought;
  if (lane->is_first_of_prompt) usage_.cached_tokens += stats.value("cached_tokens", uint64_t{0});
  if (n_ended_ == lanes_.size()) Finish();
}

void AnswerJob::Finish() {
  if (request_.stream) {
    if (request_.include_usage) SendEvent(UsageChunk(head_, usage_));
    reply_->SendEvent("[DONE]");
    reply_->End();
    return;
  }
  std::vector<Choice> choices;
  for (const auto& lane : lanes_) choices.push_back(std::move(lane->choice));
  reply_->Send(200, "application/json", cli::DumpJson(ReplyJson(head_, choices, usage_)));
}

void AnswerJob::Fail(const ApiError& error) {
  has_failed_ = true;
  for (const auto& lane : lanes_) {
    if (!lane->has_ended && lane->request != 0) kvrun_scheduler_cancel(backend_.scheduler, lane->request);
  }
  if (!request_.stream) return SendError(*reply_, error);
  SendEvent(ErrorJson(error));
  reply_->End();
}

void AnswerJob::CancelAll() {
  std::vector<uint64_t> requests;
  {
    const std::lock_guard lock(mutex_);
    is_gone_ = true;
    for (const auto& lane : lanes_) {
      if (!lane->has_ended && lane->request != 0) requests.push_back(lane->request);
    }
  }
  for (const uint64_t request : requests) kvrun_scheduler_cancel(backend_.scheduler, request);
}

void AnswerJob::SendEvent(const Json& json) {
  last_sent_ = Clock::now();
  reply_->SendEvent(cli::DumpJson(json));
}

}  // namespace kvrun::serve
