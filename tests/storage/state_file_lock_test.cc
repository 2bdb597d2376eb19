// Who has a state file, and its temporary name: one process at a time.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "runtime/store/state_folder.h"
#include "tests/storage/state_file_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"

namespace kvrun::testing {
namespace {

StateModel LockModel(uint64_t version, size_t n_bytes = 100) {
  return {{KeyOf(1), StatePattern(n_bytes, version)}};
}

class StateFileLock : public ::testing::Test {
 protected:
  StateFileLock() : path_(folder_.Path("session")) {}

  // A lock is one descriptor's, whichever process has that.
  ::testing::AssertionResult IsInUse(const Status& status) const {
    const std::string begin = "the session's file " + path_ + " is in use: ";
    const std::string end = " has it open to save to it: end that, or name another file";
    const std::string& message = status.message();
    const bool is_said = message == begin + "another process" + end ||
                         message == begin + "process " + std::to_string(::getpid()) + end;
    if (is_said && status.code() == StatusCode::kInvalidArgument) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << message;
  }
  bool Exists(const std::string& path) const { return ::access(path.c_str(), F_OK) == 0; }

  TemporaryFolder folder_;
  std::string path_;
};

TEST_F(StateFileLock, OneSavesAndOthersRead) {
  auto file = OrDie(StateFile::Create(path_));
  RunOrDie(SaveState(*file, LockModel(1)));
  for (uint64_t save = 2; save < 60; ++save) {  // some of which write whole files
    EXPECT_TRUE(IsInUse(StateFile::Open(path_).status()));
    EXPECT_TRUE(IsInUse(StateFile::Create(path_).status()));
    EXPECT_TRUE(Holds(*OrDie(StateFile::Open(path_, true)), LockModel(save - 1, save == 2 ? 100 : 200'000)));
    RunOrDie(SaveState(*file, LockModel(save, 200'000)));
  }
  file = nullptr;
  file = OrDie(StateFile::Open(path_));
  EXPECT_TRUE(IsInUse(StateFile::Open(path_).status()));
  file = nullptr;
  file = OrDie(StateFile::Create(path_));
  EXPECT_TRUE(IsInUse(StateFile::Open(path_).status())) << "what it will take the name of";
}

// Who reads may have asked for the size while a save was writing its chunks, and read the header after that.
class EarlySizeIo : public StateFileIo {
 public:
  int Stat(int fd, struct stat* facts) override {
    const int answer = StateFileIo::Stat(fd, facts);
    if (n_calls_++ < 2) facts->st_size -= 1;
    return answer;
  }

 private:
  int n_calls_ = 0;
};

TEST_F(StateFileLock, WhoReadsWhileOneSavesSeesNoDamage) {
  const auto file = OrDie(StateFile::Create(path_));
  RunOrDie(SaveState(*file, LockModel(1)));
  RunOrDie(SaveState(*file, LockModel(2)));
  EarlySizeIo io;
  EXPECT_TRUE(Holds(*OrDie(StateFile::Open(path_, true, &io)), LockModel(2)));
}

TEST_F(StateFileLock, OfTwoThatBeginTheFirstToSaveHasIt) {
  auto one = OrDie(StateFile::Create(path_));
  const auto other = OrDie(StateFile::Create(path_));
  RunOrDie(one->BeginSave());
  EXPECT_TRUE(IsInUse(other->BeginSave()));
  EXPECT_TRUE(IsInUse(StateFile::Create(path_).status()));
  EXPECT_TRUE(Exists(StateFileBeside(path_))) << "the other one's";
  RunOrDie(one->Put(KeyOf(1), StatePattern(100, 1)));
  RunOrDie(one->Commit());
  EXPECT_TRUE(IsInUse(other->BeginSave()));
  EXPECT_TRUE(Holds(*OrDie(StateFile::Open(path_, true)), LockModel(1)));
  one = nullptr;
  RunOrDie(SaveState(*other, LockModel(2)));
  EXPECT_TRUE(Holds(*OrDie(StateFile::Open(path_, true)), LockModel(2)));
}

// The system, with something that happens just before a lock is got, or a file is made.
class RacingIo : public StateFileIo {
 public:
  std::function<void()> before_lock;
  std::function<void()> before_make;
  int Open(int folder, const char* name, int flags, mode_t mode) override {
    if (before_make && (flags & O_CREAT) != 0) std::exchange(before_make, nullptr)();
    return StateFileIo::Open(folder, name, flags, mode);
  }
  int Lock(int fd) override {
    if (before_lock) std::exchange(before_lock, nullptr)();
    return StateFileIo::Lock(fd);
  }
};

TEST_F(StateFileLock, WhatIsLockedHasTheNameStill) {
  const std::string other = folder_.Path("other");
  RunOrDie(SaveState(*OrDie(StateFile::Create(path_)), LockModel(1)));
  RunOrDie(SaveState(*OrDie(StateFile::Create(other)), LockModel(2)));
  RacingIo io;
  io.before_lock = [&] { ASSERT_EQ(std::rename(other.c_str(), path_.c_str()), 0); };
  const auto file = OrDie(StateFile::Open(path_, false, &io));
  EXPECT_TRUE(Holds(*file, LockModel(2)));
  EXPECT_TRUE(IsInUse(StateFile::Open(path_).status()));
}

TEST_F(StateFileLock, WhatGotTheNameMeanwhileIsNotReplaced) {
  RacingIo io;
  const auto late = OrDie(StateFile::Create(path_, &io));
  std::unique_ptr<StateFile> first;
  io.before_lock = [&] {  // the temporary name is another's by now
    ASSERT_EQ(::unlink(StateFileBeside(path_).c_str()), 0);
    first = OrDie(StateFile::Create(path_));
    RunOrDie(SaveState(*first, LockModel(1)));
  };
  EXPECT_TRUE(IsInUse(late->BeginSave()));
  EXPECT_TRUE(Holds(*OrDie(StateFile::Open(path_, true)), LockModel(1)));
  RunOrDie(SaveState(*first, LockModel(3)));
}

TEST_F(StateFileLock, WhatGotTheNameBeforeTheTemporaryFileWasMadeIsNotReplaced) {
  RacingIo io;
  const auto late = OrDie(StateFile::Create(path_, &io));
  std::unique_ptr<StateFile> first;
  io.before_make = [&] {
    first = OrDie(StateFile::Create(path_));
    RunOrDie(SaveState(*first, LockModel(1)));
  };
  EXPECT_TRUE(IsInUse(late->BeginSave()));
  EXPECT_FALSE(Exists(StateFileBeside(path_)));
  EXPECT_TRUE(Holds(*OrDie(StateFile::Open(path_, true)), LockModel(1)));
}

TEST_F(StateFileLock, OnlyTheOwnFileTakesTheName) {
  const auto file = OrDie(StateFile::Create(path_));
  RunOrDie(file->BeginSave());
  RunOrDie(file->Put(KeyOf(1), StatePattern(100, 1)));
  ASSERT_EQ(::unlink(StateFileBeside(path_).c_str()), 0);
  folder_.Write("session.kvrun-new", "another's");
  EXPECT_TRUE(IsInUse(file->Commit()));
  EXPECT_FALSE(Exists(path_));
  EXPECT_EQ(std::filesystem::file_size(StateFileBeside(path_)), 9U);
}

TEST_F(StateFileLock, WhatAnotherHasWrittenIsNotCutOff) {
  const auto file = OrDie(StateFile::Create(path_));
  RunOrDie(SaveState(*file, LockModel(1)));
  const uint64_t size_bytes = file->file_bytes() + 123;
  for (const size_t n_bytes : {0, 200'000}) {  // not yet written, written in part
    RunOrDie(file->BeginSave());
    RunOrDie(file->Put(KeyOf(1), StatePattern(n_bytes, 2)));
    const uint64_t other_bytes = std::max<uint64_t>(size_bytes, std::filesystem::file_size(path_) + 100'000);
    std::filesystem::resize_file(path_, other_bytes);
    EXPECT_FALSE(file->Put(KeyOf(1), {}, false).ok() && file->Commit().ok());
    EXPECT_EQ(std::filesystem::file_size(path_), other_bytes);
    RunOrDie(SaveState(*file, LockModel(3)));
    EXPECT_EQ(std::filesystem::file_size(path_), file->file_bytes());
    EXPECT_TRUE(Holds(*OrDie(StateFile::Open(path_, true)), LockModel(3)));
  }
}

TEST_F(StateFileLock, TheTemporaryNameIsNoFiles) {
  const std::string beside = StateFileBeside(path_);
  for (const auto& opened :
       {StateFile::Create(beside), StateFile::Open(beside), StateFile::Open(beside, true)}) {
    EXPECT_EQ(opened.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(opened.status().message(),
              beside +
                  " cannot be a session's file: it is what ends in .kvrun-new, which a save writes and "
                  "removes: name another");
  }
}

TEST_F(StateFileLock, ItStaysInItsFolderWhereverTheProcessGoes) {
  const std::filesystem::path before = std::filesystem::current_path();
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  std::filesystem::create_directory(folder / "other");
  std::filesystem::current_path(folder);
  auto created = StateFile::Create("session");
  std::filesystem::current_path(folder / "other");
  const auto file = OrDie(std::move(created));
  const Status first = SaveState(*file, LockModel(1));
  std::filesystem::current_path(before);
  ASSERT_TRUE(first.ok()) << first.message();
  EXPECT_TRUE(Holds(*OrDie(StateFile::Open(path_, true)), LockModel(1)));
  RunOrDie(SaveState(*file, LockModel(2)));
  EXPECT_TRUE(Holds(*OrDie(StateFile::Open(path_, true)), LockModel(2)));
  EXPECT_TRUE(std::filesystem::is_empty(folder / "other"));
}

// As on a file system that is mounted for another user.
class OthersIo : public StateFileIo {
 public:
  int Open(int folder, const char* name, int flags, mode_t mode) override {
    const int fd = StateFileIo::Open(folder, name, flags, mode);
    if ((flags & O_CREAT) != 0) made_ = fd;
    return fd;
  }
  int Stat(int fd, struct stat* facts) override {
    const int answer = StateFileIo::Stat(fd, facts);
    if (fd == made_) ++facts->st_uid;
    return answer;
  }

 private:
  int made_ = -1;
};

TEST_F(StateFileLock, AFileThatIsAnothersOnceItIsMadeIsRefused) {
  OthersIo io;
  const auto file = OrDie(StateFile::Create(path_, &io));
  const Status status = file->BeginSave();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), path_ + " cannot be a session's file: it is another user's: name another");
  EXPECT_FALSE(Exists(path_));
  EXPECT_FALSE(Exists(StateFileBeside(path_)));
}

}  // namespace
}  // namespace kvrun::testing
