// One request on its way: its session, from the first token that is read to the last save.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/session/generation.h"
#include "runtime/schedule/request.h"
#include "runtime/schedule/stored_prompts.h"

namespace kvrun {

class RequestLane {
 public:
  using MakeSession = std::function<Result<std::unique_ptr<Session>>(const SessionOptions& options)>;
  // Asked where others may go first; true: the request is to end.
  using RestFn = std::function<bool()>;

  RequestLane(RequestId id, Request request, std::unique_ptr<RequestEvents> events);

  RequestId id() const { return id_; }
  const std::vector<TokenId>& ids() const { return request_.ids; }
  const GenerateOptions& generate() const { return request_.generate; }

  // Any thread. Who steps it sees to its end.
  void Cancel() { is_cancelled_ = true; }
  bool is_cancelled() const { return is_cancelled_; }

  // --- One after another, on one thread at a time.
  // Opens a session at the place, and reads what of the prompt is not there. `options`: all but its path, its
  // context and its progress. A place that cannot be gone on with is given up for a new one (place() then
  // says so). An error ends the request.
  Status Read(SessionOptions options, StoredPrompts::Place place, const MakeSession& make,
              const std::string& new_path, const RestFn& rest);
  // Begins the answer, which then goes on a token at a time, until it is done.
  Status BeginAnswer();
  Generation* answer() { return answer_.get(); }
  bool is_answered() const { return answer_->is_done(); }
  // What was read and answered is kept, where there is a place for it.
  void Save();
  // Tells the end. `status`: why it could not go on.
  void End(const Status& status);

  // --- While Read rests.
  // Read ends where it is.
  void Drop() { is_dropped_ = true; }
  // If Read ended now, much that was read would be lost: a prompt may be computed layer by layer, as a whole.
  bool would_lose_much() const;
  // In place of End: Read may go on for another request. Until then nothing is told to anyone.
  void EndAlone();
  bool has_ended_alone() const { return events_ == nullptr; }
  // How many tokens of what is being read the prompt begins with; 0: it has no use for the rest, or no room.
  // `n_ctx`: that it needs.
  uint32_t CommonWith(const RequestLane& other, uint32_t n_ctx) const;
  // What `other` has, which has not begun, is this one's: its id, its request, and who hears of it. After
  // EndAlone.
  void TakeOver(std::unique_ptr<RequestLane> other);

  const StoredPrompts::Place& place() const { return place_; }
  // That its session has on flash; empty: it has none, or is kept nowhere.
  std::vector<TokenId> KeptTokens() const;
  // What place() was at first, where it was of no use.
  const std::optional<StoredPrompts::Place>& given_up() const { return given_up_; }
  const Session* session() const { return session_.get(); }
  // Of this request alone, once it is read.
  SessionStats stats() const;
  void CloseSession() {
    answer_.reset();
    session_.reset();
  }

  // While it is in the queue.
  struct Waiting {
    uint32_t n_overtaken = 0;  // how many that came later went first, as its place was in use
    std::optional<uint64_t> since = std::nullopt;  // which of StoredPrompts::n_changes() had no place for it
  };
  Waiting& waiting() { return waiting_; }

  // Tokens, for reports.
  struct Counts {
    uint64_t n_read = 0;  // of the prompt, that are there
    uint64_t n_cached = 0;
    uint64_t n_answered = 0;
  };
  const Counts& counts() const { return counts_; }

 private:
  Status Open(SessionOptions options, const MakeSession& make, const std::string& new_path);
  Status Feed();
  bool Progress(uint64_t done, const RestFn& rest);
  bool NoteToken(const GeneratedToken& token);

  using Clock = std::chrono::steady_clock;

  RequestId id_;
  Request request_;
  std::unique_ptr<RequestEvents> events_;  // null: its end was told
  std::atomic<bool> is_cancelled_ = false;
  bool is_dropped_ = false;
  std::vector<TokenId> feeding_;
  bool feeds_own_ = true;  // else another request's, which was taken over
  uint64_t n_before_feed_ = 0;
  uint64_t n_fed_ = 0;  // of feeding_, with those before
  StoredPrompts::Place place_;
  std::optional<StoredPrompts::Place> given_up_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Generation> answer_;  // of the session: goes before it
  bool is_saved_ = false;               // all that there is
  Counts counts_;
  std::optional<Clock::time_point> taken_over_at_;
  double ttft_ms_ = 0.0;  // since then
  Waiting waiting_;
};

}  // namespace kvrun
