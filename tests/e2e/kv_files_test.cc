// The KV cache's files as the system sees them: nobody else can read them, nothing is left of them however
// the program ends, full disks and forbidden system calls are met with one line or with the next best way.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/magic.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/engine_fixture.h"
#include "tests/support/real_program.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

// Tokens: each byte of the prompt is one.
constexpr int kPrompt = 3000;
constexpr int kContext = 4096;

bool IsEmptyFolder(const std::string& path) { return fs::is_directory(path) && fs::is_empty(path); }

// Files that a program has open and that lie in a folder: "/proc/7/fd/5".
std::vector<std::string> OpenFilesIn(pid_t pid, const std::string& folder) {
  std::vector<std::string> found;
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator(fmt::format("/proc/{}/fd", pid), gone)) {
    const fs::path target = fs::read_symlink(entry.path(), gone);
    if (target.string().starts_with(folder + "/")) found.push_back(entry.path());
  }
  return found;
}

// Whether a program has been stopped by a signal, which takes a moment, or has ended.
bool IsStill(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');
  return name_end == std::string::npos || line.size() <= name_end + 2 ||
         std::string("TZX").find(line[name_end + 2]) != std::string::npos;
}

// Waits, for at most half a minute, until the program has a file with bytes in it, stops the program there
// and answers all its files in the folder. Empty if the program ended first.
std::vector<std::string> StopWithFiles(const RunningProgram& program, const std::string& folder) {
  const auto has_bytes = [](const std::string& file) {
    struct stat info {};
    return stat(file.c_str(), &info) == 0 && info.st_size > 100000;
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (std::chrono::steady_clock::now() < deadline) {
    const std::vector<std::string> running = OpenFilesIn(program.pid(), folder);
    if (std::none_of(running.begin(), running.end(), has_bytes)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    program.Signal(SIGSTOP);
    while (!IsStill(program.pid()) && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    std::vector<std::string> files = OpenFilesIn(program.pid(), folder);
    if (std::any_of(files.begin(), files.end(), has_bytes)) return files;
    program.Signal(SIGCONT);
  }
  return {};
}

// Exit code 1 and one line on standard error that holds all of `parts`.
void ExpectOneLine(const ProgramResult& result, const std::vector<std::string>& parts) {
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_TRUE(result.err.starts_with("kvrun: ")) << result.err;
  for (const std::string& part : parts) EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
}

// A file system of its own, for as long as this lives; not there where the machine does not let one mount.
class Mounted {
 public:
  Mounted(std::string path, bool is_there) : path_(std::move(path)), is_there_(is_there) {}
  Mounted(const Mounted&) = delete;
  Mounted& operator=(const Mounted&) = delete;
  ~Mounted() {
    if (is_there_) (void)::umount2(path_.c_str(), MNT_DETACH);
  }
  bool is_there() const { return is_there_; }

 private:
  std::string path_;
  bool is_there_;
};

class KvFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    model_ = WriteModel(folder_, "tiny.gguf", TalkingModel().Build());
    std::string text;
    for (int i = 0; i < kPrompt; ++i) text += static_cast<char>('a' + (i * i + i / 7) % 26);
    prompt_ = folder_.Write("prompt", text);
    kv_ = folder_.Path("kv");
    fs::create_directory(kv_);
  }

  Arguments Run(const Arguments& more = {}) const {
    Arguments arguments = {"run",
                           "-m",
                           model_,
                           "-f",
                           prompt_,
                           "--ctx",
                           std::to_string(kContext),
                           "--temp",
                           "0",
                           "-q",
                           "--ignore-end",
                           "--kv-method",
                           "kvswap",
                           "--kv-dir",
                           kv_,
                           "--kv-tmpfs",
                           "--kv-budget",
                           "500KiB",
                           "--kv-type",
                           "f16"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  // An ext2 of so many MiB in the folder for the KV cache: its files' space cannot be reserved.
  std::unique_ptr<Mounted> MountExt2(int mib) const {
    const std::string image = folder_.Path("image");
    const std::string command = fmt::format(
        "truncate -s {}M {} && mkfs.ext2 -q -F -m 0 {} && mount -o loop {} {} && rmdir {}/lost+found", mib,
        image, image, image, kv_, kv_);
    const bool is_there = ::geteuid() == 0 && std::system((command + " >/dev/null 2>&1").c_str()) == 0;
    return std::make_unique<Mounted>(kv_, is_there);
  }

  // Takes all that is left, and gives it back.
  void FillDisk() const {
    const int fd = ::open((kv_ + "/filler").c_str(), O_WRONLY | O_CREAT, 0600);
    ASSERT_GE(fd, 0);
    for (const size_t size : {size_t{1} << 16, size_t{1024}}) {
      const std::string bytes(size, 'x');
      while (::write(fd, bytes.data(), bytes.size()) > 0) continue;
    }
    (void)::fsync(fd);
    ::close(fd);
  }
  void EmptyDisk() const { fs::remove(kv_ + "/filler"); }

  TemporaryFolder folder_;
  std::string model_;
  std::string prompt_;
  std::string kv_;
};

TEST_F(KvFiles, NothingIsLeftByAProgramThatWasKilled) {
  const ProgramResult whole = RunProgram(RealProgram(), Run({"-n", "4"}), WithDrivers());
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  ASSERT_NE(whole.out, "");
  EXPECT_TRUE(IsEmptyFolder(kv_));
  {
    // Enough tokens that it cannot be at its end when its files are seen.
    RunningProgram killed(RealProgram(), Run({"-n", "1000"}), WithDrivers());
    const std::vector<std::string> files = StopWithFiles(killed, kv_);
    ASSERT_GE(files.size(), 1U) << "no file was seen";
    for (const std::string& file : files) {
      struct stat info {};
      ASSERT_EQ(stat(file.c_str(), &info), 0);
      EXPECT_EQ(info.st_mode & 07777, 0600U);
      EXPECT_EQ(info.st_nlink, 0U);
      EXPECT_TRUE(fs::read_symlink(file).string().ends_with(" (deleted)")) << fs::read_symlink(file);
    }
    EXPECT_TRUE(IsEmptyFolder(kv_));
    killed.Signal(SIGKILL);
    const ProgramResult result = killed.Finish();
    EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  }
  EXPECT_TRUE(IsEmptyFolder(kv_));
  const ProgramResult after = RunProgram(RealProgram(), Run({"-n", "4"}), WithDrivers());
  EXPECT_EQ(after.exit_code, 0) << after.err;
  EXPECT_EQ(after.out, whole.out);
  EXPECT_TRUE(IsEmptyFolder(kv_));
}

TEST_F(KvFiles, TooSmallADiskIsSaidBeforePrefill) {
  const Mounted small(kv_, ::mount("none", kv_.c_str(), "tmpfs", 0, "size=64k") == 0);
  if (!small.is_there()) GTEST_SKIP() << "no file system can be mounted here";
  const ProgramResult result = RunProgram(RealProgram(), Run({"-n", "4"}), WithDrivers());
  ExpectOneLine(result, {"needs ", " of space in " + kv_ + ", where 64.0 KiB are free", "--kv-dir"});
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(IsEmptyFolder(kv_));
}

TEST_F(KvFiles, ALimitOfFileSizesIsAnErrorToo) {
  ProgramInput input = WithDrivers();
  input.before_program = [] {
    const rlimit limit{200 * 1024, 200 * 1024};
    return ::setrlimit(RLIMIT_FSIZE, &limit) == 0;
  };
  const ProgramResult result = RunProgram(RealProgram(), Run({"-n", "4"}), input);
  ExpectOneLine(result, {kv_, "File too large"});
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(IsEmptyFolder(kv_));
}

// Where a file system cannot reserve space, others may take it while the program runs.
TEST_F(KvFiles, ADiskThatFillsUpIsAnErrorInPrefillAndInDecoding) {
  const auto disk = MountExt2(32);
  if (!disk->is_there()) GTEST_SKIP() << "no file system can be mounted here";
  for (const bool in_prefill : {true, false}) {
    SCOPED_TRACE(in_prefill ? "prefill" : "decoding");
    RunningProgram program(RealProgram(), Run({"-n", "900", "--kv-window", "6"}), WithDrivers());
    const std::vector<std::string> files = StopWithFiles(program, kv_);
    ASSERT_FALSE(files.empty());
    if (!in_prefill) {
      program.Signal(SIGCONT);
      for (int i = 0; i < 60000 && fs::file_size(program.stdout_path()) == 0; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    program.Signal(SIGSTOP);
    FillDisk();
    program.Signal(SIGCONT);
    const ProgramResult result = program.Finish();
    // In prefill it may still be about to make room for what is spilled: that is found by asking for it.
    const bool is_early = in_prefill && result.err.find("are free: make room") != std::string::npos;
    ExpectOneLine(result, is_early
                              ? std::vector<std::string>{"the KV cache needs ", "--kv-dir"}
                              : std::vector<std::string>{"cannot ", "No space left on device", "--kv-dir"});
    EXPECT_TRUE(in_prefill || !result.out.empty());
    EmptyDisk();
    EXPECT_TRUE(IsEmptyFolder(kv_));
  }
}

// As a sandbox does: io_uring's system calls end a program that is not prepared for it.
bool TrapIoUring() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 425, 0, 2),
      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 427, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(code), code};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST_F(KvFiles, AFolderInMemoryIsPassedOverAndSaidOnce) {
  struct statfs facts {};
  if (::statfs("/dev/shm", &facts) != 0 || facts.f_type != TMPFS_MAGIC) GTEST_SKIP() << "no tmpfs";
  const auto notes = [&](const std::string& cache) {
    const Arguments run = {"run",         "-m",     model_,        "-p",  "hello", "-n", "2",
                           "--kv-method", "kvswap", "--kv-budget", "1/2", "-c",    "512"};
    const ProgramResult result =
        RunProgram(RealProgram(), run, WithDrivers({"HOME=" + folder_.Path(""), "XDG_CACHE_HOME=" + cache}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::string note = "note: the KV cache lies in ";
    size_t n = 0;
    for (size_t at = result.err.find(note); at != result.err.npos; at = result.err.find(note, at + 1)) ++n;
    return n;
  };
  const std::string in_memory = fmt::format("/dev/shm/kvrun-test-{}", ::getpid());
  EXPECT_EQ(notes(in_memory), 1U);
  fs::remove_all(in_memory);  // what saves time at the next start is kept there
  EXPECT_EQ(notes(folder_.Path("cache")), 0U);
}

TEST_F(KvFiles, WithoutIoUringTheNextWayIsTakenAndSaid) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer holds signals back";
#endif
  const Arguments arguments = Run({"-n", "8", "--json"});
  const ProgramResult free_run = RunProgram(RealProgram(), arguments, WithDrivers());
  ASSERT_EQ(free_run.exit_code, 0) << free_run.err;
  ProgramInput input = WithDrivers();
  input.before_program = &TrapIoUring;
  const ProgramResult trapped = RunProgram(RealProgram(), arguments, input);
  if (trapped.exit_code == 126) GTEST_SKIP() << "no seccomp filter can be installed here";
  ASSERT_EQ(trapped.exit_code, 0) << trapped.err;
  const auto expected = nlohmann::json::parse(free_run.out);
  const auto found = nlohmann::json::parse(trapped.out);
  EXPECT_EQ(found["tokens"], expected["tokens"]);
  EXPECT_FALSE(found["kv"]["io_mode"].get<std::string>().starts_with("io_uring")) << found["kv"]["io_mode"];
  const std::string notes = found["kv"]["io_notes"].dump();
  EXPECT_NE(notes.find("io_uring cannot be used: "), std::string::npos) << notes;
  ExpectOneLine(RunProgram(RealProgram(), Run({"-n", "8", "--kv-io", "io_uring"}), input), {"io_uring"});
  EXPECT_TRUE(IsEmptyFolder(kv_));
}

}  // namespace
}  // namespace kvrun::testing
