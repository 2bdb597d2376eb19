#include "runtime/device/select/choose_device.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvrun {
namespace {

constexpr const char* kCpu = "Some(R) Core i7-1165G7 @ 2.80GHz";

DeviceFacts Facts(std::string name, DeviceType type) {
  DeviceFacts facts;
  facts.name = std::move(name);
  facts.type = type;
  facts.api_version = (1u << 22) | (3u << 12);
  return facts;
}

const std::vector<DeviceFacts> kTwo = {Facts("llvmpipe (LLVM 15)", DeviceType::kCpu),
                                       Facts("Some UHD Graphics", DeviceType::kIntegratedGpu)};

TEST(ChooseDevice, AutoIsVulkanWhereItHasAGpu) {
  for (const char* wanted : {"", "auto", "vulkan", "AUTO", "Vulkan"}) {
    const auto choice = ChooseDevice(kTwo, kCpu, wanted);
    ASSERT_TRUE(choice.ok()) << wanted;
    EXPECT_EQ(choice->vulkan, 1U) << wanted;
  }
  const auto driver_for_cpus = ChooseDevice(std::span(kTwo).first(1), kCpu, "vulkan");
  ASSERT_TRUE(driver_for_cpus.ok());
  EXPECT_EQ(driver_for_cpus->vulkan, 0U);
}

TEST(ChooseDevice, AutoIsTheCpuWhereVulkanHasNoGpu) {
  for (const char* wanted : {"", "auto", "Auto"}) {
    for (const size_t n_vulkan : {size_t{0}, size_t{1}}) {
      const auto choice = ChooseDevice(std::span(kTwo).first(n_vulkan), kCpu, wanted);
      ASSERT_TRUE(choice.ok()) << wanted;
      EXPECT_FALSE(choice->vulkan.has_value());
      EXPECT_NE(choice->note.find("no GPU"), std::string::npos);
      EXPECT_NE(choice->note.find("CPU"), std::string::npos);
    }
  }
  EXPECT_EQ(ChooseDevice({}, kCpu, "vulkan").status().code(), StatusCode::kNotFound);
}

TEST(ChooseDevice, TheCpuByWordIndexOrName) {
  for (const char* wanted : {"host", "HOST", "2", "core i7", "2.80ghz"}) {
    const auto choice = ChooseDevice(kTwo, kCpu, wanted);
    ASSERT_TRUE(choice.ok()) << wanted;
    EXPECT_FALSE(choice->vulkan.has_value()) << wanted;
    EXPECT_EQ(choice->note, "") << "it was asked for";
  }
  EXPECT_FALSE(ChooseDevice({}, kCpu, "0")->vulkan.has_value());
}

TEST(ChooseDevice, VulkansDevicesComeFirst) {
  EXPECT_EQ(ChooseDevice(kTwo, kCpu, "some")->vulkan, 1U);
  EXPECT_EQ(ChooseDevice(kTwo, kCpu, "1")->vulkan, 1U);
  EXPECT_EQ(ChooseDevice(kTwo, kCpu, "llvm")->vulkan, 0U);
}

// "1165", "7" and "-1" are in the CPU's name.
TEST(ChooseDevice, AnIndexThatIsNotThereIsNoName) {
  for (const char* wanted : {"3", "7", "1165", "-1", "mali"}) {
    for (const size_t n_vulkan : {size_t{0}, size_t{2}}) {
      const auto choice = ChooseDevice(std::span(kTwo).first(n_vulkan), kCpu, wanted);
      ASSERT_FALSE(choice.ok()) << wanted;
      EXPECT_EQ(choice.status().code(), StatusCode::kNotFound);
      const std::string& message = choice.status().message();
      EXPECT_NE(message.find(std::string("\"") + wanted + "\""), std::string::npos) << message;
      EXPECT_NE(message.find(std::to_string(n_vulkan) + ": " + kCpu), std::string::npos) << message;
      EXPECT_EQ(message.find("llvmpipe") != std::string::npos, n_vulkan == 2) << message;
    }
  }
}

TEST(ChoosePair, ThePrefillDeviceIsNamedFirst) {
  EXPECT_EQ(PrefillDeviceOfPair("vulkan+host").value(), "vulkan");
  EXPECT_EQ(PrefillDeviceOfPair("UHD graphics+HOST").value(), "UHD graphics");
  EXPECT_EQ(PrefillDeviceOfPair("1+host").value(), "1");
  for (const char* one : {"", "auto", "vulkan", "host", "1", "UHD"}) {
    const auto none = PrefillDeviceOfPair(one);
    ASSERT_TRUE(none.ok()) << one;
    EXPECT_FALSE(none->has_value()) << one;
  }
  EXPECT_EQ(ChoosePrefillDevice(kTwo, kCpu, "vulkan")->vulkan, 1U);
  EXPECT_EQ(ChoosePrefillDevice(kTwo, kCpu, "llvm")->vulkan, 0U);
  EXPECT_EQ(ChoosePrefillDevice(kTwo, kCpu, "nosuch").status().code(), StatusCode::kNotFound);
}

TEST(ChoosePair, OthersAreRefusedWithOneMessage) {
  for (const char* wanted : {"host+vulkan", "host+host", "vulkan+vulkan", "vulkan+", "+host", "+",
                             "vulkan+host+host", "vulkan+host+", "vulkan + host"}) {
    const auto refused = PrefillDeviceOfPair(wanted);
    ASSERT_FALSE(refused.ok()) << wanted;
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    const std::string& message = refused.status().message();
    EXPECT_NE(message.find(std::string("\"") + wanted + "\""), std::string::npos) << message;
    EXPECT_NE(message.find("\"vulkan+host\""), std::string::npos) << message;
  }
  // The CPU itself, by its index, its name, and as there is no GPU.
  for (const char* cpu : {"2", "core i7", "auto"}) {
    const auto facts = std::string_view(cpu) == "auto" ? std::span(kTwo).first(1) : std::span(kTwo);
    const auto refused = ChoosePrefillDevice(facts, kCpu, cpu);
    ASSERT_FALSE(refused.ok()) << cpu;
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refused.status().message().find("no pair"), std::string::npos) << refused.status().message();
  }
}

}  // namespace
}  // namespace kvrun
