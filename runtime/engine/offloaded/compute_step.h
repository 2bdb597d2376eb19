// Carries out a recorded decode step: all of it is submitted ahead, and what is chosen is served while the
// device computes.
#pragma once

#include <cstdint>
#include <span>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/pass/step_recorder.h"
#include "runtime/kv/serve/kv_thread.h"
#include "runtime/kv/serve/step_records.h"

namespace kvrun {

// `caches`: of the step's rows, after BeginStep of each; none where all KV lies in memory as it is. `thread`:
// serves them where they are on flash, else null.
Status ComputeStep(Device& device, const StepLists& lists, const StepForm& form,
                   std::span<StepRecords* const> caches, KvThread* thread);

}  // namespace kvrun
