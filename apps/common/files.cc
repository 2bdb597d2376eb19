#include "apps/common/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <new>
#include <optional>
#include <sstream>
#include <utility>

#include "apps/common/colour.h"
#include "apps/common/failure.h"
#include "apps/common/interrupt.h"
#include "apps/common/printable.h"

namespace kvrun::cli {
namespace {

std::string& ProgramName() {
  static std::string name = "kvrun";
  return name;
}

constexpr size_t kReadBytes = 64 * 1024;
constexpr uint64_t kMib = uint64_t{1} << 20;
constexpr uint64_t kMaxTextBytes = 1024 * kMib;  // what kvrun_tokenize takes at once
constexpr uint64_t kMaxSmallFileBytes = kMib;
// The text, as it grows and as its ids (up to one for each byte).
constexpr uint64_t kMemoryPerText = 8;
constexpr unsigned kReaderPollUs = 20'000;

enum class OnSignal : bool { kGoOn, kStop };

// The answer is 0 or an errno value: EINTR only where a signal is to stop it.
int WriteAll(int fd, const void* data, size_t size_bytes, OnSignal on_signal = OnSignal::kGoOn) {
  const char* next = static_cast<const char*>(data);
  while (size_bytes > 0) {
    const ssize_t written = ::write(fd, next, size_bytes);
    if (written < 0) {
      if (errno == EINTR && !(on_signal == OnSignal::kStop && Interrupted())) continue;
      return errno;
    }
    next += written;
    size_bytes -= static_cast<size_t>(written);
  }
  return 0;
}

std::string Reason(int error_number) { return std::strerror(error_number); }

Failure CannotRead(const std::string& name, int error_number) {
  return Failure(error_number == ENOENT ? KVRUN_NOT_FOUND : KVRUN_IO_ERROR,
                 fmt::format("cannot read {}: {}", name, Reason(error_number)));
}

Failure IsTooLong(const std::string& name, const TextLimit& limit) {
  const std::string most = limit.n_bytes < kMib ? fmt::format("{} bytes", limit.n_bytes)
                                                : fmt::format("{} MiB", limit.n_bytes / kMib);
  return Failure(KVRUN_INVALID_ARGUMENT,
                 fmt::format("cannot read {}: it has more than {}, {}", name, most, limit.why));
}

Failure HasNoMemoryFor(const std::string& name) {
  return Failure(KVRUN_OUT_OF_MEMORY, fmt::format("cannot read {}: there is too little memory for its text: "
                                                  "name a smaller file, or end other programs",
                                                  name));
}

void AppendAll(int fd, const std::string& name, const TextLimit& limit, std::string* text) {
  struct stat facts = {};
  if (::fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode)) {
    // Standard input may be a file of which others have read the beginning.
    const off_t rest = facts.st_size - std::max<off_t>(::lseek(fd, 0, SEEK_CUR), 0);
    const auto rest_bytes = static_cast<uint64_t>(std::max<off_t>(rest, 0));
    if (rest_bytes > limit.n_bytes) throw IsTooLong(name, limit);
    text->reserve(rest_bytes);
  }
  char buffer[kReadBytes];
  while (true) {
    if (!WaitReadable(fd)) throw Interruption();
    const ssize_t size = ::read(fd, buffer, sizeof buffer);
    if (size == 0) return;
    if (size < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (size < 0) throw CannotRead(name, errno);
    if (static_cast<uint64_t>(size) > limit.n_bytes - text->size()) throw IsTooLong(name, limit);
    text->append(buffer, static_cast<size_t>(size));
  }
}

std::string ReadDescriptor(int fd, const std::string& name, const TextLimit& limit) {
  std::string text;
  try {
    AppendAll(fd, name, limit, &text);
  } catch (const std::bad_alloc&) {
    throw HasNoMemoryFor(name);
  }
  return text;
}

// The word behind `name`, which begins a line, of a file of the system; nothing where it says no number.
std::optional<uint64_t> NumberInFile(const char* path, const std::string& name = "") {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    uint64_t number = 0;
    if (line.starts_with(name) && (std::istringstream(line.substr(name.size())) >> number)) return number;
  }
  return std::nullopt;
}

uint64_t FreeMemoryBytes() {
  uint64_t n_bytes = std::numeric_limits<uint64_t>::max();
  if (const auto kib = NumberInFile("/proc/meminfo", "MemAvailable:")) n_bytes = *kib * 1024;
  // A container's.
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"})
    n_bytes = std::min(n_bytes, NumberInFile(path).value_or(n_bytes));
  return n_bytes;
}

mode_t CreationMode() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return static_cast<mode_t>(0666) & ~mask;
}

[[noreturn]] void ThrowCannotWrite(const std::string& path, int error_number, std::string_view advice = "") {
  if (error_number == EPIPE) throw OutputClosed();
  throw Failure(KVRUN_IO_ERROR, fmt::format("cannot write {}: {}{}", path, Reason(error_number), advice));
}

// What is no regular file. A pipe waits for its reader: asked for again and again, as a signal that comes
// just before open() would be missed by one that waits. -1 and errno where it cannot be had.
int OpenToWrite(const std::string& path, mode_t mode) {
  const int waiting = S_ISFIFO(mode) ? O_NONBLOCK : 0;
  while (true) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY | waiting);
    if (fd >= 0) {
      if (waiting != 0) (void)::fcntl(fd, F_SETFL, O_WRONLY);
      return fd;
    }
    if (errno != EINTR && !(waiting != 0 && errno == ENXIO)) return -1;
    if (Interrupted()) throw Interruption();
    (void)::usleep(kReaderPollUs);
  }
}

}  // namespace

std::string StateFolder() {
  // A folder that is named from the working folder counts as not named, as the XDG rules say.
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state == '/') return std::string(state) + "/kvrun";
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home == '/') return std::string(home) + "/.local/state/kvrun";
  return "";
}

void GuardStandardStreams() {
  // Opened the wrong way round on purpose: using them still fails, as it would on a closed descriptor.
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) (void)!::open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
  }
}

int OpenToRead(const std::string& path) {
  return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
}

TextLimit LimitOfTexts() {
  const uint64_t room_bytes = FreeMemoryBytes() / kMemoryPerText;
  if (room_bytes >= kMaxTextBytes)
    return {kMaxTextBytes, "the most that is read as one text: name a smaller file, or a part of it"};
  return {std::max(room_bytes, kMaxSmallFileBytes),
          fmt::format("and memory has room for no more, as a text takes up to {} times its size while it is "
                      "read: name a smaller file, or end other programs",
                      kMemoryPerText)};
}

TextLimit LimitOfSmallFile(const std::string& what) {
  return {kMaxSmallFileBytes, fmt::format("far more than {} has: name a file that is one", what)};
}

std::string ReadText(const std::string& path, const TextLimit& limit) {
  if (path == "-") return ReadDescriptor(STDIN_FILENO, "standard input", limit);
  const int fd = OpenToRead(path);
  if (fd < 0) throw CannotRead(path, errno);
  struct Closer {
    int fd;
    ~Closer() { ::close(fd); }
  } closer{fd};
  return ReadDescriptor(fd, path, limit);
}

void CheckTextNames(const std::vector<std::string>& paths) {
  if (std::find(paths.begin(), paths.end(), "") != paths.end()) {
    throw UsageError("--file: it is empty: name a FILE, or leave the option out");
  }
  if (std::count(paths.begin(), paths.end(), "-") > 1) {
    throw UsageError("-f - is there twice, but standard input can be read only once: name it once");
  }
}

std::vector<std::string> ReadTexts(const std::vector<std::string>& paths) {
  TextLimit limit = LimitOfTexts();
  std::vector<std::string> texts;
  for (const std::string& path : paths) {
    texts.push_back(ReadText(path, limit));
    limit.n_bytes -= texts.back().size();
    limit.why =
        "which is what the texts before it leave of the most that is read: name a smaller file, or fewer";
  }
  return texts;
}

std::string JoinedTexts(const std::vector<std::string>& texts) {
  std::string joined;
  for (size_t i = 0; i < texts.size(); ++i) joined += (i == 0 ? "" : "\n\n") + texts[i];
  return joined;
}

int TryWriteStdout(std::string_view text) { return WriteAll(STDOUT_FILENO, text.data(), text.size()); }

void WriteStdout(std::string_view text) {
  if (const int error_number = TryWriteStdout(text); error_number != 0) ThrowStdoutError(error_number);
}

void ThrowStdoutError(int error_number) {
  if (error_number == EPIPE) throw OutputClosed();
  throw Failure(KVRUN_IO_ERROR, fmt::format("cannot write to standard output: {}", Reason(error_number)));
}

void SetProgramName(const std::string& name) { ProgramName() = name; }

void PrintMessage(std::string_view message) {
  WriteStderr(fmt::format("{}: {}\n", ProgramName(), Printable(message)));
}

void PrintError(std::string_view message) {
  const std::string text = fmt::format("{}: {}", ProgramName(), Printable(message));
  WriteStderr(Coloured(text, Tone::kBad, STDERR_FILENO) + "\n");
}

void WriteStderr(std::string_view text) { (void)WriteAll(STDERR_FILENO, text.data(), text.size()); }

void CheckWritable(const std::string& path) {
  struct stat facts = {};
  if (::stat(path.c_str(), &facts) != 0 || S_ISREG(facts.st_mode)) {
    const ResultFile beside(path);
    return;
  }
  // What opening it to write would say.
  if (S_ISDIR(facts.st_mode)) ThrowCannotWrite(path, EISDIR);
  if (S_ISSOCK(facts.st_mode)) ThrowCannotWrite(path, ENXIO);
  if (::access(path.c_str(), W_OK) != 0) ThrowCannotWrite(path, errno);
}

ResultFile::ResultFile(const std::string& path) : path_(path), target_(path) {
  struct stat facts = {};
  const bool exists = ::stat(path.c_str(), &facts) == 0;
  if (exists && !S_ISREG(facts.st_mode)) {
    fd_ = OpenToWrite(path, facts.st_mode);
    if (fd_ < 0) Fail(errno);
    return;
  }
  char resolved[PATH_MAX];
  if (exists && ::realpath(path.c_str(), resolved) != nullptr) target_ = resolved;
  std::string name = target_ + ".XXXXXX";
  fd_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd_ < 0) Fail(errno);
  temporary_path_ = name;
  (void)::fchmod(fd_, exists ? (facts.st_mode & 07777) : CreationMode());
}

ResultFile::~ResultFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_path_.empty()) ::unlink(temporary_path_.c_str());
}

void ResultFile::Write(const void* data, size_t size_bytes) {
  const int error_number = WriteAll(fd_, data, size_bytes, OnSignal::kStop);
  if (error_number == EINTR) throw Interruption();
  if (error_number != 0) Fail(error_number);
}

void ResultFile::Commit() {
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) Fail(errno);
  if (temporary_path_.empty()) return;
  if (::rename(temporary_path_.c_str(), target_.c_str()) != 0) Fail(errno);
  temporary_path_.clear();
}

void ResultFile::Fail(int error_number) const {
  const bool is_full = error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG;
  // What is written directly is a device or a pipe.
  const bool can_be_freed = is_full && !temporary_path_.empty();
  ThrowCannotWrite(path_, error_number, can_be_freed ? ": free space there or name another file" : "");
}

}  // namespace kvrun::cli
