#include "runtime/store/state_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include "platform/io/own_file.h"

namespace kvrun {
namespace {

constexpr std::string_view kBeside = ".kvrun-new";
constexpr int kMostTries = 8;  // to lock a file that others replace meanwhile

Status NotAStateFile(const std::string& path, std::string_view what) {
  return {StatusCode::kInvalidArgument,
          fmt::format("{} cannot be a session's file: it is {}: name another", path, what)};
}

Status CheckFacts(const std::string& path, const struct stat& facts) {
  const std::string_view other = OtherThanOwnFile(facts);
  return other.empty() ? Status::Ok() : NotAStateFile(path, other);
}

Status CheckPath(const std::string& path) {
  if (path.empty() || path.back() == '/') return NotAStateFile(path, "no name of a file");
  if (std::string_view(path).ends_with(kBeside)) {
    return NotAStateFile(path, fmt::format("what ends in {}, which a save writes and removes", kBeside));
  }
  return Status::Ok();
}

}  // namespace

std::string StateFileBeside(const std::string& path) { return path + std::string(kBeside); }

Result<StateFolder> StateFolder::Open(StateFileIo& io, const std::string& path) {
  KVRUN_RETURN_IF_ERROR(CheckPath(path));
  const size_t slash = path.rfind('/');
  const size_t name_at = slash == std::string::npos ? 0 : slash + 1;
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash == 0 ? 1 : slash);
  const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  const int fd = Uninterrupted([&] { return io.Open(AT_FDCWD, folder.c_str(), flags, 0); });
  if (fd < 0) {
    const Status status =
        StatusFromErrno(errno, fmt::format("cannot open the folder of the session's file {}", path));
    return Status(status.code(), status.message() + ": make it, or name a file in another");
  }
  return StateFolder(io, path, path.substr(name_at), StateHandle(io, path, fd));
}

Result<StateFolder> StateFolder::Unopened(StateFileIo& io, const std::string& path) {
  KVRUN_RETURN_IF_ERROR(CheckPath(path));
  return StateFolder(io, path, path, StateHandle());
}

int StateFolder::at() const { return folder_.valid() ? folder_.fd() : AT_FDCWD; }

Result<StateHandle> StateFolder::OpenFile(int access) const {
  const int flags = access | kOwnFileFlags;
  StateHandle file(*io_, path_, Uninterrupted([&] { return io_->Open(at(), name_.c_str(), flags, 0); }));
  if (!file.valid()) {
    const int error_number = errno;
    // What it is says more than that it cannot be opened.
    KVRUN_RETURN_IF_ERROR(CheckName());
    if (error_number != ENOENT) return CannotReadState(error_number, path_);
    return Status(StatusCode::kNotFound,
                  fmt::format("there is no session's file {}: name one that was saved", path_));
  }
  struct stat facts {};
  if (Uninterrupted([&] { return io_->Stat(file.fd(), &facts); }) != 0) return CannotReadState(errno, path_);
  KVRUN_RETURN_IF_ERROR(CheckFacts(path_, facts));
  return file;
}

Result<StateHandle> StateFolder::OpenToRead() const { return OpenFile(O_RDONLY); }

Result<StateHandle> StateFolder::OpenLocked() const { return OpenAndLock(O_RDWR, LockKind::kAlone); }
Result<StateHandle> StateFolder::OpenShared() const { return OpenAndLock(O_RDONLY, LockKind::kShared); }

Result<StateHandle> StateFolder::OpenAndLock(int access, LockKind kind) const {
  for (int i = 0; i < kMostTries; ++i) {
    KVRUN_ASSIGN_OR_RETURN(StateHandle file, OpenFile(access));
    KVRUN_RETURN_IF_ERROR(Lock(file, kind));
    const Status status = CheckAt(name_, file);
    if (status.ok()) return file;
    if (status.code() != StatusCode::kInvalidArgument) return status;
  }
  return IsInUse(nullptr);
}

Result<StateHandle> StateFolder::MakeBeside() const {
  KVRUN_RETURN_IF_ERROR(RemoveLeftBeside());
  const std::string beside = StateFileBeside(name_);
  const int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  StateHandle file(*io_, path_, Uninterrupted([&] { return io_->Open(at(), beside.c_str(), flags, 0600); }));
  if (!file.valid()) return CannotSaveState(errno, path_);
  const auto checked = [&]() -> Status {
    // Some file systems say that whatever is made is another's: it could not be opened again.
    struct stat facts {};
    if (Uninterrupted([&] { return io_->Stat(file.fd(), &facts); }) != 0)
      return CannotSaveState(errno, path_);
    KVRUN_RETURN_IF_ERROR(CheckFacts(path_, facts));
    return Lock(file);
  };
  const Status status = checked();
  if (!status.ok()) {
    RemoveBeside(file);
    return status;
  }
  // Who came to remove what a killed process has left may have had it first.
  KVRUN_RETURN_IF_ERROR(CheckAt(beside, file));
  return file;
}

Status StateFolder::RemoveLeftBeside() const {
  const std::string beside = StateFileBeside(name_);
  const int flags = O_RDWR | kOwnFileFlags;
  StateHandle left(*io_, path_, Uninterrupted([&] { return io_->Open(at(), beside.c_str(), flags, 0); }));
  if (left.valid()) {
    KVRUN_RETURN_IF_ERROR(Lock(left));
    RemoveBeside(left);
  } else if (errno != ENOENT) {
    (void)Uninterrupted([&] { return io_->Remove(at(), beside.c_str()); });  // a link, say
  }
  return Status::Ok();
}

Status StateFolder::Rename(const StateHandle& file) const {
  const std::string beside = StateFileBeside(name_);
  KVRUN_RETURN_IF_ERROR(CheckAt(beside, file));
  if (Uninterrupted([&] { return io_->Rename(at(), beside.c_str(), name_.c_str()); }) == 0) {
    return Status::Ok();
  }
  return CannotSaveState(errno, path_);
}

void StateFolder::RemoveBeside(const StateHandle& file) const {
  const std::string beside = StateFileBeside(name_);
  if (CheckAt(beside, file).ok()) (void)Uninterrupted([&] { return io_->Remove(at(), beside.c_str()); });
}

Status StateFolder::Sync() const {
  if (Uninterrupted([&] { return io_->Sync(folder_.fd()); }) == 0) return Status::Ok();
  return errno == EINVAL || errno == EOPNOTSUPP ? Status::Ok() : CannotSaveState(errno, path_);
}

Status StateFolder::CheckName() const {
  struct stat facts {};
  // Whatever else is wrong is said when it is opened or written.
  if (Uninterrupted([&] { return io_->StatName(at(), name_.c_str(), &facts); }) != 0) return Status::Ok();
  return CheckFacts(path_, facts);
}

Status StateFolder::CheckAt(const std::string& name, const StateHandle& file) const {
  struct stat named {};
  struct stat own {};
  if (Uninterrupted([&] { return io_->StatName(at(), name.c_str(), &named); }) != 0) {
    return errno == ENOENT ? IsInUse(nullptr) : CannotSaveState(errno, path_);
  }
  if (Uninterrupted([&] { return io_->Stat(file.fd(), &own); }) != 0) return CannotSaveState(errno, path_);
  return named.st_dev == own.st_dev && named.st_ino == own.st_ino ? Status::Ok() : IsInUse(nullptr);
}

Status StateFolder::Lock(const StateHandle& file, LockKind kind) const {
  const auto lock = [&] {
    return kind == LockKind::kShared ? io_->LockShared(file.fd()) : io_->Lock(file.fd());
  };
  if (Uninterrupted(lock) == 0) return Status::Ok();
  const int error_number = errno;
  if (error_number == EWOULDBLOCK) {
    struct stat facts {};
    const bool is_known = Uninterrupted([&] { return io_->Stat(file.fd(), &facts); }) == 0;
    return IsInUse(is_known ? &facts : nullptr);
  }
  return CannotLock(error_number) ? Status::Ok() : CannotSaveState(error_number, path_);
}

Status StateFolder::IsInUse(const struct stat* facts) const {
  const pid_t holder = facts != nullptr ? io_->LockHolder(*facts) : 0;
  const pid_t reader = facts != nullptr && holder == 0 ? io_->LockSharer(*facts) : 0;
  return {StatusCode::kInvalidArgument,
          fmt::format(
              "the session's file {} is in use: {} {}: end that, or name another file", path_,
              ProcessInWords(std::max(holder, reader)),
              reader > 0 ? "reads it, as others may (--session-read-only)" : "has it open to save to it")};
}

}  // namespace kvrun
