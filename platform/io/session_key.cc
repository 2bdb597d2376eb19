// Not grouped: its names are others', too.
#include "platform/io/session_key.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <system_error>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "platform/io/folder.h"
#include "platform/io/own_file.h"
#include "platform/io/seal.h"
#include "platform/io/unique_fd.h"

namespace kvrun {
namespace {

constexpr size_t kHexDigits = 2 * SecretKey::kBytes;
constexpr size_t kMaxFileBytes = kHexDigits + 1;  // and a newline
constexpr std::string_view kWhatItHolds = "32 random bytes, or 64 hex digits";
constexpr std::string_view kHowToMake = "make one with `(umask 077; head -c 32 /dev/urandom >FILE)`";
constexpr unsigned kNoReplace = 1;  // RENAME_NOREPLACE, which not every C library names

Status Wrong(const std::string& path, std::string_view why) {
  return {StatusCode::kInvalidArgument, fmt::format("the key file {} cannot be used: {}", path, why)};
}

// What is read is wiped.
struct Content {
  std::array<std::byte, kMaxFileBytes + 1> bytes = {};  // one more, to see that there is more
  size_t size = 0;

  Content() = default;
  Content(const Content&) = delete;
  Content& operator=(const Content&) = delete;
  ~Content() { Wipe(bytes); }

  std::span<const std::byte> span() const { return std::span(bytes).first(size); }
};

struct OpenFile {
  UniqueFd fd;
  struct stat facts {};
};

// kNotFound where it is not there.
Result<OpenFile> Open(const std::string& path) {
  OpenFile file;
  file.fd = UniqueFd(open(path.c_str(), O_RDONLY | kOwnFileFlags));
  if (!file.fd.valid() && errno == ELOOP)
    return Wrong(path, "it is a symbolic link: name the file that it leads to");
  if (!file.fd.valid() && errno == ENOENT)
    return Status(StatusCode::kNotFound, fmt::format("there is no key file {}: {}", path, kHowToMake));
  if (!file.fd.valid()) return StatusFromErrno(errno, "cannot open the key file " + path);
  if (fstat(file.fd.get(), &file.facts) != 0)
    return StatusFromErrno(errno, "cannot look at the key file " + path);
  const std::string_view other = OtherThanOwnFile(file.facts);
  if (other.empty()) return file;
  if (!S_ISREG(file.facts.st_mode)) {
    return Wrong(
        path, fmt::format("it is not a regular file but {}: name a file that holds {}", other, kWhatItHolds));
  }
  return Wrong(path,
               fmt::format("it belongs to user {}, and kvrun runs as user {}: make a copy of your own, and "
                           "`chmod 600` it",
                           file.facts.st_uid, geteuid()));
}

Status CheckMode(const std::string& path, const struct stat& facts) {
  if ((facts.st_mode & 077) == 0) return Status::Ok();
  return Wrong(path,
               fmt::format("others may use it (mode {:03o}): `chmod 600` it, on a file system that keeps "
                           "modes, and make another if others may have read it",
                           facts.st_mode & 0777));
}

std::optional<uint8_t> DigitOf(std::byte character) {
  const auto c = static_cast<char>(character);
  if (c >= '0' && c <= '9') return static_cast<uint8_t>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<uint8_t>(c - 'a' + 10);
  if (c >= 'A' && c <= 'F') return static_cast<uint8_t>(c - 'A' + 10);
  return std::nullopt;
}

bool AreDigits(std::span<const std::byte> text) {
  return std::all_of(text.begin(), text.end(), [](std::byte c) { return DigitOf(c).has_value(); });
}

Result<SecretKey> Parse(const std::string& path, std::span<const std::byte> content) {
  if (content.size() == kMaxFileBytes && content.back() == std::byte{'\n'})
    content = content.first(kHexDigits);
  SecretKey key;
  const std::span<std::byte> bytes = key.bytes();
  if (content.size() == kHexDigits) {
    if (!AreDigits(content)) return Wrong(path, "not all of its 64 characters are hex digits");
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>(*DigitOf(content[2 * i]) << 4 | *DigitOf(content[2 * i + 1]));
  } else if (content.size() == bytes.size()) {
    // No 32 random bytes look so: half a key was written.
    if (AreDigits(content)) return Wrong(path, "it holds 32 hex digits, where a key has 64");
    std::copy(content.begin(), content.end(), bytes.begin());
  } else {
    return Wrong(path, fmt::format("it holds {}, and not {}: {}",
                                   content.size() > kMaxFileBytes ? "more than 65 bytes"
                                                                  : fmt::format("{} bytes", content.size()),
                                   kWhatItHolds, kHowToMake));
  }
  if (std::all_of(bytes.begin(), bytes.end(), [&](std::byte b) { return b == bytes.front(); }))
    return Wrong(path, fmt::format("all bytes of its key are the same: {}", kHowToMake));
  return key;
}

// It is on disk by then. Answers 0, or an errno.
int WriteAll(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n_bytes = write(fd, bytes.data(), bytes.size());
    if (n_bytes < 0 && errno == EINTR) continue;
    if (n_bytes <= 0) return n_bytes < 0 ? errno : EIO;
    bytes = bytes.subspan(static_cast<size_t>(n_bytes));
  }
  return fsync(fd) == 0 ? 0 : errno;
}

// Renames it, unless the other name is taken (EEXIST). Answers 0, or an errno.
int RenameToFree(const std::string& from, const std::string& to) {
  if (syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), kNoReplace) == 0) return 0;
  if (errno == EEXIST) return errno;
  // Not every file system knows it; those that do not have links mostly.
  if (link(from.c_str(), to.c_str()) != 0) return errno;
  unlink(from.c_str());
  return 0;
}

Status CannotMake(const std::string& path, std::string_view why) {
  return {StatusCode::kIo,
          fmt::format("cannot make the key file {}: {}; see to that, or name another key file", path, why)};
}

Status CannotMake(const std::string& path, int error_number) {
  return CannotMake(path, std::generic_category().message(error_number));
}

// The folders that were missing are on disk, too. Where the file has come to be meanwhile, it is left as it
// is.
Status MakeKeyFile(const std::string& path) {
  const std::string folder = FolderOf(path);
  const Result<std::string> there = NearestFolder(folder, MissingParents::kAreMade);
  if (!there.ok()) return CannotMake(path, there.status().message());
  const Status made = MakeFolder(folder, MissingParents::kAreMade);
  if (!made.ok()) return CannotMake(path, made.message());
  KVRUN_ASSIGN_OR_RETURN(const SecretKey key, SecretKey::Random());
  std::string temporary = path + ".XXXXXX";
  const UniqueFd fd(mkostemp(temporary.data(), O_CLOEXEC));  // mode 0600
  if (!fd.valid()) return CannotMake(path, errno);
  int error = WriteAll(fd.get(), key.bytes());
  if (error == 0) error = RenameToFree(temporary, path);
  if (error != 0) unlink(temporary.c_str());
  if (error != 0 && error != EEXIST) return CannotMake(path, error);
  for (std::string upper = folder;; upper = FolderOf(upper)) {
    if (const int failed = SyncFolder(upper); failed != 0) return CannotMake(path, failed);
    if (upper == *there || upper == FolderOf(upper)) return Status::Ok();
  }
}

// Open for writing, though its owner may not write to it.
Result<UniqueFd> OpenToWrite(const std::string& path, const OpenFile& file) {
  if ((file.facts.st_mode & S_IWUSR) == 0) (void)fchmod(file.fd.get(), 0600);
  UniqueFd fd(open(path.c_str(), O_WRONLY | kOwnFileFlags));
  if (!fd.valid()) return StatusFromErrno(errno, "cannot overwrite the key file " + path);
  struct stat facts {};
  if (fstat(fd.get(), &facts) != 0 || facts.st_dev != file.facts.st_dev || facts.st_ino != file.facts.st_ino)
    return Wrong(path, "it has become another file meanwhile: try again");
  return fd;
}

}  // namespace

std::string DefaultKeyPath() {
  const std::optional<std::string> folder = ConfigFolder();
  return folder ? *folder + "/session.key" : "";
}

Result<SecretKey> ReadKeyFile(const std::string& path) {
  KVRUN_RETURN_IF_ERROR(CheckEncryption());
  KVRUN_ASSIGN_OR_RETURN(const OpenFile file, Open(path));
  KVRUN_RETURN_IF_ERROR(CheckMode(path, file.facts));
  Content content;
  while (content.size < content.bytes.size()) {
    const ssize_t n_bytes =
        read(file.fd.get(), &content.bytes[content.size], content.bytes.size() - content.size);
    if (n_bytes < 0 && errno == EINTR) continue;
    if (n_bytes < 0) return StatusFromErrno(errno, "cannot read the key file " + path);
    if (n_bytes == 0) break;
    content.size += static_cast<size_t>(n_bytes);
  }
  return Parse(path, content.span());
}

Result<SecretKey> UserKey(const std::string& path) {
  if (path.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "there is no place for a key of this user: set HOME or XDG_CONFIG_HOME, or name a key");
  }
  constexpr int kTimes = 3;  // it may be destroyed as soon as it is made
  Result<SecretKey> key = ReadKeyFile(path);
  for (int i = 0; i < kTimes && !key.ok() && key.status().code() == StatusCode::kNotFound; ++i) {
    KVRUN_RETURN_IF_ERROR(MakeKeyFile(path));
    key = ReadKeyFile(path);
  }
  return key;
}

Status DestroyKeyFile(const std::string& path) {
  const Result<OpenFile> file = Open(path);
  if (!file.ok() && file.status().code() == StatusCode::kNotFound) return Status::Ok();
  if (!file.ok()) return file.status();
  const auto size = static_cast<uint64_t>(file->facts.st_size);
  if (size > kMaxFileBytes) {
    return Wrong(path, fmt::format("it is not removed, since it is no key: it holds {} bytes, and not {}",
                                   size, kWhatItHolds));
  }
  KVRUN_ASSIGN_OR_RETURN(const UniqueFd fd, OpenToWrite(path, *file));
  // Not zeros: where the machine stops before the name is gone, another key is there, of which nothing is
  // known.
  std::array<std::byte, kMaxFileBytes> random;
  KVRUN_RETURN_IF_ERROR(RandomBytes(random));
  if (const int error = WriteAll(fd.get(), std::span(random).first(size)); error != 0)
    return StatusFromErrno(error, "cannot overwrite the key file " + path);
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return StatusFromErrno(errno, "the key is overwritten, but its file " + path + " cannot be removed");
  }
  if (const int error = SyncFolder(FolderOf(path)); error != 0)
    return StatusFromErrno(
        error, "the key is overwritten, but its file " + path + " may be there again after a loss of power");
  return Status::Ok();
}

}  // namespace kvrun
