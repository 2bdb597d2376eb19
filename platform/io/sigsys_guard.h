// A seccomp filter may trap io_uring's system calls (containers, sandboxes): SIGSYS, which ends the process.
#pragma once

#include <signal.h>

namespace kvrun {

// While it lives, a call of io_uring that is trapped answers ENOSYS. Other signals go where they went before.
// One at a time in a process: others wait. The handler is the process's; a trap is met on the thread that
// made the guard. A filter that kills without a trap cannot be survived.
class SigsysGuard {
 public:
  static bool Supported();  // whether this processor's registers are known

  SigsysGuard();
  ~SigsysGuard();
  SigsysGuard(const SigsysGuard&) = delete;
  SigsysGuard& operator=(const SigsysGuard&) = delete;

 private:
  sigset_t old_mask_;
};

}  // namespace kvrun
