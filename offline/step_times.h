// What is known of how long steps take on this machine now: measured ones, freed of the machine's drift, and
// a TimeModel that is fitted to them. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "offline/device_profile.h"
#include "offline/step_sampler.h"
#include "offline/time_model.h"
#include "platform/base/status.h"

namespace kvrun::offline {

class StepTimes {
 public:
  explicit StepTimes(const StorageProfile& storage) : storage_(storage) {}

  // The reference point (SteadyClock), measured once more: every few measurements, and after the last.
  void Refer(double reference_ms) { steady_.Refer(reference_ms); }
  // Something is measured now; its number for Slowness, from 0.
  size_t Note();
  // What Fit fits: as it was measured just now.
  void Add(const StepSample& sample) { samples_.emplace_back(Note(), sample); }
  double Slowness(size_t number) const { return steady_.Slowness(number); }

  // To all that was added until now. Fails as TimeModel::Fit does.
  Status Fit();
  // After the first Fit.
  const TimeModel& model() const { return *model_; }
  // What was added, at the machine's usual speed.
  std::vector<StepSample> SteadySamples() const;

 private:
  StorageProfile storage_;
  SteadyClock steady_;
  size_t n_noted_ = 0;
  std::vector<std::pair<size_t, StepSample>> samples_;
  std::optional<TimeModel> model_;
};

}  // namespace kvrun::offline
