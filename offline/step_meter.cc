#include "offline/step_meter.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace kvrun::offline {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kRunsOfPoint = 5;
constexpr size_t kPointsPerReference = 4;

}  // namespace

StepMeter::StepMeter(Engine& engine, StepMeterOptions options)
    : engine_(engine), options_(std::move(options)), times_(options_.storage) {}

Result<StepSample> StepMeter::Measure(const StepPoint& point) const {
  return MeasureStep(engine_, options_.kv_storage, point, kRunsOfPoint, options_.is_cancelled);
}

Status StepMeter::Refer() {
  KVRUN_ASSIGN_OR_RETURN(const StepSample sample, Measure(options_.reference));
  times_.Refer(sample.step_ms);
  return Status::Ok();
}

Status StepMeter::Sample(std::span<const StepPoint> points, const SampleLimits& limits, const Tell& tell) {
  const Clock::time_point begin = Clock::now();
  for (size_t k = 0; k < points.size(); ++k) {
    KVRUN_RETURN_IF_ERROR(tell(k, points.size()));
    if (k % kPointsPerReference == 0) KVRUN_RETURN_IF_ERROR(Refer());
    KVRUN_ASSIGN_OR_RETURN(const StepSample sample, Measure(points[k]));
    times_.Add(sample);
    const double spent = std::chrono::duration<double>(Clock::now() - begin).count();
    const bool is_enough = spent > limits.seconds && k + 1 >= limits.n_wanted;
    if (is_enough || (spent > limits.most_seconds && k + 1 >= limits.n_least)) break;
  }
  return Refit();
}

Status StepMeter::Learn(const StepSample& sample) {
  times_.Add(sample);
  if (++n_learnt_ % kPointsPerReference == 0) KVRUN_RETURN_IF_ERROR(Refer());
  return times_.Fit();
}

Status StepMeter::Refit() {
  KVRUN_RETURN_IF_ERROR(Refer());
  return times_.Fit();
}

Result<double> StepMeter::MeasureMs(const StepPoint& point) const {
  KVRUN_ASSIGN_OR_RETURN(const StepSample sample, Measure(point));
  return sample.step_ms;
}

Result<std::vector<CheckedPoint>> StepMeter::Check(std::span<const StepPoint> points, const Tell& tell) {
  std::vector<CheckedPoint> checks;
  std::vector<size_t> numbers;
  for (const StepPoint& point : points) {
    KVRUN_RETURN_IF_ERROR(tell(checks.size(), points.size()));
    Status referred = Refer();
    const Result<StepSample> sample = referred.ok() ? Measure(point) : Result<StepSample>(referred);
    if (sample.status().code() == StatusCode::kCancelled) {
      KVRUN_RETURN_IF_ERROR(tell(checks.size(), points.size()));
      break;
    }
    KVRUN_RETURN_IF_ERROR(sample.status());
    numbers.push_back(times_.Note());
    checks.push_back({.options = point.sized.options,
                      .repeated_share = point.repeated_share,
                      .sample = *sample,
                      .predicted_ms = Predict(sample->point).step_ms});
  }
  // The drift after the last; without time for it, that before it is all that is known.
  if (!checks.empty()) {
    const Status referred = Refer();
    if (referred.code() != StatusCode::kCancelled) KVRUN_RETURN_IF_ERROR(referred);
  }
  for (size_t i = 0; i < checks.size(); ++i) checks[i].slowness = times_.Slowness(numbers[i]);
  return checks;
}

}  // namespace kvrun::offline
