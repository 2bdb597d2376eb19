#include "runtime/device/host/doctor.h"

#include <fmt/format.h>

#include <memory>
#include <utility>
#include <vector>

#include "platform/base/units.h"
#include "runtime/device/host/host_listing.h"
#include "runtime/device/host/instruction_sets.h"
#include "runtime/device/host/self_test.h"

namespace kvrun::host {
namespace {

struct Devices {
  std::unique_ptr<HostDevice> exact;
  std::unique_ptr<HostDevice> rounded;
};

Result<Devices> Open() {
  Devices devices;
  KVRUN_ASSIGN_OR_RETURN(devices.exact, HostDevice::Create({.exact_activations = true, .note = {}}));
  KVRUN_ASSIGN_OR_RETURN(devices.rounded, HostDevice::Create({.exact_activations = false, .note = {}}));
  return devices;
}

class Examination {
 public:
  explicit Examination(std::string note) : note_(std::move(note)) {}

  size_t n_tests() const { return sets_.size() * (1 + checks_.size()); }

  Result<DoctorReport> Run(const CheckUpPace& pace) const {
    DoctorReport report = Describe();
    for (const InstructionSet& set : sets_) {
      const ChosenInstructionSet chosen(set);
      KVRUN_RETURN_IF_ERROR(RunWith(set, pace, report));
    }
    return report;
  }

 private:
  DoctorReport Describe() const {
    const DeviceListing listing = ListHostDevice(0);
    std::string names;
    for (const InstructionSet& set : sets_) names += (names.empty() ? "" : ", ") + set.name;
    DoctorReport report{
        .name = listing.name,
        .kind = listing.kind,
        .driver = listing.driver,
        .limits = {{"memory", FormatBytes(listing.memory_bytes)}, {"instruction sets", names}},
        .plan = {},
        .tests = {},
        .n_left_out = 0};
    if (!note_.empty()) report.plan.push_back("note: " + note_);
    return report;
  }

  Status RunWith(const InstructionSet& set, const CheckUpPace& pace, DoctorReport& report) const {
    if (pace.is_over && pace.is_over()) {
      report.n_left_out += 1 + checks_.size();
      return Status::Ok();
    }
    const Result<Devices> devices = Open();
    report.tests.push_back({set.name + ": opening the device", devices.ok(),
                            devices.ok() ? devices->rounded->info().plan : devices.status().message()});
    KVRUN_RETURN_IF_ERROR(pace.tick());
    if (!devices.ok()) return Status::Ok();
    return RunChecks<HostCheck>(checks_, pace, &report, [&](const HostCheck& check) {
      HostDevice& device = check.exact_activations ? *devices->exact : *devices->rounded;
      return ToResult(fmt::format("{}: {}", set.name, check.name), check.run(device));
    });
  }

  std::string note_;
  std::vector<InstructionSet> sets_ = InstructionSets();
  std::vector<HostCheck> checks_ = HostChecks();
};

}  // namespace

CheckUp PlanCheckUp(const std::string& note) {
  const auto examination = std::make_shared<const Examination>(note);
  return {.n_tests = examination->n_tests(),
          .run = [examination](const CheckUpPace& pace) { return examination->Run(pace); }};
}

}  // namespace kvrun::host
