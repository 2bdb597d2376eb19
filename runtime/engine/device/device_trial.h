// How fast a device computes a model, tried with the engine's own operations on the model's own weights.
#pragma once

#include <cstdint>
#include <functional>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/device/device_times.h"
#include "runtime/model/model.h"

namespace kvrun {

struct TrialOptions {
  // For what is repeated, but every step is taken three times if that is done in three times the budget. A
  // step once begun is finished: a device on which the first ones take longer is measured by them alone.
  double budget_seconds = 1.0;
  std::function<bool()> is_cancelled;  // asked between steps; may be empty
};

// Computes the first layers (two, or more where they are small) and half of them, and a part of the output
// matrix, with resident KV: single tokens at position 256, and a chunk of a prompt. The difference, times the
// layers that were left out; the output by its rows. Loads no more weights than that, and gives all back.
Result<DeviceTimes> MeasureDevice(const Model& model, Device& device, const TrialOptions& options);

// Of the weights that MeasureDevice loads.
uint64_t TrialBytes(const Model& model);

}  // namespace kvrun
