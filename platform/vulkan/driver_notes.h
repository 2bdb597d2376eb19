// What kvrun knows of Vulkan drivers from its trials of them, in the user's cache folder:
// docs/formats/driver_notes.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/io/unique_fd.h"
#include "platform/vulkan/driver_files.h"

namespace kvrun {

enum class DriverState : uint8_t { kUntried, kWorks, kLeftOut };

struct DriverRecord {
  DriverState state = DriverState::kUntried;
  bool was_opened = false;           // a device of it was opened and has computed
  std::vector<std::string> devices;  // of kWorks: DeviceFacts::device_uuid of each
  std::string why;                   // of kLeftOut: "it crashed (signal 6, Aborted) while ..."
  uint32_t n_ends = 0;               // how often kvrun ended while it was in use

  bool operator==(const DriverRecord&) const = default;
};

enum class NoteKind : uint8_t {
  kTrial,  // here, of what was not tried yet: if kvrun ends meanwhile, the driver is left out
  kApart,  // in a process of its own, so that no crash of it ends kvrun: if kvrun ends meanwhile, as somebody
           // killed it or the machine stopped, it is tried again; the second time it is left out
  kUse     // of what has worked: as kApart, but not synced to the disk
};

// A file that says that a trial is in progress, locked by this process and gone with this object. One that
// nobody locks is of a process that has ended.
class TrialNote {
 public:
  TrialNote() = default;  // none
  TrialNote(TrialNote&& other) noexcept;
  TrialNote& operator=(TrialNote&& other) noexcept;
  TrialNote(const TrialNote&) = delete;
  TrialNote& operator=(const TrialNote&) = delete;
  ~TrialNote();

  bool is_held() const { return lock_.valid(); }

 private:
  friend class DriverNotes;
  TrialNote(std::string path, UniqueFd lock, double limit_s);
  void Clear();

  std::string path_;
  UniqueFd lock_;
  int slot_ = -1;  // of those that InterruptTrials knows
};

// Files of one folder. A driver is known by its files (path, size, time of change) and by the limits of this
// process's memory: with other limits, or changed, it is another. Where there is no folder, or nothing can be
// written into it, nothing is known and nothing is kept.
class DriverNotes {
 public:
  explicit DriverNotes(std::optional<std::string> folder);

  bool is_kept() const { return folder_.has_value(); }
  DriverRecord Read(const DriverFile& driver) const;
  // What cannot be kept is tried again by the next process.
  Status Write(const DriverFile& driver, const DriverRecord& record) const;
  // `doing` completes "kvrun ended while it ..." in what the next process says. `limit_s`: how long the trial
  // may take, see InterruptTrials.
  TrialNote Begin(const DriverFile& driver, NoteKind kind, const std::string& doing, double limit_s) const;
  // What has just worked: that kvrun ended once in a trial of the same counts no more.
  void ForgetEnds(const DriverFile& driver, const std::string& doing) const;
  // Drops all that is known of it, but for trials in progress.
  void Forget(const DriverFile& driver) const;
  // What to delete to have it tried again, in words.
  std::string PathsOf(const DriverFile& driver) const;

 private:
  std::string Stem(const DriverFile& driver) const;
  std::string RecordPath(const DriverFile& driver) const;
  std::vector<std::string> NotesOf(const DriverFile& driver, NoteKind kind) const;
  DriverRecord AfterUses(const DriverFile& driver, DriverRecord record) const;

  std::optional<std::string> folder_;
};

// "$folder/drivers" of kvrun's cache folder, if there is one.
std::optional<std::string> DriverNotesFolder();

// For handlers of the user's signals (async-signal-safe): removes the notes of this process's trials, so that
// no driver is blamed for the end, and ends trials that run apart. The note of a trial that has exceeded its
// time stays: the driver hangs.
void InterruptTrials();
// How often that was called.
int TrialInterruptions();

// This process is a copy that carries out a trial (apart.h): it keeps nothing, its parent does.
void BecomeTrialCopy();
bool IsTrialCopy();

// How long a driver may take to list its devices: $KVRUN_DRIVER_TIMEOUT in seconds, else 20.
double DriverTimeoutSeconds();

}  // namespace kvrun
