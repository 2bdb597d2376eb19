#include "platform/vulkan/select_device.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvrun {
namespace {

DeviceFacts Device(std::string name, DeviceType type, uint32_t minor = 3) {
  DeviceFacts facts;
  facts.name = std::move(name);
  facts.type = type;
  facts.api_version = (1u << 22) | (minor << 12);
  return facts;
}

const std::vector<DeviceFacts> kDesktop = {
    Device("llvmpipe (LLVM 15)", DeviceType::kCpu), Device("Intel UHD 630", DeviceType::kIntegratedGpu),
    Device("NVIDIA GeForce RTX 4090", DeviceType::kDiscreteGpu), Device("Virtio", DeviceType::kVirtualGpu)};

TEST(SelectDevice, AutoPrefersADiscreteGpuInAnyOrder) {
  for (const char* wanted : {"", "auto", "vulkan", "AUTO"}) {
    const auto choice = SelectDevice(kDesktop, wanted);
    ASSERT_TRUE(choice.ok());
    EXPECT_EQ(choice->index, 2u);
    EXPECT_TRUE(choice->note.empty());
  }
}

TEST(SelectDevice, AutoGoesDownTheKinds) {
  const auto integrated = SelectDevice(std::vector{kDesktop[0], kDesktop[3], kDesktop[1]}, "auto");
  EXPECT_EQ(integrated->index, 2u);
  const auto virtual_gpu = SelectDevice(std::vector{kDesktop[0], kDesktop[3]}, "auto");
  EXPECT_EQ(virtual_gpu->index, 1u);
}

TEST(SelectDevice, ACpuDriverOnlyIfAloneAndSaidSo) {
  const auto alone = SelectDevice(std::span(kDesktop).first(1), "auto");
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(alone->index, 0u);
  EXPECT_NE(alone->note.find("runs on the CPU"), std::string::npos);
  const auto asked_for = SelectDevice(kDesktop, "llvmpipe");
  ASSERT_TRUE(asked_for.ok());
  EXPECT_EQ(asked_for->index, 0u);
  EXPECT_NE(asked_for->note.find("runs on the CPU"), std::string::npos);
}

TEST(SelectDevice, AutoAvoidsDevicesThatAreTooOld) {
  const std::vector<DeviceFacts> devices = {Device("old", DeviceType::kDiscreteGpu, 0),
                                            Device("new", DeviceType::kCpu)};
  EXPECT_EQ(SelectDevice(devices, "auto")->index, 1u);
  EXPECT_EQ(SelectDevice(devices, "old")->index, 0u);
}

TEST(SelectDevice, ByIndexOrByPartOfTheName) {
  EXPECT_EQ(SelectDevice(kDesktop, "1")->index, 1u);
  EXPECT_EQ(SelectDevice(kDesktop, "geforce")->index, 2u);
  EXPECT_EQ(SelectDevice(kDesktop, "4090")->index, 2u);  // too large for an index, so a name
}

TEST(SelectDevice, NotFoundListsWhatThereIs) {
  const auto choice = SelectDevice(kDesktop, "mali");
  ASSERT_FALSE(choice.ok());
  EXPECT_EQ(choice.status().code(), StatusCode::kNotFound);
  for (const DeviceFacts& facts : kDesktop) {
    EXPECT_NE(choice.status().message().find(facts.name), std::string::npos);
  }
  EXPECT_FALSE(SelectDevice(kDesktop, "7").ok());
  const auto none = SelectDevice({}, "auto");
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.status().message().find("mesa-vulkan-drivers"), std::string::npos);
}

}  // namespace
}  // namespace kvrun
