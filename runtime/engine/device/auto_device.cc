#include "runtime/engine/device/auto_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "platform/base/units.h"
#include "runtime/engine/device/device_times.h"
#include "runtime/engine/device/device_times_file.h"
#include "runtime/engine/device/device_trial.h"
#include "runtime/engine/device/rate_watch.h"

namespace kvrun {
namespace {

constexpr const char* kHost = "host";
constexpr const char* kMeasuring = "measured how fast it computes";

// Of main memory, which a Vulkan driver takes at most until it has listed its devices, and beside the weights
// until it has computed with them: what Mesa's driver for the CPU was seen to take, and some more. (Those of
// GPUs compile elsewhere, but map much.)
constexpr uint64_t kLookBytes = 64 * kMiB;
constexpr uint64_t kDriverBytes = 192 * kMiB;

// One choice by "auto", with what there is to say about it.
class Chooser {
 public:
  Chooser(const Model& model, const OpenDeviceOptions& options, const std::string& version,
          const std::function<bool()>& is_cancelled, const DeviceSource& source)
      : model_(model), options_(options), version_(version), is_cancelled_(is_cancelled), source_(source) {}

  Result<OpenedDevice> Open() {
    const std::optional<uint64_t> available = source_.available_bytes();
    if (available && *available < kLookBytes) {
      Note(fmt::format(
          "auto: computing on the CPU: looking for a GPU takes up to {} of memory, and {} are free",
          FormatBytes(kLookBytes), FormatBytes(*available)));
      return Named(kHost);
    }
    KVRUN_ASSIGN_OR_RETURN(const AutoCandidates candidates, source_.find(options_));
    if (!candidates.left_out.empty()) Note(candidates.left_out);
    if (!candidates.gpu && candidates.note.empty()) return Named(options_.device);
    if (!candidates.gpu) {
      Note(candidates.note);
      return Named(kHost);
    }
    const GpuCandidate& gpu = *candidates.gpu;
    KVRUN_ASSIGN_OR_RETURN(const std::string fingerprint, model_.Fingerprint());
    const TimesKey key = {.gpu = gpu.name,
                          .driver = gpu.driver,
                          .cpu = candidates.cpu_name,
                          .n_threads = candidates.n_threads,
                          .exact_activations = options_.exact_activations,
                          .model = fingerprint,
                          .kvrun = version_};
    KVRUN_ASSIGN_OR_RETURN(const std::optional<TimesEntry> times, Times(gpu, key));
    if (!times) return Named(kHost);
    return OpenDecided(gpu, *times);
  }

 private:
  void Note(std::string note) { notes_.push_back(std::move(note)); }
  // What was chosen, by times that were measured now: known ones were said at an earlier start.
  void NoteDecision(std::string reason) { (has_measured_ ? notes_ : details_).push_back(std::move(reason)); }

  OpenDeviceOptions OptionsFor(const std::string& name) const {
    OpenDeviceOptions options = options_;
    options.device = name;
    options.names_left_out = false;  // a note has done so
    return options;
  }

  Result<OpenedDevice> Named(const std::string& name) {
    const OpenDeviceOptions options = OptionsFor(name);
    OpenedDevice opened;
    KVRUN_ASSIGN_OR_RETURN(opened.device, source_.open(options));
    return WithNotes(std::move(opened));
  }

  OpenedDevice WithNotes(OpenedDevice opened) {
    opened.notes = std::move(notes_);
    opened.details = std::move(details_);
    return opened;
  }

  // From the file, or measured and put there. Nothing: they cannot be had, as a note says.
  Result<std::optional<TimesEntry>> Times(const GpuCandidate& gpu, const TimesKey& key) {
    const std::optional<std::string>& path = source_.times_path;
    TimesEntry entry{.key = key, .cpu = {}, .gpu = {}};
    std::string why_again;
    if (path && !options_.remeasure) {
      const Result<TimesEntry> known = FindTimes(*path, key);
      if (known.ok() && known->stale.empty()) return std::optional(*known);
      if (known.ok()) entry.usual = known->usual;
      if (known.ok() || known.status().code() != StatusCode::kNotFound) {
        why_again = known.ok() ? known->stale : known.status().message();
      }
    }
    if (!FitsTrial(gpu)) return std::optional<TimesEntry>();
    if (!why_again.empty()) Note("devices are measured again: " + why_again);
    KVRUN_ASSIGN_OR_RETURN(const bool is_measured, MeasureBoth(gpu, &entry));
    if (!is_measured) return std::optional<TimesEntry>();
    has_measured_ = true;
    if (!path) return std::optional(entry);
    if (const Status status = WriteTimes(*path, entry); !status.ok()) {
      Note("the measured speeds of the devices cannot be kept for the next start: " + status.message());
    }
    return std::optional(entry);
  }

  // Whether there is memory to measure the GPU, which takes more than to measure the CPU. A note says so if
  // not.
  bool FitsTrial(const GpuCandidate& gpu) {
    const bool is_in_memory = gpu.runs_on_cpu || gpu.has_unified_memory;
    const uint64_t needed = kDriverBytes + (is_in_memory ? TrialBytes(model_) : 0);
    const std::optional<uint64_t> available = source_.available_bytes();
    if (!available || *available >= needed) return true;
    Note(fmt::format("auto: computing on the CPU: to measure {} takes {} of memory, and {} are free",
                     gpu.name, FormatBytes(needed), FormatBytes(*available)));
    return false;
  }

  // False: one of them cannot be, as a note says.
  Result<bool> MeasureBoth(const GpuCandidate& gpu, TimesEntry* entry) {
    const Result<DeviceTimes> of_gpu = Measure(gpu.device);
    if (!of_gpu.ok() && of_gpu.status().code() == StatusCode::kCancelled) return of_gpu.status();
    if (!of_gpu.ok()) {
      Note(fmt::format("computing on the CPU itself, as {} cannot be used: {}", gpu.name,
                       of_gpu.status().message()));
      return false;
    }
    entry->gpu = *of_gpu;
    const Result<DeviceTimes> of_cpu = Measure(kHost);
    if (!of_cpu.ok()) {
      const StatusCode code = of_cpu.status().code();
      if (code != StatusCode::kDevice && code != StatusCode::kOutOfMemory) return of_cpu.status();
      Note("auto: computing on the CPU, though it could not be measured: " + of_cpu.status().message());
      return false;
    }
    entry->cpu = *of_cpu;
    return true;
  }

  // Opened for the trial alone, so that no two hold weights at a time; where neither what a trial takes of
  // memory nor a crash of a driver is this process's.
  Result<DeviceTimes> Measure(const std::string& name) {
    OpenDeviceOptions options = OptionsFor(name);
    options.profile = false;
    if (!source_.try_on) {
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
                           source_.try_on(options, kMeasuring, measure, is_cancelled_));
    return TimesFromText(text);
  }

  Result<OpenedDevice> OpenDecided(const GpuCandidate& gpu, const TimesEntry& times) {
    DecisionInput input = {.cpu = times.cpu,
                           .gpu = times.gpu,
                           .gpu_name = gpu.name,
                           .gpu_runs_on_cpu = gpu.runs_on_cpu,
                           .has_unified_memory = gpu.has_unified_memory,
                           .available_bytes = source_.available_bytes()};
    for (const GgufTensor& tensor : model_.file->tensors()) input.weights_bytes += tensor.size_bytes;
    DeviceDecision decision = DecideDevices(input);
    KVRUN_ASSIGN_OR_RETURN(OpenedDevice opened, OpenBy(gpu, input, &decision));
    // Times of a GPU that could not be opened now say nothing of the CPU in its place.
    if (source_.times_path && opened.kept) {
      opened.kept =
          KeptTimes{.path = *source_.times_path,
                    .entry = times,
                    .taken = {.prefill_us = (decision.prefill_on_gpu ? times.gpu : times.cpu).prefill_us,
                              .decode_us = (decision.decode_on_gpu ? times.gpu : times.cpu).decode_us}};
    }
    return opened;
  }

  // `decision` becomes what was opened. Its `kept` says only that the times are of that device.
  Result<OpenedDevice> OpenBy(const GpuCandidate& gpu, const DecisionInput& input, DeviceDecision* decided) {
    DeviceDecision& decision = *decided;
    if (decision.is_pair()) {
      Result<std::unique_ptr<Device>> pair =
          source_.open(OptionsFor(fmt::format("{}+{}", gpu.device, kHost)));
      if (pair.ok()) {
        NoteDecision(decision.reason);
        return WithNotes({.device = std::move(*pair), .can_be_host = true, .kept = KeptTimes()});
      }
      Note("prefill and decoding cannot each have a device of their own here: " + pair.status().message());
      decision = DecideOneDevice(input);
    }
    if (!decision.decode_on_gpu) {
      NoteDecision(decision.reason);
      KVRUN_ASSIGN_OR_RETURN(OpenedDevice host, Named(kHost));
      host.kept = KeptTimes();
      return host;
    }
    Result<std::unique_ptr<Device>> device = source_.open(OptionsFor(gpu.device));
    if (!device.ok()) {
      Note(fmt::format("computing on the CPU itself, as {} cannot be used: {}", gpu.name,
                       device.status().message()));
      return Named(kHost);
    }
    NoteDecision(decision.reason);
    return WithNotes({.device = std::move(*device), .can_be_host = true, .kept = KeptTimes()});
  }

  const Model& model_;
  const OpenDeviceOptions& options_;
  const std::string& version_;
  const std::function<bool()>& is_cancelled_;
  const DeviceSource& source_;
  std::vector<std::string> notes_;
  std::vector<std::string> details_;
  bool has_measured_ = false;
};

}  // namespace

void KeepSeenTimes(const KeptTimes& kept, const DeviceTimes& seen) {
  TimesEntry entry = kept.entry;
  const std::optional<std::string> far_off = FarOff(seen, kept.taken, entry.usual);
  if (!far_off) return;
  // Unless the trial was disturbed, the next one finds the same times, and then this ratio is the usual one.
  const DeviceTimes ratio = RatioOf(seen, kept.taken);
  if (seen.prefill_us > 0.0) entry.usual.prefill_us = std::clamp(ratio.prefill_us, 1e-2, 1e2);
  if (seen.decode_us > 0.0) entry.usual.decode_us = std::clamp(ratio.decode_us, 1e-2, 1e2);
  entry.stale = *far_off;
  (void)WriteTimes(kept.path, entry);
}

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
