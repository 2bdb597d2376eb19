#include "tests/support/program_runner.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>
#include <utility>

namespace kvrun {
namespace {

constexpr std::chrono::milliseconds kPoll{5};
constexpr std::chrono::seconds kPatience{120};  // a loaded machine may stop any process for long
constexpr const char* kShell = "/bin/sh";

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

void Redirect(const std::string& path, int target) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT, 0600);
  if (fd < 0 || ::dup2(fd, target) < 0) _exit(126);
}

// A program may have ended without reading what is typed: no signal ends the test then. Ignoring SIGPIPE
// would be inherited by the programs.
void WriteUnlessClosed(int pipe, const std::string& text) {
  sigset_t closed;
  ::sigemptyset(&closed);
  ::sigaddset(&closed, SIGPIPE);
  sigset_t before;
  ::pthread_sigmask(SIG_BLOCK, &closed, &before);
  if (::write(pipe, text.data(), text.size()) < 0 && errno == EPIPE) {
    const timespec at_once = {};
    (void)::sigtimedwait(&closed, nullptr, &at_once);
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

std::vector<std::string> AlwaysPassedOn() {
  std::vector<std::string> variables;
  for (const std::string name : {"PATH", "ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"}) {
    if (const char* value = std::getenv(name.c_str())) variables.push_back(name + "=" + value);
  }
  // Behind what a test says itself, the first of which counts.
  variables.emplace_back("KVRUN_NO_KEEP=1");
  return variables;
}

std::vector<std::string> LauncherWords() {
  const char* variable = std::getenv("KVRUN_TEST_LAUNCHER");
  std::istringstream words(variable == nullptr ? "" : variable);
  return {std::istream_iterator<std::string>(words), {}};
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "kvrun-test-XXXXXX").string();
  if (::mkdtemp(name.data()) != nullptr) path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryFolder::Write(const std::string& name, const std::string& text) const {
  std::ofstream(Path(name), std::ios::binary) << text;
  return Path(name);
}

std::string ReadWholeFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

RunningProgram::RunningProgram(const std::string& program, const std::vector<std::string>& arguments,
                               const ProgramInput& input)
    : stdout_path_(input.stdout_path.empty() ? folder_.Path("out") : input.stdout_path) {
  std::vector<std::string> argv;
  if (program != kShell) argv = LauncherWords();
  argv.push_back(program);
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment = input.environment;
  for (const std::string& variable : AlwaysPassedOn()) environment.push_back(variable);
  const std::vector<char*> argv_pointers = Pointers(argv);
  const std::vector<char*> environment_pointers = Pointers(environment);
  const std::string stderr_path = folder_.Path("err");
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(ends[0], STDIN_FILENO);
    Redirect(stdout_path_, STDOUT_FILENO);
    Redirect(stderr_path, STDERR_FILENO);
    if (input.before_program && !input.before_program()) _exit(126);
    ::execve(argv_pointers[0], argv_pointers.data(), environment_pointers.data());
    _exit(127);
  }
  ::close(ends[0]);
  stdin_fd_ = ends[1];
  Type(input.stdin_text);
}

RunningProgram::~RunningProgram() {
  if (pid_ > 0) Signal(SIGKILL);
  (void)Finish();
}

bool RunningProgram::HasEnded() const {
  siginfo_t info = {};
  return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
         info.si_pid != 0;
}

bool RunningProgram::WaitUntil(const std::function<bool()>& holds) const {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    const bool is_last = HasEnded() || std::chrono::steady_clock::now() >= end;
    if (holds()) return true;
    if (is_last) return false;
    std::this_thread::sleep_for(kPoll);
  }
}

bool RunningProgram::WaitForOutput(const std::string& text) const {
  return WaitUntil([&] {
    return ReadWholeFile(stdout_path_).find(text) != std::string::npos ||
           ReadWholeFile(folder_.Path("err")).find(text) != std::string::npos;
  });
}

bool RunningProgram::WaitForRead() const {
  return WaitUntil([&] {
    int n_bytes = 0;
    return ::ioctl(stdin_fd_, FIONREAD, &n_bytes) == 0 && n_bytes == 0;
  });
}

void RunningProgram::Signal(int number) const { ::kill(pid_, number); }

void RunningProgram::Type(const std::string& text) const {
  if (!text.empty()) WriteUnlessClosed(stdin_fd_, text);
}

void RunningProgram::CloseInput() {
  if (stdin_fd_ >= 0) ::close(std::exchange(stdin_fd_, -1));
}

ProgramResult RunningProgram::Finish() {
  CloseInput();
  ProgramResult result;
  if (pid_ <= 0) return result;
  int status = 0;
  ::waitpid(std::exchange(pid_, -1), &status, 0);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.err = ReadWholeFile(folder_.Path("err"));
  if (std::filesystem::is_regular_file(stdout_path_)) result.out = ReadWholeFile(stdout_path_);
  return result;
}

ProgramResult RunProgram(const std::string& program, const std::vector<std::string>& arguments,
                         const ProgramInput& input) {
  return RunningProgram(program, arguments, input).Finish();
}

ProgramResult RunShell(const std::string& command) { return RunProgram(kShell, {"-c", command}); }

std::string ShellWords(const std::string& program) {
  std::string words;
  for (const std::string& word : LauncherWords()) words += word + " ";
  return words + program;
}

}  // namespace kvrun
