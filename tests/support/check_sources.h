// Attention over slots of several sources, against the scalar reference.
#pragma once

#include <span>

#include "runtime/device/device.h"
#include "tests/support/slot_attention_cases.h"

namespace kvrun::testing {

// Attention of c to all of `sources`, of which those without slots have no data.
void CheckSources(Device& device, const SlotCase& c, std::span<const SlotShape> shapes,
                  std::span<const SlotData> sources, bool uneven = false);

}  // namespace kvrun::testing
