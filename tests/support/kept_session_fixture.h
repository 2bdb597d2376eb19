// Engines with sessions that are kept, as processes have them one after another.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/generated_ids.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing::kept_session {

using Ids = std::vector<TokenId>;

inline constexpr uint32_t kContext = 400;
inline constexpr uint32_t kVocabulary = 300;

class KeptSessions : public ::testing::Test {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    model_ = ModelOf(2);
    ids_ = SomeIds(300, 5, kVocabulary);
    path_ = folder_.Path("one.session");
  }

  std::unique_ptr<Model> ModelOf(uint32_t n_layers) const {
    const std::string name = "model" + std::to_string(n_layers) + ".gguf";
    return OrDie(OpenModel(WriteModel(folder_, name, TalkingModel(n_layers).Build())));
  }

  static EngineOptions EngineHere() {
    EngineOptions options;
    options.device = DeviceOptionsHere();
    return options;
  }

  // An engine and a session on it, as a process has them.
  struct Process {
    std::unique_ptr<Engine> engine;
    std::unique_ptr<Session> session;
  };

  SessionOptions Options(const std::string& kv_options, const std::string& path) const {
    SessionOptions options;
    options.n_ctx = kContext;
    options.path = path;
    options.kv.storage.folder = folder_.Path("kv");
    options.kv.storage.allow_tmpfs = true;
    RunOrDie(ParseKvOptions(kv_options, &options.kv));
    return options;
  }
  Process Start(const SessionOptions& options) const {
    Process process;
    process.engine = OrDie(Engine::Create(*model_, EngineHere()));
    process.session = OrDie(process.engine->CreateSession(options));
    return process;
  }
  Process Start(const std::string& kv_options, const std::string& path) const {
    return Start(Options(kv_options, path));
  }

  static Ids Generate(Session& session, uint32_t n, uint64_t seed = 3) {
    return GeneratedIds(session, n, /*temperature=*/1.0F, seed);
  }
  static Ids TokensOf(const Session& session) {
    const std::span<const TokenId> tokens = session.Tokens(0);
    return {tokens.begin(), tokens.end()};
  }

  TemporaryFolder folder_;
  std::unique_ptr<Model> model_;
  Ids ids_;
  std::string path_;
};

}  // namespace kvrun::testing::kept_session
