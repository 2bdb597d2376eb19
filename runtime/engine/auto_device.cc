#include "runtime/engine/auto_device.h"

#include <fmt/format.h>

#include <utility>

#include "platform/io/available_memory.h"
#include "runtime/engine/device_times.h"
#include "runtime/engine/device_times_file.h"
#include "runtime/engine/device_trial.h"
#include "runtime/model/fingerprint.h"

namespace kvrun {
namespace {

constexpr const char* kHost = "host";

// One choice by "auto", with what there is to say about it.
class Chooser {
 public:
  Chooser(const Model& model, const OpenDeviceOptions& options, const std::string& version,
          const std::function<bool()>& is_cancelled, const DeviceSource& source)
      : model_(model), options_(options), version_(version), is_cancelled_(is_cancelled), source_(source) {}

  Result<OpenedDevice> Open() {
    KVRUN_ASSIGN_OR_RETURN(const AutoCandidates candidates, source_.find(options_));
    for (const std::string& left_out : candidates.left_out) Note(left_out);
    if (!candidates.gpu && candidates.note.empty()) return Named(options_.device);
    if (!candidates.gpu) {
      Note(candidates.note);
      return Named(kHost);
    }
    const GpuCandidate& gpu = *candidates.gpu;
    const TimesKey key = {.gpu = gpu.name,
                          .driver = gpu.driver,
                          .cpu = candidates.cpu_name,
                          .n_threads = candidates.n_threads,
                          .exact_activations = options_.exact_activations,
                          .model = ModelFingerprint(*model_.file, model_.config),
                          .kvrun = version_};
    KVRUN_ASSIGN_OR_RETURN(const std::optional<TimesEntry> times, Times(gpu, key));
    if (!times) return Named(kHost);
    return OpenDecided(gpu, *times);
  }

 private:
  void Note(std::string note) { notes_.push_back(std::move(note)); }

  Result<OpenedDevice> Named(const std::string& name) {
    OpenDeviceOptions options = options_;
    options.device = name;
    OpenedDevice opened;
    KVRUN_ASSIGN_OR_RETURN(opened.device, source_.open(options));
    opened.notes = std::move(notes_);
    return opened;
  }

  // From the file, or measured and put there. Nothing: the GPU cannot be used, as a note says.
  Result<std::optional<TimesEntry>> Times(const GpuCandidate& gpu, const TimesKey& key) {
    const std::optional<std::string>& path = source_.times_path;
    if (path) {
      const Result<TimesEntry> known = FindTimes(*path, key);
      if (known.ok()) return std::optional(*known);
      if (known.status().code() != StatusCode::kNotFound) {
        Note("devices are measured again: " + known.status().message());
      }
    }
    TimesEntry entry{.key = key, .cpu = {}, .gpu = {}};
    const Result<DeviceTimes> of_gpu = Measure(gpu.device);
    if (!of_gpu.ok() && of_gpu.status().code() == StatusCode::kCancelled) return of_gpu.status();
    if (!of_gpu.ok()) {
      Note(fmt::format("computing on the CPU itself: {} cannot be used: {}", gpu.name,
                       of_gpu.status().message()));
      return std::optional<TimesEntry>();
    }
    entry.gpu = *of_gpu;
    KVRUN_ASSIGN_OR_RETURN(entry.cpu, Measure(kHost));
    if (!path) return std::optional(entry);
    if (const Status status = WriteTimes(*path, entry); !status.ok()) {
      Note("what devices were measured to do is not kept: " + status.message());
    }
    return std::optional(entry);
  }

  // Opened for the trial alone, so that no two hold weights at a time; the GPU where a crash of its driver
  // does not end this process.
  Result<DeviceTimes> Measure(const std::string& name) {
    OpenDeviceOptions options = options_;
    options.device = name;
    options.profile = false;
    if (name == kHost || !source_.try_on) {
      KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, source_.open(options));
      return MeasureDevice(model_, *device, {.is_cancelled = is_cancelled_});
    }
    const auto measure = [&](Device& device,
                             const std::function<bool()>& is_cancelled) -> Result<std::string> {
      KVRUN_ASSIGN_OR_RETURN(const DeviceTimes times,
                             MeasureDevice(model_, device, {.is_cancelled = is_cancelled}));
      return TimesToText(times);
    };
    KVRUN_ASSIGN_OR_RETURN(const std::string text,
                           source_.try_on(options, "measured how fast it computes", measure, is_cancelled_));
    return TimesFromText(text);
  }

  Result<OpenedDevice> OpenDecided(const GpuCandidate& gpu, const TimesEntry& times) {
    DecisionInput input = {.cpu = times.cpu,
                           .gpu = times.gpu,
                           .gpu_name = gpu.name,
                           .gpu_runs_on_cpu = gpu.runs_on_cpu,
                           .has_unified_memory = gpu.has_unified_memory,
                           .available_bytes = AvailableMemoryBytes()};
    for (const GgufTensor& tensor : model_.file->tensors()) input.weights_bytes += tensor.data.size();
    DeviceDecision decision = DecideDevices(input);
    if (decision.is_pair()) {
      OpenDeviceOptions options = options_;
      options.device = fmt::format("{}+{}", gpu.device, kHost);
      Result<std::unique_ptr<Device>> pair = source_.open(options);
      if (pair.ok()) {
        Note(decision.reason);
        return OpenedDevice{std::move(*pair), std::move(notes_), true};
      }
      Note("one phase on each device is not possible here: " + pair.status().message());
      decision = DecideOneDevice(input);
    }
    if (!decision.decode_on_gpu) {
      Note(decision.reason);
      return Named(kHost);
    }
    OpenDeviceOptions options = options_;
    options.device = gpu.device;
    Result<std::unique_ptr<Device>> device = source_.open(options);
    if (!device.ok()) {
      Note(fmt::format("computing on the CPU itself: {} cannot be used: {}", gpu.name,
                       device.status().message()));
      return Named(kHost);
    }
    Note(decision.reason);
    return OpenedDevice{std::move(*device), std::move(notes_), true};
  }

  const Model& model_;
  const OpenDeviceOptions& options_;
  const std::string& version_;
  const std::function<bool()>& is_cancelled_;
  const DeviceSource& source_;
  std::vector<std::string> notes_;
};

}  // namespace

DeviceSource DevicesHere() {
  return {.find = FindAutoCandidates, .open = OpenDevice, .times_path = TimesPath(), .try_on = TryOnDevice};
}

Result<OpenedDevice> OpenDeviceFor(const Model& model, const OpenDeviceOptions& options,
                                   const std::string& version, const std::function<bool()>& is_cancelled,
                                   const DeviceSource& source) {
  if (IsAutoName(options.device)) return Chooser(model, options, version, is_cancelled, source).Open();
  OpenedDevice opened;
  KVRUN_ASSIGN_OR_RETURN(opened.device, source.open(options));
  return opened;
}

}  // namespace kvrun
