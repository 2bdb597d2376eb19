#include "runtime/engine/device/device_times.h"

#include <fmt/format.h>

#include <string_view>

namespace kvrun {
namespace {

constexpr std::string_view kCpu = "the CPU";

double TypicalUse(const DeviceTimes& times) {
  return kTypicalPrefillTokens * times.prefill_us + kTypicalDecodeTokens * times.decode_us;
}

// "104", "1.9".
std::string Rate(double us_per_token) {
  const double rate = 1e6 / us_per_token;
  return rate < 10.0 ? fmt::format("{:.1f}", rate) : fmt::format("{:.0f}", rate);
}

// Two copies of the weights, and a quarter of the memory for everything else.
bool WeightsFitTwice(const DecisionInput& input) {
  return input.available_bytes && input.weights_bytes <= *input.available_bytes / 8 * 3;
}

std::string ReasonForOne(const DecisionInput& input, bool on_gpu) {
  const DeviceTimes& taken = on_gpu ? input.gpu : input.cpu;
  const DeviceTimes& other = on_gpu ? input.cpu : input.gpu;
  const std::string gpu =
      input.gpu_runs_on_cpu ? input.gpu_name + ", a Vulkan driver for the CPU" : input.gpu_name;
  return fmt::format("auto: computing on {}: prefill {} token/s, decoding {} ({} and {} on {})",
                     on_gpu ? gpu : std::string(kCpu), Rate(taken.prefill_us), Rate(taken.decode_us),
                     Rate(other.prefill_us), Rate(other.decode_us), on_gpu ? std::string(kCpu) : gpu);
}

std::string ReasonForPair(const DecisionInput& input) {
  return fmt::format("auto: decoding on {} ({} token/s; {} on {}), prefill on {} ({}; {})", kCpu,
                     Rate(input.cpu.decode_us), Rate(input.gpu.decode_us), input.gpu_name, input.gpu_name,
                     Rate(input.gpu.prefill_us), Rate(input.cpu.prefill_us));
}

}  // namespace

DeviceDecision DecideOneDevice(const DecisionInput& input) {
  const bool on_gpu = TypicalUse(input.gpu) < TypicalUse(input.cpu);
  return {.prefill_on_gpu = on_gpu, .decode_on_gpu = on_gpu, .reason = ReasonForOne(input, on_gpu)};
}

DeviceDecision DecideDevices(const DecisionInput& input) {
  DeviceDecision decision = DecideOneDevice(input);
  if (input.gpu_runs_on_cpu || !input.has_unified_memory) return decision;
  // Where the one device is the GPU, it must lose at decoding; where it is the CPU, at prefill.
  const double slowdown = decision.decode_on_gpu ? input.gpu.decode_us / input.cpu.decode_us
                                                 : input.cpu.prefill_us / input.gpu.prefill_us;
  if (slowdown < kClearWin) return decision;
  if (!WeightsFitTwice(input)) {
    decision.reason +=
        "; prefill on the one and decoding on the other would be faster, but there is no memory "
        "for two copies of the weights";
    return decision;
  }
  return {.prefill_on_gpu = true, .decode_on_gpu = false, .reason = ReasonForPair(input)};
}

}  // namespace kvrun
