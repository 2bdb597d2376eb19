#include "platform/io/sigsys_guard.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include <cerrno>
#include <mutex>

#include "platform/base/check.h"

namespace kvrun {
namespace {

// Numbers that are the same on all processors.
constexpr int kFirstIoUringCall = 425;  // io_uring_setup, io_uring_enter, io_uring_register
constexpr int kLastIoUringCall = 427;

// SYS_SECCOMP of <asm-generic/siginfo.h>, which some C libraries do not pass on.
constexpr int kSeccompTrap = 1;

std::mutex& Mutex() {
  static std::mutex mutex;
  return mutex;
}

struct sigaction g_previous;  // written while Mutex() is held, before the handler can run

// Makes the trapped call return `value`. Answers whether this processor is known.
bool SetReturnValue([[maybe_unused]] ucontext_t* context, [[maybe_unused]] int value) {
#if defined(__x86_64__)
  if (context != nullptr) context->uc_mcontext.gregs[REG_RAX] = value;
  return true;
#elif defined(__i386__)
  if (context != nullptr) context->uc_mcontext.gregs[REG_EAX] = value;
  return true;
#elif defined(__aarch64__)
  if (context != nullptr) context->uc_mcontext.regs[0] = static_cast<unsigned long long>(value);
  return true;
#elif defined(__arm__)
  if (context != nullptr) context->uc_mcontext.arm_r0 = static_cast<unsigned long>(value);
  return true;
#elif defined(__riscv)
  if (context != nullptr) context->uc_mcontext.__gregs[REG_A0] = static_cast<unsigned long>(value);
  return true;
#else
  return false;
#endif
}

void OnSigsys(int signal_number, siginfo_t* info, void* context) {
  if (info->si_code == kSeccompTrap && info->si_syscall >= kFirstIoUringCall &&
      info->si_syscall <= kLastIoUringCall) {
    SetReturnValue(static_cast<ucontext_t*>(context), -ENOSYS);
    return;
  }
  if ((g_previous.sa_flags & SA_SIGINFO) != 0) {
    g_previous.sa_sigaction(signal_number, info, context);
  } else if (g_previous.sa_handler == SIG_DFL) {
    signal(signal_number, SIG_DFL);
    raise(signal_number);  // ends the process when this handler returns
  } else if (g_previous.sa_handler != SIG_IGN) {
    g_previous.sa_handler(signal_number);
  }
}

}  // namespace

bool SigsysGuard::Supported() { return SetReturnValue(nullptr, 0); }

SigsysGuard::SigsysGuard() {
  Mutex().lock();
  struct sigaction action {};
  action.sa_sigaction = OnSigsys;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  KVRUN_CHECK(sigaction(SIGSYS, nullptr, &g_previous) == 0);
  KVRUN_CHECK(sigaction(SIGSYS, &action, nullptr) == 0);
  // A trap whose signal is blocked ends the process whatever the handler.
  sigset_t sigsys;
  sigemptyset(&sigsys);
  sigaddset(&sigsys, SIGSYS);
  KVRUN_CHECK(pthread_sigmask(SIG_UNBLOCK, &sigsys, &old_mask_) == 0);
}

SigsysGuard::~SigsysGuard() {
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
  sigaction(SIGSYS, &g_previous, nullptr);
  Mutex().unlock();
}

}  // namespace kvrun
