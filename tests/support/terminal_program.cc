#include "tests/support/terminal_program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "tests/support/program_runner.h"

namespace kvrun {
namespace {

constexpr std::chrono::milliseconds kPoll{5};
constexpr std::chrono::seconds kPatience{120};  // a loaded machine may stop any process for long
constexpr int kReadPeriod_ms = 20;

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

[[noreturn]] void BecomeProgram(int slave, char* const* argv, char* const* environment) {
  if (::setsid() < 0 || ::ioctl(slave, TIOCSCTTY, 0) < 0) _exit(126);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(slave, fd);
  ::execve(argv[0], argv, environment);
  _exit(127);
}

}  // namespace

TerminalProgram::TerminalProgram(const std::string& program, const std::vector<std::string>& arguments,
                                 const std::vector<std::string>& environment) {
  std::vector<std::string> argv;
  if (program != "/bin/sh") argv = LauncherWords();
  argv.push_back(program);
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = {"TERM=xterm"};
  for (const std::string& variable : environment) {
    if (variable.starts_with("TERM=")) variables.clear();
  }
  variables.insert(variables.end(), environment.begin(), environment.end());
  for (const std::string& variable : AlwaysPassedOn()) variables.push_back(variable);
  const std::vector<char*> argv_pointers = Pointers(argv);
  const std::vector<char*> variable_pointers = Pointers(variables);
  master_ = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (master_ < 0 || ::grantpt(master_) != 0 || ::unlockpt(master_) != 0) return;
  slave_ = ::open(::ptsname(master_), O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (slave_ < 0) return;
  const winsize size = {24, 80, 0, 0};
  ::ioctl(slave_, TIOCSWINSZ, &size);
  pid_ = ::fork();
  if (pid_ == 0) BecomeProgram(slave_, argv_pointers.data(), variable_pointers.data());
  reader_ = std::thread([this] { ReadAll(); });
}

TerminalProgram::~TerminalProgram() {
  if (pid_ > 0) ::kill(pid_, SIGKILL);
  (void)Finish();
  stopping_ = true;
  if (reader_.joinable()) reader_.join();
  for (const int fd : {master_, slave_}) {
    if (fd >= 0) ::close(fd);
  }
}

void TerminalProgram::ReadAll() {
  char chunk[4096];
  while (!stopping_) {
    pollfd entry = {master_, POLLIN, 0};
    if (::poll(&entry, 1, kReadPeriod_ms) <= 0) continue;
    const ssize_t size = ::read(master_, chunk, sizeof chunk);
    if (size <= 0) continue;
    const std::lock_guard lock(mutex_);
    output_.append(chunk, static_cast<size_t>(size));
  }
}

void TerminalProgram::Type(const std::string& text) const {
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(master_, text.data() + done, text.size() - done);
    if (written < 0 && errno != EINTR) return;
    done += static_cast<size_t>(std::max<ssize_t>(written, 0));
  }
}

std::string TerminalProgram::Output() const {
  const std::lock_guard lock(mutex_);
  return output_;
}

bool TerminalProgram::WaitUntil(const std::function<bool()>& holds) const {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < end) {
    siginfo_t info = {};
    const bool ended = pid_ <= 0 ||
                       ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
                       info.si_pid != 0;
    if (holds()) return true;
    std::this_thread::sleep_for(ended ? std::chrono::milliseconds(2 * kReadPeriod_ms) : kPoll);
    if (ended) return holds();
  }
  return false;
}

bool TerminalProgram::WaitFor(const std::string& text) {
  return WaitUntil([&] {
    const std::lock_guard lock(mutex_);
    const size_t found = output_.find(text, waited_for_);
    if (found == std::string::npos) return false;
    waited_for_ = found + text.size();
    return true;
  });
}

void TerminalProgram::Signal(int number) const { ::kill(pid_, number); }

termios TerminalProgram::Modes() const {
  termios modes = {};
  (void)::tcgetattr(slave_, &modes);
  return modes;
}

int TerminalProgram::Finish() {
  if (pid_ <= 0) return -1;
  (void)WaitUntil([] { return false; });
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) == 0) {  // it does not end
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, &status, 0);
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace kvrun
