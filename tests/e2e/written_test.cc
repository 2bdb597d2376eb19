// What sessions write to flash is counted: for each, and for all of them, whatever becomes of their files.
// And a limit of it refuses prompts, and loses nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/engine/session/session_list.h"
#include "runtime/store/write_meter.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/generated_ids.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing {
namespace {

namespace written {

constexpr uint32_t kContext = 2048;

class Written : public ::testing::Test {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    model_ = OrDie(OpenModel(WriteModel(folder_, "model.gguf", TalkingModel(4).Build())));
    EngineOptions options;
    options.device = DeviceOptionsHere();
    engine_ = OrDie(Engine::Create(*model_, options));
    ids_ = SomeIds(kContext, 5, 300);
  }

  // `path`: where it is kept; empty: nowhere.
  std::unique_ptr<Session> Start(const std::string& kv_options, const std::string& path = "",
                                 uint32_t answer_tokens = 20) const {
    SessionOptions options;
    options.n_ctx = kContext;
    options.path = path;
    options.answer_tokens = answer_tokens;
    options.kv.storage.folder = folder_.Path("kv");
    options.kv.storage.allow_tmpfs = true;
    options.kv.storage.written_path = tally_;
    RunOrDie(ParseKvOptions(kv_options, &options.kv));
    return OrDie(engine_->CreateSession(options));
  }
  std::span<const TokenId> Prompt(size_t n) const { return std::span(ids_).first(n); }
  uint64_t Tally() const { return OrDie(ReadWritten(tally_)).total_bytes(); }
  static WrittenDays ForSession(const std::string& path) { return OrDie(DescribeSession(path)).written; }

  TemporaryFolder folder_;
  const std::string tally_ = folder_.Path("state") + "/written";
  std::unique_ptr<Model> model_;
  std::unique_ptr<Engine> engine_;
  std::vector<TokenId> ids_;
};

constexpr const char* kOnFlash = "--kv-method kvswap --kv-budget 1/4";

TEST_F(Written, OfEachSessionAndOfAll) {
  const std::string path = folder_.Path("one.session");
  uint64_t bytes = 0;
  {
    const std::unique_ptr<Session> session = Start(kOnFlash, path);
    RunOrDie(session->Feed(0, Prompt(1000)));
    RunOrDie(session->SavePoint());
    bytes = session->written_bytes();
    EXPECT_GT(bytes, 100'000U);
    EXPECT_EQ(Tally(), bytes);
    // All but what the very last blocks of the save take.
    const uint64_t for_session = ForSession(path).total_bytes();
    EXPECT_LE(std::max(for_session, bytes) - std::min(for_session, bytes), 16 * 1024U);
    // A save that has nothing to say writes nothing.
    RunOrDie(session->SavePoint());
    RunOrDie(session->SavePoint());
    EXPECT_EQ(session->written_bytes(), bytes);
    EXPECT_EQ(ForSession(path).total_bytes(), for_session);
  }
  const WrittenDays before = ForSession(path);
  ASSERT_FALSE(before.days().empty());
  EXPECT_LE(Today() - before.days().back().day, 1U);
  {
    const std::unique_ptr<Session> session = Start("", path);
    GeneratedIds(*session, 40, 1.0F, 3);
    RunOrDie(session->SavePoint());
    EXPECT_GT(session->written_bytes(), 0U);
    EXPECT_GE(ForSession(path).total_bytes(), before.total_bytes() + session->written_bytes() - 16 * 1024);
    bytes += session->written_bytes();
  }
  {
    const std::unique_ptr<Session> nameless = Start(kOnFlash);
    RunOrDie(nameless->Feed(0, Prompt(500)));
    EXPECT_GT(nameless->written_bytes(), 0U);
    bytes += nameless->written_bytes();
  }
  RunOrDie(RemoveSession(path));
  EXPECT_EQ(Tally(), bytes);
}

TEST_F(Written, NothingByWhatIsInMemory) {
  const std::unique_ptr<Session> session = Start("--kv-method full");
  RunOrDie(session->Feed(0, Prompt(500)));
  GeneratedIds(*session, 10, 1.0F, 3);
  EXPECT_EQ(session->written_bytes(), 0U);
  EXPECT_EQ(Tally(), 0U);
}

// The number before `unit` in a message.
size_t NumberBefore(const std::string& text, const std::string& unit, size_t from) {
  const size_t end = text.find(unit, from);
  if (end == text.npos) return 0;
  size_t begin = end;
  while (begin > 0 && text[begin - 1] >= '0' && text[begin - 1] <= '9') --begin;
  return std::strtoul(text.c_str() + begin, nullptr, 10);
}

TEST_F(Written, ALimitRefusesAPromptBeforeItIsReadAndLosesNothing) {
  const std::unique_ptr<Session> free = Start(kOnFlash);
  RunOrDie(free->Feed(0, Prompt(1500)));
  const uint64_t most = Tally() + free->written_bytes() / 2;
  const std::unique_ptr<Session> session =
      Start(std::string(kOnFlash) + " --kv-write-limit " + std::to_string(most) + "/day");
  const Status refused = session->Feed(0, Prompt(1500));
  ASSERT_EQ(refused.code(), StatusCode::kInvalidArgument);
  for (const char* part :
       {"--kv-write-limit", "were written today", "1500 tokens", "--kv-method full", "00:00 UTC"})
    EXPECT_NE(refused.message().find(part), std::string::npos) << part << ": " << refused.message();
  EXPECT_EQ(session->Length(0), 0U);
  EXPECT_EQ(session->stats().prefill_tokens, 0U);
  EXPECT_EQ(session->written_bytes(), 0U);
  // What it says would fit does, and one token more does not.
  const size_t fits = NumberBefore(refused.message(), " token", refused.message().find("would fit"));
  ASSERT_GT(fits, 100U) << refused.message();
  ASSERT_LT(fits, 1500U);
  EXPECT_FALSE(session->Feed(0, Prompt(fits + 1)).ok());
  RunOrDie(session->Feed(0, Prompt(fits)));
  EXPECT_EQ(session->Length(0), fits);
  // An answer that has begun goes on; another process counts as this one.
  EXPECT_EQ(GeneratedIds(*session, 30, 1.0F, 3).size(), 30U);
  RunOrDie(session->Feed(0, Prompt(1)));
  const std::unique_ptr<Session> other =
      Start(std::string(kOnFlash) + " --kv-write-limit " + std::to_string(Tally()) + "/day");
  EXPECT_NE(other->Feed(0, Prompt(700)).message().find("would fit: all of it with --kv-method full"),
            std::string::npos);
  RunOrDie(Start("--kv-method full --kv-write-limit 1/day")->Feed(0, Prompt(700)));
}

TEST_F(Written, ALimitNeedsSomewhereToCount) {
  SessionOptions options;
  options.n_ctx = kContext;
  options.kv.storage.folder = folder_.Path("kv");
  options.kv.storage.allow_tmpfs = true;
  options.kv.storage.write_limit_bytes = 1'000'000;
  RunOrDie(OrDie(engine_->CreateSession(options))->Feed(0, Prompt(10)));  // writes nothing
  RunOrDie(ParseKvOptions(kOnFlash, &options.kv));
  const std::unique_ptr<Session> session = OrDie(engine_->CreateSession(options));
  EXPECT_NE(session->Feed(0, Prompt(10)).message().find("XDG_STATE_HOME"), std::string::npos);
}

// By the plan alone, before: what a limit refuses.
TEST_F(Written, IsAboutWhatIsEstimated) {
  for (const char* kv_options :
       {kOnFlash, "--kv-method dynakv --kv-budget 1/4", "--kv-method prkv --kv-budget 1/4",
        "--kv-method kvswap --kv-budget 1/4 --kv-encrypt"}) {
    const std::unique_ptr<Session> session = Start(kv_options, "", 100);
    const KvReport report = *session->kv_report();
    const auto estimate = static_cast<double>(EstimateWrites(
        report.plan, model_->config, {report.io->alignment_bytes, /*is_kept=*/false}, {0, 1700, 100}));
    RunOrDie(session->Feed(0, Prompt(1700)));
    GeneratedIds(*session, 100, 1.0F, 3);
    const auto bytes = static_cast<double>(session->written_bytes());
    EXPECT_NEAR(estimate / bytes, 1.0, 0.15) << kv_options << ": " << bytes;
  }
}

}  // namespace written

}  // namespace
}  // namespace kvrun::testing
