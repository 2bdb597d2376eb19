#include "apps/common/interrupt.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "apps/common/api.h"
#include "apps/common/failure.h"

namespace kvrun::cli {
namespace {

constexpr int kSignalsUntilExit = 3;
std::atomic<int> g_signals{0};
std::atomic<bool> g_termination_asked{false};
std::atomic<void (*)()> g_forced_exit_hook{nullptr};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<void (*)()>::is_always_lock_free,
              "used in a signal handler");

void OnSignal(int number) {
  kvrun_interrupt_trials();
  if (number == SIGTERM) g_termination_asked.store(true);
  if (g_signals.fetch_add(1) + 1 < kSignalsUntilExit) return;
  if (void (*const hook)() = g_forced_exit_hook.load()) hook();
  _exit(kExitInterrupted);
}

// Signals that end the program at once, as they would without this.
void OnEnd(int number) {
  kvrun_interrupt_trials();
  if (void (*const hook)() = g_forced_exit_hook.load()) hook();
  signal(number, SIG_DFL);
  raise(number);  // delivered when this returns
}

}  // namespace

void InstallSignalHandlers() {
  struct sigaction action = {};
  action.sa_handler = OnSignal;  // no SA_RESTART: a blocking read must return
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = OnEnd;
  for (const int number : {SIGHUP, SIGQUIT}) {
    struct sigaction before = {};
    const bool is_ignored = sigaction(number, nullptr, &before) == 0 && before.sa_handler == SIG_IGN;
    if (!is_ignored) sigaction(number, &action, nullptr);  // nohup ignores it
  }
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
  sigaction(SIGXFSZ, &action, nullptr);  // a limit of `ulimit -f` is an error of the write, not an end
}

bool Interrupted() { return g_signals.load() > 0 || TerminationAsked(); }
void ClearInterrupt() { g_signals.store(0); }
bool TerminationAsked() { return g_termination_asked.load(); }
void SetForcedExitHook(void (*hook)()) { g_forced_exit_hook.store(hook); }

bool WaitReadable(int fd) {
  // The signals are blocked between the check and ppoll, which opens them again atomically: none is missed.
  sigset_t blocked;
  sigset_t original;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGINT);
  sigaddset(&blocked, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &blocked, &original);
  bool readable = false;
  while (!Interrupted() && !readable) {
    pollfd entry = {fd, POLLIN, 0};
    const int ready = ppoll(&entry, 1, nullptr, &original);
    readable = ready > 0 || (ready < 0 && errno != EINTR);
  }
  pthread_sigmask(SIG_SETMASK, &original, nullptr);
  return readable;
}

}  // namespace kvrun::cli
