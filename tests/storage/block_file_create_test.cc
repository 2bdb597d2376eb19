// How a file comes to be: folders, what is refused, and which back end is taken.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <string>

#include "platform/io/block_file.h"
#include "tests/storage/storage_fixture.h"
#include "tests/support/program_runner.h"

namespace kvrun::testing {
namespace {

namespace fs = std::filesystem;

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

BlockFileOptions In(const std::string& folder) {
  BlockFileOptions options;
  options.folder = folder;
  options.allow_tmpfs = true;
  return options;
}

TEST(CreateBlockFile, MakesFoldersForThisUserAndLeavesNoName) {
  const TemporaryFolder folder;
  const std::string deep = folder.Path("a/b/c");
  BlockFileOptions options = In(deep);
  const auto refused = CreateBlockFile(options);
  EXPECT_EQ(refused.status().code(), StatusCode::kIo);
  EXPECT_TRUE(Contains(
      refused.status().message(),
      "cannot make the folder " + deep + ": there is no folder " + folder.Path("a/b") + " to make it in"))
      << refused.status().message();
  EXPECT_FALSE(fs::exists(folder.Path("a")));
  options.makes_parents = true;
  const auto file = CreateBlockFile(options);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_TRUE(fs::is_empty(deep));
  for (const char* part : {"a", "a/b", "a/b/c"}) {
    struct stat info {};
    ASSERT_EQ(::stat(folder.Path(part).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700U) << part;
  }
}

// As a file there would be, and in the same words where there could be none; but nothing is left.
TEST(CreateBlockFile, TryingMakesNoFolder) {
  const TemporaryFolder folder;
  const auto make = [&folder](const std::string& name, bool only_tries) {
    BlockFileOptions options = In(folder.Path(name));
    options.only_tries = only_tries;
    return CreateBlockFile(options);
  };
  const auto tried = make("kv", true);
  ASSERT_TRUE(tried.ok()) << tried.status().message();
  EXPECT_TRUE(fs::is_empty(folder.Path("")));
  const auto made = make("kv", false);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ((*tried)->mode().alignment_bytes, (*made)->mode().alignment_bytes);
  EXPECT_EQ((*tried)->mode().direct, (*made)->mode().direct);
  EXPECT_EQ((*tried)->mode().backend, (*made)->mode().backend);
  folder.Write("plain", "text");
  for (const char* name : {"plain", "plain/kv", "no/kv"}) {
    const auto refused = make(name, true);
    EXPECT_FALSE(refused.ok()) << name;
    EXPECT_EQ(refused.status().message(), make(name, false).status().message());
  }
}

// The file is found among the process's descriptors, as it has no name.
TEST(CreateBlockFile, NobodyElseCanOpenTheFile) {
  const TemporaryFolder folder;
  const auto file = CreateBlockFile(In(folder.Path("kv")));
  ASSERT_TRUE(file.ok()) << file.status().message();
  int n_found = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const fs::path target = fs::read_symlink(entry.path(), error);
    if (error || !Contains(target.string(), folder.Path("kv"))) continue;
    ++n_found;
    struct stat info {};
    ASSERT_EQ(::stat(entry.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600U);
    EXPECT_EQ(info.st_nlink, 0U);
    EXPECT_EQ(info.st_size, 0);  // the probes have left nothing
  }
  EXPECT_EQ(n_found, 1);
}

TEST(CreateBlockFile, AFolderInMemoryIsRefused) {
  BlockFileOptions options = In("/dev/shm");
  options.allow_tmpfs = false;
  struct stat info {};
  if (::stat("/dev/shm", &info) != 0) GTEST_SKIP() << "there is no /dev/shm";
  const auto refused = CreateBlockFile(options);
  EXPECT_EQ(refused.status().code(), StatusCode::kUnsupported);
  EXPECT_TRUE(Contains(refused.status().message(), "/dev/shm lies in memory")) << refused.status().message();
  EXPECT_TRUE(Contains(refused.status().message(), "--kv-dir"));

  options.allow_tmpfs = true;
  const auto forced = CreateBlockFile(options);
  ASSERT_TRUE(forced.ok()) << forced.status().message();
  EXPECT_FALSE((*forced)->mode().direct);
  ASSERT_FALSE((*forced)->mode().notes.empty());
  EXPECT_TRUE(Contains((*forced)->mode().notes[0], "the KV cache saves no memory there"));

  options.direct = DirectIo::kOn;
  const auto direct = CreateBlockFile(options);
  ASSERT_FALSE(direct.ok());
  EXPECT_TRUE(Contains(direct.status().message(), "cannot use direct I/O in /dev/shm"))
      << direct.status().message();
}

TEST(CreateBlockFile, SaysWhyAFolderCannotBeUsed) {
  const TemporaryFolder folder;
  const std::string plain = folder.Write("plain", "text");
  for (const std::string& path : {plain, plain + "/kv", std::string("/proc/kvrun"), std::string("/proc")}) {
    const auto file = CreateBlockFile(In(path));
    ASSERT_FALSE(file.ok()) << path;
    EXPECT_EQ(file.status().code(), StatusCode::kIo);
    EXPECT_TRUE(Contains(file.status().message(), "cannot make ")) << file.status().message();
    EXPECT_TRUE(Contains(file.status().message(), "--kv-dir")) << file.status().message();
  }
}

TEST(CreateBlockFile, AFolderThatCannotBeWrittenToIsNamed) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const TemporaryFolder folder;
  const std::string path = folder.Path("closed");
  ASSERT_EQ(::mkdir(path.c_str(), 0500), 0);
  const auto file = CreateBlockFile(In(path));
  ASSERT_FALSE(file.ok());
  EXPECT_TRUE(Contains(file.status().message(), "cannot make a file in " + path + ": Permission denied"))
      << file.status().message();
}

TEST(CreateBlockFile, WrongOptionsAreRefused) {
  EXPECT_EQ(CreateBlockFile(In("")).status().code(), StatusCode::kInvalidArgument);
  const TemporaryFolder folder;
  for (const uint32_t depth : {0U, kMaxQueueDepth + 1}) {
    BlockFileOptions options = In(folder.Path("kv"));
    options.queue_depth = depth;
    EXPECT_EQ(CreateBlockFile(options).status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(CreateBlockFile, AnyDepthCarriesRequests) {
  const TemporaryFolder folder;
  for (const IoBackend backend : {IoBackend::kIoUring, IoBackend::kAio, IoBackend::kThreads}) {
    for (const uint32_t depth : {1U, 3U, kMaxQueueDepth}) {
      BlockFileOptions options = In(folder.Path("kv"));
      options.auto_backend = false;
      options.backend = backend;
      options.queue_depth = depth;
      auto file = CreateBlockFile(options);
      if (!file.ok()) continue;  // the conformance tests say that it is missing
      const AlignedMemory memory(64 * 1024);
      EXPECT_EQ(DoOne(**file, IoKind::kWrite, 0, memory.span()), 0);
    }
  }
}

// Makes the system calls from `first` on to `last` trap, as a sandbox does.
bool TrapCalls(uint32_t first, uint32_t last) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, first, 0, 2),
      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, last, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(code), code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

enum ChildAnswer {
  kOtherBackEnd = 10,
  kIoUring = 11,
  kNoFilter = 12,
  kNoFile = 13,
  kNoNote = 14,
  kNoData = 15
};

int CreateWithTrappedCalls(const std::string& folder, uint32_t first, uint32_t last) {
  if (!TrapCalls(first, last)) return kNoFilter;
  auto file = CreateBlockFile(In(folder));
  if (!file.ok()) return kNoFile;
  const AlignedMemory memory(64 * 1024);
  const iovec region{memory.data(), memory.size()};
  (*file)->RegisterMemory({&region, 1});
  if (DoOne(**file, IoKind::kWrite, 0, memory.span()) != 0) return kNoData;
  if ((*file)->mode().backend == IoBackend::kIoUring) return kIoUring;
  const std::vector<std::string>& notes = (*file)->mode().notes;
  const bool noted = !notes.empty() && Contains(notes.back(), "io_uring cannot be used") &&
                     Contains(notes.back(), "Function not implemented");
  return noted ? kOtherBackEnd : kNoNote;
}

int StatusOfChild(const std::string& folder, uint32_t first, uint32_t last) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(CreateWithTrappedCalls(folder, first, last));
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

TEST(CreateBlockFile, ATrapOfIoUringLeadsToTheNextBackEnd) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer holds signals back";
#endif
  const TemporaryFolder folder;
  struct {
    const char* what;
    uint32_t first, last;
  } const traps[] = {{"all", 425, 427}, {"setup", 425, 425}, {"enter", 426, 426}};
  for (const auto& trap : traps) {
    const int status = StatusOfChild(folder.Path("kv"), trap.first, trap.last);
    ASSERT_TRUE(WIFEXITED(status)) << trap.what << ": signal " << WTERMSIG(status);
    if (WEXITSTATUS(status) == kNoFilter) GTEST_SKIP() << "no seccomp filter can be installed here";
    EXPECT_EQ(WEXITSTATUS(status), kOtherBackEnd) << trap.what;
  }
  // Registering is a help only, and not tried again once it was trapped.
  const int status = StatusOfChild(folder.Path("kv"), 427, 427);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_TRUE(WEXITSTATUS(status) == kIoUring || WEXITSTATUS(status) == kOtherBackEnd) << WEXITSTATUS(status);
}

// Other signals are not for the guard: an unknown trap still ends the process.
TEST(CreateBlockFile, OtherTrapsEndTheProcessAsBefore) {
  const TemporaryFolder folder;
  const int status = StatusOfChild(folder.Path("kv"), SYS_ftruncate, SYS_ftruncate);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoFilter) {
    GTEST_SKIP() << "no seccomp filter can be installed here";
  }
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGSYS);
}

}  // namespace
}  // namespace kvrun::testing
