#include "offline/step_times.h"

namespace kvrun::offline {

size_t StepTimes::Note() {
  steady_.Note();
  return n_noted_++;
}

std::vector<StepSample> StepTimes::SteadySamples() const {
  std::vector<StepSample> steady;
  for (const auto& [number, sample] : samples_) {
    steady.push_back(sample);
    steady.back().step_ms /= Slowness(number);
  }
  return steady;
}

Status StepTimes::Fit() {
  KVRUN_ASSIGN_OR_RETURN(model_, TimeModel::Fit(SteadySamples(), storage_));
  return Status::Ok();
}

}  // namespace kvrun::offline
