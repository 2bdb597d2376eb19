// Files that have a name: made, opened again by every back end, refused, and one process's at a time.
#include "platform/io/named_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/store/save_point_file.h"
#include "tests/storage/save_point_fixture.h"
#include "tests/storage/storage_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"

namespace kvrun::testing {
namespace {

constexpr size_t kBlock = 64 * 1024;
constexpr uid_t kNobody = 65534;

struct Way {
  IoBackend backend;
  DirectIo direct;
};

std::vector<Way> AllWays() {
  std::vector<Way> ways;
  for (const IoBackend backend : {IoBackend::kIoUring, IoBackend::kAio, IoBackend::kThreads}) {
    for (const DirectIo direct : {DirectIo::kOn, DirectIo::kOff}) ways.push_back({backend, direct});
  }
  return ways;
}

BlockFileOptions OptionsOf(std::optional<Way> way = std::nullopt) {
  BlockFileOptions options;
  options.allow_tmpfs = true;
  options.queue_depth = 4;
  options.auto_backend = !way;
  if (way) options.backend = way->backend;
  if (way) options.direct = way->direct;
  return options;
}

std::string NameOf(const Way& way) {
  return std::string(IoBackendName(way.backend)) + (way.direct == DirectIo::kOn ? ", direct" : ", buffered");
}

class NamedFile : public ::testing::Test {
 protected:
  NamedFile() : path_(folder_.Path("kv")) {}

  std::unique_ptr<BlockFile> Open(NamedFileUse use) {
    return OrDie(OpenNamedBlockFile(path_, use, OptionsOf()));
  }
  bool WorksNameless(const Way& way) {
    BlockFileOptions options = OptionsOf(way);
    options.folder = folder_.Path("");
    return CreateBlockFile(options).ok();
  }
  // A file of a block, and another half.
  void MakeFile() {
    const auto file = Open(NamedFileUse::kCreate);
    ASSERT_EQ(WriteBlocks(*file, 1), 0);
  }
  int WriteBlocks(BlockFile& file, uint64_t version) {
    FillPattern(memory_.span(), 0, version);
    return DoOne(file, IoKind::kWrite, 0, memory_.span());
  }
  bool Holds(BlockFile& file, uint64_t version) {
    memory_.Fill(0);
    return DoOne(file, IoKind::kRead, 0, memory_.span()) == 0 && HoldsPattern(memory_.span(), 0, version);
  }
  void ExpectRefused(const std::string& path, NamedFileUse use, const std::string& part,
                     StatusCode code = StatusCode::kInvalidArgument) {
    const Status status = OpenNamedBlockFile(path, use, OptionsOf()).status();
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(path), std::string::npos) << status.message();
  }

  TemporaryFolder folder_;
  std::string path_;
  AlignedMemory memory_{kBlock + kBlock / 2};
};

// Descriptors of this process that are of the path.
std::vector<int> DescriptorsOf(const std::string& path) {
  std::vector<int> found;
  const std::filesystem::path real = std::filesystem::canonical(path);
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry, gone) == real)
      found.push_back(std::stoi(entry.path().filename()));
  }
  return found;
}

TEST_F(NamedFile, EveryBackEndReadsWhatEveryOtherWrote) {
  size_t n_ways = 0;
  uint64_t version = 0;
  for (const Way& writer : AllWays()) {
    SCOPED_TRACE(NameOf(writer));
    std::filesystem::remove(path_);
    auto file = OpenNamedBlockFile(path_, NamedFileUse::kCreate, OptionsOf(writer));
    if (!file.ok()) {  // as a nameless one
      EXPECT_FALSE(WorksNameless(writer)) << file.status().message();
      EXPECT_FALSE(std::filesystem::exists(path_));
      continue;
    }
    ++n_ways;
    EXPECT_EQ((*file)->mode().backend, writer.backend);
    EXPECT_EQ((*file)->mode().direct, writer.direct == DirectIo::kOn);
    EXPECT_EQ((*file)->counters().writes, 0U);
    EXPECT_EQ(std::filesystem::file_size(path_), 0U);
    ASSERT_EQ(WriteBlocks(**file, ++version), 0);
    ASSERT_TRUE((*file)->Sync().ok());
    *file = nullptr;
    const std::string bytes = ReadWholeFile(path_);
    EXPECT_EQ(bytes.size(), memory_.size());
    for (const Way& reader : AllWays()) {
      for (const NamedFileUse use : {NamedFileUse::kWrite, NamedFileUse::kRead}) {
        SCOPED_TRACE(NameOf(reader) + (use == NamedFileUse::kRead ? ", to read" : ", to write"));
        auto again = OpenNamedBlockFile(path_, use, OptionsOf(reader));
        if (!again.ok()) {
          EXPECT_FALSE(WorksNameless(reader)) << again.status().message();
          continue;
        }
        EXPECT_EQ((*again)->mode().backend, reader.backend);
        EXPECT_EQ((*again)->mode().direct, reader.direct == DirectIo::kOn);
        EXPECT_EQ((*again)->mode().alignment_bytes == 1, !(*again)->mode().direct);
        EXPECT_EQ((*again)->counters().reads, 0U);
        EXPECT_EQ(ReadWholeFile(path_), bytes) << "it was changed to learn how it works";
        EXPECT_TRUE(Holds(**again, version));
        EXPECT_EQ(WriteBlocks(**again, version), use == NamedFileUse::kRead ? EBADF : 0);
      }
    }
  }
  EXPECT_GE(n_ways, 1U);  // threads, buffered
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.Path("")), {}), 1);  // its name alone
}

TEST_F(NamedFile, TheWayThatANamelessFileTakesIsTaken) {
  BlockFileOptions options = OptionsOf();
  options.folder = folder_.Path("");
  const auto nameless = OrDie(CreateBlockFile(options));
  MakeFile();
  for (const NamedFileUse use : {NamedFileUse::kWrite, NamedFileUse::kRead}) {
    const auto file = Open(use);
    EXPECT_EQ(file->mode().backend, nameless->mode().backend);
    EXPECT_EQ(file->mode().direct, nameless->mode().direct);
    EXPECT_EQ(file->mode().alignment_bytes, nameless->mode().alignment_bytes);
    EXPECT_EQ(file->mode().queue_depth, 4U);
    const std::vector<int> descriptors = DescriptorsOf(path_);
    ASSERT_EQ(descriptors.size(), 1U);
    const int flags = ::fcntl(descriptors[0], F_GETFL);
    EXPECT_EQ((flags & O_DIRECT) != 0, file->mode().direct);
    EXPECT_EQ(flags & O_NONBLOCK, 0);
    EXPECT_EQ(flags & O_ACCMODE, use == NamedFileUse::kRead ? O_RDONLY : O_RDWR);
    EXPECT_EQ(::fcntl(descriptors[0], F_GETFD), FD_CLOEXEC);
  }
  EXPECT_TRUE(DescriptorsOf(path_).empty());
}

TEST_F(NamedFile, IsMadeForThisUserAndNeverInPlaceOfAnother) {
  MakeFile();
  struct stat facts {};
  ASSERT_EQ(::stat(path_.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600U);
  ExpectRefused(path_, NamedFileUse::kCreate, "it is there already: name another");
  EXPECT_TRUE(Holds(*Open(NamedFileUse::kWrite), 1));
  ExpectRefused(folder_.Path("no/kv"), NamedFileUse::kCreate, "", StatusCode::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(folder_.Path("no")));
  BlockFileOptions options = OptionsOf();
  options.queue_depth = 0;
  EXPECT_EQ(OpenNamedBlockFile(folder_.Path("other"), NamedFileUse::kCreate, options).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(folder_.Path("other")));
}

TEST_F(NamedFile, WhatIsNoFileOfThisUserIsRefused) {
  MakeFile();
  const std::string link = folder_.Path("link");
  const std::string dangling = folder_.Path("dangling");
  const std::string pipe = folder_.Path("pipe");
  const std::string folder = folder_.Path("folder");
  ASSERT_EQ(::symlink(path_.c_str(), link.c_str()), 0);
  ASSERT_EQ(::symlink(folder_.Path("none").c_str(), dangling.c_str()), 0);
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  ASSERT_EQ(::mkdir(folder.c_str(), 0700), 0);
  for (const NamedFileUse use : {NamedFileUse::kCreate, NamedFileUse::kWrite, NamedFileUse::kRead}) {
    ExpectRefused(link, use, "cannot be a KV cache's file: it is a symbolic link");
    ExpectRefused(dangling, use, "it is a symbolic link");
    ExpectRefused(pipe, use, "it is a pipe");
    ExpectRefused(folder, use, "it is a folder");
    ExpectRefused(folder + "/", use, "it is no name of a file");
    ExpectRefused("", use, "it is no name of a file");
    if (use != NamedFileUse::kCreate) {
      ExpectRefused("/dev/null", use, "it is a device or a socket");
      ExpectRefused(folder_.Path("none"), use, "cannot open the KV cache's file", StatusCode::kNotFound);
    }
  }
  EXPECT_FALSE(std::filesystem::exists(folder_.Path("none")));
  std::string others = "/etc/passwd";
  if (::geteuid() == 0) {
    others = path_;
    ASSERT_EQ(::chown(path_.c_str(), kNobody, kNobody), 0);
  }
  ExpectRefused(others, NamedFileUse::kRead, "it is another user's");
  ExpectRefused(others, NamedFileUse::kWrite, "it is another user's");
}

// A process that does it, and stays until it is killed.
class Child {
 public:
  explicit Child(const std::function<bool()>& body) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    process_ = ::fork();
    if (process_ == 0) {
      const char answer = body() ? 1 : 0;
      if (::write(ends[1], &answer, 1) != 1) ::_exit(2);
      ::pause();
      ::_exit(3);
    }
    ::close(ends[1]);
    char answer = 0;
    EXPECT_EQ(::read(ends[0], &answer, 1), 1);
    EXPECT_EQ(answer, 1);
    ::close(ends[0]);
  }
  ~Child() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  pid_t process() const { return process_; }

 private:
  pid_t process_ = -1;
};

TEST_F(NamedFile, OneProcessWritesAndOthersRead) {
  MakeFile();
  {
    std::unique_ptr<BlockFile> held;
    const Child child([&] {
      held = Open(NamedFileUse::kWrite);
      return true;
    });
    const Status status = OpenNamedBlockFile(path_, NamedFileUse::kWrite, OptionsOf()).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    const std::string begin = "the KV cache's file " + path_ + " is in use: ";
    const std::string end = " has it open to write to it: end that, or name another file";
    EXPECT_TRUE(status.message() == begin + "process " + std::to_string(child.process()) + end ||
                status.message() == begin + "another process" + end)
        << status.message();
    EXPECT_TRUE(Holds(*Open(NamedFileUse::kRead), 1));
  }
  auto file = Open(NamedFileUse::kWrite);  // a killed process leaves no lock
  EXPECT_TRUE(Holds(*file, 1));
  ExpectRefused(path_, NamedFileUse::kWrite, "is in use");
  file = nullptr;
  std::filesystem::remove(path_);
  file = Open(NamedFileUse::kCreate);
  ExpectRefused(path_, NamedFileUse::kWrite, "is in use");
}

// At once, though io_uring has the file for a while yet.
TEST_F(NamedFile, TheLockGoesWithTheFile) {
  MakeFile();
  for (int i = 0; i < 20; ++i) {
    Open(NamedFileUse::kWrite) = nullptr;
    const int fd = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
    EXPECT_EQ(::flock(fd, LOCK_EX | LOCK_NB), 0) << i;
    ::close(fd);
  }
}

TEST_F(NamedFile, WhatIsOpenedToBeReadIsNotChanged) {
  MakeFile();
  const std::string bytes = ReadWholeFile(path_);
  ASSERT_EQ(::chmod(path_.c_str(), 0400), 0);
  for (const IoBackend backend : {IoBackend::kIoUring, IoBackend::kAio, IoBackend::kThreads}) {
    const auto opened =
        OpenNamedBlockFile(path_, NamedFileUse::kRead, OptionsOf(Way{backend, DirectIo::kAuto}));
    if (!opened.ok()) continue;
    BlockFile& file = **opened;
    EXPECT_EQ(WriteBlocks(file, 2), EBADF);
    EXPECT_EQ(DoOne(file, IoKind::kWrite, 0, memory_.span().first(0)), EBADF);
    EXPECT_FALSE(file.Reserve(10 * kBlock).ok());
    file.Discard(0, kBlock);
    EXPECT_TRUE(file.Sync().ok());
    EXPECT_TRUE(Holds(file, 1));
    EXPECT_EQ(DoOne(file, IoKind::kRead, memory_.size(), memory_.span()), ENODATA);
  }
  EXPECT_EQ(ReadWholeFile(path_), bytes);
}

TEST_F(NamedFile, AnEmptyFileCanBeRead) {
  Open(NamedFileUse::kCreate) = nullptr;
  for (const Way& way : AllWays()) {
    const auto file = OpenNamedBlockFile(path_, NamedFileUse::kRead, OptionsOf(way));
    EXPECT_TRUE(!file.ok() || DoOne(**file, IoKind::kRead, 0, memory_.span()) == ENODATA) << NameOf(way);
  }
  EXPECT_EQ(DoOne(*Open(NamedFileUse::kRead), IoKind::kRead, 0, memory_.span()), ENODATA);
}

// In a process that may not write to the folder: as root, another user's.
TEST_F(NamedFile, IsReadInAFolderThatCannotBeWritten) {
  std::string folder = "/tmp/kvrun-named.XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/kv";
  ASSERT_TRUE(::geteuid() != 0 || ::chown(folder.c_str(), kNobody, kNobody) == 0);
  const pid_t process = ::fork();
  if (process == 0) {
    if (::geteuid() == 0 && (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0)) ::_exit(10);
    {
      const auto file = OpenNamedBlockFile(path, NamedFileUse::kCreate, OptionsOf());
      if (!file.ok() || WriteBlocks(**file, 1) != 0) ::_exit(11);
    }
    if (::chmod(folder.c_str(), 0500) != 0) ::_exit(12);
    BlockFileOptions nameless = OptionsOf();
    nameless.folder = folder;
    if (CreateBlockFile(nameless).ok()) ::_exit(13);
    const auto file = OpenNamedBlockFile(path, NamedFileUse::kRead, OptionsOf());
    if (!file.ok()) ::_exit(14);
    if (!Holds(**file, 1)) ::_exit(15);
    if (OpenNamedBlockFile(path, NamedFileUse::kWrite, OptionsOf()).ok()) ::_exit(16);
    if (OpenNamedBlockFile(folder + "/new", NamedFileUse::kCreate, OptionsOf()).ok()) ::_exit(17);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(process, &status, 0), process);
  EXPECT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 10) GTEST_SKIP() << "root cannot become another user here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
  ::chmod(folder.c_str(), 0700);
  std::filesystem::remove_all(folder);
}

// A session's two files, over two processes.
TEST_F(NamedFile, KeepsSavePoints) {
  constexpr uint64_t kFileBytes = uint64_t{8} * kUnitBytes;
  const auto state = OrDie(StateFile::Create(folder_.Path("state")));
  {
    const auto file = OrDie(SavePointFile::Create(Open(NamedFileUse::kCreate), kFileBytes, kUnitBytes));
    ASSERT_EQ(WriteUnit(*file, 0, 1, 4), 0);
    ASSERT_TRUE(SaveTo(*file, *state).ok());
    ASSERT_EQ(WriteUnit(*file, 2, 2), 0);
    ASSERT_TRUE(SaveTo(*file, *state).ok());
    ASSERT_EQ(WriteUnit(*file, 0, 3, 8), 0);
  }
  for (const NamedFileUse use : {NamedFileUse::kRead, NamedFileUse::kWrite}) {
    const auto file = OrDie(SavePointFile::Create(Open(use), kFileBytes, kUnitBytes));
    ASSERT_TRUE(LoadFrom(*file, *state).ok());
    EXPECT_TRUE(UnitHolds(*file, 0, 1, 2));
    EXPECT_TRUE(UnitHolds(*file, 2, 2));
    EXPECT_TRUE(UnitHolds(*file, 3, 1));
    EXPECT_FALSE(UnitHolds(*file, 4, 3));
  }
  std::filesystem::resize_file(path_, 2 * kUnitBytes);
  const auto file = OrDie(SavePointFile::Create(Open(NamedFileUse::kWrite), kFileBytes, kUnitBytes));
  EXPECT_EQ(LoadFrom(*file, *state).code(), StatusCode::kCorrupt);
}

}  // namespace
}  // namespace kvrun::testing
