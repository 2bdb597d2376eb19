#include "runtime/device/select/open_host.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <utility>

#include "platform/io/cpu_name.h"
#include "runtime/device/host/host_cores.h"

namespace kvrun {

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

bool IsHostName(std::string_view wanted) {
  const std::string name = LowerCase(wanted);
  return name == "host" || name == "cpu";
}

bool IsAutoName(std::string_view wanted) { return wanted.empty() || LowerCase(wanted) == "auto"; }

bool IsPartOfCpuName(std::string_view wanted, std::string_view cpu_name) {
  std::string_view digits = wanted;
  if (digits.starts_with('-')) digits.remove_prefix(1);
  const bool is_number = !digits.empty() && std::all_of(digits.begin(), digits.end(),
                                                        [](char c) { return c >= '0' && c <= '9'; });
  return !is_number && LowerCase(cpu_name).find(LowerCase(wanted)) != std::string::npos;
}

Status CheckOptions(const OpenDeviceOptions& options) {
  if (options.n_threads <= kMaxThreads) return Status::Ok();
  return {StatusCode::kInvalidArgument,
          fmt::format("{} threads were asked for; there can be at most {} (--threads)", options.n_threads,
                      kMaxThreads)};
}

Result<std::unique_ptr<host::HostDevice>> CreateHost(const OpenDeviceOptions& options, std::string note) {
  return host::HostDevice::Create({.n_threads = options.n_threads,
                                   .exact_activations = options.exact_activations,
                                   .instruction_set = options.instruction_set,
                                   .profile = options.profile,
                                   .note = std::move(note)});
}

Result<std::unique_ptr<Device>> OpenHost(const OpenDeviceOptions& options, std::string note) {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<host::HostDevice> device, CreateHost(options, std::move(note)));
  return std::unique_ptr<Device>(std::move(device));
}

AutoCandidates HostCandidates(const OpenDeviceOptions& options) {
  AutoCandidates candidates;
  candidates.cpu_name = CpuName();
  candidates.n_threads = host::ChooseThreads(options.n_threads).n_threads;
  return candidates;
}

Result<std::vector<DoctorReport>> RunCheckUps(const std::vector<CheckUp>& check_ups,
                                              const std::function<bool(size_t, size_t)>& progress,
                                              double limit_s) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  const auto spent_s = [begin] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  size_t done = 0;
  size_t total = 0;
  for (const CheckUp& check_up : check_ups) total += check_up.n_tests;
  const auto tick = [&]() -> Status {
    ++done;
    if (progress && progress(done, total)) return {StatusCode::kCancelled, "the self-tests were cancelled"};
    return Status::Ok();
  };
  std::vector<DoctorReport> reports;
  for (size_t i = 0; i < check_ups.size(); ++i) {
    const double begin_s = spent_s();
    const double end_s = begin_s + (limit_s - begin_s) / static_cast<double>(check_ups.size() - i);
    CheckUpPace pace{.tick = tick, .is_over = {}};
    if (limit_s > 0.0) pace.is_over = [=] { return spent_s() >= end_s; };
    KVRUN_ASSIGN_OR_RETURN(DoctorReport report, check_ups[i].run(pace));
    done += report.n_left_out;
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace kvrun
