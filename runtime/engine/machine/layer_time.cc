#include "runtime/engine/machine/layer_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>
#include <vector>

#include "runtime/engine/forward/create_forward_pass.h"
#include "runtime/engine/machine/compute_time_file.h"

namespace kvrun {
namespace {

// The first step lets drivers compile.
constexpr uint32_t kLeastSteps = 5;
constexpr uint32_t kMostSteps = 65;
constexpr std::chrono::milliseconds kMeasured{100};

}  // namespace

std::optional<double> LayerTime::Microseconds(const std::string& version) {
  if (is_asked_) return microseconds_;
  is_asked_ = true;
  const DeviceInfo& info = device_.info();
  ComputeKey key = {.work = "layer of a token",
                    .device = fmt::format("{}, {}, {}", info.name, info.driver, info.plan),
                    .model = {},
                    .kvrun = version};
  // Of a file that cannot be read (any more) nothing is kept.
  Result<std::string> model = version.empty() ? std::string() : model_.Fingerprint();
  if (model.ok()) key.model = *std::move(model);
  const std::optional<std::string> path = key.model.empty() ? std::nullopt : ComputeTimesPath();
  const Result<std::vector<double>> values =
      KeptOrMeasured(path, key, std::time(nullptr), [this]() -> Result<std::vector<double>> {
        const Result<double> measured = Measure();
        // Kernels that only this has needed; a failure shows when others are asked for.
        (void)device_.DropUnusedKernels();
        KVRUN_RETURN_IF_ERROR(measured.status());
        return std::vector<double>{*measured};
      });
  if (values.ok() && values->size() == 1 && values->front() > 0.0) microseconds_ = values->front();
  return microseconds_;
}

Result<double> LayerTime::Measure() const {
  using Clock = std::chrono::steady_clock;
  KVRUN_ASSIGN_OR_RETURN(
      const std::unique_ptr<ForwardPass> pass,
      CreateForwardPass(model_, weights_, device_, {.n_sequences = 1, .n_ctx = kMostSteps}));
  std::optional<Clock::duration> least;
  Clock::duration total{};
  for (uint32_t i = 0; i < kLeastSteps || (i < kMostSteps && total < kMeasured); ++i) {
    const ForwardStep step(SpanKind::kDecode, {0, i, 0});
    const Clock::time_point begin = Clock::now();
    KVRUN_RETURN_IF_ERROR(pass->Run(step, {}, {}));
    const Clock::duration elapsed = Clock::now() - begin;
    if (i > 0) least = least ? std::min(*least, elapsed) : elapsed;
    total += elapsed;
  }
  const std::chrono::duration<double, std::micro> microseconds = *least;
  return microseconds.count() / model_.config.n_kv_layers();
}

}  // namespace kvrun
