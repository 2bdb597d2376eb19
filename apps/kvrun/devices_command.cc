// kvrun devices and kvrun doctor: what computes here, and whether it computes right.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>

#include "apps/common/colour.h"
#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/plural.h"
#include "apps/common/printable.h"
#include "apps/common/shared_options.h"
#include "apps/kvrun/commands.h"
#include "apps/kvrun/report.h"

namespace kvrun::cli {
namespace {

constexpr const char* kNoDevice =
    "no Vulkan device was found: install a driver (on Debian, mesa-vulkan-drivers computes on the CPU)";

std::string FieldText(const Json& object, const char* key) {
  const Json value = object.value(key, Json());
  return value.is_null() ? "" : Printable(TextOf(value));
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
    PrintError(kNoDevice);
    return kExitFailure;
  }
  if (shared.json) return 0;
  std::string table;
  for (const Json& device : devices) table += DeviceText(device);
  WriteStdout(table);
  return 0;
}

bool Passed(const Json& test) { return test.value("passed", Json(false)) == true; }

std::string TestText(const Json& test) {
  const std::string detail = FieldText(test, "detail");
  const std::string word = Passed(test) ? Coloured("pass", Tone::kGood, STDOUT_FILENO)
                                        : Coloured("FAIL", Tone::kBad, STDOUT_FILENO);
  return fmt::format("  {}  {}{}{}\n", word, FieldText(test, "name"), detail.empty() ? "" : ": ", detail);
}

// Of all devices, with what it takes to open them well under a minute.
constexpr uint32_t kQuickMs = 30000;

struct TestCount {
  size_t all = 0;
  size_t failed = 0;
  size_t left_out = 0;
};

TestCount Count(const Json& device) {
  const Json tests = device.value("tests", Json::array());
  TestCount count{tests.size(), 0, device.value("n_left_out", size_t{0})};
  for (const Json& test : tests) count.failed += Passed(test) ? 0 : 1;
  return count;
}

// "12 of 13 self-tests passed, 200 left out".
std::string Sum(const TestCount& count) {
  const std::string passed =
      Coloured(fmt::format("{} of {} passed", count.all - count.failed, Counted(count.all, "self-test")),
               count.failed == 0 ? Tone::kGood : Tone::kBad, STDOUT_FILENO);
  return count.left_out == 0 ? passed : fmt::format("{}, {} left out", passed, count.left_out);
}

// Failures alone, or everything.
std::string CheckUpText(const Json& device, bool verbose) {
  std::string text = fmt::format("{}: {}\n", FieldText(device, "name"), Sum(Count(device)));
  for (const char* key : {"driver", "limits", "plan"}) {
    const Json value = verbose ? device.value(key, Json()) : Json();
    if (value.is_structured()) {
      text += fmt::format("  {}\n{}", key, Outline(value, 4));
    } else if (!value.is_null()) {
      text += fmt::format("  {:<24}{}\n", key, FieldText(device, key));
    }
  }
  for (const Json& test : device.value("tests", Json::array())) {
    if (verbose || !Passed(test)) text += TestText(test);
  }
  return text;
}

std::string DoctorText(const Json& devices, bool verbose) {
  std::string text;
  TestCount sum;
  for (const Json& device : devices) {
    text += CheckUpText(device, verbose);
    const TestCount count = Count(device);
    sum.all += count.all;
    sum.failed += count.failed;
    sum.left_out += count.left_out;
  }
  if (devices.empty()) return text;
  return text + fmt::format("{}: {}\n", Counted(devices.size(), "device"), Sum(sum));
}

// Where tests were left out: how long all of them would take.
void SayLeftOut(const Json& devices, double seconds) {
  size_t n_run = 0;
  size_t n_left_out = 0;
  for (const Json& device : devices) {
    const TestCount count = Count(device);
    n_run += count.all;
    n_left_out += count.left_out;
  }
  if (n_left_out == 0 || n_run == 0) return;
  const double all_s = seconds * static_cast<double>(n_run + n_left_out) / static_cast<double>(n_run);
  PrintMessage(
      fmt::format("note: one of each operation came first, and there was no time for {}; --all runs every "
                  "one, in about {}",
                  Counted(n_left_out, "self-test"), DurationText(all_s)));
}

int Doctor(const SharedOptions& shared, bool runs_all) {
  const bool all = shared.device == "auto";
  Progress progress(ProgressModeOf(shared));
  if (!shared.quiet && !runs_all)
    PrintMessage(
        fmt::format("testing for {} at most (--all: every self-test)", DurationText(kQuickMs / 1e3)));
  if (!runs_all) progress.SetLimit(kQuickMs / 1e3);
  const auto begin = std::chrono::steady_clock::now();
  char* text = nullptr;
  Check(kvrun_doctor_within_json(all ? nullptr : shared.device.c_str(), runs_all ? 0 : kQuickMs,
                                 Progress::Callback, &progress, &text));
  progress.Clear();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const Json result = TakeJson(text);
  const Json devices = result.value("devices", Json::array());
  if (shared.json) {
    WriteStdout(JsonLine(result));
  } else {
    WriteStdout(DoctorText(devices, shared.verbose));
  }
  if (!shared.quiet) SayLeftOut(devices, seconds);
  if (devices.empty()) {
    PrintError(kNoDevice);
    return kExitFailure;
  }
  if (result.value("passed", Json(false)) == true) return 0;
  PrintError("a self-test failed: results of this device cannot be trusted");
  return kExitFailure;
}

}  // namespace

Command AddDevicesCommand(CLI::App* program) {
  auto shared = std::make_shared<SharedOptions>();
  auto set = std::make_shared<OptionSet>(program, "devices", "List the devices that can compute");
  set->AddExample("kvrun devices", "list the devices, with the index that --device takes");
  set->AddExample("kvrun devices --json", "the same for programs");
  set->Group(HelpGroup::kOutput);
  set->Flag("--json", &shared->json, "print a JSON array");
  set->Group(HelpGroup::kDevice);
  auto retry_drivers = std::make_shared<bool>(false);
  set->Flag("--retry-drivers", retry_drivers.get(),
            "try the Vulkan drivers again that are left out because they crashed or hung");
  return {set, {shared, &shared->json}, [shared, retry_drivers] { return Devices(*shared, *retry_drivers); }};
}

Command AddDoctorCommand(CLI::App* program) {
  auto shared = std::make_shared<SharedOptions>();
  auto set =
      std::make_shared<OptionSet>(program, "doctor", "Run self-tests on a device (default: on all of them)");
  AddDeviceOption(set.get(), shared.get());
  set->AddExample("kvrun doctor", "test all devices, for half a minute at most");
  set->AddExample("kvrun doctor --device host --all", "run every self-test on the CPU itself");
  AddReportOptions(set.get(), shared.get());
  AddVerboseOption(set.get(), shared.get(), "also each device's driver, limits, plan and passed tests");
  auto runs_all = std::make_shared<bool>(false);
  set->Group(HelpGroup::kWork);
  set->Flag(
      "--all", runs_all.get(),
      fmt::format("run every self-test, however long it takes (default: those that begin within {}, one "
                  "of each operation first)",
                  DurationText(kQuickMs / 1e3)));
  return {set, {shared, &shared->json}, [shared, runs_all] { return Doctor(*shared, *runs_all); }};
}

}  // namespace kvrun::cli
