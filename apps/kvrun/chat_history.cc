#include "apps/kvrun/chat_history.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "apps/common/api.h"
#include "apps/common/files.h"

namespace kvrun::cli {
namespace {

constexpr size_t kMaxEntries = 1000;
constexpr size_t kMaxEntryBytes = 64 * 1024;  // of a longer one nobody wants to look through the lines
constexpr off_t kMaxFileBytes = 1 << 20;
constexpr off_t kKeptBytes = kMaxFileBytes / 2;  // so that not every entry rewrites the file

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// -1 and `*problem` where it cannot be had, or is no file of this user's alone.
int OpenOwn(const std::string& path, std::string* problem) {
  const int fd =
      ::open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
  if (fd < 0) {
    *problem = errno == ELOOP ? "it is a symbolic link" : std::strerror(errno);
    return -1;
  }
  struct stat facts = {};
  const bool known = ::fstat(fd, &facts) == 0;
  if (known && S_ISREG(facts.st_mode) && facts.st_uid == ::geteuid()) {
    if ((facts.st_mode & 077) != 0) (void)::fchmod(fd, 0600);
    return fd;
  }
  *problem = !known                    ? std::strerror(errno)
             : !S_ISREG(facts.st_mode) ? "it is no regular file"
                                       : "it belongs to another user";
  ::close(fd);
  return -1;
}

// Each folder of the path that is not there yet, for this user alone. What fails shows when the file is
// opened.
void MakeFolders(const std::string& path) {
  for (size_t end = path.find('/', 1); end != std::string::npos; end = path.find('/', end + 1)) {
    (void)::mkdir(path.substr(0, end).c_str(), 0700);
  }
}

off_t SizeOf(int fd) {
  struct stat facts = {};
  return ::fstat(fd, &facts) == 0 ? facts.st_size : 0;
}

// Whole lines from the file's end, at most `most` bytes.
std::string ReadEnd(int fd, off_t most) {
  const off_t size = SizeOf(fd);
  off_t at = std::max<off_t>(0, size - most);
  const bool cut = at > 0;
  std::string text;
  char buffer[16 * 1024];
  while (true) {
    const ssize_t got = ::pread(fd, buffer, sizeof buffer, at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || at >= size) break;
    text.append(buffer, static_cast<size_t>(got));
    at += got;
  }
  if (cut) text.erase(0, std::min(text.size(), text.find('\n') + 1));
  return text;
}

bool WriteWhole(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

// Leaves the file as it is where that fails.
void KeepNewest(const std::string& path, int fd) {
  const std::string kept = ReadEnd(fd, kKeptBytes);
  std::string name = path + ".XXXXXX";
  const Descriptor beside(::mkostemp(name.data(), O_CLOEXEC));
  if (beside.get() < 0) return;
  if (!WriteWhole(beside.get(), kept) || ::rename(name.c_str(), path.c_str()) != 0) ::unlink(name.c_str());
}

std::vector<std::string> Entries(std::string_view text) {
  std::vector<std::string> entries;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const Json entry = ParseJson(text.substr(0, end));
    if (entry.is_string() && !entry.get_ref<const std::string&>().empty()) {
      entries.push_back(entry.get<std::string>());
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  if (entries.size() > kMaxEntries) entries.erase(entries.begin(), entries.end() - kMaxEntries);
  return entries;
}

}  // namespace

std::string ChatHistory::UsualPath() {
  const std::string folder = StateFolder();
  return folder.empty() ? "" : folder + "/chat_history";
}

ChatHistory::ChatHistory(std::string path) : path_(std::move(path)) {
  if (path_.empty()) return;
  MakeFolders(path_);
  const Descriptor file(OpenOwn(path_, &problem_));
  if (file.get() < 0) {
    problem_ = fmt::format("cannot keep what is typed in {}: {}", path_, problem_);
    path_.clear();
    return;
  }
  earlier_ = Entries(ReadEnd(file.get(), kMaxFileBytes));
}

void ChatHistory::Add(const std::string& entry) {
  if (path_.empty() || entry.size() > kMaxEntryBytes) return;
  std::string ignored;
  const Descriptor file(OpenOwn(path_, &ignored));
  if (file.get() < 0) return;
  (void)WriteWhole(file.get(), JsonLine(entry));
  if (SizeOf(file.get()) > kMaxFileBytes) KeepNewest(path_, file.get());
}

}  // namespace kvrun::cli
