#include "runtime/engine/session/session_list.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>

#include "platform/io/unique_fd.h"
#include "runtime/engine/session/session_files.h"
#include "runtime/engine/session/session_folder.h"
#include "runtime/store/state_file.h"
#include "runtime/store/state_file_io.h"
#include "runtime/store/state_folder.h"

namespace kvrun {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> FilesOf(const std::string& path) {
  return {path, path + SessionFiles::kRecordsEnding, path + SessionFiles::kRowsEnding};
}

std::string NameOf(const std::string& path) {
  const std::string file = fs::path(path).filename();
  const std::string_view ending = kSessionEnding;
  return file.ends_with(ending) ? file.substr(0, file.size() - ending.size()) : file;
}

bool IsEncrypted(const std::string& path) {
  const Result<bool> sealed = StateFile::IsSealed(path);
  return sealed.ok() && *sealed;
}

// No other process has the session meanwhile. What is encrypted is not read.
struct HeldState {
  std::unique_ptr<StateFile> state;
  StateHandle file;
};

Result<HeldState> Hold(const std::string& path) {
  HeldState held;
  if (IsEncrypted(path)) {
    KVRUN_ASSIGN_OR_RETURN(const StateFolder folder, StateFolder::Open(SystemStateFileIo(), path));
    KVRUN_ASSIGN_OR_RETURN(held.file, folder.OpenLocked());
  } else {
    KVRUN_ASSIGN_OR_RETURN(held.state, StateFile::Open(path));
  }
  return held;
}

// What a state says of itself.
Status Read(const StateFile& state, KeptSessionInfo* info) {
  KVRUN_ASSIGN_OR_RETURN(info->identity, SessionFiles::ReadIdentityOf(state));
  if (!info->identity.is_begun()) return {StatusCode::kNotFound, "nothing was saved in it yet"};
  info->written = SessionFiles::ReadWrittenOf(state);
  info->n_tokens.resize(info->identity.n_sequences);
  for (uint32_t i = 0; i < info->identity.n_sequences; ++i) info->n_tokens[i] = CountSavedTokens(state, i);
  return Status::Ok();
}

// Holes stay holes.
Status CopyBytes(const UniqueFd& source, const std::string& from, const UniqueFd& target,
                 const std::string& to) {
  struct stat facts {};
  if (fstat(source.get(), &facts) != 0) return StatusFromErrno(errno, "cannot read " + from);
  std::vector<char> buffer(1 << 20);
  for (off_t at = 0; at < facts.st_size;) {
    const off_t data = lseek(source.get(), at, SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;  // a hole up to the end
    const off_t begin = data < 0 ? at : data;
    const ssize_t n = pread(source.get(), buffer.data(), buffer.size(), begin);
    if (n < 0) return StatusFromErrno(errno, "cannot read " + from);
    if (n == 0) break;
    for (ssize_t done = 0; done < n;) {
      const ssize_t written =
          pwrite(target.get(), buffer.data() + done, static_cast<size_t>(n - done), begin + done);
      if (written < 0) return StatusFromErrno(errno, "cannot write " + to);
      done += written;
    }
    at = begin + n;
  }
  if (ftruncate(target.get(), facts.st_size) != 0 || fsync(target.get()) != 0) {
    return StatusFromErrno(errno, "cannot write " + to);
  }
  return Status::Ok();
}

// A file that it has begun goes where it fails.
Status CopyFile(const std::string& from, const std::string& to) {
  const UniqueFd source(open(from.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (source.get() < 0 && errno == ENOENT) return Status::Ok();
  if (source.get() < 0) return StatusFromErrno(errno, "cannot read " + from);
  const UniqueFd target(open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (target.get() < 0) return StatusFromErrno(errno, "cannot make " + to);
  Status copied = CopyBytes(source, from, target, to);
  if (!copied.ok()) unlink(to.c_str());
  return copied;
}

}  // namespace

Result<KeptSessionInfo> DescribeSession(const std::string& path, const SecretKey* key) {
  KeptSessionInfo info;
  info.name = NameOf(path);
  info.path = path;
  info.is_encrypted = IsEncrypted(path);
  const Result<std::unique_ptr<StateFile>> state =
      StateFile::Open(path, /*read_only=*/true, nullptr, info.is_encrypted ? key : nullptr);
  if (state.status().code() == StatusCode::kNotFound) return state.status();
  Status read = state.status();
  if (read.ok()) read = Read(**state, &info);
  info.is_locked = info.is_encrypted && !read.ok();
  if (!read.ok() && (!info.is_encrypted || key != nullptr)) info.trouble = read.message();
  info.size_bytes = SessionSizeBytes(path);
  struct stat facts {};
  if (lstat(path.c_str(), &facts) == 0) info.used_s = facts.st_mtime;
  return info;
}

Result<KeptSessionInfo> DescribeWithLikelyKey(const std::string& path, const SecretKey* key) {
  if (key != nullptr && IsEncrypted(path)) {
    Result<KeptSessionInfo> info = DescribeSession(path, key);
    if (info.ok() && !info->is_locked) return info;
  }
  return DescribeSession(path);
}

Result<std::vector<KeptSessionInfo>> ListSessions(const std::string& folder, const SecretKey* likely_key) {
  std::vector<KeptSessionInfo> sessions;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (!entry->path().string().ends_with(kSessionEnding)) continue;
    Result<KeptSessionInfo> info = DescribeWithLikelyKey(entry->path(), likely_key);
    if (info.ok()) sessions.push_back(std::move(info).value());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return Status(StatusCode::kIo, fmt::format("cannot read the folder {}: {}", folder, error.message()));
  }
  std::sort(sessions.begin(), sessions.end(), [](const KeptSessionInfo& a, const KeptSessionInfo& b) {
    return a.used_s != b.used_s ? a.used_s > b.used_s : a.name < b.name;
  });
  return sessions;
}

Result<std::vector<TokenId>> ReadSessionTokens(const std::string& path, const SecretKey* key) {
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<StateFile> state,
                         StateFile::Open(path, /*read_only=*/true, nullptr, key));
  return ReadSavedTokens(*state, 0);
}

uint64_t SessionSizeBytes(const std::string& path) {
  uint64_t bytes = 0;
  for (const std::string& file : FilesOf(path)) {
    struct stat facts {};
    if (lstat(file.c_str(), &facts) == 0) bytes += static_cast<uint64_t>(facts.st_blocks) * 512;
  }
  return bytes;
}

// The state goes last, and is locked meanwhile: files of records without one would be nobody's.
Status RemoveSession(const std::string& path) {
  const Result<HeldState> state = Hold(path);
  const StatusCode code = state.status().code();
  if (code != StatusCode::kCorrupt && code != StatusCode::kUnsupported) KVRUN_RETURN_IF_ERROR(state.status());
  const std::vector<std::string> files = FilesOf(path);
  for (size_t i = files.size(); i-- > 0;) {
    if (unlink(files[i].c_str()) != 0 && errno != ENOENT) {
      return StatusFromErrno(errno, "cannot remove " + files[i]);
    }
  }
  return Status::Ok();
}

// The state comes last: a copy that was not finished is none.
Status CopySession(const std::string& from, const std::string& to) {
  const Result<HeldState> state = Hold(from);  // locked while it is copied
  KVRUN_RETURN_IF_ERROR(state.status());
  struct stat facts {};
  if (lstat(to.c_str(), &facts) == 0) {
    return {StatusCode::kInvalidArgument, fmt::format("{} is there already: remove it, or name another", to)};
  }
  const std::vector<std::string> sources = FilesOf(from);
  const std::vector<std::string> targets = FilesOf(to);
  for (size_t i = sources.size(); i-- > 0;) {
    const Status copied = CopyFile(sources[i], targets[i]);
    if (copied.ok()) continue;
    for (size_t k = i + 1; k < targets.size(); ++k) unlink(targets[k].c_str());
    return copied;
  }
  return Status::Ok();
}

}  // namespace kvrun
