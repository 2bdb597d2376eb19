// Devices of a kvrun that was built with KVRUN_VULKAN=OFF; other builds leave this file out.
#include <gtest/gtest.h>

#include "runtime/device/open_device.h"

namespace kvrun {
namespace {

TEST(WithoutVulkan, TheCpuIsAllThereIs) {
  const auto devices = ListDevices();
  ASSERT_TRUE(devices.ok()) << devices.status().message();
  ASSERT_EQ(devices->size(), 1U);
  EXPECT_EQ(devices->front().kind, "cpu");
  for (const std::string& name :
       {std::string("cpu"), std::string(), std::string("auto"), std::string("0"), devices->front().name}) {
    const auto device = OpenDevice({.device = name, .n_threads = 1});
    EXPECT_TRUE(device.ok()) << name << ": " << device.status().message();
  }
  const auto candidates = FindAutoCandidates({.n_threads = 3});
  ASSERT_TRUE(candidates.ok());
  EXPECT_FALSE(candidates->gpu);
  EXPECT_EQ(candidates->n_threads, 3U);
}

TEST(WithoutVulkan, WhatNeedsItIsRefused) {
  for (const char* name : {"vulkan", "GPU", "gpu+cpu", "NVIDIA+host"}) {
    const auto device = OpenDevice({.device = name});
    ASSERT_FALSE(device.ok()) << name;
    EXPECT_EQ(device.status().code(), StatusCode::kUnsupported);
    EXPECT_NE(device.status().message().find("KVRUN_VULKAN"), std::string::npos) << device.status().message();
    EXPECT_FALSE(RunDoctor(name, {}).ok());
  }
  for (const char* name : {"1", "-1", "no such processor"}) {
    const auto device = OpenDevice({.device = name});
    ASSERT_FALSE(device.ok()) << name;
    EXPECT_EQ(device.status().code(), StatusCode::kNotFound);
  }
}

}  // namespace
}  // namespace kvrun
