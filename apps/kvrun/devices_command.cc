// kvrun devices and kvrun doctor: what computes here, and whether it computes right.
#include <fmt/format.h>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/shared_options.h"
#include "apps/kvrun/commands.h"
#include "apps/kvrun/report.h"

namespace kvrun::cli {
namespace {

constexpr const char* kNoDevice =
    "no Vulkan device was found: install a driver (on Debian, mesa-vulkan-drivers computes on the CPU)";

std::string FieldText(const Json& object, const char* key) {
  const Json value = object.value(key, Json());
  return value.is_null() ? "" : TextOf(value);
}

std::string DeviceText(const Json& device) {
  if (device.value("kind", Json()) == "driver") {
    return fmt::format("  -  {}\n     {}\n", FieldText(device, "name"), FieldText(device, "reason"));
  }
  const std::string version = FieldText(device, "api_version");  // empty where Vulkan is not used
  std::string text =
      fmt::format("{:>3}  {}\n     {}, {}driver {}", FieldText(device, "index"), FieldText(device, "name"),
                  FieldText(device, "kind"), version.empty() ? "" : fmt::format("Vulkan {}, ", version),
                  FieldText(device, "driver"));
  if (const Json memory = device.value("memory_bytes", Json()); memory.is_number()) {
    text += ", " + FormatBytes(memory.get<uint64_t>());
  }
  if (device.value("usable", Json(true)) == false)
    text += "\n     not usable: " + FieldText(device, "reason");
  return text + "\n";
}

int Devices(const SharedOptions& shared, bool retry_drivers) {
  if (retry_drivers) Check(kvrun_retry_drivers());
  char* text = nullptr;
  Check(kvrun_devices_json(&text));
  const Json devices = TakeJson(text);
  if (shared.json) WriteStdout(JsonLine(devices));
  if (devices.empty()) {
    PrintMessage(kNoDevice);
    return kExitFailure;
  }
  if (shared.json) return 0;
  std::string table;
  for (const Json& device : devices) table += DeviceText(device);
  WriteStdout(table);
  return 0;
}

std::string TestText(const Json& test) {
  const bool passed = test.value("passed", Json(false)) == true;
  const std::string detail = FieldText(test, "detail");
  return fmt::format("  {}  {}{}{}\n", passed ? "pass" : "FAIL", FieldText(test, "name"),
                     detail.empty() ? "" : ": ", detail);
}

std::string CheckUpText(const Json& device) {
  std::string text = fmt::format("{}\n", FieldText(device, "name"));
  for (const char* key : {"driver", "limits", "plan"}) {
    const Json value = device.value(key, Json());
    if (value.is_structured()) {
      text += fmt::format("  {}\n{}", key, Outline(value, 4));
    } else if (!value.is_null()) {
      text += fmt::format("  {:<24}{}\n", key, FieldText(device, key));
    }
  }
  size_t failed = 0;
  const Json tests = device.value("tests", Json::array());
  for (const Json& test : tests) {
    text += TestText(test);
    failed += test.value("passed", Json(false)) == true ? 0 : 1;
  }
  return text + fmt::format("  {} of {} self-tests passed\n", tests.size() - failed, tests.size());
}

int Doctor(const SharedOptions& shared) {
  const bool all = shared.device == "auto";
  Progress progress(ProgressModeOf(shared));
  char* text = nullptr;
  Check(kvrun_doctor_json(all ? nullptr : shared.device.c_str(), Progress::Callback, &progress, &text));
  progress.Clear();
  const Json result = TakeJson(text);
  const Json devices = result.value("devices", Json::array());
  if (shared.json) {
    WriteStdout(JsonLine(result));
  } else {
    std::string report;
    for (const Json& device : devices) report += CheckUpText(device);
    WriteStdout(report);
  }
  if (devices.empty()) {
    PrintMessage(kNoDevice);
    return kExitFailure;
  }
  if (result.value("passed", Json(false)) == true) return 0;
  PrintMessage("a self-test failed: results of this device cannot be trusted");
  return kExitFailure;
}

}  // namespace

Command AddDevicesCommand(CLI::App* program) {
  auto shared = std::make_shared<SharedOptions>();
  auto set = std::make_shared<OptionSet>(program, "devices", "The devices that can compute");
  auto retry_drivers = std::make_shared<bool>(false);
  set->Flag("--json", &shared->json, "a JSON array");
  set->Flag("--retry-drivers", retry_drivers.get(),
            "try Vulkan drivers again that are left out, as they crashed or hung");
  return {set, {shared, &shared->json}, [shared, retry_drivers] { return Devices(*shared, *retry_drivers); }};
}

Command AddDoctorCommand(CLI::App* program) {
  auto shared = std::make_shared<SharedOptions>();
  auto set = std::make_shared<OptionSet>(program, "doctor",
                                         "Run every self-test on a device (default: on all of them)");
  AddDeviceOption(set.get(), shared.get());
  AddReportOptions(set.get(), shared.get());
  return {set, {shared, &shared->json}, [shared] { return Doctor(*shared); }};
}

}  // namespace kvrun::cli
