// How long a candidate's steps take, measured and predicted: steps on an engine between runs of a reference
// point, which tell the machine's drift, and the TimeModel that is fitted to them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "offline/step_sampler.h"
#include "offline/step_times.h"
#include "platform/base/status.h"
#include "runtime/engine/engine.h"
#include "runtime/kv/planner/kv_options.h"

namespace kvrun::offline {

// A point that no model was fitted to.
struct CheckedPoint {
  NamedKvOptions options;
  double repeated_share = 0.0;  // of chosen groups, those of the step before
  StepSample sample;            // as it was measured
  double slowness = 1.0;        // how much slower than while steps were sampled the machine was around it
  double predicted_ms = 0.0;
};

struct StepMeterOptions {
  KvStorageOptions kv_storage;
  StorageProfile storage;
  // Reads nothing where its repeated_share is 1: what is compared is how fast the machine computes just then.
  StepPoint reference;
  std::function<bool()> is_cancelled;  // asked at each step; kCancelled where it says so
};

// Sampling ends after `seconds` where `n_wanted` are measured, and after most_seconds where n_least are.
struct SampleLimits {
  size_t n_least = 0;
  size_t n_wanted = 0;
  double seconds = 0.0;
  double most_seconds = 0.0;
};

class StepMeter {
 public:
  // What is done, of how much. What it fails with ends the measuring.
  using Tell = std::function<Status(uint64_t done, uint64_t total)>;

  // `engine`: outlives this.
  StepMeter(Engine& engine, StepMeterOptions options);

  // Measures points in their order and fits the model to them; tells their number. To be called before
  // everything below.
  Status Sample(std::span<const StepPoint> points, const SampleLimits& limits, const Tell& tell);
  // One more sample, as it was measured just now.
  Status Learn(const StepSample& sample);
  // After the last of some Learns: their drift is known from both sides then.
  Status Refit();

  Result<double> MeasureMs(const StepPoint& point) const;
  PredictedTime Predict(const TimePoint& point) const { return times_.model().Predict(point); }
  // Fewer where is_cancelled ends it, and `tell` does not.
  Result<std::vector<CheckedPoint>> Check(std::span<const StepPoint> points, const Tell& tell);
  const StepTimes& times() const { return times_; }

 private:
  Result<StepSample> Measure(const StepPoint& point) const;
  Status Refer();

  Engine& engine_;
  StepMeterOptions options_;
  StepTimes times_;
  uint64_t n_learnt_ = 0;
};

}  // namespace kvrun::offline
