// How much each layer's selection matters: the KL to all KV in memory where that layer alone attends to a few
// entries, and the shares of slots that follow from it. Source: none; that layers differ by a factor of
// hundreds was measured (docs/measurements/reading.md).
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/engine/session/session.h"
#include "runtime/kv/planner/kv_options.h"
#include "runtime/model/model.h"

namespace kvrun {

// Of one of many like it: what a cut costs falls with about the entries to the power of -0.9 and more, so
// that shares by a power of 0.4 of the KL lower their sum; each from a third to three times the mean,
// as a KL of few tokens is uncertain. Then they are scaled so that their mean is 1. Layers whose cut costs
// nothing: all 1.
std::vector<float> SharesOf(std::span<const double> kls);

struct SensitivityOptions {
  uint32_t n_ctx = 0;  // tokens of the text that are used; at least 8 * n_steps
  uint32_t n_steps = 0;
  uint32_t select_entries = 0;  // of the layer that is cut
  uint32_t rank = 0;
  KvStorageOptions storage;  // its adapter's file chooses
};

// [n_layers], nats, less what there is without a cut. `progress`: in tokens; asked under the mutex. Writes a
// cache of n_ctx tokens to flash for each layer.
Result<std::vector<double>> MeasureSensitivity(const Model& model,
                                               std::shared_ptr<const DeviceWeights> weights, Device& device,
                                               std::mutex* device_mutex, std::span<const TokenId> ids,
                                               const SensitivityOptions& options,
                                               const ProgressCallback& progress);
// What `progress` counts to.
uint64_t SensitivitySteps(const SensitivityOptions& options, uint32_t n_layers);

}  // namespace kvrun
