// The CPU as a device, opened: that needs neither a loader nor a driver.
#include <gtest/gtest.h>

#include "runtime/device/open_device.h"

namespace kvrun {
namespace {

TEST(OpenHost, OptionsReachTheDevice) {
  const auto device = OpenDevice({.device = "Host", .n_threads = 3});
  ASSERT_TRUE(device.ok()) << device.status().message();
  const DeviceInfo& info = (*device)->info();
  EXPECT_EQ(info.kind, "cpu");
  EXPECT_EQ(info.driver, "kvrun host");
  EXPECT_TRUE(info.is_cpu);
  EXPECT_TRUE(info.notes.empty()) << info.notes[0];
  EXPECT_NE(info.plan.find("3 threads"), std::string::npos) << info.plan;
  EXPECT_NE(info.plan.find("activations of 8 bits"), std::string::npos) << info.plan;
  const auto exact = OpenDevice({.device = "host", .n_threads = 1, .exact_activations = true});
  ASSERT_TRUE(exact.ok()) << exact.status().message();
  EXPECT_NE((*exact)->info().plan.find("1 thread,"), std::string::npos) << (*exact)->info().plan;
  EXPECT_NE((*exact)->info().plan.find("float activations"), std::string::npos);
}

TEST(OpenHost, TooManyThreadsAreRefused) {
  const auto device = OpenDevice({.device = "host", .n_threads = kMaxThreads + 1});
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(device.status().message().find("1025"), std::string::npos) << device.status().message();
}

}  // namespace
}  // namespace kvrun
