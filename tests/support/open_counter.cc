#include "tests/support/open_counter.h"

#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>

namespace kvrun::testing {

// Equal events that follow each other are told as one: what is closed in between is told, too.
OpenCounter::OpenCounter(const std::string& path) : inotify_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
  if (inotify_ < 0 || inotify_add_watch(inotify_, path.c_str(), IN_OPEN | IN_CLOSE) < 0) return;
  for (int i = 0; i < 2; ++i) std::ifstream(path).get();
  works_ = Count() == 2;
}

OpenCounter::~OpenCounter() {
  if (inotify_ >= 0) close(inotify_);
}

int OpenCounter::Count() {
  int n_opened = 0;
  std::array<char, 4096> bytes{};
  for (;;) {
    const ssize_t n = read(inotify_, bytes.data(), bytes.size());
    if (n <= 0) return n_opened;
    for (ssize_t at = 0; at < n;) {
      inotify_event event{};
      std::memcpy(&event, bytes.data() + at, sizeof event);
      n_opened += (event.mask & IN_OPEN) != 0 ? 1 : 0;
      at += static_cast<ssize_t>(sizeof event + event.len);
    }
  }
}

}  // namespace kvrun::testing
