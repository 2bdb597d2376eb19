// Opens the device that a model is to be computed with: the one named, or for "auto" what was measured to be
// fastest.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/io/available_memory.h"
#include "runtime/device/device.h"
#include "runtime/device/open_device.h"
#include "runtime/engine/device/device_times_file.h"
#include "runtime/model/model.h"

namespace kvrun {

// What "auto" chose by, and where it is kept.
struct KeptTimes {
  std::string path;
  TimesEntry entry;
  DeviceTimes taken;  // of the device that computes prompts, and the one that decodes
};

struct OpenedDevice {
  std::unique_ptr<Device> device;
  std::vector<std::string> notes = {};           // what was chosen, and why; empty where a device was named
  std::vector<std::string> details = {};         // the same where it is as at an earlier start
  bool can_be_host = false;                      // chosen for its speed alone: the CPU would do as well
  std::optional<KeptTimes> kept = std::nullopt;  // where the choice was by times
};

// Where devices come from, and where is kept what they were measured to do (nothing: nowhere).
struct DeviceSource {
  std::function<Result<AutoCandidates>(const OpenDeviceOptions&)> find;
  std::function<Result<std::unique_ptr<Device>>(const OpenDeviceOptions&)> open;
  std::optional<std::string> times_path;
  // As TryOnDevice: for measuring. Empty: measured on what `open` opens.
  std::function<Result<std::string>(const OpenDeviceOptions&, const std::string& doing, const DeviceWork&,
                                    const std::function<bool()>& is_cancelled)>
      try_on = {};
  // Of memory: what does not fit is not measured. Nothing: not known.
  std::function<std::optional<uint64_t>()> available_bytes = [] { return AvailableMemoryBytes(); };
};
// Where sessions have `seen` times that are far off those in `kept`, its file says so, and the next choice
// measures again. A file that cannot be written is none: what is kept stays.
void KeepSeenTimes(const KeptTimes& kept, const DeviceTimes& seen);

// Those of this machine, and the user's cache folder.
DeviceSource DevicesHere();

// `version`: of kvrun; what another version measured does not count. `is_cancelled` is asked while devices
// are measured; it may be empty.
// A GPU that cannot be opened or measured, or for whose measurement there is no memory, costs a note, and so
// do files that cannot be read or written.
Result<OpenedDevice> OpenDeviceFor(const Model& model, const OpenDeviceOptions& options,
                                   const std::string& version, const std::function<bool()>& is_cancelled,
                                   const DeviceSource& source = DevicesHere());

}  // namespace kvrun
