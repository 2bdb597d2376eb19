// Answers of several sessions of one engine, a token of each at a time: what the device computes for them is
// one step, where their passes can share one.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/engine/forward/shared_step.h"
#include "runtime/engine/session/generation.h"

namespace kvrun {

class JointAnswers {
 public:
  // As Generation::Step of each, which fails or not by itself. [answers.size()]
  std::vector<Status> Step(std::span<Generation* const> answers);
  // Before the session of an answer is gone.
  void Forget(Generation* answer);

 private:
  struct Place {
    Generation* answer = nullptr;
    Status* status = nullptr;
  };
  struct Shared {
    StepForm form;
    std::unique_ptr<SharedStep> step;
    bool has_failed = false;  // with the answers that there are: each is computed by itself
  };
  using Clock = std::chrono::steady_clock;

  static void ComputeTogether(Shared* shared, std::span<const Place> places);
  Shared* SharedOf(const StepForm& form);

  std::vector<Shared> shared_;
};

}  // namespace kvrun
