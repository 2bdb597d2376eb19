// Sessions that are kept, with other options than they were made with.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "runtime/engine/engine.h"
#include "tests/support/generated_ids.h"
#include "tests/support/kept_session_fixture.h"
#include "tests/support/or_die.h"

namespace kvrun::testing::kept_session {
namespace {

// With another budget or context they go on; with other records they do not.
TEST_F(KeptSessions, MayHaveAnotherBudgetAndContext) {
  {
    const Process process = Start("--kv-method kvswap --kv-budget 1/3", path_);
    RunOrDie(process.session->Feed(0, ids_));
    RunOrDie(process.session->SavePoint());
  }
  {
    SessionOptions options = Options("--kv-budget 1/2", path_);
    options.n_ctx = kContext + 100;
    const Process process = Start(options);
    EXPECT_EQ(process.session->n_ctx(), kContext + 100);
    EXPECT_EQ(process.session->Length(0), ids_.size());
    Generate(*process.session, 10);
    RunOrDie(process.session->SavePoint());
  }
  const Process process = Start("--kv-budget 1/4", path_);
  EXPECT_EQ(process.session->Length(0), ids_.size() + 9);
  Generate(*process.session, 10);
}

// The index has the rows of what was in it, as if there had never been one.
TEST_F(KeptSessions, GoOnWithoutTheirStaticSet) {
  const std::string common = "--kv-method kvswap --kv-select 40 --kv-rank 8 --kv-reuse 20 --kv-static ";
  const auto goes_on = [&](const char* share) {
    const std::string path = folder_.Path(std::string("static") + share);
    {
      const Process process = Start(common + share, path);
      RunOrDie(process.session->Feed(0, ids_));
      Generate(*process.session, 3);  // from here on entries are taken out of the index
      RunOrDie(process.session->SavePoint());
    }
    const Process process = Start(common + "0", path);
    EXPECT_EQ(process.session->Length(0), ids_.size() + 2);
    RunOrDie(process.session->Truncate(0, static_cast<uint32_t>(ids_.size())));
    RunOrDie(process.session->Feed(0, SomeIds(1, 9, kVocabulary)));
    return Generate(*process.session, 20);
  };
  EXPECT_EQ(goes_on("0.5"), goes_on("0"));
}

TEST_F(KeptSessions, SayWhatDoesNotGoWithThem) {
  {
    const Process process = Start("--kv-method kvswap --kv-budget 1/3 --kv-type f16", path_);
    RunOrDie(process.session->Feed(0, ids_));
    RunOrDie(process.session->SavePoint());
  }
  const auto engine = OrDie(Engine::Create(*model_, EngineHere()));
  const auto refused = engine->CreateSession(Options("--kv-type int8", path_));
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("records"), std::string::npos) << refused.status().message();
  SessionOptions two = Options("", path_);
  two.n_sequences = 2;
  EXPECT_EQ(engine->CreateSession(two).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Start("", path_).session->Length(0), ids_.size());
}

// An option that was damaged is no damage of the session.
TEST_F(KeptSessions, OutliveAWrongOption) {
  {
    const Process process = Start("--kv-method kvswap --kv-budget 1/3", path_);
    RunOrDie(process.session->Feed(0, ids_));
    RunOrDie(process.session->SavePoint());
  }
  const std::string adapter = folder_.Write("adapter", std::string(5000, 'a'));
  const auto engine = OrDie(Engine::Create(*model_, EngineHere()));
  EXPECT_FALSE(engine->CreateSession(Options("--kv-adapter " + adapter, path_)).ok());
  EXPECT_EQ(Start("", path_).session->Length(0), ids_.size());
}

}  // namespace
}  // namespace kvrun::testing::kept_session
