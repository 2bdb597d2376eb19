// Driver bugs that change a plan, as one table of named symptoms.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "platform/vulkan/device_facts.h"

namespace kvrun {

enum QuirkEffect : uint32_t {
  kQuirkNoIntegerDot = 1u << 0,            // no int8 arithmetic, no dot product of packed bytes
  kQuirkNoExternalMemoryHost = 1u << 1,    // never import host memory
  kQuirkFewAccumulators = 1u << 2,         // at most two output columns per invocation
  kQuirkLiteralSharedSizes = 1u << 3,      // no shared array sized by a specialisation constant
  kQuirkNoSubgroupInvocationId = 1u << 4,  // lane from gl_LocalInvocationIndex
  kQuirkSplitSubmits = 1u << 5,            // short dispatches, several submits per token
  kQuirkSharedMemorySlow = 1u << 6,        // cache beats shared memory
  kQuirkNoSubgroups = 1u << 7,
};

struct Quirk {
  std::string_view name;
  std::string_view symptom;
  uint32_t vendor_id;
  std::string_view device_name_part;  // matched without regard to case; empty: every device of the vendor
  uint32_t driver_id;                 // VkDriverId; 0: any. Drivers that give no id match too.
  uint32_t first_driver_version;      // inclusive, as the driver packs it
  uint32_t last_driver_version;       // inclusive
  uint32_t effects;                   // QuirkEffect bits
  std::string_view source;
};

// The whole table, for `doctor` and the documentation.
const std::vector<Quirk>& AllQuirks();

std::vector<const Quirk*> FindQuirks(const DeviceFacts& facts);

}  // namespace kvrun
