#include "tests/support/operations_fixture.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "runtime/device/host/host_device.h"
#include "runtime/device/select/make_pair.h"
#include "runtime/device/vulkan/kernel_plan.h"
#include "runtime/device/vulkan/score_plan.h"
#include "runtime/device/vulkan/shader_library.h"
#include "tests/support/or_die.h"
#include "tests/support/vulkan_devices.h"

namespace kvrun::testing {
namespace {

float PoisonFloat() {
  float value = 0.0F;
  std::memcpy(&value, &kPoison, sizeof(value));
  return value;
}

bool EnvironmentAsksForFloor() {
  const char* clamp = std::getenv("KVRUN_DEVICE_CLAMP");
  return clamp != nullptr && std::string_view(clamp).find("floor") != std::string_view::npos;
}

std::unique_ptr<Device> OpenHost(uint32_t n_threads) {
  return OrDie(host::HostDevice::Create({.n_threads = n_threads, .exact_activations = true, .note = {}}));
}

const std::vector<host::InstructionSet>& Sets() {
  static const std::vector<host::InstructionSet> sets = host::InstructionSets();
  return sets;
}

// The instruction set of a mode of the CPU.
const host::InstructionSet& SetOf(DeviceMode mode) {
  const int n_better = static_cast<int>(mode) - static_cast<int>(DeviceMode::kLesserSet) + 1;
  return Sets()[static_cast<size_t>(std::max(n_better, 0))];
}

std::vector<uint32_t> ThreadsOf(DeviceMode mode) {
  if (mode == DeviceMode::kHost) return {0};
  if (mode == DeviceMode::kHostThreads) return {kUnevenThreads};
  return {1, kUnevenThreads};
}

std::vector<std::unique_ptr<VulkanComputeDevice>> OpenVulkan(DeviceMode mode) {
  const bool floor = mode == DeviceMode::kFloor || mode == DeviceMode::kGpuFloor;
  std::vector<std::unique_ptr<VulkanComputeDevice>> devices;
  if (floor && EnvironmentAsksForFloor()) return devices;
  const auto change = [mode](DeviceFacts& facts, DevicePlan& plan) {
    const bool as_gpu = mode == DeviceMode::kGpu || mode == DeviceMode::kGpuFloor;
    if (as_gpu && facts.type == DeviceType::kCpu) facts.type = DeviceType::kIntegratedGpu;
    if (as_gpu || mode == DeviceMode::kNoTexels) plan.max_texels = 0;
    if (mode == DeviceMode::kSmallBuffers) plan.max_binding_bytes = kSmallBufferBytes;
  };
  for (auto& vulkan : OpenTestDevices(floor ? "floor" : "", change)) {
    auto device = VulkanComputeDevice::Create(std::move(vulkan), false, "");
    EXPECT_TRUE(device.ok()) << device.status().message();
    if (device.ok()) devices.push_back(std::move(device).value());
  }
  return devices;
}

std::vector<std::unique_ptr<Device>> OpenPairs() {
  std::vector<std::unique_ptr<Device>> pairs;
  for (auto& vulkan : OpenVulkan(DeviceMode::kPlanned)) {
    auto pair =
        MakePair(std::move(vulkan), OrDie(host::HostDevice::Create({.exact_activations = true, .note = {}})),
                 kPairDecodeRows);
    EXPECT_TRUE(pair.ok()) << pair.status().message();
    if (pair.ok()) pairs.push_back(std::move(pair).value());
  }
  return pairs;
}

// Owns the devices, and asks in the end which variants ran on them.
class OpenDevices : public ::testing::Environment {
 public:
  std::vector<Device*> Get(DeviceMode mode) {
    std::vector<Device*> devices;
    if (IsHost(mode)) {
      std::vector<std::unique_ptr<Device>>& opened = host_devices_[mode];
      if (opened.empty()) {
        for (const uint32_t n_threads : ThreadsOf(mode)) opened.push_back(OpenHost(n_threads));
      }
      for (const auto& device : opened) devices.push_back(device.get());
      return devices;
    }
    if (mode == DeviceMode::kPair) {
      if (!pairs_) pairs_ = OpenPairs();
      for (const auto& pair : *pairs_) devices.push_back(pair.get());
      return devices;
    }
    const auto [entry, is_new] = devices_.try_emplace(mode);
    if (is_new) entry->second = OpenVulkan(mode);
    for (const auto& device : entry->second) devices.push_back(device.get());
    return devices;
  }

  void TearDown() override {
    if (!devices_.empty() && ::testing::GTEST_FLAG(filter) == "*") ExpectEveryVariantRan();
    devices_.clear();
    host_devices_.clear();
    pairs_.reset();
  }

 private:
  void ExpectEveryVariantRan() const {
    std::set<std::string> used;
    uint32_t lanes = 0;
    uint32_t most_buffers = 0;
    bool has_cpu = false;
    bool has_texels = false;
    bool projects = false;
    for (const auto& [mode, devices] : devices_) {
      for (const auto& device : devices) {
        used.merge(device->pipelines().UsedVariants());
        lanes = std::max(lanes, device->plan().subgroup_width);
        most_buffers = std::max(most_buffers, device->plan().max_storage_buffers);
        has_cpu = has_cpu || device->is_cpu();
        has_texels = has_texels || device->plan().max_texels != 0;
        projects = projects || MayProjectInScores(device->plan(), device->is_cpu());
      }
    }
    if (used.empty()) return;  // no driver
    for (const ShaderCode& shader : AllShaders()) {
      const std::string name(shader.name);
      if (name.starts_with("fill_") || name.find("_rate_") != std::string::npos) continue;  // no operations
      const bool is_subgroup = name.find("_subgroup") != std::string::npos;
      if (is_subgroup && lanes == 0) continue;
      if (name.starts_with("attend") && is_subgroup && lanes < 8) continue;
      if (name.starts_with("attend_sources") && most_buffers < kAttendSourcesBuffers) continue;
      if (name.ends_with("_texel") && !has_texels) continue;
      if (name.starts_with("matvec_") && name.ends_with("_subgroup") && has_texels) continue;  // CPUs without
      if (name.starts_with("matvec_") && !has_cpu) continue;  // chosen for CPUs only
      if (name.starts_with("project_score_") && !projects) continue;
      EXPECT_TRUE(used.contains(name)) << name << " was run by no test";
    }
  }

  std::map<DeviceMode, std::vector<std::unique_ptr<VulkanComputeDevice>>> devices_;  // Vulkan's
  std::map<DeviceMode, std::vector<std::unique_ptr<Device>>> host_devices_;
  std::optional<std::vector<std::unique_ptr<Device>>> pairs_;
};

OpenDevices* const open_devices =
    static_cast<OpenDevices*>(::testing::AddGlobalTestEnvironment(new OpenDevices));

// Of the mode's devices; the host has none, and must do without an instance.
uint64_t ValidationMessages(DeviceMode mode) {
  return IsHost(mode) ? 0 : TestInstance()->validation_messages();
}

}  // namespace

bool IsHost(DeviceMode mode) { return mode >= DeviceMode::kHost; }

std::vector<DeviceMode> HostModes() {
  std::vector<DeviceMode> modes = {DeviceMode::kHost, DeviceMode::kHostThreads};
  for (size_t i = 1; i < Sets().size(); ++i) {
    modes.push_back(static_cast<DeviceMode>(static_cast<size_t>(DeviceMode::kLesserSet) + i - 1));
  }
  return modes;
}

std::vector<DeviceMode> ModesOf(Operations operations, std::vector<DeviceMode> vulkan_modes) {
  if (std::find(kHostOperations.begin(), kHostOperations.end(), operations) != kHostOperations.end()) {
    vulkan_modes.push_back(DeviceMode::kPair);
    std::vector<DeviceMode> host_modes = HostModes();
    // tests/unit/host_matmul_test.cc does matrix products with each instruction set, rounded too.
    if (operations == Operations::kMatMul) host_modes = {DeviceMode::kHost, DeviceMode::kHostThreads};
    vulkan_modes.insert(vulkan_modes.end(), host_modes.begin(), host_modes.end());
  }
  return vulkan_modes;
}

std::vector<Device*> DevicesOf(DeviceMode mode) { return open_devices->Get(mode); }

const VulkanComputeDevice* AsVulkan(const Device& device) {
  return dynamic_cast<const VulkanComputeDevice*>(&device);
}

host::HostDevice* AsHost(Device& device) { return dynamic_cast<host::HostDevice*>(&device); }

bool RoundsActivations(Device& device) {
  const host::HostDevice* host = AsHost(device);
  return host != nullptr && !host->exact_activations();
}

void OperationsTest::SetUp() {
  if (GetParam() >= DeviceMode::kLesserSet) chosen_set_.emplace(SetOf(GetParam()));
  devices_ = DevicesOf(GetParam());
  if (devices_.empty()) GTEST_SKIP() << "no Vulkan device, or the floor is tested anyway";
  messages_before_ = ValidationMessages(GetParam());
}

void OperationsTest::TearDown() {
  chosen_set_.reset();
  if (devices_.empty()) return;
  EXPECT_EQ(ValidationMessages(GetParam()), messages_before_);
}

void RoundingOperationsTest::SetUp() {
  OperationsTest::SetUp();
  for (Device* device : devices_) {
    rounding_.push_back(OrDie(host::HostDevice::Create(
        {.n_threads = AsHost(*device)->pool().size(), .exact_activations = false, .note = {}})));
  }
}

std::string ModeName(const ::testing::TestParamInfo<DeviceMode>& mode) {
  switch (mode.param) {
    case DeviceMode::kPlanned: return "planned";
    case DeviceMode::kFloor: return "floor";
    case DeviceMode::kGpu: return "gpu";
    case DeviceMode::kGpuFloor: return "gpu_floor";
    case DeviceMode::kSmallBuffers: return "small_buffers";
    case DeviceMode::kNoTexels: return "no_texels";
    case DeviceMode::kPair: return "pair";
    case DeviceMode::kHost: return "host";
    case DeviceMode::kHostThreads: return "host_threads";
    default: return "host_" + SetOf(mode.param).name;
  }
}

Buffer* PoisonedBuffer(SelfTestRun& run, std::span<const double> values) {
  std::vector<float> floats(values.size() + kBeyond, PoisonFloat());
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isnan(values[i])) floats[i] = static_cast<float>(values[i]);
  }
  return run.Floats(floats);
}

std::vector<double> Untouched(size_t count) { return std::vector<double>(count, kUntouched); }

::testing::AssertionResult IsClose(SelfTestRun& run, const Buffer* found, std::span<const double> expected,
                                   std::span<const double> tolerance) {
  std::vector<float> floats(expected.size() + kBeyond);
  const std::vector<std::byte> bytes =
      found == nullptr ? std::vector<std::byte>{} : run.Bytes(found, floats.size() * sizeof(float));
  if (!run.status().ok()) return ::testing::AssertionFailure() << run.status().message();
  std::memcpy(floats.data(), bytes.data(), bytes.size());
  for (size_t i = 0; i < floats.size(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, &floats[i], sizeof(bits));
    if (i >= expected.size() || std::isnan(expected[i])) {
      if (bits == kPoison) continue;
      return ::testing::AssertionFailure()
             << "value " << i << " of " << expected.size() << " was overwritten with " << floats[i];
    }
    if (std::abs(floats[i] - expected[i]) <= tolerance[i]) continue;  // false for NaN
    return ::testing::AssertionFailure() << "value " << i << " of " << expected.size() << " is " << floats[i]
                                         << " and not " << expected[i] << " +- " << tolerance[i];
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult IsClose(SelfTestRun& run, const Buffer* found, std::span<const double> expected,
                                   double tolerance) {
  return IsClose(run, found, expected, std::vector<double>(expected.size(), tolerance));
}

double LargestMagnitude(std::span<const double> values) {
  double largest = 0.0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

}  // namespace kvrun::testing
