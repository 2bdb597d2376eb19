#include "platform/io/own_file.h"

#include <fmt/format.h>
#include <sys/file.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>

#include "platform/io/unique_fd.h"

namespace kvrun {

std::string_view OtherThanOwnFile(const struct stat& facts) {
  if (S_ISLNK(facts.st_mode)) return "a symbolic link";
  if (S_ISDIR(facts.st_mode)) return "a folder";
  if (S_ISFIFO(facts.st_mode)) return "a pipe";
  if (!S_ISREG(facts.st_mode)) return "a device or a socket";
  if (facts.st_uid != geteuid()) return "another user's";
  return {};
}

bool CannotLock(int error_number) {
  return error_number == ENOLCK || error_number == EOPNOTSUPP || error_number == ENOSYS ||
         error_number == EINVAL;
}

FileLock::~FileLock() {
  if (fd_ >= 0) (void)flock(fd_, LOCK_UN);
}

namespace {

// "1: FLOCK  ADVISORY  WRITE 812 08:01:393301 0 EOF": a process, a device in hexadecimal digits, a file.
pid_t FindLock(const struct stat& facts, std::string_view kind) {
  std::ifstream lines("/proc/locks");
  for (std::string line; std::getline(lines, line);) {
    int holder = 0;
    unsigned device[2] = {};
    unsigned long long inode = 0;
    char found[8] = "";
    if (std::sscanf(line.c_str(), "%*s FLOCK %*s %7s %d %x:%x:%llu", found, &holder, &device[0], &device[1],
                    &inode) == 5 &&
        found == kind && makedev(device[0], device[1]) == facts.st_dev && inode == facts.st_ino &&
        holder > 0) {
      return holder;
    }
  }
  return 0;
}

}  // namespace

pid_t LockHolder(const struct stat& facts) { return FindLock(facts, "WRITE"); }
pid_t LockSharer(const struct stat& facts) { return FindLock(facts, "READ"); }

std::string ProcessInWords(pid_t process) {
  return process > 0 ? fmt::format("process {}", process) : "another process";
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  const size_t end = path.find_last_not_of('/', slash);
  return end == std::string::npos ? "/" : path.substr(0, end + 1);
}

int SyncFolder(const std::string& folder) {
  const UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // A folder that may be written to and not read, and file systems that know no such call.
  if (!fd.valid()) return errno == EACCES ? 0 : errno;
  return fsync(fd.get()) == 0 || errno == EINVAL ? 0 : errno;
}

}  // namespace kvrun
