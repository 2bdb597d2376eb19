// The forward pass of methods whose KV lies in records: on flash with a selection in memory, or all in slots.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/offloaded/offloaded_prefill.h"
#include "runtime/engine/pass/forward_pass.h"
#include "runtime/engine/pass/step_probe.h"
#include "runtime/kv/math/adapter.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/serve/kv_stores.h"
#include "runtime/model/model.h"

namespace kvrun {

struct OffloadedPassOptions {
  KvPlan plan;
  KvStores stores;                   // none: the plan has slots for all groups
  std::unique_ptr<BlockFile> spill;  // for prompts that do not fit in memory; may be null where all do
  // Has computed the first n_import entries of sequence 0 (PrefillInMemory), for comparisons; may be null.
  ResidentForwardPass* import = nullptr;
  uint32_t n_import = 0;
  std::shared_ptr<StepProbe> probe;  // filled by steps of one sequence for which it is wanted; may be null
  std::shared_ptr<const Adapter> adapter;  // null: computed from the first prompt's keys and queries
};

Result<std::unique_ptr<ForwardPass>> CreateOffloadedPass(const Model& model,
                                                         std::shared_ptr<const DeviceWeights> weights,
                                                         Device& device, OffloadedPassOptions options);

}  // namespace kvrun
