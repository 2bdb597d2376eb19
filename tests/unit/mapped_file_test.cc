#include "platform/io/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/support/program_runner.h"

namespace kvrun {
namespace {

TEST(MappedFile, HoldsTheFilesBytes) {
  const TemporaryFolder folder;
  const auto file = MappedFile::Open(folder.Write("file", "bytes"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_EQ(file->bytes().size(), 5U);
  EXPECT_EQ(file->bytes()[4], std::byte{'s'});
}

TEST(MappedFile, AnEmptyFileIsEmpty) {
  const TemporaryFolder folder;
  const auto file = MappedFile::Open(folder.Write("file", ""));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_TRUE(file->bytes().empty());
}

TEST(MappedFile, APipeIsRefusedAtOnce) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const auto file = MappedFile::Open(path);
  EXPECT_EQ(file.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(file.status().message(), path + " is not a regular file");
}

TEST(MappedFile, FoldersAndMissingFilesAreRefused) {
  const TemporaryFolder folder;
  EXPECT_EQ(MappedFile::Open(folder.Path("")).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(MappedFile::Open(folder.Path("missing")).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace kvrun
