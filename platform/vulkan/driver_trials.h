// Which Vulkan drivers are used: each is tried alone before its first use, where a crash or a hang of it does
// not reach this process, and what it did is remembered (driver_notes.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/io/apart.h"
#include "platform/vulkan/driver_files.h"
#include "platform/vulkan/driver_notes.h"

namespace kvrun {

struct LeftOutDriver {
  DriverFile driver;    // without a manifest: any
  std::string message;  // which, why, and how to try it again
  std::string brief;    // without how
};

struct JudgedDrivers {
  std::vector<DriverFile> usable;
  std::vector<LeftOutDriver> left_out;
};

// In one line, for a note beside others: "" where none is left out.
std::string LeftOutRemark(const std::vector<LeftOutDriver>& left_out);

// How a trial went. An answer that is not ok is the driver's own, and no reason to leave it out.
struct TrialOutcome {
  Result<std::string> answer{std::string()};
  bool is_fault = false;  // of the driver: it crashed, hung, ended the process, or was killed
  bool is_kept = true;    // of a fault: for later starts; else for this process alone
  std::string fault;      // "crashed (signal 6, Aborted)"
};

// Whether this process may be copied, and has opened no driver that the copy would see.
bool CanTryApart();
// Of the note of a trial that begins now.
NoteKind TrialKind();
// Calls `work` apart where that can be, else here, where a crash takes the process with it. One that is
// killed (SIGKILL: by somebody, most often the kernel for want of memory) is called once more.
TrialOutcome TryWork(const std::function<Result<std::string>()>& work,
                     const std::function<bool()>& is_cancelled, double limit_s);

// Of one driver alone, by its manifest: the identities of its devices, a line each.
using DriverLook = std::function<Result<std::string>(const DriverFile& driver)>;

// Tries what was not tried yet. kCancelled where the user's signal came meanwhile; then nothing is kept.
// `notes` without a folder: all are taken for usable but those that this process has seen fail.
// `try_all`: those that have worked, too.
Result<JudgedDrivers> JudgeDrivers(const std::vector<DriverFile>& drivers, const DriverNotes& notes,
                                   const DriverLook& look, bool try_all = false);

// Leaves out `driver` from now on, as TryWork's outcome says; answers why, for people.
LeftOutDriver LeaveOut(const DriverFile& driver, const DriverNotes& notes, const TrialOutcome& outcome,
                       const std::string& doing);

// What was left out before is tried again by this process's next look, once: asked for by a call, or by
// $KVRUN_RETRY_DRIVERS.
void RetryDrivers();

}  // namespace kvrun
