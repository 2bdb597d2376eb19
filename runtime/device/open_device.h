// Finds devices and opens one by name.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"

namespace kvrun {

struct DeviceListing {
  uint32_t index = 0;
  std::string name;
  std::string kind;
  std::string api_version;  // of Vulkan; empty where that is not used
  std::string driver;
  uint64_t memory_bytes = 0;  // the largest heap, or the machine's memory
  bool usable = false;
  std::string reason;  // why not usable
};

inline constexpr uint32_t kMaxThreads = 1024;

struct OpenDeviceOptions {
  // "auto", "vulkan", "host", a part of a name, or an index; "A+host": a Vulkan device for prompts, and the
  // CPU for decoding (runtime/device/pair).
  std::string device = "auto";
  bool validation = false;
  bool profile = false;
  bool remeasure = false;  // "auto" measures devices even where what they do is known
  // The device's note says which drivers are left out. A failure to open it always does.
  bool names_left_out = true;
  // Of the CPU as a device, alone or in a pair:
  uint32_t n_threads = 0;          // at most kMaxThreads; 0: see ChooseThreads (host/host_cores.h)
  bool exact_activations = false;  // nothing rounds them to 8 bits or 16
  // As UseInstructionSet has it (host/instruction_sets.h): "avx2", for the whole process; empty: as it is.
  std::string instruction_set = {};
};

// What "auto" chooses from: the CPU, and Vulkan's best device.
struct GpuCandidate {
  std::string device;  // for OpenDeviceOptions::device
  std::string name;
  std::string driver;               // its name and version, and what else changes how fast it is here
  bool runs_on_cpu = false;         // a Vulkan driver for the CPU: it shares the cores
  bool has_unified_memory = false;  // with the CPU
};

struct AutoCandidates {
  std::optional<GpuCandidate> gpu;
  std::string note;           // why `gpu` is none though there is one; may be empty
  std::string left_out = {};  // which drivers are, in one line; empty where none is
  std::string cpu_name;
  uint32_t n_threads = 0;  // that the CPU would compute with
};

struct SelfTestResult {
  std::string name;
  bool passed = false;
  std::string detail;
};

struct DoctorReport {
  std::string name;
  std::string kind;
  std::string driver;
  std::vector<std::pair<std::string, std::string>> limits;
  std::vector<std::string> plan;
  std::vector<SelfTestResult> tests;  // that were run
  size_t n_left_out = 0;              // tests for which there was no time
};

// A Vulkan driver that is not used, as it crashed or hung.
struct LeftOutListing {
  std::string manifest;
  std::string reason;  // why, and how to try it again
};

// Vulkan's devices, of which there may be none, then the CPU. `left_out` may be null.
Result<std::vector<DeviceListing>> ListDevices(std::vector<LeftOutListing>* left_out = nullptr);
// Opens a device for `work` alone, in a process of its own where that can be: what it takes of memory is gone
// afterwards, and a driver that crashes or hangs does not reach this one, and is left out from then on, as
// the status says. `doing` completes "it crashed while kvrun ...". `is_cancelled` is asked meanwhile, in this
// process alone: what `work` is given may be empty.
using DeviceWork = std::function<Result<std::string>(Device&, const std::function<bool()>& is_cancelled)>;
Result<std::string> TryOnDevice(const OpenDeviceOptions& options, const std::string& doing,
                                const DeviceWork& work, const std::function<bool()>& is_cancelled);
// For the program's handlers of signals (async-signal-safe): the user ends it, so no driver is to blame.
void InterruptDriverTrials();
// The drivers left out are tried again, once, by what looks for devices next.
void RetryLeftOutDrivers();
// Opens nothing: the names of devices, and what is known of them.
Result<AutoCandidates> FindAutoCandidates(const OpenDeviceOptions& options);
// "" or "auto", in either case.
bool IsAutoName(std::string_view wanted);
// "auto" is here a GPU where Vulkan has one, else the CPU: which is faster depends on the model
// (runtime/engine/device/auto_device.h).
// What a Vulkan device can do is clamped by KVRUN_DEVICE_CLAMP; KVRUN_VALIDATION=1 is as options.validation.
Result<std::unique_ptr<Device>> OpenDevice(const OpenDeviceOptions& options);
// Runs every self-test on the device named (empty: on all, the CPU last); with limit_s those that begin
// before so many seconds are over, of which each device has an equal part. `progress(done, total)` answers
// true to cancel. While the CPU's run, the process's other devices of that kind compute with the instruction
// set under test.
Result<std::vector<DoctorReport>> RunDoctor(const std::string& device,
                                            const std::function<bool(size_t, size_t)>& progress,
                                            double limit_s = 0.0);

}  // namespace kvrun
