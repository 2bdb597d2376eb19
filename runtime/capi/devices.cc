#include <algorithm>
#include <string>
#include <vector>

#include "runtime/capi/border.h"
#include "runtime/device/open_device.h"

namespace kvrun::capi {
namespace {

Json DeviceToJson(const DeviceListing& device) {
  return {{"index", device.index},   {"name", device.name},
          {"kind", device.kind},     {"api_version", device.api_version},
          {"driver", device.driver}, {"memory_bytes", device.memory_bytes},
          {"usable", device.usable}, {"reason", device.reason}};
}

// A driver that is not used has no index: it is no device.
Json DriverToJson(const LeftOutListing& driver) {
  return {{"index", nullptr}, {"name", driver.manifest}, {"kind", "driver"}, {"api_version", ""},
          {"driver", ""},     {"memory_bytes", nullptr}, {"usable", false},  {"reason", driver.reason}};
}

Json DoctorToJson(const DoctorReport& report) {
  Json limits = Json::object();
  for (const auto& [name, value] : report.limits) limits[name] = value;
  Json tests = Json::array();
  for (const SelfTestResult& test : report.tests) {
    tests.push_back({{"name", test.name}, {"passed", test.passed}, {"detail", test.detail}});
  }
  return {{"name", report.name}, {"kind", report.kind}, {"driver", report.driver},        {"limits", limits},
          {"plan", report.plan}, {"tests", tests},      {"n_left_out", report.n_left_out}};
}

// A device on which nothing ran has not passed, and neither has a machine without a device.
bool HasPassed(const std::vector<DoctorReport>& reports) {
  const auto device_passed = [](const DoctorReport& report) {
    return !report.tests.empty() && std::all_of(report.tests.begin(), report.tests.end(),
                                                [](const SelfTestResult& test) { return test.passed; });
  };
  return !reports.empty() && std::all_of(reports.begin(), reports.end(), device_passed);
}

}  // namespace
}  // namespace kvrun::capi

using kvrun::Status;
using kvrun::capi::CheckNotNull;
using kvrun::capi::Json;

extern "C" {

kvrun_status kvrun_devices_json(char** json) {
  return kvrun::capi::Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(json, "json"));
    *json = nullptr;
    std::vector<kvrun::LeftOutListing> left_out;
    KVRUN_ASSIGN_OR_RETURN(const std::vector<kvrun::DeviceListing> devices, kvrun::ListDevices(&left_out));
    Json list = Json::array();
    for (const auto& device : devices) list.push_back(kvrun::capi::DeviceToJson(device));
    for (const auto& driver : left_out) list.push_back(kvrun::capi::DriverToJson(driver));
    return kvrun::capi::CopyOut(list, json);
  });
}

void kvrun_interrupt_trials(void) { kvrun::InterruptDriverTrials(); }

kvrun_status kvrun_retry_drivers(void) {
  return kvrun::capi::Guard([]() -> Status {
    kvrun::RetryLeftOutDrivers();
    return Status::Ok();
  });
}

kvrun_status kvrun_doctor_json(const char* device, kvrun_progress_fn progress, void* user, char** json) {
  return kvrun_doctor_within_json(device, 0, progress, user, json);
}

kvrun_status kvrun_doctor_within_json(const char* device, uint32_t max_ms, kvrun_progress_fn progress,
                                      void* user, char** json) {
  return kvrun::capi::Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(json, "json"));
    *json = nullptr;
    const auto on_progress = [&](size_t done, size_t total) {
      return progress != nullptr && progress(user, KVRUN_PHASE_SELF_TEST, done, total) != 0;
    };
    KVRUN_ASSIGN_OR_RETURN(const std::vector<kvrun::DoctorReport> reports,
                           kvrun::RunDoctor(device == nullptr ? "" : device, on_progress, max_ms / 1000.0));
    Json devices = Json::array();
    for (const auto& report : reports) devices.push_back(kvrun::capi::DoctorToJson(report));
    return kvrun::capi::CopyOut(Json{{"passed", kvrun::capi::HasPassed(reports)}, {"devices", devices}},
                                json);
  });
}

}  // extern "C"
