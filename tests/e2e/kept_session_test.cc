// Sessions that are kept in files: they go on in another engine as if they had not ended, from their last
// save point, whatever the method; and what cannot be gone on with is said and left alone, or computed again.
#include <gtest/gtest.h>
#include <system_error>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "platform/io/seal.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/session/session_list.h"
#include "runtime/kv/plan/kv_method.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/kept_session_fixture.h"
#include "tests/support/method_exclusions.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing::kept_session {
namespace {

namespace fs = std::filesystem;

class KeptSessionsOf : public KeptSessions, public ::testing::WithParamInterface<KvMethod> {
 protected:
  std::string OptionsHere() const {
    return "--kv-method " + std::string(GetParam().name) +
           (GetParam().needs_file() ? " --kv-budget 1/3" : " --kv-type int8");
  }
};

INSTANTIATE_TEST_SUITE_P(All, KeptSessionsOf, ::testing::ValuesIn(KvMethods().begin(), KvMethods().end()),
                         MethodTestName);

TEST_P(KeptSessionsOf, GoOnInAnotherProcess) {
  const auto prompt = std::span<const TokenId>(ids_).first(200);
  const Process never_closed = Start(OptionsHere(), "");
  RunOrDie(never_closed.session->Feed(0, prompt));
  const Ids first = Generate(*never_closed.session, 20);
  const Ids second = Generate(*never_closed.session, 30, 7);
  RunOrDie(never_closed.session->Feed(0, std::span<const TokenId>(ids_).subspan(200, 40)));
  const Ids third = Generate(*never_closed.session, 20, 8);
  {
    const Process process = Start(OptionsHere(), path_);
    RunOrDie(process.session->Feed(0, prompt));
    RunOrDie(process.session->SavePoint());
  }
  {
    const Process process = Start("", path_);
    EXPECT_EQ(process.session->Length(0), 200U);
    EXPECT_EQ(Generate(*process.session, 20), first);
    RunOrDie(process.session->SavePoint());
    // What comes after the save point is lost with the process.
    Generate(*process.session, 5);
  }
  {
    const Process process = Start("", path_);
    Ids expected(prompt.begin(), prompt.end());
    expected.insert(expected.end(), first.begin(), first.end());
    EXPECT_EQ(TokensOf(*process.session), expected);
    EXPECT_EQ(Generate(*process.session, 30, 7), second);
    RunOrDie(process.session->Feed(0, std::span<const TokenId>(ids_).subspan(200, 40)));
    EXPECT_EQ(process.session->stats().prefill_tokens, 41U);  // and the last that was generated
    RunOrDie(process.session->SavePoint());
  }
  const Process process = Start("", path_);
  EXPECT_EQ(Generate(*process.session, 20, 8), third);
  EXPECT_EQ(process.session->stats().prefill_tokens, 0U);
}

// --- Encrypted.

std::shared_ptr<const SecretKey> KeyNumber(uint8_t number) {
  auto key = std::make_shared<SecretKey>();
  std::fill(key->bytes().begin(), key->bytes().end(), std::byte{number});
  return key;
}

// What is mostly zeros says nothing: an end of anything has zeros behind it.
template <typename Visit>
void VisitWindows(const std::string& bytes, size_t step, const Visit& visit) {
  for (size_t at = 0; at + 16 <= bytes.size(); at += step) {
    const std::string_view window = std::string_view(bytes).substr(at, 16);
    if (std::count(window.begin(), window.end(), '\0') <= 10) visit(window);
  }
}

size_t CountShared(const std::string& plain, const std::string& sealed) {
  std::unordered_set<std::string_view> known;
  VisitWindows(plain, 16, [&](std::string_view window) { known.insert(window); });
  size_t n = 0;
  VisitWindows(sealed, 1, [&](std::string_view window) { n += known.count(window); });
  return n;
}

std::string FilesOf(const std::string& path) {
  std::string all;
  for (const char* ending : {"", ".kv", ".rows"}) {
    if (fs::exists(path + ending)) all += ReadWholeFile(path + ending);
  }
  return all;
}

// What nameless files of this process in that folder hold.
std::string NamelessFilesIn(const std::string& folder) {
  std::string all;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    if (!fs::read_symlink(entry.path(), error).string().starts_with(folder)) continue;
    all += ReadWholeFile(entry.path());
  }
  return all;
}

TEST_P(KeptSessionsOf, GoOnEncryptedAndTellNothing) {
  if (!CheckEncryption().ok()) GTEST_SKIP() << CheckEncryption().message();
  const auto prompt = std::span<const TokenId>(ids_).first(200);
  const auto options = [&](const std::string& kv_options, const std::string& name) {
    SessionOptions made = Options(kv_options, folder_.Path(name));
    if (name != "plain") made.key = KeyNumber(7);
    return made;
  };
  const auto read = [&](const std::string& name) {
    const Process process = Start(options(OptionsHere(), name));
    RunOrDie(process.session->Feed(0, prompt));
    RunOrDie(process.session->SavePoint());
    return Generate(*process.session, 30);
  };
  read("plain");
  const Ids expected = read("sealed");
  const Process process = Start(options("", "sealed"));
  EXPECT_EQ(process.session->Length(0), 200U);
  EXPECT_EQ(Generate(*process.session, 30), expected);
  EXPECT_EQ(process.session->stats().prefill_tokens, 0U);
  RunOrDie(process.session->SavePoint());
  const std::string plain = FilesOf(folder_.Path("plain"));
  EXPECT_EQ(CountShared(plain, FilesOf(folder_.Path("sealed"))), 0U);
  EXPECT_GT(CountShared(plain, plain), 100U);
}

TEST_P(KeptSessionsOf, WhatEndsWithItsProcessTellsNothing) {
  if (!CheckEncryption().ok()) GTEST_SKIP() << CheckEncryption().message();
  if (!GetParam().needs_file()) GTEST_SKIP() << "nothing of it lies on flash";
  const auto held = [&](const std::string& more, Ids* ids) {
    const Process process = Start(OptionsHere() + more, "");
    RunOrDie(process.session->Feed(0, ids_));
    *ids = Generate(*process.session, 20);
    return NamelessFilesIn(folder_.Path("kv"));
  };
  Ids once, again, plain_ids;
  const std::string plain = held("", &plain_ids);
  const std::string sealed = held(" --kv-encrypt", &once);
  EXPECT_EQ(CountShared(plain, sealed), 0U);
  EXPECT_GT(CountShared(plain, plain), 10U);
  EXPECT_NE(held(" --kv-encrypt", &again), sealed) << "each time with another key";
  EXPECT_EQ(again, once);
  EXPECT_TRUE(once == plain_ids || GetParam().selects() || GetParam().evicts());
}

TEST_F(KeptSessions, OfAnotherKeyAreLeftAlone) {
  if (!CheckEncryption().ok()) GTEST_SKIP() << CheckEncryption().message();
  const auto engine = OrDie(Engine::Create(*model_, EngineHere()));
  const auto message = [&](const std::string& path, std::shared_ptr<const SecretKey> key) {
    SessionOptions options = Options("--kv-method kvswap --kv-budget 1/3", path);
    options.key = std::move(key);
    const std::string before = FilesOf(path);
    const auto session = engine->CreateSession(options);
    if (session.ok()) {
      RunOrDie((*session)->Feed(0, ids_));
      RunOrDie((*session)->SavePoint());
      return std::string();
    }
    EXPECT_EQ(session.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(FilesOf(path), before);
    return session.status().message();
  };
  const std::string plain = folder_.Path("two.session");
  EXPECT_EQ(message(path_, KeyNumber(7)), "");
  EXPECT_EQ(message(plain, nullptr), "");
  EXPECT_NE(message(path_, KeyNumber(8)).find("encrypted under another key"), std::string::npos);
  EXPECT_NE(message(path_, nullptr).find("is encrypted: give the key"), std::string::npos);
  EXPECT_NE(message(plain, KeyNumber(7)).find("is not encrypted"), std::string::npos);
  const auto with_option =
      engine->CreateSession(Options("--kv-method kvswap --kv-encrypt", folder_.Path("three.session")));
  EXPECT_NE(with_option.status().message().find("give a key that stays (--session-key)"), std::string::npos);

  KeptSessionInfo info = OrDie(DescribeSession(path_));
  EXPECT_TRUE(info.is_encrypted && info.n_tokens.empty() && info.trouble.empty());
  EXPECT_TRUE(info.identity.words.empty() && info.identity.model.empty());
  EXPECT_EQ(OrDie(DescribeSession(path_, KeyNumber(7).get())).n_tokens, std::vector<uint64_t>{ids_.size()});
  EXPECT_NE(OrDie(DescribeSession(path_, KeyNumber(8).get())).trouble, "");
  EXPECT_FALSE(OrDie(DescribeSession(plain)).is_encrypted);
  // Without its key it can be copied and removed.
  const std::string copy = folder_.Path("copy.session");
  RunOrDie(CopySession(path_, copy));
  RunOrDie(RemoveSession(path_));
  EXPECT_FALSE(fs::exists(path_) || fs::exists(path_ + ".kv"));
  SessionOptions options = Options("", copy);
  options.key = KeyNumber(7);
  const Process process = Start(options);
  EXPECT_EQ(process.session->Length(0), ids_.size());
  EXPECT_FALSE(RemoveSession(copy).ok()) << "a process has it";
}

// Nothing else lies about, and a second process is told.
TEST_F(KeptSessions, LieInTheirFilesAndHaveOneProcess) {
  const Process process = Start("--kv-method kvswap --kv-budget 1/3", path_);
  RunOrDie(process.session->Feed(0, ids_));
  RunOrDie(process.session->SavePoint());
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(fs::path(path_).parent_path())) {
    const std::string name = entry.path().filename();
    if (name.starts_with("one.")) names.push_back(name);
    if (name.starts_with("one.")) {
      EXPECT_EQ(entry.status().permissions(), fs::perms::owner_read | fs::perms::owner_write) << name;
    }
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"one.session", "one.session.kv"}));
  const auto second = process.engine->CreateSession(Options("", path_));
  EXPECT_EQ(second.status().code(), StatusCode::kInvalidArgument);
}

TEST_F(KeptSessions, OfAnotherModelAreLeftAlone) {
  {
    const Process process = Start("", path_);
    RunOrDie(process.session->Feed(0, ids_));
    RunOrDie(process.session->SavePoint());
  }
  const auto other = ModelOf(3);
  const auto engine = OrDie(Engine::Create(*other, EngineHere()));
  const auto session = OrDie(engine->CreateSession(Options("", path_)));
  EXPECT_FALSE(session->is_kept());
  EXPECT_EQ(session->Length(0), 0U);
  EXPECT_NE(session->notes().front().find("another model"), std::string::npos) << session->notes().front();
  EXPECT_EQ(Start("", path_).session->Length(0), ids_.size());
}

// Whatever else a plan for another budget would have: it goes on, or says why not, and nothing is lost.
TEST_P(KeptSessionsOf, SurviveAnotherBudget) {
  {
    const Process process = Start(OptionsHere(), path_);
    RunOrDie(process.session->Feed(0, ids_));
    Generate(*process.session, 10);
    RunOrDie(process.session->SavePoint());
  }
  const auto engine = OrDie(Engine::Create(*model_, EngineHere()));
  for (const char* budget : {"1/2", "1/5", "1/1"}) {
    SessionOptions options = Options(std::string("--kv-budget ") + budget, path_);
    options.n_ctx = kContext + 50;
    const auto session = engine->CreateSession(options);
    if (!session.ok()) {
      const StatusCode code = session.status().code();
      EXPECT_TRUE(code == StatusCode::kInvalidArgument || code == StatusCode::kOutOfMemory)
          << session.status().message();
      continue;
    }
    EXPECT_EQ((*session)->Length(0), ids_.size() + 9) << budget;
    Generate(**session, 5);
  }
  EXPECT_EQ(Start("", path_).session->Length(0), ids_.size() + 9);
}

// A chunk of the state is damaged: what follows is right, and says that it was computed anew.
TEST_F(KeptSessions, ThatAreDamagedAreComputedAgain) {
  {
    const Process process = Start("--kv-method kvswap --kv-budget 1/3", path_);
    RunOrDie(process.session->Feed(0, ids_));
    RunOrDie(process.session->SavePoint());
  }
  {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(fs::file_size(path_) / 4 * 3));
    file.put('\x55');
    file.put('\xaa');
  }
  const Process process = Start("", path_);
  EXPECT_EQ(process.session->Length(0), 0U);
  ASSERT_FALSE(process.session->notes().empty());
  EXPECT_NE(process.session->notes().front().find("computed again"), std::string::npos);
  RunOrDie(process.session->Feed(0, ids_));
  RunOrDie(process.session->SavePoint());
}

// What else is known of it is kept: how it was made, and the caller's note.
TEST_F(KeptSessions, WhoseRecordsAreGoneAreComputedAgain) {
  {
    const Process process = Start("--kv-method kvswap --kv-budget 1/3 --kv-rank 8", path_);
    RunOrDie(process.session->Feed(0, ids_));
    RunOrDie(process.session->SetNote("what was said"));
    RunOrDie(process.session->SavePoint());
  }
  fs::remove(path_ + ".kv");
  const Process process = Start("", path_);
  EXPECT_EQ(process.session->Length(0), 0U);
  EXPECT_EQ(process.session->note(), "what was said");
  ASSERT_TRUE(process.session->kv_report());
  EXPECT_EQ(process.session->kv_report()->plan.index.rank, 8U);
  RunOrDie(process.session->Feed(0, ids_));
}

// Whatever is there and is no session stays as it is.
TEST_F(KeptSessions, DoNotTakeTheFilesOfOthers) {
  const auto engine = OrDie(Engine::Create(*model_, EngineHere()));
  const std::string novel = folder_.Write("novel.txt", std::string(100000, 'x'));
  const std::string few = folder_.Write("few.txt", "few");
  const std::string records = folder_.Write("new.session.kv", "of another");
  const std::string beside = folder_.Path("new.session");
  for (const std::string& path : {novel, few, beside, beside}) {
    const auto session = engine->CreateSession(Options("--kv-method kvswap --kv-budget 1/3", path));
    EXPECT_EQ(session.status().code(), StatusCode::kInvalidArgument) << path;
    EXPECT_FALSE(RemoveSession(path).ok()) << path;
  }
  EXPECT_EQ(ReadWholeFile(novel), std::string(100000, 'x'));
  EXPECT_EQ(ReadWholeFile(few), "few");
  EXPECT_EQ(ReadWholeFile(records), "of another");
}

TEST_F(KeptSessions, AreListedCopiedAndRemoved) {
  {
    const Process process = Start("--kv-method kvswap --kv-budget 1/3", path_);
    RunOrDie(process.session->Feed(0, ids_));
    RunOrDie(process.session->SavePoint());
    EXPECT_FALSE(RemoveSession(path_).ok());  // a process has it
    EXPECT_FALSE(CopySession(path_, folder_.Path("two.session")).ok());
  }
  const std::string two = folder_.Path("two.session");
  RunOrDie(CopySession(path_, two));
  EXPECT_FALSE(CopySession(path_, two).ok());
  const std::vector<KeptSessionInfo> sessions = OrDie(ListSessions(fs::path(path_).parent_path(), nullptr));
  ASSERT_EQ(sessions.size(), 2U);
  for (const KeptSessionInfo& one : sessions) {
    EXPECT_EQ(one.n_tokens, std::vector<uint64_t>{ids_.size()});
    EXPECT_EQ(one.trouble, "");
    EXPECT_GT(one.size_bytes, 10000U);
  }
  RunOrDie(RemoveSession(path_));
  EXPECT_EQ(RemoveSession(path_).code(), StatusCode::kNotFound);
  EXPECT_FALSE(fs::exists(path_ + ".kv"));
  EXPECT_EQ(Start("", two).session->Length(0), ids_.size());
}

TEST_F(KeptSessions, ThatCannotBeMadeLeaveNothing) {
  const auto engine = OrDie(Engine::Create(*model_, EngineHere()));
  const std::string adapter = folder_.Write("adapter", std::string(5000, 'a'));
  for (const std::string& options : {"--kv-adapter " + adapter, std::string("--kv-budget 100")}) {
    EXPECT_FALSE(engine->CreateSession(Options("--kv-method kvswap " + options, path_)).ok());
    EXPECT_FALSE(fs::exists(path_)) << options;
    EXPECT_FALSE(fs::exists(path_ + ".kv")) << options;
  }
  // One that was saved stays, whatever comes after.
  RunOrDie(Start("--kv-method kvswap --kv-budget 1/3", path_).session->Feed(0, ids_));
  EXPECT_TRUE(fs::exists(path_));
}

TEST_F(KeptSessions, WhatWasReadBeforeACancelIsThere) {
  SessionOptions options = Options("", path_);
  options.progress = [](uint64_t done, uint64_t) { return done >= 256; };
  {
    const Process process = Start(options);
    EXPECT_EQ(process.session->Feed(0, ids_).code(), StatusCode::kCancelled);
    EXPECT_EQ(process.session->Length(0), 256U);
    RunOrDie(process.session->SavePoint());
  }
  const Process process = Start("", path_);
  EXPECT_EQ(TokensOf(*process.session), Ids(ids_.begin(), ids_.begin() + 256));
}

}  // namespace
}  // namespace kvrun::testing::kept_session
