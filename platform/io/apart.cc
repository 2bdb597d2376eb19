#include "platform/io/apart.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "platform/io/unique_fd.h"

namespace kvrun {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPollMs = 50;

bool WriteAll(int fd, const void* data, size_t size) {
  const char* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = write(fd, bytes, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes += written;
    size -= static_cast<size_t>(written);
  }
  return true;
}

// What has called exit() has ended. What is registered for the end after this is of what ran here, and the
// rest may wait for ever for a lock that the caller of exit() holds, as that of a Vulkan loader would.
void EndAtOnce() {
#if defined(__GLIBC__)
  on_exit([](int status, void*) { _exit(status); }, nullptr);
#else
  atexit([] { _exit(EXIT_FAILURE); });  // the status is not to be had
#endif
}

// Where memory runs out, this is what the system ends first, and not the parent, or another program.
void OfferToEnd() {
  const UniqueFd file(open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  if (file.valid()) WriteAll(file.get(), "1000", 4);
}

// What a crash or the user's signal would do to the copy is for the parent to see or to say, not for the
// handlers that the copy has from it.
void PrepareCopy(pid_t parent, bool keep_stderr) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  for (const int number : {SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGTERM, SIGPIPE}) {
    signal(number, SIG_DFL);
  }
  for (const int number : {SIGINT, SIGQUIT, SIGHUP})
    signal(number, SIG_IGN);  // the terminal sends them to both
  const rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  OfferToEnd();
  EndAtOnce();
  prctl(PR_SET_DUMPABLE, 0);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null < 0) return;
  dup2(null, STDIN_FILENO);
  dup2(null, STDOUT_FILENO);
  if (!keep_stderr) dup2(null, STDERR_FILENO);
}

// A copy begins its answer with its length, so that what is cut is none.
std::optional<std::string> WholeAnswer(const std::string& received) {
  uint64_t size = 0;
  if (received.size() < sizeof size) return std::nullopt;
  std::memcpy(&size, received.data(), sizeof size);
  if (received.size() - sizeof size < size) return std::nullopt;
  return received.substr(sizeof size, size);
}

// Fills all but what the end of the process says.
ApartOutcome Await(int fd, const ApartOptions& options) {
  const Clock::time_point begin = Clock::now();
  std::string received;
  for (;;) {
    if (options.is_cancelled && options.is_cancelled()) return {ApartOutcome::Kind::kCancelled, 0, ""};
    const std::chrono::duration<double> spent = Clock::now() - begin;
    if (spent.count() > options.limit_s) return {ApartOutcome::Kind::kTimedOut, 0, ""};
    pollfd entry = {fd, POLLIN, 0};
    if (poll(&entry, 1, kPollMs) <= 0) continue;
    char bytes[4096];
    const ssize_t count = read(fd, bytes, sizeof bytes);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) return {ApartOutcome::Kind::kExit, 0, ""};
    received.append(bytes, static_cast<size_t>(count));
    if (auto answer = WholeAnswer(received)) return {ApartOutcome::Kind::kAnswered, 0, std::move(*answer)};
  }
}

// One that has closed its end of the pipe ends now, or is ended.
pid_t WaitFor(pid_t pid, int* status, bool* was_ended) {
  const Clock::time_point begin = Clock::now();
  for (;;) {
    const pid_t ended = waitpid(pid, status, WNOHANG);
    if (ended != 0 && !(ended < 0 && errno == EINTR)) return ended;
    if (Clock::now() - begin > std::chrono::seconds(2)) {
      kill(pid, SIGKILL);
      *was_ended = true;
    }
    poll(nullptr, 0, 1);
  }
}

}  // namespace

bool CanRunApart() {
  std::error_code error;
  size_t n_threads = 0;
  for (std::filesystem::directory_iterator i("/proc/self/task", error), end; !error && i != end;
       i.increment(error)) {
    ++n_threads;
  }
  return !error && n_threads == 1;
}

ApartOutcome RunApart(const std::function<std::string()>& work, const ApartOptions& options) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {ApartOutcome::Kind::kNotBegun, errno, ""};
  const UniqueFd from(ends[0]);
  UniqueFd to(ends[1]);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return {ApartOutcome::Kind::kNotBegun, errno, ""};
  if (pid == 0) {
    PrepareCopy(parent, options.keep_stderr);
    // An exception must not go on to what called this, which is the parent's.
    [&]() noexcept {
      const std::string answer = work();
      const uint64_t size = answer.size();
      if (WriteAll(to.get(), &size, sizeof size)) WriteAll(to.get(), answer.data(), answer.size());
    }();
    _exit(0);
  }
  to = UniqueFd();
  ApartOutcome outcome = Await(from.get(), options);
  // What has answered is done with: its end may take a driver long.
  if (outcome.kind != ApartOutcome::Kind::kExit) kill(pid, SIGKILL);
  int status = 0;
  bool was_ended = false;
  const pid_t ended = WaitFor(pid, &status, &was_ended);
  if (outcome.kind != ApartOutcome::Kind::kExit || ended != pid) return outcome;
  if (was_ended) return {ApartOutcome::Kind::kTimedOut, 0, ""};
  if (WIFSIGNALED(status)) return {ApartOutcome::Kind::kSignal, WTERMSIG(status), ""};
  return {ApartOutcome::Kind::kExit, WEXITSTATUS(status), ""};
}

}  // namespace kvrun
