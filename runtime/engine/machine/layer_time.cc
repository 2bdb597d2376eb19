#include "runtime/engine/machine/layer_time.h"

#include <algorithm>
#include <chrono>

#include "runtime/engine/forward/create_forward_pass.h"

namespace kvrun {
namespace {

constexpr uint32_t kSteps = 5;  // the first lets drivers compile

}  // namespace

std::optional<double> LayerTime::Microseconds() {
  if (is_measured_) return microseconds_;
  is_measured_ = true;
  const Result<double> measured = Measure();
  // Kernels that only this has needed; a failure shows when others are asked for.
  (void)device_.DropUnusedKernels();
  if (measured.ok()) microseconds_ = *measured;
  return microseconds_;
}

Result<double> LayerTime::Measure() const {
  using Clock = std::chrono::steady_clock;
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<ForwardPass> pass,
                         CreateForwardPass(model_, weights_, device_, {.n_sequences = 1, .n_ctx = kSteps}));
  std::optional<Clock::duration> least;
  for (uint32_t i = 0; i < kSteps; ++i) {
    const ForwardStep step(SpanKind::kDecode, {0, i, 0});
    const Clock::time_point begin = Clock::now();
    KVRUN_RETURN_IF_ERROR(pass->Run(step, {}, {}));
    const Clock::duration elapsed = Clock::now() - begin;
    if (i > 0) least = least ? std::min(*least, elapsed) : elapsed;
  }
  const std::chrono::duration<double, std::micro> microseconds = *least;
  return microseconds.count() / model_.config.n_kv_layers();
}

}  // namespace kvrun
