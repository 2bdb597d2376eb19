// A session's forward pass, used under the engine's lock and timed.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "platform/base/status.h"
#include "runtime/engine/pass/forward_pass.h"

namespace kvrun {

// Adds the time until it goes out of scope.
class AddElapsed {
 public:
  explicit AddElapsed(double* milliseconds) : milliseconds_(milliseconds) {}
  AddElapsed(const AddElapsed&) = delete;
  AddElapsed& operator=(const AddElapsed&) = delete;
  ~AddElapsed() {
    *milliseconds_ += std::chrono::duration<double, std::milli>(Clock::now() - begin_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  double* milliseconds_;
  Clock::time_point begin_ = Clock::now();
};

class StepRunner {
 public:
  StepRunner(std::unique_ptr<ForwardPass> pass, std::mutex* device_mutex)
      : pass_(std::move(pass)), device_mutex_(device_mutex) {}
  StepRunner(const StepRunner&) = delete;
  StepRunner& operator=(const StepRunner&) = delete;
  ~StepRunner() {
    const std::lock_guard lock(*device_mutex_);
    pass_.reset();
  }

  uint32_t max_rows() const { return pass_->max_rows(); }
  uint32_t max_output_rows() const { return pass_->max_output_rows(); }
  uint32_t n_vocab() const { return pass_->n_vocab(); }

  // Asked during a Run, without the lock. See ForwardPass::SetProgress.
  void SetProgress(StepProgress progress) {
    pass_->SetProgress([this, progress = std::move(progress)](uint64_t done, uint64_t total) {
      const Unlocked unlocked(device_mutex_);
      return progress(done, total);
    });
  }
  std::optional<KvReport> kv_report() const { return pass_->kv_report(); }
  void ResetKvReport() { pass_->ResetKvReport(); }
  void Cut(uint32_t sequence, uint32_t length) { pass_->Cut(sequence, length); }
  uint64_t recomputed_tokens() const { return pass_->recomputed_tokens(); }
  Status VisitState(StateVisitor& visitor, std::span<const uint32_t> lengths) {
    const std::lock_guard lock(*device_mutex_);
    return pass_->VisitState(visitor, lengths);
  }

  // Its part in steps that passes share, which are computed under Lock; null: it has none.
  StepMember* step_member() { return pass_->step_member(); }
  std::unique_lock<std::mutex> Lock() { return std::unique_lock(*device_mutex_); }

  // At most max_rows() rows and max_output_rows() outputs.
  Status Run(const ForwardStep& step, std::span<const uint32_t> outputs, std::span<float> logits) {
    const std::lock_guard lock(*device_mutex_);
    return pass_->Run(step, outputs, logits);
  }
  Status MoreLogits(std::span<const uint32_t> outputs, std::span<float> logits) {
    const std::lock_guard lock(*device_mutex_);
    return pass_->MoreLogits(outputs, logits);
  }

  // Any number of outputs of a step that is one part, else at most max_output_rows().
  Status RunAll(const ForwardStep& step, std::span<const uint32_t> outputs, std::span<float> logits) {
    if (outputs.size() > max_output_rows() && !step.is_one_part()) {
      return {StatusCode::kInternal, "more logits of a step of several kinds were asked for than it gives"};
    }
    const size_t n_first = std::min<size_t>(outputs.size(), max_output_rows());
    KVRUN_RETURN_IF_ERROR(Run(step, outputs.first(n_first), logits.first(n_first * n_vocab())));
    for (size_t done = n_first; done < outputs.size();) {
      const size_t n = std::min<size_t>(outputs.size() - done, max_output_rows());
      KVRUN_RETURN_IF_ERROR(
          MoreLogits(outputs.subspan(done, n), logits.subspan(done * n_vocab(), n * n_vocab())));
      done += n;
    }
    return Status::Ok();
  }

 private:
  class Unlocked {
   public:
    explicit Unlocked(std::mutex* mutex) : mutex_(mutex) { mutex_->unlock(); }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;
    ~Unlocked() { mutex_->lock(); }

   private:
    std::mutex* mutex_;
  };

  std::unique_ptr<ForwardPass> pass_;
  std::mutex* device_mutex_;
};

}  // namespace kvrun
