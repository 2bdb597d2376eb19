// Stand-ins for what the device layer defines, until it is there; then this file goes.
#include "runtime/device/open_device.h"
#include "runtime/engine/forward_pass.h"

namespace kvrun {

class DeviceWeights {};

namespace {
Status NoDevice() { return Status(StatusCode::kNotFound, "no device: this build has none"); }
}  // namespace

Result<std::vector<DeviceListing>> ListDevices() { return std::vector<DeviceListing>(); }
Result<std::unique_ptr<Device>> OpenDevice(const OpenDeviceOptions&) { return NoDevice(); }
Result<std::vector<DoctorReport>> RunDoctor(const std::string&, const std::function<bool(size_t, size_t)>&) {
  return NoDevice();
}
Result<std::shared_ptr<const DeviceWeights>> LoadDeviceWeights(
    const Model&, Device&, const std::function<bool(uint64_t, uint64_t)>&) {
  return NoDevice();
}
Result<std::unique_ptr<ForwardPass>> CreateForwardPass(const Model&, std::shared_ptr<const DeviceWeights>,
                                                       Device&, const ForwardPassOptions&) {
  return NoDevice();
}

}  // namespace kvrun
