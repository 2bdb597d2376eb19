#include "platform/io/folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "tests/support/program_runner.h"

namespace kvrun {
namespace {

namespace fs = std::filesystem;

constexpr auto kAreErrors = MissingParents::kAreErrors;
constexpr auto kAreMade = MissingParents::kAreMade;

TEST(Folder, IsMadeForThisUserAndMayBeThereAlready) {
  const TemporaryFolder folder;
  for (const char* name : {"a", "a", "a/b", "a/c/", "a//d//"}) {
    const Status status = MakeFolder(folder.Path(name), kAreErrors);
    EXPECT_TRUE(status.ok()) << status.message();
    struct stat info {};
    ASSERT_EQ(::stat(folder.Path(name).c_str(), &info), 0) << name;
    EXPECT_EQ(info.st_mode & 0777, 0700U) << name;
  }
  EXPECT_TRUE(MakeFolder("/", kAreErrors).ok());
  EXPECT_TRUE(MakeFolder(".", kAreErrors).ok());
}

TEST(Folder, MissingParentsAreMadeOnlyWhereAskedFor) {
  const TemporaryFolder folder;
  const std::string deep = folder.Path("a/b/c/");
  const Status refused = MakeFolder(deep, kAreErrors);
  EXPECT_EQ(refused.code(), StatusCode::kIo);
  EXPECT_EQ(refused.message(), "cannot make the folder " + deep + ": there is no folder " +
                                   folder.Path("a/b") + " to make it in: make that one first");
  EXPECT_EQ(NearestFolder(deep, kAreErrors).status().message(), refused.message());
  EXPECT_TRUE(fs::is_empty(folder.Path("")));
  EXPECT_TRUE(MakeFolder(deep, kAreMade).ok());
  EXPECT_TRUE(fs::is_directory(deep));
}

TEST(Folder, TheNearestIsWhereMakingWouldBegin) {
  const TemporaryFolder folder;
  const std::string there = folder.Path("there");
  ASSERT_TRUE(MakeFolder(there, kAreErrors).ok());
  EXPECT_EQ(*NearestFolder(there, kAreErrors), there);
  EXPECT_EQ(*NearestFolder(there + "/a/", kAreErrors), there);
  EXPECT_EQ(*NearestFolder(there + "/a/b", kAreMade), there);
  EXPECT_EQ(*NearestFolder("/no-such-folder", kAreErrors), "/");
  EXPECT_EQ(*NearestFolder("no-such-folder", kAreErrors), ".");
  EXPECT_TRUE(fs::is_empty(there));
}

TEST(Folder, WhatIsNoFolderIsInTheWay) {
  const TemporaryFolder folder;
  const std::string plain = folder.Write("plain", "text");
  const Status status = MakeFolder(plain, kAreMade);
  EXPECT_EQ(status.message(), "cannot make the folder " + plain + ": " + plain + " is not a folder");
  EXPECT_EQ(MakeFolder(plain + "/a/b", kAreMade).code(), StatusCode::kIo);
  EXPECT_EQ(MakeFolder("/proc/kvrun", kAreMade).code(), StatusCode::kIo);
}

class EnvironmentVariable {
 public:
  EnvironmentVariable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    value == nullptr ? unsetenv(name) : setenv(name, value, 1);
  }
  ~EnvironmentVariable() { old_ ? setenv(name_, old_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

TEST(CacheFolder, FollowsTheEnvironment) {
  const TemporaryFolder folder;
  const EnvironmentVariable home("HOME", folder.Path("ada").c_str());
  {
    const EnvironmentVariable cache("XDG_CACHE_HOME", folder.Path("cache").c_str());
    EXPECT_EQ(CacheFolder(), folder.Path("cache/kvrun"));
  }
  {
    const EnvironmentVariable cache("XDG_CACHE_HOME", "relative/is/ignored");
    EXPECT_EQ(CacheFolder(), folder.Path("ada/.cache/kvrun"));
  }
  {
    const EnvironmentVariable cache("XDG_CACHE_HOME", folder.Write("plain", "").c_str());
    EXPECT_EQ(CacheFolder(), folder.Path("ada/.cache/kvrun")) << "what cannot be a folder is passed over";
  }
  const EnvironmentVariable cache("XDG_CACHE_HOME", nullptr);
  const EnvironmentVariable no_home("HOME", nullptr);
  EXPECT_EQ(CacheFolder(), std::nullopt);
  ASSERT_EQ(UserFolders("/shared").size(), 1U);
  EXPECT_EQ(UserFolders("/shared")[0].path, fmt::format("/shared/kvrun-{}", ::geteuid()));
}

}  // namespace
}  // namespace kvrun
