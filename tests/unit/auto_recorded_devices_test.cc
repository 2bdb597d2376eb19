// What "auto" takes on recorded devices: never one that its own CPU beats.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "platform/base/units.h"
#include "runtime/device/select/choose_device.h"
#include "runtime/engine/device/device_times.h"
#include "tests/support/recorded_devices.h"

namespace kvrun {
namespace {

// In token/s.
struct PhaseRates {
  double prefill;
  double decode;
};

// As the engine asks on a machine with this device, where two copies of the weights fit.
DeviceDecision DecideOn(const std::string& name, PhaseRates cpu, PhaseRates gpu) {
  const AutoCandidates found = ChooseCandidates(std::vector{testing::RecordedFacts(name)}, "");
  EXPECT_TRUE(found.gpu.has_value()) << name;
  if (!found.gpu) return {};
  return DecideDevices({.cpu = {.prefill_us = 1e6 / cpu.prefill, .decode_us = 1e6 / cpu.decode},
                        .gpu = {.prefill_us = 1e6 / gpu.prefill, .decode_us = 1e6 / gpu.decode},
                        .gpu_name = found.gpu->name,
                        .gpu_runs_on_cpu = found.gpu->runs_on_cpu,
                        .has_unified_memory = found.gpu->has_unified_memory,
                        .weights_bytes = kGiB,
                        .available_bytes = 8 * kGiB});
}

std::string PlacesOf(const DeviceDecision& decision) {
  return fmt::format("prefill {}, decode {}", decision.prefill_on_gpu ? "gpu" : "cpu",
                     decision.decode_on_gpu ? "gpu" : "cpu");
}
constexpr const char* kAllOnCpu = "prefill cpu, decode cpu";
constexpr const char* kAllOnGpu = "prefill gpu, decode gpu";

class EveryDeviceAuto : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Facts, EveryDeviceAuto, ::testing::ValuesIn(testing::kDevices),
                         [](const auto& device) { return std::string(device.param); });

TEST_P(EveryDeviceAuto, ThatLosesToItsCpuIsNotTaken) {
  constexpr PhaseRates kCpu = {40.0, 10.0};
  for (const double slower : {1.01, 1.5, 30.0}) {
    const DeviceDecision decision = DecideOn(GetParam(), kCpu, {40.0 / slower, 10.0 / slower});
    EXPECT_EQ(PlacesOf(decision), kAllOnCpu) << slower;
    EXPECT_TRUE(decision.reason.starts_with("auto: computing on the CPU: prefill 40 token/s, decoding 10 ("))
        << decision.reason;
    EXPECT_NE(decision.reason.find(testing::RecordedFacts(GetParam()).name), std::string::npos);
  }
}

TEST_P(EveryDeviceAuto, ThatWinsIsTaken) {
  EXPECT_EQ(PlacesOf(DecideOn(GetParam(), {40.0, 10.0}, {60.0, 15.0})), kAllOnGpu);
}

// Its phases are divided only where its memory is the CPU's.
TEST_P(EveryDeviceAuto, ThatWinsAtPrefillAloneGetsItWhereMemoryIsOne) {
  const bool is_unified = testing::PlanOfFacts(testing::RecordedFacts(GetParam())).unified_memory;
  EXPECT_EQ(PlacesOf(DecideOn(GetParam(), {40.0, 10.0}, {60.0, 2.0})),
            is_unified ? "prefill gpu, decode cpu" : kAllOnCpu);
}

// What others measured with their programs. Where a report has one rate, it stands for both phases.
TEST(DecideDevicesByReports, EachIsWhereItsReportSays) {
  const struct {
    const char* device;
    PhaseRates cpu;
    PhaseRates gpu;
    const char* places;
  } reports[] = {// b4rtaz/distributed-llama issue 259, Qwen3 0.6B: 4,937 ms a token on the GPU, and 588 ms on
                 // the CPU even
                 // through Vulkan (llvmpipe).
                 {"raspberry_pi_5_v3d", {1.7, 1.7}, {0.2, 0.2}, kAllOnCpu},
                 // ggml-org/llama.cpp issue 17783, Llama 3.2 1B.
                 {"panvk_mali_g610", {13.2, 13.2}, {3.6, 3.6}, kAllOnCpu},
                 // hybridgroup/yzma, benchmarks/linux.md, SmolLM 135M.
                 {"intel_rpl_s", {245.8, 245.8}, {62.7, 62.7}, kAllOnCpu},
                 {"jetson_orin_nano", {84.2, 84.2}, {183.2, 183.2}, kAllOnGpu},
                 // ggml-org/llama.cpp issue 13217, Qwen3 30B A3B (with another driver).
                 {"radeon_780m", {15.0, 15.0}, {9.0, 9.0}, kAllOnCpu},
                 // ggml-org/llama.cpp pull request 5301, a 7B: the CPU decodes faster, but not by enough for
                 // two devices.
                 {"intel_iris_xe", {10.51, 6.70}, {31.92, 5.54}, kAllOnGpu}};
  for (const auto& report : reports) {
    EXPECT_EQ(PlacesOf(DecideOn(report.device, report.cpu, report.gpu)), report.places) << report.device;
  }
}

}  // namespace
}  // namespace kvrun
