// A process that reads, answers and saves a session is killed at any moment: what the next one finds is a
// save point, whole, and what it says after it is what follows from its tokens.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "platform/io/seal.h"
#include "platform/io/session_key.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/session/session_list.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/generated_ids.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/real_program.h"
#include "tests/support/sanitized.h"
#include "tests/support/seeds.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing {
namespace {

namespace kept_session_kill {

namespace fs = std::filesystem;
using Ids = std::vector<TokenId>;

// All that there is is chosen and nothing is rounded: how the text was read does not matter to what follows.
constexpr const char* kOptions[] = {"--kv-method", "kvswap", "--kv-type",  "f32", "--kv-select", "4096",
                                    "--kv-window", "16",     "--kv-sinks", "4",   "--kv-reuse",  "256"};

class KilledSession : public ::testing::Test {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    model_path_ = WriteModel(folder_, "model.gguf", TalkingModel().Build());
    model_ = OrDie(OpenModel(model_path_));
    path_ = folder_.Path("kept/one.session");
    fs::create_directory(folder_.Path("kept"));
  }

  std::unique_ptr<Session> NewSession(Engine& engine, const std::string& path) const {
    SessionOptions options;
    options.n_ctx = 512;
    options.path = path;
    if (!path.empty()) options.key = key_;
    options.kv.storage.folder = folder_.Path("kv");
    options.kv.storage.allow_tmpfs = true;
    for (size_t i = 0; i < std::size(kOptions); i += 2) {
      RunOrDie(SetKvOption(std::string_view(kOptions[i]).substr(5), kOptions[i + 1], &options.kv));
    }
    return OrDie(engine.CreateSession(options));
  }
  static Ids Greedy(Session& session, uint32_t n) {
    return GeneratedIds(session, n, /*temperature=*/0.0F, /*seed=*/0);
  }

  // Text of so many words, the same for all lengths as far as it goes.
  static std::string Text(size_t n_words) {
    std::string text;
    for (size_t i = 0; i < n_words; ++i) text += fmt::format("{} ", (i * 7919) % 97);
    return text;
  }
  std::vector<std::string> Command(size_t n_words) const {
    std::vector<std::string> arguments = {
        "run", "-m",        model_path_, "-p",           Text(n_words),      "-n",
        "8",   "-c",        "512",       "--ignore-end", "--temp",           "0",
        "-q",  "--session", path_,       "--kv-dir",     folder_.Path("kv"), "--kv-tmpfs"};
    arguments.insert(arguments.end(), std::begin(kOptions), std::end(kOptions));
    if (key_ != nullptr) arguments.insert(arguments.end(), {"--session-key", folder_.Path("some.key")});
    return arguments;
  }

  // From then on all is encrypted.
  void MakeKey() {
    const std::string path = folder_.Path("some.key");
    key_ = std::make_shared<SecretKey>(OrDie(UserKey(path)));
  }
  void KillMany(const Seeds& seeds);

  std::shared_ptr<const SecretKey> key_;
  TemporaryFolder folder_;
  std::string model_path_;
  std::unique_ptr<Model> model_;
  std::string path_;
};

TEST_F(KilledSession, GoesOnFromASavePoint) { KillMany(SeedsHere(kIsSanitized ? 10 : 200)); }

TEST_F(KilledSession, GoesOnFromASavePointEncrypted) {
  if (!CheckEncryption().ok()) GTEST_SKIP() << CheckEncryption().message();
  MakeKey();
  KillMany(SeedsHere(kIsSanitized ? 5 : 60));
}

void KilledSession::KillMany(const Seeds& seeds) {
  EngineOptions engine_options;
  engine_options.device = DeviceOptionsHere();
  const auto engine = OrDie(Engine::Create(*model_, engine_options));
  // A driver that was opened when its process ended is left out after some times.
  const ProgramInput input = WithDrivers({"XDG_CACHE_HOME=" + folder_.Path("cache")});
  // How long a whole run takes.
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(RunProgram(RealProgram(), Command(20), input).exit_code, 0);
  const auto whole = std::chrono::steady_clock::now() - begin;
  size_t n_killed = 0;
  std::set<size_t> lengths;
  for (uint64_t seed = seeds.first; seed < seeds.end() && !HasFailure(); ++seed) {
    SCOPED_TRACE(fmt::format("KVRUN_SEED={}", seed));
    std::mt19937_64 random(seed);
    const size_t n_words = 10 + random() % 90;
    {
      RunningProgram program(RealProgram(), Command(n_words), input);
      std::this_thread::sleep_for(whole * static_cast<double>(random() % 1200) / 1000.0);
      program.Signal(SIGKILL);
      n_killed += program.Finish().exit_code == 128 + SIGKILL ? 1 : 0;
    }
    const auto session = NewSession(*engine, path_);
    ASSERT_TRUE(session->is_kept());
    for (const std::string& note : session->notes()) {
      EXPECT_EQ(note.find("computed again"), std::string::npos) << note;
    }
    const std::span<const TokenId> tokens = session->Tokens(0);
    const Ids held(tokens.begin(), tokens.end());
    lengths.insert(held.size());
    for (const auto& entry : fs::directory_iterator(fs::path(path_).parent_path())) {
      EXPECT_TRUE(entry.path() == path_ || entry.path() == path_ + ".kv") << entry.path();
    }
    if (held.empty()) continue;
    const auto fresh = NewSession(*engine, "");
    RunOrDie(fresh->Feed(0, held));
    // The last one may be pending: it is computed by both.
    EXPECT_EQ(Greedy(*session, 6), Greedy(*fresh, 6)) << held.size() << " tokens";
  }
  if (SeedsHere(0).n != 0) return;
  // Kills that never hit anything would say little.
  EXPECT_GT(n_killed, seeds.n / 4);
  EXPECT_GT(lengths.size(), seeds.n / 20);
}

}  // namespace kept_session_kill
}  // namespace
}  // namespace kvrun::testing
