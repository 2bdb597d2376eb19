// How fast devices compute a model, and which of them should: plain data and a pure decision.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvrun {

// Of one device, per token.
struct DeviceTimes {
  double prefill_us = 0.0;
  double decode_us = 0.0;

  bool operator==(const DeviceTimes&) const = default;
};

// A typical use, by which one device for both phases is chosen: a prompt of a page or two, an answer of a
// paragraph.
inline constexpr double kTypicalPrefillTokens = 512.0;
inline constexpr double kTypicalDecodeTokens = 128.0;
// So many times as fast the other device must be in a phase to be given that phase alone: prefill to the GPU,
// or decoding to the CPU (the reverse is no device: runtime/device/open_device.h). Measured on a few
// layers in an instant, smaller differences come and go; and the second device costs a second copy of the
// weights.
inline constexpr double kClearWin = 1.3;

struct DecisionInput {
  DeviceTimes cpu;
  DeviceTimes gpu;
  std::string gpu_name;
  bool gpu_runs_on_cpu = false;     // it shares the cores: never one phase each
  bool has_unified_memory = false;  // else never one phase each
  uint64_t weights_bytes = 0;       // of one copy
  std::optional<uint64_t> available_bytes;
};

struct DeviceDecision {
  bool prefill_on_gpu = false;
  bool decode_on_gpu = false;
  std::string reason;  // one line, with the rates

  bool is_pair() const { return prefill_on_gpu != decode_on_gpu; }
};

DeviceDecision DecideDevices(const DecisionInput& input);
// The better one for a typical use.
DeviceDecision DecideOneDevice(const DecisionInput& input);

}  // namespace kvrun
