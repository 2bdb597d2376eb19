// Which device is opened, of those of this machine.
#include "runtime/device/open_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>

#include "tests/support/or_die.h"

namespace kvrun::testing {
namespace {

constexpr const char* kHostDriver = "kvrun host";

TEST(OpenDevice, TheCpuByIndexAndByName) {
  const std::vector<DeviceListing> devices = OrDie(ListDevices());
  const DeviceListing& cpu = devices.back();
  ASSERT_EQ(cpu.driver, kHostDriver);
  ASSERT_GE(cpu.name.size(), 3U);
  for (const std::string& name : {std::to_string(cpu.index), cpu.name, std::string("host")}) {
    const auto device = OpenDevice({.device = name, .n_threads = 1});
    ASSERT_TRUE(device.ok()) << device.status().message();
    EXPECT_EQ((*device)->info().driver, kHostDriver) << name;
    EXPECT_EQ((*device)->info().name, cpu.name);
  }
}

TEST(OpenDevice, AutoIsTheCpuItselfWhereThereIsNoGpu) {
  const std::vector<DeviceListing> devices = OrDie(ListDevices());
  const bool has_gpu = std::any_of(devices.begin(), devices.end(),
                                   [](const DeviceListing& listing) { return listing.kind != "cpu"; });
  const auto device = OpenDevice({});
  ASSERT_TRUE(device.ok()) << device.status().message();
  EXPECT_EQ((*device)->info().driver != kHostDriver, has_gpu);
  if (devices.size() == 1) return;
  const auto vulkan = OpenDevice({.device = "vulkan"});
  ASSERT_TRUE(vulkan.ok()) << vulkan.status().message();
  EXPECT_NE((*vulkan)->info().driver, kHostDriver);
}

// The loader looks for drivers each time.
class WithoutDrivers : public ::testing::Test {
 protected:
  static constexpr const char* kVariables[] = {"VK_DRIVER_FILES", "VK_ICD_FILENAMES"};

  void SetUp() override {
    for (size_t i = 0; i < 2; ++i) {
      if (const char* value = std::getenv(kVariables[i]); value != nullptr) before_[i] = value;
      setenv(kVariables[i], "/dev/null", 1);
    }
  }
  void TearDown() override {
    for (size_t i = 0; i < 2; ++i) {
      if (before_[i])
        setenv(kVariables[i], before_[i]->c_str(), 1);
      else
        unsetenv(kVariables[i]);
    }
  }

 private:
  std::optional<std::string> before_[2];
};

TEST_F(WithoutDrivers, AutoIsTheCpuAndSaidSo) {
  const auto device = OpenDevice({.n_threads = 1});
  ASSERT_TRUE(device.ok()) << device.status().message();
  EXPECT_EQ((*device)->info().driver, kHostDriver);
  ASSERT_EQ((*device)->info().notes.size(), 1U);
  EXPECT_NE((*device)->info().notes[0].find("no GPU"), std::string::npos);
  const auto vulkan = OpenDevice({.device = "vulkan"});
  ASSERT_FALSE(vulkan.ok());
  EXPECT_EQ(vulkan.status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace kvrun::testing
