#include "apps/kvrun/terminal_modes.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <string_view>

#include "apps/common/interrupt.h"

namespace kvrun::cli {
namespace {

// Bracketed paste: the terminal puts ESC [ 200 ~ before what is pasted, and ESC [ 201 ~ behind it.
constexpr std::string_view kMarkPastes = "\033[?2004h";
constexpr std::string_view kMarkNothing = "\033[?2004l";
constexpr int kEndingSignals[] = {SIGHUP, SIGQUIT, SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE};

// What signal handlers need. Written while `g_active` is false only.
std::atomic<bool> g_active{false};
std::atomic<bool> g_continued{false};
int g_input = -1;
int g_output = -1;
bool g_marks = false;
termios g_original = {};

void Mark(std::string_view sequence) {
  if (g_marks) (void)!::write(g_output, sequence.data(), sequence.size());
}

void Restore() {
  if (!g_active.load()) return;
  Mark(kMarkNothing);
  (void)tcsetattr(g_input, TCSANOW, &g_original);
}

void OnEndingSignal(int number) {
  Restore();
  ::signal(number, SIG_DFL);
  ::raise(number);
}

void InstallStopHandler();

void OnStop(int) {
  const int error_number = errno;
  termios present = {};
  const bool known = tcgetattr(g_input, &present) == 0;
  Restore();
  ::signal(SIGTSTP, SIG_DFL);
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTSTP);
  ::raise(SIGTSTP);  // pending until it is not blocked any more
  pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);
  // Stopped here; whoever continued it may have changed the modes.
  InstallStopHandler();
  if (known) (void)tcsetattr(g_input, TCSANOW, &present);
  Mark(kMarkPastes);
  g_continued.store(true);
  errno = error_number;
}

// Whether the signal does what it does unless a program says otherwise; whoever ignores it wants that.
bool HasDefaultAction(int number) {
  struct sigaction action = {};
  return sigaction(number, nullptr, &action) == 0 && (action.sa_flags & SA_SIGINFO) == 0 &&
         action.sa_handler == SIG_DFL;
}

void Install(int number, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  sigaction(number, &action, nullptr);
}

void InstallStopHandler() { Install(SIGTSTP, OnStop); }

void Uninstall(int number, void (*handler)(int)) {
  struct sigaction action = {};
  if (sigaction(number, nullptr, &action) == 0 && action.sa_handler == handler) ::signal(number, SIG_DFL);
}

// A terminal that knows no more than letters would show the marks' own codes.
bool KnowsMarks(int output) {
  const char* kind = std::getenv("TERM");
  return isatty(output) == 1 && kind != nullptr && *kind != '\0' && std::string_view(kind) != "dumb";
}

}  // namespace

TerminalModes::TerminalModes(int input, int output) {
  if (tcgetattr(input, &g_original) != 0) return;
  g_input = input;
  g_output = output;
  g_marks = KnowsMarks(output);
  g_active.store(true);
  SetForcedExitHook(Restore);
  for (const int number : kEndingSignals) {
    if (HasDefaultAction(number)) Install(number, OnEndingSignal);
  }
  if (HasDefaultAction(SIGTSTP)) InstallStopHandler();
  termios modes = g_original;
  modes.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  // Line ends come as they are typed: of a paste's "\r\n" the terminal would make two.
  modes.c_iflag &= ~static_cast<tcflag_t>(ICRNL | INLCR);
  modes.c_cc[VMIN] = 1;
  modes.c_cc[VTIME] = 0;
  (void)tcsetattr(input, TCSADRAIN, &modes);
  Mark(kMarkPastes);
}

TerminalModes::~TerminalModes() {
  Restore();
  g_active.store(false);
  SetForcedExitHook(nullptr);
  for (const int number : kEndingSignals) Uninstall(number, OnEndingSignal);
  Uninstall(SIGTSTP, OnStop);
}

bool TerminalModes::TakeContinued() { return g_continued.exchange(false); }

}  // namespace kvrun::cli
