#include "platform/vulkan/driver_trials.h"

#include <fmt/format.h>
#include <signal.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "platform/vulkan/instance.h"

namespace kvrun {
namespace {

constexpr const char* kListing = "listed its devices";

// Of this process, where it cannot be kept or shall not be.
std::mutex g_mutex;
std::vector<LeftOutDriver> g_left_out;
std::set<std::string> g_tried_again;  // manifests
std::atomic<bool> g_retry{false};

bool IsSet(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr) return false;
  const std::string text = value;
  return !text.empty() && text != "0" && text != "no" && text != "off" && text != "false";
}

// Once for each driver and process, or the driver would be tried by every look.
bool IsTriedAgain(const DriverFile& driver) {
  const std::lock_guard lock(g_mutex);
  if (!g_retry.load() && !IsSet("KVRUN_RETRY_DRIVERS")) return false;
  if (!g_tried_again.insert(driver.manifest).second) return false;
  std::erase_if(g_left_out, [&](const LeftOutDriver& other) { return other.driver == driver; });
  return true;
}

// `not_kept`: why the next start knows nothing of it; empty where it does.
LeftOutDriver LeftOut(const DriverFile& driver, const DriverNotes& notes, const std::string& why,
                      const std::string& not_kept = "") {
  const std::string brief = fmt::format("the Vulkan driver {} is left out: {}", driver.manifest, why);
  if (!not_kept.empty()) {
    return {driver, fmt::format("{}; the next start tries it again{}", brief, not_kept), brief};
  }
  const std::string paths = notes.PathsOf(driver);
  return {driver,
          fmt::format("{}; to try it again set KVRUN_RETRY_DRIVERS=1{}", brief,
                      paths.empty() ? "" : " or delete " + paths),
          brief};
}

// An answer of the copy: whether it is a text or a status, then that.
std::string Pack(const Result<std::string>& answer) {
  if (answer.ok()) return "+" + *answer;
  return fmt::format("-{:02}{}", static_cast<int>(answer.status().code()), answer.status().message());
}

Result<std::string> Unpack(const std::string& packed) {
  if (packed.starts_with('+')) return packed.substr(1);
  if (packed.size() < 3) return Status(StatusCode::kInternal, "the trial of a Vulkan driver gave no answer");
  const int code = std::atoi(packed.substr(1, 2).c_str());
  return Status(static_cast<StatusCode>(code), packed.substr(3));
}

// What the driver threw through the loader, or what its use did for want of memory.
Result<std::string> Guarded(const std::function<Result<std::string>()>& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, "there is not enough memory for a trial of the device");
  }
}

TrialOutcome Fault(std::string fault, bool is_kept = true) {
  TrialOutcome outcome;
  outcome.answer = Status(StatusCode::kDevice, "the driver " + fault);
  outcome.is_fault = true;
  outcome.is_kept = is_kept;
  outcome.fault = std::move(fault);
  return outcome;
}

TrialOutcome Answer(Result<std::string> answer) {
  TrialOutcome outcome;
  outcome.answer = std::move(answer);
  return outcome;
}

TrialOutcome OfApart(const ApartOutcome& apart, double limit_s) {
  switch (apart.kind) {
    case ApartOutcome::Kind::kAnswered: return Answer(Unpack(apart.answer));
    case ApartOutcome::Kind::kSignal:
      if (apart.number == SIGKILL) {
        return Fault("was killed twice (signal 9, as by a system that is out of memory)", /*is_kept=*/false);
      }
      // SIGBUS may be a model's file, cut.
      return Fault(fmt::format("crashed (signal {}, {})", apart.number, strsignal(apart.number)),
                   apart.number != SIGBUS && apart.number != SIGTERM);
    case ApartOutcome::Kind::kExit: return Fault(fmt::format("ended the process with code {}", apart.number));
    case ApartOutcome::Kind::kTimedOut: return Fault(fmt::format("hung (no answer within {:g} s)", limit_s));
    case ApartOutcome::Kind::kCancelled:
      return Answer(Status(StatusCode::kCancelled, "the trial of a Vulkan driver was interrupted"));
    case ApartOutcome::Kind::kNotBegun: break;
  }
  return Answer(StatusFromErrno(
      apart.number,
      "cannot try the Vulkan driver in a process of its own (a higher limit of processes, ulimit -u, or "
      "--device cpu would help)"));
}

}  // namespace

NoteKind TrialKind() { return CanTryApart() ? NoteKind::kApart : NoteKind::kTrial; }

bool CanTryApart() { return !IsTrialCopy() && !VulkanInstance::WasCreated() && CanRunApart(); }

TrialOutcome TryWork(const std::function<Result<std::string>()>& work,
                     const std::function<bool()>& is_cancelled, double limit_s) {
  if (!CanTryApart()) return Answer(Guarded(work));
  const int interruptions = TrialInterruptions();
  const auto is_over = [&] {
    return TrialInterruptions() != interruptions || (is_cancelled && is_cancelled());
  };
  ApartOutcome outcome;
  const auto is_killed = [&] {
    return outcome.kind == ApartOutcome::Kind::kSignal && outcome.number == SIGKILL && !is_over();
  };
  for (int i = 0; i == 0 || (i == 1 && is_killed()); ++i) {
    outcome = RunApart(
        [&] {
          BecomeTrialCopy();
          return Pack(Guarded(work));
        },
        {.limit_s = limit_s,
         .is_cancelled = is_over,
         .keep_stderr = InstanceOptions::FromEnvironment().validation});
  }
  // A signal to all of a terminal's processes may end the copy before the handler here has run.
  const bool is_users = outcome.kind == ApartOutcome::Kind::kSignal && outcome.number == SIGTERM;
  if (is_users || TrialInterruptions() != interruptions) {
    return OfApart({ApartOutcome::Kind::kCancelled, 0, ""}, limit_s);
  }
  return OfApart(outcome, limit_s);
}

LeftOutDriver LeaveOut(const DriverFile& driver, const DriverNotes& notes, const TrialOutcome& outcome,
                       const std::string& doing) {
  const std::string why = fmt::format("it {} while kvrun {}", outcome.fault, doing);
  std::string not_kept;
  if (outcome.is_kept) {
    const Status status =
        notes.Write(driver, {.state = DriverState::kLeftOut, .was_opened = false, .devices = {}, .why = why});
    if (!status.ok()) not_kept = ", as this cannot be kept: " + status.message();
  } else {
    not_kept = ", as it may not be to blame";
  }
  LeftOutDriver left_out = LeftOut(driver, notes, why, not_kept);
  const std::lock_guard lock(g_mutex);
  g_left_out.push_back(left_out);
  return left_out;
}

std::string LeftOutRemark(const std::vector<LeftOutDriver>& left_out) {
  constexpr size_t kMostNames = 4;
  if (left_out.empty()) return "";
  if (left_out.size() == 1) {
    const bool is_known = !left_out[0].driver.manifest.empty();
    return left_out[0].brief + (is_known ? " (kvrun devices says how to try it again)" : "");
  }
  std::string names;
  const size_t n_names = left_out.size() > kMostNames ? kMostNames - 1 : left_out.size();
  for (size_t i = 0; i < n_names; ++i) {
    const std::string& path = left_out[i].driver.manifest;
    names += (i == 0 ? "" : ", ") + (path.empty() ? "any" : path.substr(path.rfind('/') + 1));
  }
  if (n_names < left_out.size()) names += fmt::format(" and {} more", left_out.size() - n_names);
  return fmt::format("{} Vulkan drivers are left out: {} (kvrun devices says why, and how to try them again)",
                     left_out.size(), names);
}

namespace {

// Of this process alone: what is kept in files may have been deleted since, and counts by itself.
std::optional<LeftOutDriver> LeftOutHere(const DriverFile& driver) {
  const std::lock_guard lock(g_mutex);
  const auto found = std::find_if(g_left_out.begin(), g_left_out.end(),
                                  [&](const LeftOutDriver& one) { return one.driver == driver; });
  return found == g_left_out.end() ? std::nullopt : std::optional(*found);
}

Status Try(const DriverFile& driver, const DriverNotes& notes, const DriverLook& look, DriverRecord record,
           JudgedDrivers* judged) {
  const double limit_s = DriverTimeoutSeconds();
  const TrialNote note = notes.Begin(driver, TrialKind(), kListing, limit_s);
  const TrialOutcome outcome = TryWork([&] { return look(driver); }, {}, limit_s);
  if (outcome.is_fault) {
    judged->left_out.push_back(LeaveOut(driver, notes, outcome, kListing));
    return Status::Ok();
  }
  judged->usable.push_back(driver);
  if (!outcome.answer.ok()) {
    // No fault, and nothing that is known for good.
    const bool is_cancelled = outcome.answer.status().code() == StatusCode::kCancelled;
    return is_cancelled ? outcome.answer.status() : Status::Ok();
  }
  record.state = DriverState::kWorks;
  record.was_opened = false;
  record.devices.clear();
  std::istringstream lines(*outcome.answer);
  for (std::string line; std::getline(lines, line);) record.devices.push_back(line);
  (void)notes.Write(driver, record);
  notes.ForgetEnds(driver, kListing);
  return Status::Ok();
}

}  // namespace

Result<JudgedDrivers> JudgeDrivers(const std::vector<DriverFile>& drivers, const DriverNotes& notes,
                                   const DriverLook& look, bool try_all) {
  JudgedDrivers judged;
  for (const DriverFile& driver : drivers) {
    if (IsTriedAgain(driver)) notes.Forget(driver);
    if (std::optional<LeftOutDriver> here = LeftOutHere(driver)) {
      judged.left_out.push_back(std::move(*here));
      continue;
    }
    const DriverRecord record = notes.Read(driver);
    const bool is_taken = record.state == DriverState::kWorks || !notes.is_kept();
    if (record.state == DriverState::kLeftOut) {
      judged.left_out.push_back(LeftOut(driver, notes, record.why));
    } else if (is_taken && !try_all) {
      judged.usable.push_back(driver);
    } else {
      KVRUN_RETURN_IF_ERROR(Try(driver, notes, look, record, &judged));
    }
  }
  return judged;
}

void RetryDrivers() {
  const std::lock_guard lock(g_mutex);
  g_retry.store(true);
  g_tried_again.clear();
}

}  // namespace kvrun
