// Not grouped: its names are others', too.
// Keys in files: which are taken, that those who make one at once agree, and that a destroyed one is gone.
#include "platform/io/session_key.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "platform/base/check.h"
#include "platform/io/seal.h"
#include "platform/io/unique_fd.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"

namespace kvrun::testing {
namespace {

constexpr std::string_view kHex = "00112233445566778899aAbBcCdDeEfF000102030405060708090a0b0c0d0e0f";

std::string Raw() {
  std::string raw;
  for (size_t i = 0; i < kHex.size(); i += 2)
    raw.push_back(static_cast<char>(std::stoi(std::string(kHex.substr(i, 2)), nullptr, 16)));
  return raw;
}

SecretKey KeyOf(const std::string& raw) {
  SecretKey key;
  std::memcpy(key.bytes().data(), raw.data(), SecretKey::kBytes);
  return key;
}

class KeyFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!CheckEncryption().ok()) GTEST_SKIP() << CheckEncryption().message();
  }

  std::string Write(const std::string& text, mode_t mode = 0600) const {
    std::string path = folder_.Write("key", text);
    KVRUN_CHECK(chmod(path.c_str(), mode) == 0);
    return path;
  }

  // The file is refused, with both parts in the message, and nothing of what it holds.
  static void ExpectRefused(const std::string& path, std::string_view part, std::string_view remedy) {
    const Status status = ReadKeyFile(path).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    const std::string& message = status.message();
    EXPECT_NE(message.find(path), std::string::npos) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_NE(message.find(remedy), std::string::npos) << message;
    EXPECT_EQ(message.find("0011"), std::string::npos) << message;
    EXPECT_EQ(UserKey(path).status().message(), message) << "it is not replaced";
  }

  bool IsOnly(const std::string& folder, const std::string& name) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path());
    return names == std::vector<std::string>{folder + "/" + name};
  }

  TemporaryFolder folder_;
};

TEST_F(KeyFileTest, BytesAndDigitsAreRead) {
  for (const std::string& text : {Raw(), std::string(kHex), std::string(kHex) + "\n"}) {
    for (const mode_t mode : {0600, 0400, 0700}) {
      const Result<SecretKey> key = ReadKeyFile(Write(text, mode));
      ASSERT_TRUE(key.ok()) << key.status().message();
      EXPECT_TRUE(*key == KeyOf(Raw()));
      unlink(folder_.Path("key").c_str());
    }
  }
}

TEST_F(KeyFileTest, WhatOthersMayUseIsRefused) {
  for (const mode_t mode : {0640, 0620, 0610, 0604, 0602, 0601, 0666, 0777}) {
    ExpectRefused(Write(std::string(kHex), mode), "others may use it", "chmod 600");
  }
}

TEST_F(KeyFileTest, OtherContentsAreRefused) {
  const std::string digits(kHex);
  for (const std::string& text :
       {std::string(), Raw().substr(1), Raw() + "\n", digits.substr(1), digits + "\n\n", digits + "\r\n",
        " " + digits, digits + "0", std::string(100'000, 'a')}) {
    ExpectRefused(Write(text), "it holds", "64 hex digits");
  }
  ExpectRefused(Write("x" + digits.substr(1)), "hex digits", "not all");
  ExpectRefused(Write(digits.substr(0, 32)), "32 hex digits", "64");
  ExpectRefused(Write(std::string(32, '\0')), "are the same", "head -c 32 /dev/urandom");
  ExpectRefused(Write(std::string(64, 'a')), "are the same", "head -c 32 /dev/urandom");
}

TEST_F(KeyFileTest, WhatIsNoFileIsRefused) {
  ExpectRefused(folder_.Path("."), "a folder", "name a file");
  ExpectRefused("/dev/zero", "a device", "name a file");
  const std::string pipe = folder_.Path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ExpectRefused(pipe, "a pipe", "name a file");
  const std::string link = folder_.Path("link");
  ASSERT_EQ(symlink(Write(std::string(kHex)).c_str(), link.c_str()), 0);
  ExpectRefused(link, "symbolic link", "name the file");
}

TEST_F(KeyFileTest, AnothersFileIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const std::string path = Write(std::string(kHex));
  ASSERT_EQ(chown(path.c_str(), 12345, 12345), 0);
  ExpectRefused(path, "belongs to user 12345", "chmod 600");
  EXPECT_EQ(DestroyKeyFile(path).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadWholeFile(path), kHex);
}

TEST_F(KeyFileTest, WhereThereIsNoneItIsSaid) {
  for (const char* name : {"none", "no/folder"}) {
    const Status status = ReadKeyFile(folder_.Path(name)).status();
    EXPECT_EQ(status.code(), StatusCode::kNotFound);
    EXPECT_NE(status.message().find("head -c 32 /dev/urandom"), std::string::npos) << status.message();
  }
}

TEST_F(KeyFileTest, TheUsersKeyIsMadeOnce) {
  const mode_t old = umask(0);
  const std::string path = folder_.Path("a/b/session.key");
  const SecretKey key = OrDie(UserKey(path));
  umask(old);
  struct stat facts {};
  ASSERT_EQ(stat(path.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777, 0600U);
  EXPECT_EQ(facts.st_size, 32);
  EXPECT_TRUE(key == KeyOf(ReadWholeFile(path)));
  for (const char* name : {"a", "a/b"}) {
    ASSERT_EQ(stat(folder_.Path(name).c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 07777, 0700U);
  }
  EXPECT_TRUE(IsOnly(folder_.Path("a/b"), "session.key"));
  EXPECT_TRUE(OrDie(UserKey(path)) == key);
  EXPECT_TRUE(OrDie(ReadKeyFile(path)) == key);
  EXPECT_FALSE(OrDie(UserKey(folder_.Path("other"))) == key);
}

TEST_F(KeyFileTest, WhereItCannotBeMadeItIsSaid) {
  const std::string file = folder_.Write("file", "");
  for (const std::string& path : {file + "/session.key", std::string("/proc/session.key")}) {
    const Status status = UserKey(path).status();
    EXPECT_EQ(status.code(), StatusCode::kIo) << path;
    EXPECT_NE(status.message().find(path == file + "/session.key" ? file : path), std::string::npos)
        << status.message();
  }
  EXPECT_EQ(UserKey("").status().code(), StatusCode::kInvalidArgument);
}

TEST_F(KeyFileTest, ThreadsThatMakeItAtOnceAgree) {
  constexpr size_t kThreads = 8;
  for (int round = 0; round < 20; ++round) {
    const std::string path = folder_.Path(std::to_string(round) + "/kvrun/session.key");
    std::array<std::optional<SecretKey>, kThreads> keys;
    std::atomic<size_t> n_ready = 0;
    std::vector<std::thread> threads;
    for (auto& key : keys) {
      threads.emplace_back([&] {
        ++n_ready;
        while (n_ready < kThreads) std::this_thread::yield();
        key = OrDie(UserKey(path));
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& key : keys) EXPECT_TRUE(*key == *keys[0]);
    EXPECT_TRUE(*keys[0] == KeyOf(ReadWholeFile(path)));
    EXPECT_TRUE(IsOnly(folder_.Path(std::to_string(round) + "/kvrun"), "session.key"));
  }
}

// Waits until nobody can write to `start` any more, and writes its key to `answers`.
[[noreturn]] void MakeKeyAndEnd(const std::string& path, int start, int answers) {
  char none = 0;
  (void)!read(start, &none, 1);
  const Result<SecretKey> key = UserKey(path);
  if (!key.ok()) _exit(1);
  _exit(write(answers, key->bytes().data(), SecretKey::kBytes) == ssize_t{SecretKey::kBytes} ? 0 : 1);
}

TEST_F(KeyFileTest, ProcessesThatMakeItAtOnceAgree) {
  constexpr int kProcesses = 8;
  for (int round = 0; round < 10; ++round) {
    const std::string path = folder_.Path(std::to_string(round) + "/session.key");
    int start[2];
    int answers[2];
    ASSERT_EQ(pipe(start), 0);
    ASSERT_EQ(pipe(answers), 0);
    std::vector<pid_t> processes;
    for (int i = 0; i < kProcesses; ++i) {
      const pid_t process = fork();
      ASSERT_GE(process, 0);
      if (process == 0) {
        close(start[1]);
        MakeKeyAndEnd(path, start[0], answers[1]);
      }
      processes.push_back(process);
    }
    close(start[0]);
    close(start[1]);  // they begin
    close(answers[1]);
    for (const pid_t process : processes) {
      int status = -1;
      EXPECT_EQ(waitpid(process, &status, 0), process);
      EXPECT_EQ(status, 0);
    }
    for (int i = 0; i < kProcesses; ++i) {
      std::string raw(SecretKey::kBytes, '\0');
      ASSERT_EQ(read(answers[0], raw.data(), raw.size()), ssize_t{SecretKey::kBytes});
      EXPECT_EQ(raw, ReadWholeFile(path));
    }
    close(answers[0]);
  }
}

TEST_F(KeyFileTest, ADestroyedKeyIsGone) {
  for (const std::string& text : {Raw(), std::string(kHex) + "\n", std::string("half of"), std::string()}) {
    for (const mode_t mode : {0600, 0400, 0644}) {
      const std::string path = Write(text, mode);
      const UniqueFd still_open(open(path.c_str(), O_RDONLY | O_CLOEXEC));
      const Status status = DestroyKeyFile(path);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_NE(access(path.c_str(), F_OK), 0);
      std::string left(100, '\0');
      const ssize_t n_bytes = pread(still_open.get(), left.data(), left.size(), 0);
      ASSERT_EQ(n_bytes, static_cast<ssize_t>(text.size()));
      EXPECT_TRUE(text.empty() || left.substr(0, text.size()) != text) << "it was not overwritten";
      EXPECT_TRUE(DestroyKeyFile(path).ok()) << "it is fine where there is none";
    }
  }
  const std::string path = folder_.Path("user");
  const SecretKey key = OrDie(UserKey(path));
  ASSERT_TRUE(DestroyKeyFile(path).ok());
  EXPECT_FALSE(OrDie(UserKey(path)) == key);
  EXPECT_TRUE(DestroyKeyFile(folder_.Path("no/folder")).ok());
}

TEST_F(KeyFileTest, WhatIsNoKeyIsNotDestroyed) {
  const std::string model(66, 'm');
  const std::string path = Write(model);
  EXPECT_EQ(DestroyKeyFile(path).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadWholeFile(path), model);
  const std::string link = folder_.Path("link");
  const std::string key = folder_.Write("linked", std::string(kHex));
  ASSERT_EQ(symlink(key.c_str(), link.c_str()), 0);
  EXPECT_EQ(DestroyKeyFile(link).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadWholeFile(key), kHex);
  EXPECT_EQ(DestroyKeyFile(folder_.Path(".")).code(), StatusCode::kInvalidArgument);
}

TEST(DefaultKeyPath, LiesInTheUsersConfiguration) {
  const auto value = [](const char* name) {
    const char* const text = std::getenv(name);
    return text == nullptr ? std::nullopt : std::optional<std::string>(text);
  };
  const auto set = [](const char* name, const std::optional<std::string>& text) {
    text ? setenv(name, text->c_str(), 1) : unsetenv(name);
  };
  const std::array names = {"HOME", "XDG_CONFIG_HOME"};
  const std::array old = {value(names[0]), value(names[1])};
  const auto path = [&](const std::optional<std::string>& home, const std::optional<std::string>& config) {
    set(names[0], home);
    set(names[1], config);
    return DefaultKeyPath();
  };
  EXPECT_EQ(path("/home/me", "/config"), "/config/kvrun/session.key");
  EXPECT_EQ(path("/home/me", std::nullopt), "/home/me/.config/kvrun/session.key");
  EXPECT_EQ(path("/home/me", ""), "/home/me/.config/kvrun/session.key");
  EXPECT_EQ(path("/home/me", "config"), "/home/me/.config/kvrun/session.key");
  EXPECT_EQ(path("me", "config"), "");
  EXPECT_EQ(path(std::nullopt, std::nullopt), "");
  for (size_t i = 0; i < names.size(); ++i) set(names[i], old[i]);
}

#ifdef KVRUN_WITHOUT_OPENSSL

TEST(KeyFile, IsNotReadWhereNothingIsEncrypted) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("key", std::string(kHex));
  EXPECT_EQ(ReadKeyFile(path).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(UserKey(folder.Path("user")).status().code(), StatusCode::kUnsupported);
  EXPECT_NE(access(folder.Path("user").c_str(), F_OK), 0);
  EXPECT_TRUE(DestroyKeyFile(path).ok()) << "a build that encrypts may have made it";
}

#endif

}  // namespace
}  // namespace kvrun::testing
