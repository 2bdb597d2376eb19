// The devices whose facts are in tests/data/device_facts.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "platform/vulkan/device_facts.h"
#include "platform/vulkan/device_plan.h"

namespace kvrun::testing {

inline constexpr const char* kDevices[] = {
    "adreno_620",    "adreno_660",        "adreno_740",    "adreno_750",       "adreno_830",
    "adreno_840",    "turnip_adreno_740", "mali_g57",      "mali_g710",        "mali_g715",
    "mali_g720",     "panvk_mali_g610",   "jetson_orin",   "jetson_orin_nano", "raspberry_pi_5_v3d",
    "intel_iris_xe", "intel_rpl_s",       "intel_uhd_630", "radeon_780m",      "radeon_rx_6700_xt",
    "rtx_4090"};

inline DeviceFacts RecordedFacts(const std::string& name) {
  auto facts = LoadDeviceFacts(std::string(KVRUN_SOURCE_DIR) + "/tests/data/device_facts/" + name + ".json");
  EXPECT_TRUE(facts.ok()) << facts.status().message();
  return facts.ok() ? *facts : DeviceFacts{};
}

inline DevicePlan PlanOfFacts(const DeviceFacts& facts) {
  auto plan = PlanDevice(facts, {});
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return plan.ok() ? *plan : DevicePlan{};
}

}  // namespace kvrun::testing
