// Makes the parts that a method's row names: the only place that knows which class each kind is.
#pragma once

#include <cstdint>
#include <memory>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/adapter.h"
#include "runtime/kv/kv_index.h"
#include "runtime/kv/kv_plan.h"
#include "runtime/kv/kv_selector.h"

namespace kvrun {

// Null: the method has none. The plan must outlive the parts. `adapter`: of a file, for an index that learns;
// null: it learns by itself.
Result<std::unique_ptr<KvIndex>> MakeIndex(Device& device, const KvPlan& plan, uint32_t n_layers,
                                           const Adapter* adapter);
// Null: a step attends to everything.
std::unique_ptr<KvSelector> MakeSelector(Device& device, const KvPlan& plan, uint32_t n_layers);

}  // namespace kvrun
