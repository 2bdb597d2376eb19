// One request of a client for completions: the scheduler's requests that it becomes, and how their answers
// come together as one reply.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "apps/kvserve/backend.h"
#include "apps/kvserve/http_server.h"
#include "apps/kvserve/openai_reply.h"
#include "apps/kvserve/openai_request.h"

namespace kvrun::serve {

// Any thread. It lives as long as a request of the scheduler is its.
class AnswerJob : public std::enable_shared_from_this<AnswerJob> {
 public:
  AnswerJob(std::shared_ptr<const Backend> backend, CompletionRequest request,
            std::shared_ptr<HttpReply> reply);
  ~AnswerJob();

  // Hands everything to the scheduler. Throws an ApiError or a Failure where nothing comes of it.
  void Start();
  // A client that has heard nothing for a while is told that it goes on.
  void Tick();

 private:
  struct Lane;
  using Clock = std::chrono::steady_clock;

  void MakeLanes(const std::vector<std::vector<int32_t>>& prompts);
  void AddLane(uint32_t index, const std::vector<int32_t>& prompt);
  void Echo(Lane* lane, const std::string& prompt);
  std::vector<std::vector<int32_t>> Encode() const;
  void CheckVocabulary() const;
  kvrun_generate_options GenerateOptionsOf(size_t n_prompt_tokens) const;

  // Of the scheduler, whose calls come one at a time.
  static void OnProgress(void* user, uint64_t done, uint64_t total, uint64_t cached);
  static void OnLogprobs(void* user, uint32_t sequence, kvrun_token_logprob taken,
                         const kvrun_token_logprob* likeliest, size_t n_likeliest);
  static int OnToken(void* user, uint32_t sequence, int32_t token, const char* text, size_t text_bytes);
  static void OnPart(void* user, int is_reasoning, const char* text, size_t text_bytes);
  static void OnEnd(void* user, kvrun_status status, const char* message, const kvrun_generate_result* result,
                    const char* stats_json);

  void Progress(uint64_t done, uint64_t total, uint64_t cached);
  // False: nobody wants more.
  bool TakeToken(Lane* lane, int32_t token, std::string_view text);
  void Flush(Lane* lane, std::string_view finish_reason);
  void End(Lane* lane, kvrun_status status, const std::string& message, const kvrun_generate_result& result,
           const Json& stats);
  void Finish();
  void Fail(const ApiError& error);
  void CancelAll();
  void SendEvent(const Json& json);

  const std::shared_ptr<const Backend> held_;  // the scheduler may end it after the service
  const Backend& backend_;
  CompletionRequest request_;  // without what it was made of, once that is tokens
  const std::shared_ptr<HttpReply> reply_;
  ReplyHead head_;
  std::vector<kvrun_logit_bias> biases_;
  std::vector<const char*> stops_;

  std::mutex mutex_;  // of what follows
  std::vector<std::unique_ptr<Lane>> lanes_;
  size_t n_ended_ = 0;
  bool is_gone_ = false;  // nobody waits for the answer any more
  bool has_failed_ = false;
  Usage usage_;
  Clock::time_point began_ = Clock::now();
  Clock::time_point last_sent_ = Clock::now();
  Clock::time_point last_progress_{};
};

}  // namespace kvrun::serve
