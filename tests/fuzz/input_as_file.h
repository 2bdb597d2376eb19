// What a fuzzer gives, as a file that has a path.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvrun::fuzz {

// One for the whole process: a memory file whose bytes are those of the last call. Its path; empty where the
// system does not let one be made.
inline std::string InputAsFile(const uint8_t* data, size_t size_bytes) {
  static const int fd = ::memfd_create("fuzz", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, 0) != 0) return "";
  for (size_t done = 0; done < size_bytes;) {
    const ssize_t n = ::pwrite(fd, data + done, size_bytes - done, static_cast<off_t>(done));
    if (n <= 0) return "";
    done += static_cast<size_t>(n);
  }
  return "/proc/self/fd/" + std::to_string(fd);
}

}  // namespace kvrun::fuzz
