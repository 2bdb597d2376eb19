// Sessions that are only read: any number at once stand on one that is kept, each goes on as a copy of it
// would, and its files stay as they are.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "platform/io/seal.h"
#include "platform/io/secret_key.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/session/session_list.h"
#include "runtime/kv/plan/kv_method.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/generated_ids.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing {
namespace {

namespace session_readers {

namespace fs = std::filesystem;
using Ids = std::vector<TokenId>;

constexpr uint32_t kContext = 400;

class SessionReaders : public ::testing::Test {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    model_ = OrDie(OpenModel(WriteModel(folder_, "model.gguf", TalkingModel(2).Build())));
    EngineOptions options;
    options.device = DeviceOptionsHere();
    engine_ = OrDie(Engine::Create(*model_, options));
    ids_ = SomeIds(400, 5, 300);
  }

  SessionOptions Options(const std::string& kv_options, const std::string& path) const {
    SessionOptions options;
    options.n_ctx = kContext;
    options.path = path;
    options.key = key_;
    options.kv.storage.folder = folder_.Path("kv");
    options.kv.storage.allow_tmpfs = true;
    RunOrDie(ParseKvOptions(kv_options, &options.kv));
    return options;
  }
  std::unique_ptr<Session> Open(const std::string& path, const std::string& kv_options = "") const {
    return OrDie(engine_->CreateSession(Options(kv_options, path)));
  }
  Result<std::unique_ptr<Session>> TryToRead(const std::string& path,
                                             const std::string& kv_options = "") const {
    SessionOptions options = Options(kv_options, path);
    options.read_only = true;
    return engine_->CreateSession(options);
  }
  std::unique_ptr<Session> Read(const std::string& path) const { return OrDie(TryToRead(path)); }

  // A session that has read 200 tokens.
  void Make(const std::string& kv_options) const {
    const std::unique_ptr<Session> session = Open(path_, kv_options);
    RunOrDie(session->Feed(0, Prompt(0, 200)));
    RunOrDie(session->SavePoint());
  }
  std::span<const TokenId> Prompt(size_t begin, size_t n) const { return std::span(ids_).subspan(begin, n); }
  static Ids Generate(Session& session, uint64_t seed) { return GeneratedIds(session, 25, 1.0F, seed); }
  std::string Files() const {
    std::string all;
    for (const char* ending : {"", ".kv", ".rows"}) {
      if (fs::exists(path_ + ending)) all += ReadWholeFile(path_ + ending) + ending;
    }
    return all;
  }

  TemporaryFolder folder_;
  std::shared_ptr<const SecretKey> key_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Engine> engine_;
  Ids ids_;
  const std::string path_ = folder_.Path("one.session");
};

class SessionReadersOf : public SessionReaders, public ::testing::WithParamInterface<KvMethod> {
 protected:
  std::string OptionsHere() const {
    return "--kv-method " + std::string(GetParam().name) +
           (GetParam().needs_file() ? " --kv-budget 1/3" : " --kv-type int8");
  }
  void GoOnAsCopies();
};

INSTANTIATE_TEST_SUITE_P(All, SessionReadersOf, ::testing::ValuesIn(KvMethods().begin(), KvMethods().end()),
                         MethodTestName);

// Each in turn, so that what one writes would meet what the other reads; and a copy that nobody else has,
// with as much memory.
void SessionReadersOf::GoOnAsCopies() {
  Make(OptionsHere());
  const std::string copy = folder_.Path("copy.session");
  RunOrDie(CopySession(path_, copy));
  const std::string before = Files();
  const auto go_on = [&](Session& session, uint64_t seed, Ids* said) {
    const Ids some = Generate(session, seed);
    said->insert(said->end(), some.begin(), some.end());
  };
  Ids alone;
  {
    const std::unique_ptr<Session> session = Read(copy);
    EXPECT_EQ(session->Length(0), 200U);
    go_on(*session, 3, &alone);
    RunOrDie(session->Truncate(0, 150));
    RunOrDie(session->Feed(0, Prompt(250, 80)));
    go_on(*session, 4, &alone);
  }
  Ids of_one;
  Ids of_other;
  {
    const std::unique_ptr<Session> one = Read(path_);
    const std::unique_ptr<Session> other = Read(path_);
    go_on(*one, 3, &of_one);
    RunOrDie(one->Truncate(0, 150));
    RunOrDie(one->Feed(0, Prompt(250, 80)));
    go_on(*other, 3, &of_other);
    go_on(*one, 4, &of_one);
    RunOrDie(other->Truncate(0, 150));
    RunOrDie(other->Feed(0, Prompt(250, 80)));
    go_on(*other, 4, &of_other);
    EXPECT_FALSE(one->is_kept());
    EXPECT_EQ(one->SavePoint().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(of_one, alone);
  EXPECT_EQ(of_other, alone);
  EXPECT_EQ(Files(), before) << "the session was changed";
  // And a session that has the copy to itself says the same to begin with.
  Ids kept;
  go_on(*Open(copy), 3, &kept);
  EXPECT_EQ(Ids(alone.begin(), alone.begin() + 25), kept);
}

TEST_P(SessionReadersOf, GoOnAsCopiesWouldAndChangeNothing) { GoOnAsCopies(); }

TEST_P(SessionReadersOf, GoOnOverWhatIsEncrypted) {
  if (!CheckEncryption().ok()) GTEST_SKIP() << CheckEncryption().message();
  key_ = std::make_shared<SecretKey>(OrDie(SecretKey::Random()));
  GoOnAsCopies();
}

constexpr const char* kOnFlash = "--kv-method kvswap --kv-budget 1/3";

TEST_F(SessionReaders, KeepOutWhoSavesAndAreKeptOut) {
  Make(kOnFlash);
  std::unique_ptr<Session> one = Read(path_);
  std::unique_ptr<Session> other = Read(path_);
  const Result<std::unique_ptr<Session>> writer = engine_->CreateSession(Options("", path_));
  EXPECT_EQ(writer.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(writer.status().message().find(" reads it, as others may (--session-read-only)"),
            std::string::npos)
      << writer.status().message();
  EXPECT_EQ(RemoveSession(path_).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(OrDie(DescribeSession(path_)).n_tokens.front(), 200U);  // who looks needs no lock
  one = nullptr;
  EXPECT_FALSE(engine_->CreateSession(Options("", path_)).ok());
  other = nullptr;
  const std::unique_ptr<Session> alone = Open(path_);
  const Result<std::unique_ptr<Session>> reader = TryToRead(path_);
  EXPECT_EQ(reader.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(reader.status().message().find("has it open to save to it"), std::string::npos)
      << reader.status().message();
  RunOrDie(alone->SavePoint());
}

TEST_F(SessionReaders, SayThatNothingIsKept) {
  Make(kOnFlash);
  const std::unique_ptr<Session> session = Read(path_);
  ASSERT_FALSE(session->notes().empty());
  EXPECT_EQ(session->notes().front(), "the session " + path_ + " is only read: what follows is kept nowhere");
  EXPECT_NE(session->SavePoint().message().find("was opened to be read"), std::string::npos);
}

TEST_F(SessionReaders, NeedFilesThatCanBeReadAlone) {
  Make(kOnFlash);
  fs::create_directory(folder_.Path("shut"));
  for (const char* ending : {"", ".kv"}) {
    const std::string file = folder_.Path("shut") + "/one.session" + ending;
    fs::copy(path_ + ending, file);
    ASSERT_EQ(chmod(file.c_str(), 0400), 0);
  }
  ASSERT_EQ(chmod(folder_.Path("shut").c_str(), 0500), 0);
  const std::string shut = folder_.Path("shut") + "/one.session";
  const Ids expected = Generate(*Read(path_), 3);
  EXPECT_EQ(Generate(*Read(shut), 3), expected);
  size_t n_files = 0;
  for (const auto& entry : fs::directory_iterator(folder_.Path("shut"))) n_files += entry.exists() ? 1 : 0;
  EXPECT_EQ(n_files, 2U);
  ASSERT_EQ(chmod(folder_.Path("shut").c_str(), 0700), 0);
}

TEST_F(SessionReaders, NeedASessionThatIsThereAndOfTheModel) {
  EXPECT_EQ(TryToRead(path_).status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(fs::exists(path_));
  Make(kOnFlash);
  const std::unique_ptr<Model> other =
      OrDie(OpenModel(WriteModel(folder_, "other.gguf", TalkingModel(3).Build())));
  EngineOptions engine_options;
  engine_options.device = DeviceOptionsHere();
  const std::unique_ptr<Engine> engine = OrDie(Engine::Create(*other, engine_options));
  SessionOptions options = Options("", path_);
  options.read_only = true;
  EXPECT_NE(engine->CreateSession(options).status().message().find("is of another model"), std::string::npos);
  EXPECT_NE(TryToRead(path_, "--kv-window 9").status().message().find("cannot go on like this"),
            std::string::npos);
  fs::remove(path_ + ".kv");
  EXPECT_EQ(TryToRead(path_).status().code(), StatusCode::kCorrupt);
}

}  // namespace session_readers

}  // namespace
}  // namespace kvrun::testing
