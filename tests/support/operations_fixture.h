// Every operation on every device: drivers as planned, at the floor, and as planned for a GPU; and the CPU.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/device/host/host_device.h"
#include "runtime/device/host/instruction_sets.h"
#include "runtime/device/self_test_data.h"
#include "runtime/device/self_test_run.h"
#include "runtime/device/vulkan/compute_device.h"
#include "shaders/shared/step_params.h"
#include "tests/support/beyond.h"
#include "tests/support/operation_cases.h"

namespace kvrun::testing {

inline constexpr uint32_t kPoison = 0x7fc0fead;  // a NaN, and two NaNs as halves
// Where an expected value is this, the poison must still be there.
inline constexpr double kUntouched = std::numeric_limits<double>::quiet_NaN();

// kHost, kHostThreads: the CPU as a device with float activations, on as many threads as it chooses, and on a
// number that does not divide work evenly. kPair: a driver as planned and the CPU as one device, of which the
// CPU gets up to kPairDecodeRows rows, so that both get some of most cases. kLesserSet and what follows: the
// CPU with the next instruction set that this processor has below its best, and so on, on one thread and
// several.
enum class DeviceMode {
  kPlanned,
  kFloor,
  kGpu,
  kGpuFloor,
  kSmallBuffers,
  kNoTexels,
  kPair,
  kHost,
  kHostThreads,
  kLesserSet
};
// Any of the CPU's alone.
bool IsHost(DeviceMode mode);
// Bytes that kSmallBuffers binds at most, so that small matrices come in slices.
inline constexpr uint64_t kSmallBufferBytes = 64 * 1024;

inline constexpr uint32_t kPairDecodeRows = 2;

// Of kHostThreads and kLesserSet.
inline constexpr uint32_t kUnevenThreads = 3;

// The files of tests/kernels that test operations.
enum class Operations { kAttention, kIndex, kIndexUpkeep, kLayers, kMass, kMatMul, kRows, kRecords, kSlots };
// Those that the CPU as a device has.
inline constexpr std::initializer_list<Operations> kHostOperations = {
    Operations::kAttention, Operations::kIndex,   Operations::kIndexUpkeep,
    Operations::kLayers,    Operations::kMass,    Operations::kMatMul,
    Operations::kRows,      Operations::kRecords, Operations::kSlots};

// `vulkan_modes`, and the host's and the pair's where the host has these operations.
std::vector<DeviceMode> ModesOf(Operations operations, std::vector<DeviceMode> vulkan_modes);
// Those of the CPU alone.
std::vector<DeviceMode> HostModes();

// The mode's devices: opened once, closed after the last test. Empty where there is no driver, and for floor
// modes where the environment asks for the floor anyway; the host modes need no driver.
std::vector<Device*> DevicesOf(DeviceMode mode);

// For what tests know of Vulkan's plan alone, or of the CPU's layouts: null for other devices.
const VulkanComputeDevice* AsVulkan(const Device& device);
host::HostDevice* AsHost(Device& device);
// A CPU that rounds activations, queries and weights.
bool RoundsActivations(Device& device);

class OperationsTest : public ::testing::TestWithParam<DeviceMode> {
 protected:
  void SetUp() override;
  void TearDown() override;

  std::vector<Device*> devices_;

 private:
  std::optional<host::ChosenInstructionSet> chosen_set_;
  uint64_t messages_before_ = 0;
};

// On the CPU, with devices that round as well (RoundsActivations).
class RoundingOperationsTest : public OperationsTest {
 protected:
  void SetUp() override;

  std::vector<std::unique_ptr<host::HostDevice>> rounding_;
};

std::string ModeName(const ::testing::TestParamInfo<DeviceMode>& mode);

// `values` and kBeyond poisoned floats after them; kUntouched values are poisoned as well.
Buffer* PoisonedBuffer(SelfTestRun& run, std::span<const double> values);
std::vector<double> Untouched(size_t count);

// found[i] is within tolerance[i] of expected[i], or untouched where that is expected; kBeyond floats after
// them are untouched.
::testing::AssertionResult IsClose(SelfTestRun& run, const Buffer* found, std::span<const double> expected,
                                   std::span<const double> tolerance);
::testing::AssertionResult IsClose(SelfTestRun& run, const Buffer* found, std::span<const double> expected,
                                   double tolerance);

double LargestMagnitude(std::span<const double> values);

}  // namespace kvrun::testing
