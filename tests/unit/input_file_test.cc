#include "platform/io/input_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/support/program_runner.h"

namespace kvrun {
namespace {

namespace fs = std::filesystem;

std::string TextOf(const Result<std::vector<std::byte>>& bytes) {
  if (!bytes.ok()) return bytes.status().message();
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

TEST(InputFile, HoldsTheFilesBytes) {
  const TemporaryFolder folder;
  const auto file = InputFile::Open(folder.Write("file", "bytes"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->size_bytes(), 5U);
  EXPECT_EQ(TextOf(file->ReadAll()), "bytes");
  std::byte two[2];
  ASSERT_TRUE(file->Read(3, two).ok());
  EXPECT_EQ(two[1], std::byte{'s'});
  const auto empty = InputFile::Open(folder.Write("empty", ""));
  ASSERT_TRUE(empty.ok()) << empty.status().message();
  EXPECT_EQ(TextOf(empty->ReadAll()), "");
}

TEST(InputFile, APipeIsRefusedAtOnce) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const auto file = InputFile::Open(path);
  EXPECT_EQ(file.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(file.status().message(), path + " is not a regular file but a pipe: name a file");
}

TEST(InputFile, FoldersAndMissingFilesAreRefused) {
  const TemporaryFolder folder;
  EXPECT_EQ(InputFile::Open(folder.Path("")).status().message(),
            folder.Path("") + " is not a regular file but a folder: name a file");
  EXPECT_EQ(InputFile::Open(folder.Path("missing")).status().code(), StatusCode::kNotFound);
}

TEST(InputFile, AFileThatIsCutIsAnErrorAndNoSignal) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("file", std::string(10000, 'x'));
  const auto file = InputFile::Open(path);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file->CheckUnchanged().ok());
  fs::resize_file(path, 5000);
  const std::string message = path +
                              ": it was cut to 5000 bytes while it was being read, and had 10000 when it was "
                              "opened: leave it alone while kvrun reads it, and copy or download it again";
  EXPECT_EQ(TextOf(file->ReadAll()), message);
  EXPECT_EQ(file->ReadAll().status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(file->CheckUnchanged().message(), message);
  std::byte there[10];
  EXPECT_TRUE(file->Read(0, there).ok());
}

TEST(InputFile, WhatWasWrittenToSinceIsNoticed) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("file", "one");
  fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(1));
  const auto file = InputFile::Open(path);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->CheckUnchanged().ok());
  std::ofstream(path) << "two";
  EXPECT_EQ(file->CheckUnchanged().code(), StatusCode::kCorrupt);
  EXPECT_NE(file->CheckUnchanged().message().find("it was written to after it was opened"),
            std::string::npos);
}

TEST(InputFile, AnotherFileUnderItsNameChangesNothing) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("file", "one");
  const auto file = InputFile::Open(path);
  ASSERT_TRUE(file.ok());
  fs::create_hard_link(path, folder.Path("hard"));
  fs::create_symlink("file", folder.Path("soft"));
  for (const char* name : {"file", "hard", "soft"}) EXPECT_TRUE(file->HasName(folder.Path(name))) << name;
  EXPECT_EQ(std::rename(folder.Write("other", "other").c_str(), path.c_str()), 0);
  EXPECT_FALSE(file->HasName(path));
  EXPECT_FALSE(file->HasName(folder.Path("none")));
  EXPECT_EQ(TextOf(file->ReadAll()), "one");
  EXPECT_TRUE(file->CheckUnchanged().ok());
}

}  // namespace
}  // namespace kvrun
