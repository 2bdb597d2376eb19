// How long a device takes for a layer of a decoded token, where it decides how much of the KV is read
// meanwhile.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/pass/forward_pass.h"
#include "runtime/model/model.h"

namespace kvrun {

// What is kept of it (compute_time_file.h), else measured when it is asked for first, with the weights that
// are loaded and hardly any KV. One thread at a time, which has the device.
class LayerTime {
 public:
  // The model and the device must outlive it.
  LayerTime(const Model& model, std::shared_ptr<const DeviceWeights> weights, Device& device)
      : model_(model), weights_(std::move(weights)), device_(device) {}

  // The least of some steps: what else runs on the machine only makes them longer. Nothing where the device
  // fails, which the session that follows will say. `version`: of kvrun; empty: it is kept nowhere.
  std::optional<double> Microseconds(const std::string& version);
  const DeviceInfo& device() const { return device_.info(); }

 private:
  Result<double> Measure() const;

  const Model& model_;
  std::shared_ptr<const DeviceWeights> weights_;
  Device& device_;
  bool is_asked_ = false;
  std::optional<double> microseconds_;
};

}  // namespace kvrun
