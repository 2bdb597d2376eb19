// Many requests to one model: those that are answered share the device, token by token, while the prompt of
// another is read in between; the others wait. Each has a session of its own, with what its own prompt and
// options say, so that what it is answered does not depend on the others. What was read and said is kept in
// sessions on flash, and a prompt that begins like one of them reads the rest.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/session/joint_answers.h"
#include "runtime/kv/plan/kv_report.h"
#include "runtime/schedule/prompt_reading.h"
#include "runtime/schedule/request.h"
#include "runtime/schedule/request_lane.h"
#include "runtime/schedule/stored_prompts.h"

namespace kvrun {

struct SchedulerOptions {
  uint32_t n_parallel = 4;    // requests that are computed at once
  uint32_t most_queued = 64;  // and that wait
  uint32_t n_ctx = 0;         // tokens of the longest request with its answer, at least 1
  // Of each request's context, within n_ctx. Short contexts have smaller windows, and what is kept may become
  // a longer text: as kvrun run has it.
  uint32_t least_ctx = 1024;
  // What a prompt gets at a time while others are answered, at least: it rests only where the device is free.
  std::chrono::milliseconds slice{30};
  // Of each request. A budget in bytes is of all together, and each has its part of it; a share is one of its
  // own context.
  KvSettings kv;
  StoredPromptsOptions stored;
};

struct RequestReport {
  RequestId id = 0;
  RequestState state = RequestState::kQueued;
  uint64_t prompt_tokens = 0;
  uint64_t read_tokens = 0;  // with those that were there
  uint64_t cached_tokens = 0;
  uint64_t answer_tokens = 0;
};

// Sums are of all requests that have ended.
struct SchedulerReport {
  std::vector<RequestReport> requests;  // those that are computed first
  struct OpenKv {
    KvReport report;
    uint64_t decode_tokens = 0;
  };
  std::vector<OpenKv> kv;  // of the sessions that are open, where they have one
  std::vector<StoredPrompts::Stored> stored;
  uint64_t n_requests = 0;
  uint64_t n_cancelled = 0;
  uint64_t n_failed = 0;
  uint64_t prompt_tokens = 0;
  uint64_t cached_tokens = 0;
  uint64_t answer_tokens = 0;
  double prefill_ms = 0.0;
  double decode_ms = 0.0;
  uint64_t decode_tokens = 0;
  uint64_t read_bytes = 0;     // of records from flash; with those of requests that have not ended
  uint64_t written_bytes = 0;  // to flash, likewise
};

class Scheduler {
 public:
  // `make` makes sessions, and outlives this.
  static Result<std::unique_ptr<Scheduler>> Create(SchedulerOptions options, RequestLane::MakeSession make);
  ~Scheduler();

  // --- Any thread.
  // kOutOfMemory: as many wait as may; kContextFull: prompt and answer are longer than the longest may be;
  // kInvalidArgument: it has no token.
  Result<RequestId> Add(Request request, std::unique_ptr<RequestEvents> events);
  // It ends soon, with kCancelled, unless it has ended.
  void Cancel(RequestId id);
  SchedulerReport report() const;

  // --- One thread at a time.
  // A token of each request that is being answered, and some of a prompt. False: there is nothing to do.
  bool StepOnce();
  // Requests that have not ended are cancelled, and saved as far as they are read. The destructor does it,
  // too; what its events call may need this to be there.
  void EndAll();
  // Until there is something to do, or for so long.
  void Wait(std::chrono::milliseconds at_most);

 private:
  using Clock = std::chrono::steady_clock;

  Scheduler(SchedulerOptions options, RequestLane::MakeSession make, std::unique_ptr<StoredPrompts> stored)
      : options_(std::move(options)), make_(std::move(make)), stored_(std::move(stored)) {}

  void Admit();
  std::optional<StoredPrompts::Place> PlaceOf(RequestLane* lane);
  void DropCancelled();
  void BeginReading(std::unique_ptr<RequestLane> lane, StoredPrompts::Place place);
  void ReadSome();
  void NoteRead();
  // One whose client has gone away, if it would lose much: it rests, until another asks the same.
  void ParkReading();
  // For the request, which is about to leave the queue. Under the mutex.
  bool TakeUpParked(std::unique_ptr<RequestLane>* lane);
  // So many may stay, and none that rests for too long.
  void DropParked(size_t n_most);
  void Drop(PromptReading& reading);
  void StepAnswers();
  void Finish(std::unique_ptr<RequestLane> lane, const Status& status);
  void CountEnd(const RequestLane& lane, const Status& status, const SessionStats& stats);
  SessionOptions OptionsOf(const RequestLane& lane) const;
  void UpdateReport();

  const SchedulerOptions options_;
  const RequestLane::MakeSession make_;
  std::unique_ptr<StoredPrompts> stored_;

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable has_work_;
  std::deque<std::unique_ptr<RequestLane>> queue_;
  std::vector<RequestLane*> running_;  // those below: for Cancel
  RequestId last_id_ = 0;
  SchedulerReport report_;

  // The stepping thread's.
  struct Parked {
    std::unique_ptr<PromptReading> reading;
    Clock::time_point since;
  };
  std::unique_ptr<PromptReading> reading_;
  std::vector<Parked> parked_;  // the oldest first
  std::vector<std::unique_ptr<RequestLane>> answering_;
  JointAnswers joint_;
  Clock::duration owed_to_answers_{};               // before reading goes on
  bool has_just_read_ = false;                      // and no answer has had a step since
  std::optional<Clock::duration> step_of_answers_;  // the last that did not follow reading
  Clock::time_point reported_;
  std::optional<uint64_t> reported_changes_;  // of stored_
  uint64_t read_bytes_ = 0;                   // of requests that have ended
  uint64_t written_bytes_ = 0;
};

}  // namespace kvrun
