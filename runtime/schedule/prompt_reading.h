// A prompt that is read: on a thread of its own, which takes turns with the one that began it.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "platform/base/status.h"
#include "runtime/schedule/request_lane.h"
#include "runtime/schedule/stored_prompts.h"
#include "runtime/schedule/turns.h"

namespace kvrun {

// One thread. Destroyed before it is done, it ends where it is.
class PromptReading {
 public:
  // As RequestLane::Read, in the worker's turns of `turns`. `make` outlives this. It begins with Run.
  PromptReading(std::unique_ptr<Turns> turns, std::unique_ptr<RequestLane> lane, SessionOptions options,
                StoredPrompts::Place place, const RequestLane::MakeSession& make, std::string new_path);

  // Until it is done, or rests after it has had `slice`.
  void Run(std::chrono::steady_clock::duration slice) { turns_->Run(slice); }
  bool is_done() const { return !turns_->is_under_way(); }
  RequestLane& lane() { return *lane_; }
  const RequestLane& lane() const { return *lane_; }

  // --- Once it is done.
  const Status& status() const { return status_; }
  std::unique_ptr<RequestLane> TakeLane() { return std::move(lane_); }

 private:
  std::unique_ptr<RequestLane> lane_;
  Status status_ = Status::Ok();
  std::unique_ptr<Turns> turns_;  // last: its work uses all of the above
};

}  // namespace kvrun
