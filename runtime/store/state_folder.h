// The folder of a session's file, and who may save there: one process at a time.
//
// The lock is flock() of the file that has the name, not of a file for locks beside it: nothing lies about
// afterwards, and a killed process leaves no lock. A save that writes a whole file puts another file under
// the name, so
//
//   - what was locked must have the name still, which is looked at once it is locked (Hold); else one could
//     lock a file that a save has just replaced;
//   - the new file is locked before it takes the name, so that nobody can lock it in between;
//   - the temporary name is touched only by who has locked what has the name. Where nothing has it, before a
//     first save, the file at the temporary name is what is locked: it is removed by no other process then,
//     and whoever makes it looks again whether something has got the name meanwhile.
//
// Who reads and wants it to stay as it is holds a shared lock of it, which keeps out who saves.
//
// File systems that cannot lock go without.
#pragma once

#include <cstdint>
#include <string>

#include "platform/base/status.h"
#include "runtime/store/state_file_io.h"

namespace kvrun {

// What a whole new file is called before it takes the name.
std::string StateFileBeside(const std::string& path);

// It stays the same folder wherever the process goes. Move-only.
class StateFolder {
 public:
  // kInvalidArgument where `path` is no name for a session's file.
  static Result<StateFolder> Open(StateFileIo& io, const std::string& path);
  // To open the file once and read it: of the folder, which is not opened, no more is asked than to look a
  // name up.
  static Result<StateFolder> Unopened(StateFileIo& io, const std::string& path);

  // The file of the name. kNotFound where there is none, kInvalidArgument where it is no regular file of
  // this user.
  Result<StateHandle> OpenToRead() const;
  // The same, locked. kInvalidArgument: another process has it.
  Result<StateHandle> OpenLocked() const;
  // The same to read it, locked so that others may do so, too, and nobody saves meanwhile. The file and its
  // folder need not be writable. kInvalidArgument: another process has it to save to it.
  Result<StateHandle> OpenShared() const;
  // The empty file at the temporary name, locked, in place of one that a killed process has left.
  Result<StateHandle> MakeBeside() const;
  // What a killed process has left there goes. kInvalidArgument: a process has it that lives.
  Status RemoveLeftBeside() const;

  bool IsNamed(const StateHandle& file) const { return CheckAt(name_, file).ok(); }
  // `file` takes the name, if it is what has the temporary one.
  Status Rename(const StateHandle& file) const;
  void RemoveBeside(const StateHandle& file) const;
  // The names are on the disk. File systems that cannot sync a folder do not need it.
  Status Sync() const;

 private:
  StateFolder(StateFileIo& io, std::string path, std::string name, StateHandle folder)
      : io_(&io), path_(std::move(path)), name_(std::move(name)), folder_(std::move(folder)) {}

  int at() const;
  Result<StateHandle> OpenFile(int access) const;
  Status CheckName() const;
  // Ok: `file` has that name, and nobody has removed it or put another there. kInvalidArgument: somebody has.
  Status CheckAt(const std::string& name, const StateHandle& file) const;
  enum class LockKind : uint8_t { kAlone, kShared };
  Result<StateHandle> OpenAndLock(int access, LockKind kind) const;
  Status Lock(const StateHandle& file, LockKind kind = LockKind::kAlone) const;
  Status IsInUse(const struct stat* facts) const;

  StateFileIo* io_;
  std::string path_;
  std::string name_;
  StateHandle folder_;  // none: where the process is
};

}  // namespace kvrun
