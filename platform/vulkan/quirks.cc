#include "platform/vulkan/quirks.h"

#include <volk.h>

#include <algorithm>
#include <cctype>

namespace kvrun {
namespace {

constexpr uint32_t kQualcomm = 0x5143;
constexpr uint32_t kArm = 0x13b5;
constexpr uint32_t kAnyVersion = 0xffffffff;

bool ContainsIgnoringCase(std::string_view text, std::string_view part) {
  const auto same = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
  };
  return std::search(text.begin(), text.end(), part.begin(), part.end(), same) != text.end();
}

}  // namespace

// Driver ranges are open where the reports name no version that is free of the bug.
const std::vector<Quirk>& AllQuirks() {
  static const std::vector<Quirk> quirks = {
      {"adreno-825-int8-dot", "int8 unpack and dot product give wrong numbers", kQualcomm, "Adreno (TM) 825",
       VK_DRIVER_ID_QUALCOMM_PROPRIETARY, 0, kAnyVersion, kQuirkNoIntegerDot,
       "public test log of Adreno 825"},
      {"adreno-830-many-columns", "matrix-vector pipelines with three or more output columns fail", kQualcomm,
       "Adreno (TM) 830", VK_DRIVER_ID_QUALCOMM_PROPRIETARY, 0, kAnyVersion, kQuirkFewAccumulators,
       "public test log of Adreno 830"},
      {"adreno-840-spec-sized-shared",
       "wrong results with shared arrays sized by specialisation constants and gl_SubgroupInvocationID",
       kQualcomm, "Adreno (TM) 840", VK_DRIVER_ID_QUALCOMM_PROPRIETARY, 0, kAnyVersion,
       kQuirkLiteralSharedSizes | kQuirkNoSubgroupInvocationId, "ncnn #6972"},
      {"adreno-660-host-import", "external_memory_host is reported, then the driver crashes", kQualcomm,
       "Adreno (TM) 660", VK_DRIVER_ID_QUALCOMM_PROPRIETARY, 0, kAnyVersion, kQuirkNoExternalMemoryHost,
       "portability notes, Adreno 660"},
      {"adreno-long-dispatch", "large dispatches lose the device", kQualcomm, "Adreno",
       VK_DRIVER_ID_QUALCOMM_PROPRIETARY, 0, kAnyVersion, kQuirkSplitSubmits, "llama.cpp #12139, #8743"},
      {"mali-shared-memory", "shared memory is slower than the cache (94 against 180 GB/s on G710)", kArm,
       "Mali", VK_DRIVER_ID_ARM_PROPRIETARY, 0, kAnyVersion, kQuirkSharedMemorySlow,
       "portability notes, Mali G710"},
  };
  return quirks;
}

std::vector<const Quirk*> FindQuirks(const DeviceFacts& facts) {
  std::vector<const Quirk*> found;
  for (const Quirk& quirk : AllQuirks()) {
    if (quirk.vendor_id != facts.vendor_id) continue;
    if (!ContainsIgnoringCase(facts.name, quirk.device_name_part)) continue;
    if (quirk.driver_id != 0 && facts.driver_id != 0 && quirk.driver_id != facts.driver_id) continue;
    if (facts.driver_version < quirk.first_driver_version) continue;
    if (facts.driver_version > quirk.last_driver_version) continue;
    found.push_back(&quirk);
  }
  return found;
}

}  // namespace kvrun
