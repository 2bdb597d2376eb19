#include "runtime/device/select/choose_device.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/device/select/open_host.h"

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

TEST(ChooseDevice, CpuIsTheHostAndGpuIsARealOne) {
  for (const char* name : {"cpu", "CPU", "host"}) {
    EXPECT_TRUE(IsHostName(name)) << name;
    EXPECT_EQ(ChooseDevice(kTwo, kCpu, name)->vulkan, std::nullopt) << name;
  }
  EXPECT_EQ(ChooseDevice(kTwo, kCpu, "gpu")->vulkan, 1U);
  EXPECT_EQ(ChoosePrefillDevice(kTwo, kCpu, "GPU")->vulkan, 1U);
  // A Vulkan driver for the CPU is none.
  for (const size_t n_vulkan : {size_t{0}, size_t{1}}) {
    const auto none = ChooseDevice(std::span(kTwo).first(n_vulkan), kCpu, "gpu");
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.status().code(), StatusCode::kNotFound);
    EXPECT_TRUE(none.status().message().starts_with(
        "no GPU was found: install its Vulkan driver, or compute on the CPU with --device cpu; the devices "
        "are: "))
        << none.status().message();
  }
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

DeviceFacts Recorded(const std::string& name) {
  const auto facts =
      LoadDeviceFacts(std::string(KVRUN_SOURCE_DIR) + "/tests/data/device_facts/" + name + ".json");
  EXPECT_TRUE(facts.ok()) << facts.status().message();
  return facts.ok() ? *facts : DeviceFacts{};
}

TEST(ChooseCandidates, TheBestOfVulkanWithWhatIsKnownOfIt) {
  const DeviceFacts phone = Recorded("mali_g710");
  DeviceFacts cpu_driver = phone;
  cpu_driver.type = DeviceType::kCpu;
  const AutoCandidates two = ChooseCandidates(std::vector{cpu_driver, phone}, "");
  ASSERT_TRUE(two.gpu.has_value());
  EXPECT_EQ(two.gpu->device, "1");
  EXPECT_EQ(two.gpu->name, phone.name);
  EXPECT_FALSE(two.gpu->runs_on_cpu);
  EXPECT_TRUE(two.gpu->has_unified_memory);
  const AutoCandidates one = ChooseCandidates(std::vector{cpu_driver}, "clamped to floor");
  ASSERT_TRUE(one.gpu.has_value());
  EXPECT_TRUE(one.gpu->runs_on_cpu);
  EXPECT_NE(one.gpu->driver, two.gpu->driver) << "the clamp is a part of it";
  const AutoCandidates discrete = ChooseCandidates(std::vector{Recorded("rtx_4090")}, "");
  ASSERT_TRUE(discrete.gpu.has_value());
  EXPECT_FALSE(discrete.gpu->has_unified_memory);
}

TEST(ChooseCandidates, ANewDriverIsAnother) {
  DeviceFacts facts = Recorded("mali_g710");
  const std::string before = ChooseCandidates(std::vector{facts}, "").gpu->driver;
  ++facts.driver_version;
  EXPECT_NE(ChooseCandidates(std::vector{facts}, "").gpu->driver, before);
}

TEST(ChooseCandidates, NoneWhereThereIsNoneOrItCannotBeUsed) {
  const AutoCandidates none = ChooseCandidates({}, "");
  EXPECT_FALSE(none.gpu.has_value());
  EXPECT_EQ(none.note, "");
  const AutoCandidates unusable = ChooseCandidates(kTwo, "");
  EXPECT_FALSE(unusable.gpu.has_value());
  EXPECT_NE(unusable.note.find("Some UHD Graphics"), std::string::npos) << unusable.note;
  EXPECT_NE(unusable.note.find("on the CPU itself"), std::string::npos) << unusable.note;
}

TEST(IsAutoName, NothingOrTheWord) {
  for (const char* name : {"", "auto", "AUTO"}) EXPECT_TRUE(IsAutoName(name)) << name;
  for (const char* name : {"autom", "host", "0", "vulkan"}) EXPECT_FALSE(IsAutoName(name)) << name;
}

TEST(ChoosePair, ThePrefillDeviceIsNamedFirst) {
  EXPECT_EQ(PrefillDeviceOfPair("vulkan+host").value(), "vulkan");
  EXPECT_EQ(PrefillDeviceOfPair("UHD graphics+HOST").value(), "UHD graphics");
  EXPECT_EQ(PrefillDeviceOfPair("1+host").value(), "1");
  EXPECT_EQ(PrefillDeviceOfPair("gpu+cpu").value(), "gpu");
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
    EXPECT_NE(message.find("\"gpu+cpu\""), std::string::npos) << message;
  }
  // The CPU itself, by its index, its name, and as there is no GPU.
  for (const char* cpu : {"2", "core i7", "auto"}) {
    const auto facts = std::string_view(cpu) == "auto" ? std::span(kTwo).first(1) : std::span(kTwo);
    const auto refused = ChoosePrefillDevice(facts, kCpu, cpu);
    ASSERT_FALSE(refused.ok()) << cpu;
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refused.status().message().find("not a pair"), std::string::npos) << refused.status().message();
  }
}

}  // namespace
}  // namespace kvrun
