// Opens devices, models and forward passes for tests that need a driver.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/device/open_device.h"
#include "runtime/engine/pass/forward_pass.h"
#include "runtime/include/kvrun/kvrun.h"
#include "runtime/model/model.h"

namespace kvrun::testing {

// What $KVRUN_DEVICE (default "auto"), $KVRUN_THREADS and $KVRUN_EXACT_ACTIVATIONS say, as the program reads
// them, but activations are exact by default: results are compared with references. The second points to the
// environment.
OpenDeviceOptions DeviceOptionsHere();
kvrun_engine_options EngineOptionsHere();

// The device that they say; null where there is none, and the test should skip.
Device* SharedDevice();

struct LoadedModel {
  Device* device = nullptr;
  std::unique_ptr<Model> model;
  std::shared_ptr<const DeviceWeights> weights;

  std::unique_ptr<ForwardPass> NewPass(const ForwardPassOptions& options) const;
};
// On the shared device, where none is given; one that is must outlive it.
LoadedModel LoadModelOrDie(const std::string& path, Device* device = nullptr);

// Feeds ids to one sequence in chunks and answers the logits of the last `last` positions, [last, n_vocab].
std::vector<float> LogitsOf(ForwardPass& pass, std::span<const int> ids, size_t last, uint32_t sequence = 0);

// How two sets of logits differ.
struct LogitsDifference {
  double max_absolute = 0.0;
  double mean_kl = 0.0;   // KL(reference || ours), nats
  size_t wrong_top1 = 0;  // where the reference's margin exceeds 0.05
};
LogitsDifference CompareLogits(std::span<const float> reference, std::span<const float> ours, size_t n_vocab);

}  // namespace kvrun::testing
