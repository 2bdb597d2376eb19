// kvadapt tune as a program, on the tiny trained model: a config that kvrun takes, and what is refused.
#include "offline/tune.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "offline/quality_meter.h"
#include "runtime/capi/handles.h"
#include "runtime/engine/config/config_file.h"
#include "runtime/model/gguf.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/real_program.h"
#include "tests/support/reference_files.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing {
namespace {

using Json = nlohmann::json;
using Arguments = std::vector<std::string>;

class Tune : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto model = SharedPath("models/stories260K.gguf");
    const auto text = SharedPath("texts/frankenstein.txt");
    if (!model || !text) GTEST_SKIP() << "stories260K or its text is not there";
    model_ = *model;
    text_ = *text;
  }

  // Less than all of its KV takes with what a prefill needs: 112 of 256 tokens are chosen.
  ProgramResult Run(const Arguments& more, const std::string& budget = "356KiB") const {
    const std::string program = std::filesystem::path(RealProgram()).replace_filename("kvadapt").string();
    Arguments arguments = {"tune",
                           "-m",
                           model_,
                           "--ctx",
                           "256",
                           "--budget",
                           budget,
                           "--minutes",
                           "0.15",
                           "--kv-dir",
                           folder_.Path("kv"),
                           "--kv-tmpfs"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunProgram(program, arguments, WithDrivers({"KVRUN_DEVICE=host"}));
  }
  bool HasConfig() const { return std::filesystem::exists(out_); }

  TemporaryFolder folder_;
  std::string out_ = folder_.Path("kvrun.toml");
  std::string model_;
  std::string text_;
};

TEST_F(Tune, WritesAConfigThatKvrunTakes) {
  const ProgramResult result =
      Run({"-f", text_, "-o", out_, "--json", "-q", "--check", "3", "--minutes", "0.3"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const Json json = Json::parse(result.out);
  const bool is_whole = json["left_out"].empty();  // on a slow machine there is no time for all of it
  if (is_whole) {
    EXPECT_GE(json["checks"].size(), 3U);
  }
  for (const Json& check : json["checks"]) {
    EXPECT_GT(check["predicted_ms"], 0.0);
    EXPECT_GT(check["step_ms"], 0.0);
  }
  ASSERT_EQ(json["solutions"].size(), 1U);
  const Json& solution = json["solutions"][0];
  if (is_whole) {
    EXPECT_EQ(solution["own"]["predicted_ms"], solution["measured"][0]["predicted_ms"])
        << "the first point measured is kvrun's own choice";
    const auto mean_kl = [&](const char* point, const char* held_out) {
      return (solution[point]["kl"].get<double>() + solution[held_out].get<double>()) / 2;
    };
    EXPECT_LE(mean_kl("chosen", "held_out_kl"), mean_kl("own", "own_held_out_kl"))
        << "no worse than what the budget alone gives";
    EXPECT_LE(solution["kl"], solution["is_own"] ? solution["own_kl"] : solution["kl_limit"]);
  }
  const Result<KvConfig> config = ReadConfig(out_);
  ASSERT_TRUE(config.ok()) << config.status().message();
  ASSERT_EQ(config->solutions.size(), 1U);
  EXPECT_EQ(config->solutions[0].ctx, 256U);
  EXPECT_EQ(config->solutions[0].budget_bytes, 356U * 1024);
  if (is_whole) {
    EXPECT_NEAR(config->solutions[0].kl, solution["kl"].get<double>(), 1e-3);
  }
  const ProgramResult text =
      RunProgram(RealProgram(),
                 {"run", "-m", model_, "-p", "Once upon a time", "-n", "20", "--ctx", "256", "--config", out_,
                  "--kv-dir", folder_.Path("kv"), "--kv-tmpfs", "--json"},
                 WithDrivers({"KVRUN_DEVICE=host"}));
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_NE(Json::parse(text.out)["text"], "");
  EXPECT_TRUE(std::filesystem::is_empty(folder_.Path("kv"))) << "no KV is left";
}

TEST_F(Tune, EachContextAndBatchHasASolution) {
  const ProgramResult result = Run({"-f", text_, "-o", out_, "--json", "-q", "--ctx", "512,256", "--batch",
                                    "2,1", "--minutes", "0.3", "--check", "4"},
                                   "1200KiB");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = Json::parse(result.out);
  ASSERT_EQ(json["solutions"].size(), 4U);
  std::set<std::pair<uint32_t, uint32_t>> settings;
  for (const Json& solution : json["solutions"]) {
    settings.emplace(solution["ctx"], solution["batch"]);
    EXPECT_EQ(solution["budget_bytes"], 600U * 1024 * solution["batch"].get<uint32_t>());
    // On a busy machine there may be no time for all of it.
    if (!json["left_out"].empty()) continue;
    EXPECT_GE(solution["measured"].size(), 1U);
    EXPECT_GT(solution["held_out_kl"], 0.0);
  }
  EXPECT_EQ(settings.size(), 4U);
  if (json["left_out"].empty()) {
    EXPECT_EQ(json["checks"].size(), 4U);
  }
  const Result<KvConfig> config = ReadConfig(out_);
  ASSERT_TRUE(config.ok()) << config.status().message() << "\n" << ReadWholeFile(out_);
  EXPECT_EQ(config->solutions.size(), 4U);
}

// Through the library, with an engine of its own.
class TuneCalls : public Tune {
 protected:
  void SetUp() override {
    Tune::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(kvrun_model_open(model_.c_str(), &handle_), KVRUN_OK) << kvrun_last_error();
    kvrun_engine_options options = EngineOptionsHere();
    options.device = "host";
    ASSERT_EQ(kvrun_engine_create(handle_, &options, &engine_), KVRUN_OK) << kvrun_last_error();
    options_.budget = "356KiB";
    options_.contexts = {256};
    options_.batches = {1};
    options_.ids = TokensOf(5000);
    options_.folder = folder_.Path("kv");
    options_.allow_tmpfs = true;
    options_.minutes = 0.05;
    options_.n_steps = 64;
  }
  void TearDown() override {
    kvrun_engine_destroy(engine_);
    kvrun_model_close(handle_);
  }
  std::vector<TokenId> TokensOf(size_t count) const {
    std::vector<TokenId> ids =
        handle_->model->tokenizer->Encode(ReadWholeFile(text_).substr(20000, 8 * count), {}).value();
    ids.resize(std::min(ids.size(), count));
    return ids;
  }

  kvrun_model* handle_ = nullptr;
  kvrun_engine* engine_ = nullptr;
  offline::TuneOptions options_;
};

TEST_F(TuneCalls, ABudgetForSeveralThatIsTooSmallSaysWhatSuffices) {
  const std::pair<std::vector<uint32_t>, std::vector<uint32_t>> cases[] = {
      {{256}, {1, 4}}, {{256, 512}, {1}}, {{512, 300}, {2, 4}}};
  for (const auto& [contexts, batches] : cases) {
    options_.contexts = contexts;
    options_.batches = batches;
    const auto with = [&](uint64_t budget_kib) {
      options_.budget = std::to_string(budget_kib) + "KiB";
      return offline::CheckTune(handle_, options_);
    };
    const Status status = with(200);
    EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
    constexpr std::string_view kBegin = "which is too little: give --budget ";
    const size_t at = status.message().find(kBegin);
    ASSERT_NE(at, std::string::npos) << status.message();
    const uint64_t kib = std::stoul(status.message().substr(at + kBegin.size()));
    EXPECT_GT(kib, 200U);
    EXPECT_TRUE(with(kib).ok()) << with(kib).message();
    EXPECT_FALSE(with(kib - 8).ok()) << "the least, to a KiB of each sequence: " << kib;
  }
}

TEST_F(TuneCalls, TextsThatDoNotFitIntoMemoryAreFewerOrRefused) {
  const uint64_t piece_bytes = 256 * handle_->model->config.KvBytesPerToken(2) +
                               uint64_t{64} * handle_->model->config.n_vocab * sizeof(float);
  offline::QualityMeterOptions options{
      .ctx = 256, .n_steps = 64, .n_pieces = 4, .ids = options_.ids, .memory_bytes = 2 * piece_bytes};
  const auto n_pieces = [&] {
    const auto meter = offline::QualityMeter::Create(*engine_->engine, options, {});
    return meter.ok() ? (*meter)->n_pieces() : 0;
  };
  EXPECT_EQ(n_pieces(), 2U);
  options.memory_bytes -= 1;
  EXPECT_EQ(n_pieces(), 1U);
  options.memory_bytes = 0;
  EXPECT_EQ(n_pieces(), 2U);
  options.ids = options.ids.first(3 * 256);
  EXPECT_EQ(n_pieces(), 1U) << "of three pieces one is not looked at: else it would count twice";
  options_.memory_bytes = piece_bytes - 1;
  const auto refused = offline::Tune(engine_, options_, {});
  EXPECT_EQ(refused.status().code(), StatusCode::kOutOfMemory);
  EXPECT_NE(refused.status().message().find("all KV of 256 tokens in memory"), std::string::npos)
      << refused.status().message();
}

TEST_F(TuneCalls, WhatIsDoneIsNotLostToWhatFailsAfterIt) {
  options_.budget = "600KiB";
  options_.contexts = {256, 512};
  options_.n_checks = 2;
  options_.minutes = 0.3;
  // No file can be made in the folder from there on.
  const auto break_folder = [&](const std::string& what, uint64_t, uint64_t) {
    if (what != "reading the texts, 512 tokens") return false;
    std::filesystem::remove_all(folder_.Path("kv"));
    folder_.Write("kv", "no folder");
    return false;
  };
  const auto result = offline::Tune(engine_, options_, break_folder);
  ASSERT_TRUE(result.ok()) << result.status().message();
  ASSERT_EQ(result->config.solutions.size(), 1U);
  EXPECT_EQ(result->config.solutions[0].ctx, 256U);
  EXPECT_TRUE(result->checks.empty());
  ASSERT_EQ(result->unreached.size(), 2U);
  EXPECT_TRUE(result->unreached[0].starts_with("512 tokens of context: ")) << result->unreached[0];
  EXPECT_TRUE(result->has_failed);
  EXPECT_TRUE(result->unreached[1].starts_with("predictions could not be checked: ")) << result->unreached[1];
  std::filesystem::remove(folder_.Path("kv"));
  const auto cancelled =
      offline::Tune(engine_, options_, [](const std::string&, uint64_t, uint64_t) { return true; });
  EXPECT_EQ(cancelled.status().code(), StatusCode::kCancelled) << cancelled.status().message();
}

TEST_F(Tune, AGivenLimitAndATextOfOnePiece) {
  const std::string text = folder_.Write("short.txt", ReadWholeFile(text_).substr(20000, 700));
  const ProgramResult result = Run({"-f", text, "-o", out_, "--json", "--max-kl", "50", "--minutes", "0.3"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json solution = Json::parse(result.out)["solutions"][0];
  EXPECT_EQ(solution["kl_limit"], 50.0);
  EXPECT_EQ(solution["is_within_limit"], true);
  EXPECT_TRUE(solution["held_out_kl"].is_null()) << "there is no other part";
  std::filesystem::remove(out_);
  const ProgramResult refused = Run({"-f", text_, "-o", out_, "--max-kl", "1e-9", "--minutes", "0.3"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.err.find("whose KL to full attention is at most 1e-09"), std::string::npos)
      << refused.err;
  EXPECT_FALSE(HasConfig());
}

// No time at all: nothing but the least is done, and all else is named.
TEST_F(TuneCalls, TimeIsALimitAndWhatItLeavesOutIsNamed) {
  options_.budget = "600KiB";
  options_.contexts = {256, 512};
  options_.n_checks = 2;
  options_.minutes = 1e-5;
  std::vector<std::string> said;
  options_.say = [&](const std::string& text) { said.push_back(text); };
  std::pair<uint64_t, uint64_t> last;
  const auto result =
      offline::Tune(engine_, options_, [&](const std::string&, uint64_t done, uint64_t total) {
        EXPECT_LE(done, total);
        last = {done, total};
        return false;
      });
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(last.first, last.second) << "progress reaches the end";
  ASSERT_EQ(said.size(), 1U);
  EXPECT_NE(said[0].find("are too few here: the least"), std::string::npos) << said[0];
  ASSERT_EQ(result->left_out.size(), 3U);
  EXPECT_TRUE(result->left_out[0].starts_with("the quality at 256 tokens")) << result->left_out[0];
  EXPECT_TRUE(result->left_out[1].starts_with("the quality at 512 tokens")) << result->left_out[1];
  EXPECT_EQ(result->left_out[2], "2 of 2 checks of predictions");
  EXPECT_GE(result->samples.size(), 8U) << "some are taken in any case";
  EXPECT_LT(result->samples.size(), 24U) << "but not as many as there would be time for";
  ASSERT_EQ(result->config.solutions.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_FALSE(result->solutions[i].has_quality);
    EXPECT_TRUE(result->solutions[i].is_own);
    EXPECT_EQ(result->config.solutions[i].kl, 0.0) << "not known";
    EXPECT_GT(result->config.solutions[i].measured_ms, 0.0);
  }
}

TEST_F(Tune, AModelThatComputesNoNumbersIsRefused) {
  Bytes bytes = TalkingModel().Build();
  {
    const auto file = GgufFile::Parse(bytes, "damaged");
    ASSERT_TRUE(file.ok()) << file.status().message();
    const GgufTensor& norm = *(*file)->FindTensor("output_norm.weight");
    std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(norm.offset_bytes), norm.size_bytes,
                std::byte{0xff});
  }
  model_ = WriteModel(folder_, "damaged.gguf", bytes);
  const ProgramResult refused = Run({"-f", text_, "-o", out_});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.err.find("as the logit of token 0: the model file is damaged"), std::string::npos)
      << refused.err;
  EXPECT_FALSE(HasConfig());
}

TEST_F(Tune, ReportsAreTablesAndWhatIsNamedTwiceIsSolvedOnce) {
  const ProgramResult result =
      Run({"-f", text_, "-o", out_, "-q", "--check", "3", "--pareto", "--plot", folder_.Path("p.svg"),
           "--minutes", "0.3", "--ctx", "256,256", "--batch", "1,1"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"predictions checked at random points", "the worst is off by", "front of",
                           "neighbours", "bounded by", ": for kvrun --config, 1 solution"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << " lacks in " << result.out;
  }
  EXPECT_NE(ReadWholeFile(folder_.Path("p.svg")).find("<circle"), std::string::npos);
  const Result<KvConfig> config = ReadConfig(out_);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->solutions.size(), 1U);
}

TEST_F(Tune, WhatCannotBeTunedIsOneMessage) {
  const std::string few = folder_.Write("few", "Once upon a time there was a girl.");
  const struct {
    Arguments more;
    std::string budget;
    const char* part;
  } cases[] = {
      {{"-f", text_}, "100KiB", "is too small"},
      {{"-f", text_}, "1/2", "is too small"},
      {{"-f", text_, "--batch", "1,4"}, "700KiB", "the KV budget has 175.0 KiB for 1 sequence of 256"},
      {{"-f", few}, "356KiB", "too few to measure quality"},
  };
  for (const auto& one : cases) {
    Arguments more = one.more;
    more.insert(more.end(), {"-q", "-o", out_});
    const ProgramResult result = Run(more, one.budget);
    EXPECT_EQ(result.exit_code, 1) << one.part;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_NE(result.err.find(one.part), std::string::npos) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_FALSE(HasConfig());
  }
}

TEST_F(Tune, AFolderThatCannotBeWrittenIsRefused) {
  const ProgramResult missing = Run({"-f", text_, "-o", folder_.Path("none/x.toml"), "-q"});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_NE(missing.err.find("cannot write"), std::string::npos) << missing.err;
  if (geteuid() == 0) return;  // who may write everywhere
  std::filesystem::create_directory(folder_.Path("locked"));
  ASSERT_EQ(chmod(folder_.Path("locked").c_str(), 0500), 0);
  const ProgramResult locked = Run({"-f", text_, "-o", folder_.Path("locked/x.toml"), "-q"});
  EXPECT_EQ(locked.exit_code, 1);
  EXPECT_NE(locked.err.find("cannot write"), std::string::npos) << locked.err;
}

}  // namespace
}  // namespace kvrun::testing
