// Which device computes what, by what was measured.
#include "runtime/engine/device/device_times.h"

#include <gtest/gtest.h>

#include <string>

namespace kvrun {
namespace {

// In token/s, as people say it.
DeviceTimes Rates(double prefill, double decode) {
  return {.prefill_us = 1e6 / prefill, .decode_us = 1e6 / decode};
}

// A phone: one memory, of which there is enough.
DecisionInput Phone(DeviceTimes cpu, DeviceTimes gpu) {
  return {.cpu = cpu,
          .gpu = gpu,
          .gpu_name = "Mali-G610",
          .gpu_runs_on_cpu = false,
          .has_unified_memory = true,
          .weights_bytes = 1000,
          .available_bytes = 4000};
}

std::string Places(const DeviceDecision& decision) {
  return std::string(decision.prefill_on_gpu ? "gpu" : "cpu") + " " +
         (decision.decode_on_gpu ? "gpu" : "cpu");
}

TEST(DecideDevices, TheFasterOneOfTwo) {
  EXPECT_EQ(Places(DecideDevices(Phone(Rates(100, 10), Rates(200, 20)))), "gpu gpu");
  EXPECT_EQ(Places(DecideDevices(Phone(Rates(200, 20), Rates(100, 10)))), "cpu cpu");
  EXPECT_EQ(Places(DecideDevices(Phone(Rates(100, 10), Rates(100, 10)))), "cpu cpu") << "a tie";
}

TEST(DecideDevices, OnePhaseOnEachWhereThatWinsClearly) {
  // The CPU is better over all: 2.3 + 0.4 s to 1.25 + 2.7 s.
  const DeviceDecision decision = DecideDevices(Phone(Rates(220, 312), Rates(410, 48)));
  EXPECT_EQ(Places(decision), "gpu cpu");
  EXPECT_TRUE(decision.is_pair());
  EXPECT_EQ(decision.reason,
            "auto: decoding on the CPU (312 token/s; 48 on Mali-G610), prefill on Mali-G610 (410; 220)");
  // The GPU is better over all: 10 + 5 s to 1.3 + 9 s.
  EXPECT_EQ(Places(DecideDevices(Phone(Rates(50, 25), Rates(400, 14)))), "gpu cpu");
}

TEST(DecideDevices, ASmallGainInAPhaseIsNotWorthASecondDevice) {
  // Around 1.3 in prefill, with a CPU that decodes much faster, and in decoding with a GPU that prefills so.
  EXPECT_EQ(Places(DecideDevices(Phone(Rates(100, 20), Rates(129, 5)))), "cpu cpu");
  EXPECT_EQ(Places(DecideDevices(Phone(Rates(100, 20), Rates(131, 5)))), "gpu cpu");
  EXPECT_EQ(Places(DecideDevices(Phone(Rates(50, 12.9), Rates(400, 10)))), "gpu gpu");
  EXPECT_EQ(Places(DecideDevices(Phone(Rates(50, 13.1), Rates(400, 10)))), "gpu cpu");
}

TEST(DecideDevices, TheReverseIsNoDevice) {
  // The CPU is twice as fast at prefill, the GPU ten times at decoding, and the other way round.
  EXPECT_EQ(Places(DecideDevices(Phone(Rates(200, 5), Rates(100, 50)))), "gpu gpu");
  EXPECT_EQ(Places(DecideDevices(Phone(Rates(1000, 10), Rates(50, 20)))), "cpu cpu");
}

TEST(DecideDevices, OneDeviceWhereMemoryIsApart) {
  DecisionInput input = Phone(Rates(220, 312), Rates(410, 48));
  input.has_unified_memory = false;
  const DeviceDecision decision = DecideDevices(input);
  EXPECT_EQ(Places(decision), "cpu cpu");
  EXPECT_EQ(decision.reason,
            "auto: computing on the CPU: prefill 220 token/s, decoding 312 (410 and 48 on Mali-G610)");
}

TEST(DecideDevices, AVulkanDriverForTheCpuIsNeverOneOfTwo) {
  DecisionInput input = Phone(Rates(220, 312), Rates(410, 4.8));
  input.gpu_name = "llvmpipe";
  input.gpu_runs_on_cpu = true;
  const DeviceDecision decision = DecideDevices(input);
  EXPECT_EQ(Places(decision), "cpu cpu");
  EXPECT_EQ(
      decision.reason,
      "auto: computing on the CPU: prefill 220 token/s, decoding 312 (410 and 4.8 on llvmpipe, a Vulkan "
      "driver for the CPU)");
  input.gpu = Rates(1000, 1000);
  EXPECT_EQ(Places(DecideDevices(input)), "gpu gpu") << "the faster one all the same";
}

TEST(DecideDevices, TwoCopiesOfTheWeightsMustFit) {
  DecisionInput input = Phone(Rates(220, 312), Rates(410, 48));
  input.weights_bytes = 3 << 20;
  input.available_bytes = 8 << 20;  // a quarter of it is for other things
  EXPECT_EQ(Places(DecideDevices(input)), "gpu cpu");
  for (const std::optional<uint64_t> available : {std::optional<uint64_t>(7 << 20), {}}) {
    input.available_bytes = available;
    const DeviceDecision decision = DecideDevices(input);
    EXPECT_EQ(Places(decision), "cpu cpu");
    EXPECT_NE(decision.reason.find("no memory for two copies"), std::string::npos) << decision.reason;
  }
  // Nothing is said of a pair that would not have been taken anyway.
  input.gpu = Rates(229, 48);
  EXPECT_EQ(DecideDevices(input).reason.find("two copies"), std::string::npos);
}

}  // namespace
}  // namespace kvrun
