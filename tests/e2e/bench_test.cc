// Benchmarks on a real device: what they measure is there, and is what was asked for.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/capi/handles.h"
#include "runtime/model/synthetic_model.h"
#include "tests/support/capi_fixture.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/real_program.h"
#include "tests/support/tiny_shape.h"

namespace kvrun::testing {
namespace {

using Json = nlohmann::json;

// 20 groups besides the pinned one, and no room for others.
constexpr const char* kKvSwap =
    "--kv-method kvswap --kv-group 4 --kv-select 80 --kv-window 16 --kv-sinks 4 --kv-rank 8";

class Bench : public ::testing::Test {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    model_.model = OrDie(MakeSyntheticModel(kTinyShape));
    const kvrun_engine_options engine_options = EngineOptionsHere();
    ASSERT_EQ(kvrun_engine_create(&model_, &engine_options, &engine_), KVRUN_OK) << LastError();
    kvrun_bench_options_init(&options_);
    options_.depths = depths_.data();
    options_.n_depths = depths_.size();
    options_.n_decode = 12;
    options_.n_repetitions = 2;
  }
  void TearDown() override { kvrun_engine_destroy(engine_); }

  std::string WithFolder(const std::string& kv) const {
    return kv.empty() ? kv : kv + " --kv-tmpfs --kv-dir " + folder_.Path("kv");
  }

  Json Run(const std::string& kv) {
    const std::string line = WithFolder(kv);
    options_.kv = line.c_str();
    char* json = nullptr;
    EXPECT_EQ(kvrun_bench_json(engine_, &options_, &json), KVRUN_OK) << LastError();
    return ParseAndFree(json);
  }

  TemporaryFolder folder_;
  std::vector<uint32_t> depths_ = {150, 601};
  kvrun_model model_;
  kvrun_engine* engine_ = nullptr;
  kvrun_bench_options options_;
};

void ExpectRuns(const Json& result, const char* rate, size_t n_runs) {
  const Json& runs = result[std::string(rate) + "_runs"];
  ASSERT_EQ(runs.size(), n_runs) << result;
  for (const Json& run : runs) EXPECT_GT(run.get<double>(), 0.0);
  if (n_runs == 0) {
    EXPECT_TRUE(result[rate].is_null());
  } else {
    EXPECT_NEAR(result[rate].get<double>(), (runs[0].get<double>() + runs[1].get<double>()) / 2, 1e-3);
  }
}

// Of a model with delta nets: each kind of work has taken time, and states are read and written.
void ExpectWork(const Json& work, uint32_t n_layers) {
  std::map<std::string, Json> kinds;
  for (const Json& kind : work) kinds[kind["name"]] = kind;
  for (const char* name : {"products", "delta rule", "convolution", "attention"}) {
    ASSERT_TRUE(kinds.contains(name)) << name << work;
    EXPECT_GT(kinds[name]["ms"].get<double>(), 0.0) << name;
    EXPECT_GT(kinds[name]["bytes"].get<double>(), 0.0) << name;
    EXPECT_GT(kinds[name]["bound_ms"].get<double>(), 0.0) << name;
  }
  const uint64_t n_delta_nets = n_layers - n_layers / 4;
  EXPECT_EQ(kinds["delta rule"]["bytes"], 2 * n_delta_nets * 4 * 32 * 32 * sizeof(float));
  ASSERT_TRUE(kinds.contains("other"));
  EXPECT_TRUE(kinds["other"]["bound_ms"].is_null());
}

TEST_F(Bench, FullHasRatesAndMemory) {
  options_.n_prompt = 40;
  for (const bool random : {false, true}) {
    options_.fill_random = random ? 1 : 0;
    const Json results = Run("");
    ASSERT_EQ(results.size(), 2U);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(results[i]["depth"], depths_[i]);
      ExpectRuns(results[i], "prefill_tps", 2);
      ExpectRuns(results[i], "decode_tps", 2);
      EXPECT_TRUE(results[i]["kv"].is_null());
      EXPECT_EQ(results[i]["n_layers"], 2);
      EXPECT_EQ(results[i]["n_layers_model"], 2);
      EXPECT_FALSE(results[i].contains("whole_model"));
      EXPECT_TRUE(results[i]["hit_rate"].is_null());
      EXPECT_FALSE(results[i].contains("io"));
      const Json& weights = results[i]["weights"];
      EXPECT_LE(weights["step_bytes"], results[i]["memory"]["weights"]);
      EXPECT_GT(weights["step_bytes"], results[i]["memory"]["weights"].get<uint64_t>() / 3);
      EXPECT_NEAR(weights["mbps"].get<double>(),
                  weights["step_bytes"].get<double>() * results[i]["decode_tps"].get<double>() / 1e6,
                  weights["mbps"].get<double>() / 2);
      EXPECT_GT(weights["stream_mbps"], 0.0);
      // f16, K and V of 2 heads of 32.
      const uint64_t kv_bytes = uint64_t{2} * 2 * 2 * 2 * 32 * (depths_[i] + 12);
      EXPECT_GE(results[i]["memory"]["kv"].get<uint64_t>(), kv_bytes);
      EXPECT_LT(results[i]["memory"]["kv"].get<uint64_t>(), 2 * kv_bytes);
    }
  }
}

TEST_F(Bench, WeightReadsAreMeasuredWhereTheyAreWanted) {
  BenchmarkOptions options;
  options.depths = {40};
  options.n_decode = 2;
  options.n_repetitions = 1;
  options.fill_random = true;
  EXPECT_TRUE(OrDie(engine_->engine->RunBenchmark(options, {})).at(0).weights.has_value());
  options.weight_reads = false;
  const BenchmarkResult without = OrDie(engine_->engine->RunBenchmark(options, {})).at(0);
  EXPECT_FALSE(without.weights.has_value());
  EXPECT_EQ(without.decode_tps.size(), 1U);
}

TEST_F(Bench, RandomKvIsReadWithTheHitRateThatWasAskedFor) {
  options_.fill_random = 1;
  options_.io_only = 1;
  options_.n_decode = 25;
  for (const char* more : {" --kv-type f16", " --kv-type fp8,int4 --kv-index int4",
                           " --kv-type int8 --kv-heads per-kv-head", " --kv-type f32 --kv-index f16"}) {
    for (const float hit_rate : {0.4F, 0.78F}) {
      options_.hit_rate = hit_rate;
      const Json results = Run(std::string(kKvSwap) + more);
      for (const Json& result : results) {
        EXPECT_NEAR(result["hit_rate"].get<double>(), hit_rate, 0.01) << more << result["depth"];
        EXPECT_EQ(result["kv"]["chosen_groups"].get<uint64_t>() % (25U * 2 * 20), 0U);
        EXPECT_GT(result["kv"]["read_bytes"].get<uint64_t>(), 0U);
        EXPECT_EQ(result["io"]["bytes"], result["kv"]["read_bytes"]) << more;
        EXPECT_EQ(result["io"]["reads"], result["kv"]["reads"]) << more;
        EXPECT_GT(result["io"]["mbps"].get<double>(), 0.0);
        EXPECT_TRUE(result["stall_ms_per_token"].is_number());
        EXPECT_TRUE(result["io_hidden"].is_number());
      }
    }
  }
}

// Half as many layers take turns with those that are timed; what is kept of KV is the same for each layer.
TEST_F(Bench, OfAPartOfAModelTheWholeIsToldToo) {
  TearDown();
  engine_ = nullptr;
  SyntheticShape shape = kTinyShape;
  shape.n_layers = 12;
  model_.model = OrDie(MakeSyntheticModel(shape, 4));
  const kvrun_engine_options engine_options = EngineOptionsHere();
  ASSERT_EQ(kvrun_engine_create(&model_, &engine_options, &engine_), KVRUN_OK) << LastError();
  options_.n_prompt = 40;
  for (const bool random : {false, true}) {
    options_.fill_random = random ? 1 : 0;
    for (const char* kv : {"", "--kv-method full --kv-type int8", "--kv-method flexgen", kKvSwap}) {
      for (const Json& result : Run(kv)) {
        EXPECT_EQ(result["n_layers"], 4);
        EXPECT_EQ(result["n_layers_model"], 12);
        const Json& whole = result["whole_model"];
        EXPECT_EQ(whole["n_layers"], 12);
        ExpectRuns(whole, "prefill_tps", 2);
        ExpectRuns(whole, "decode_tps", 2);
        for (size_t run = 0; run < 2; ++run) {
          // Three times the layers take up to three times as long, and no less.
          for (const char* rate : {"prefill_tps_runs", "decode_tps_runs"}) {
            const double part = result[rate][run];
            EXPECT_LE(whole[rate][run].get<double>(), part * 1.0001) << kv;
            EXPECT_GE(whole[rate][run].get<double>(), part / 3.0001) << kv;
          }
        }
      }
    }
  }
  options_.fill_random = 1;
  const std::string budget = "--kv-method kvswap --kv-budget 2000000";
  const std::string note = Run(budget)[0]["part_note"];
  EXPECT_NE(note.find("of a budget 3 times as large"), std::string::npos) << note;
}

// Three delta nets and a layer that attends, again and again.
TEST_F(Bench, LayersOfSeveralKindsAreMeasuredAndScaledByWholePeriods) {
  SyntheticShape shape = TinyShape(12);
  shape.architecture = "qwen35";
  shape.kinds = "ddda";
  shape.delta_net = {.n_key_heads = 2, .n_value_heads = 4, .head_dim = 32, .n_taps = 4};
  for (const uint32_t n_layers : {8U, 6U}) {
    TearDown();
    engine_ = nullptr;
    model_.model = OrDie(MakeSyntheticModel(shape, n_layers));
    kvrun_engine_options engine_options = EngineOptionsHere();
    engine_options.profile = 1;
    ASSERT_EQ(kvrun_engine_create(&model_, &engine_options, &engine_), KVRUN_OK) << LastError();
    options_.n_prompt = 40;
    for (const bool random : {false, true}) {
      options_.fill_random = random ? 1 : 0;
      for (const char* kv : {"", kKvSwap}) {
        for (const Json& result : Run(kv)) {
          EXPECT_EQ(result.contains("whole_model"), n_layers == 8) << kv;
          EXPECT_EQ(result.contains("part_note"), n_layers == 6) << kv;
          ExpectRuns(result, "decode_tps", 2);
          ExpectWork(result["step_work"], n_layers);
          ExpectWork(result["prompt_work"], n_layers);
        }
      }
    }
  }
}

TEST(BenchTimes, OnlyLayersAreScaled) {
  // A head of 5, and layers of 2.
  EXPECT_DOUBLE_EQ(TimeOfWhole(9.0, 2, 13.0, 4, 32), 5.0 + 64.0);
  EXPECT_DOUBLE_EQ(TimeOfWhole(15.0, 5, 25.0, 10, 30), 5.0 + 60.0);
  // A busy machine: neither negative times, nor layers that take more than all of it.
  EXPECT_DOUBLE_EQ(TimeOfWhole(14.0, 2, 13.0, 4, 32), 13.0);
  EXPECT_DOUBLE_EQ(TimeOfWhole(1.0, 2, 12.0, 4, 32), 96.0);
}

TEST_F(Bench, PrefilledKvIsDecodedFromToo) {
  options_.n_prompt = 150;
  const Json results = Run(kKvSwap);
  for (const Json& result : results) {
    ExpectRuns(result, "prefill_tps", 2);
    ExpectRuns(result, "decode_tps", 2);
    EXPECT_EQ(result["kv"]["chosen_groups"], 12U * 2 * 20);
    EXPECT_EQ(result["kv"]["method"], "kvswap");
  }
}

TEST_F(Bench, SequencesAreDecodedTogetherByEveryMethod) {
  options_.n_sequences = 3;
  options_.io_only = 0;
  for (const bool random : {false, true}) {
    options_.fill_random = random ? 1 : 0;
    for (const char* kv :
         {"", "--kv-method full --kv-type int8", "--kv-method flexgen --kv-type fp8", kKvSwap}) {
      for (const Json& result : Run(kv)) ExpectRuns(result, "decode_tps", 2);
    }
  }
}

TEST_F(Bench, AllThatFlexgenReadsIsReadAgain) {
  options_.fill_random = 1;
  options_.io_only = 1;
  for (const Json& result : Run("--kv-method flexgen --kv-type f16")) {
    EXPECT_EQ(result["io"]["bytes"], result["kv"]["read_bytes"]);
    EXPECT_EQ(result["io"]["fetches"], 12U * 2);
  }
}

TEST_F(Bench, AnEmptyContextIsADepthToo) {
  depths_ = {0};
  options_.n_depths = 1;
  for (const bool random : {false, true}) {
    options_.fill_random = random ? 1 : 0;
    for (const char* kv : {"", "--kv-method flexgen", kKvSwap}) {
      for (const Json& result : Run(kv)) ExpectRuns(result, "decode_tps", 2);
    }
  }
}

TEST_F(Bench, ProgressCountsAllTokensAndCancels) {
  options_.n_prompt = 40;
  struct Seen {
    uint64_t done = 0;
    uint64_t total = 0;
    uint64_t cancel_at = UINT64_MAX;
  } seen;
  options_.progress = [](void* user, kvrun_phase, uint64_t done, uint64_t total) {
    auto* state = static_cast<Seen*>(user);
    EXPECT_GE(done, state->done);
    *state = {done, total, state->cancel_at};
    return done >= state->cancel_at ? 1 : 0;
  };
  options_.progress_user = &seen;
  for (const char* kv : {"", kKvSwap}) {
    seen = {};
    Run(kv);
    EXPECT_EQ(seen.done, seen.total);
    EXPECT_EQ(seen.total, 40U * 5 + 150 + 601 + 2 * 2 * 13);
  }
  seen = {0, 0, 100};
  options_.kv = nullptr;
  char* json = nullptr;
  EXPECT_EQ(kvrun_bench_json(engine_, &options_, &json), KVRUN_CANCELLED);
  EXPECT_EQ(json, nullptr);
}

TEST_F(Bench, RefusesWhatCannotBeMeasured) {
  const auto refused = [&](const char* kv, const std::string& message) {
    const std::string line = WithFolder(kv);
    options_.kv = line.c_str();
    char* json = nullptr;
    EXPECT_NE(kvrun_bench_json(engine_, &options_, &json), KVRUN_OK);
    EXPECT_NE(LastError().find(message), std::string::npos) << LastError();
    kvrun_bench_options_init(&options_);
    options_.depths = depths_.data();
    options_.n_depths = depths_.size();
    options_.n_decode = 12;
  };
  options_.n_depths = 0;
  refused("", "no depth to measure at is named");
  options_.n_decode = 0;
  refused("", "nothing is to be measured");
  options_.n_sequences = 17;
  refused("", "17");
  options_.hit_rate = 1.5F;
  refused("", "the hit rate is 1.5; it must be from 0 to 1");
  options_.io_only = 1;
  refused("", "there are no reads to repeat");
  refused("--kv-method kvswap --kv-budget 1", "at a depth of 150 tokens: ");
  refused("--kv-method unheard-of", "unheard-of");
}

TEST(BenchProgram, MeasuresAShape) {
  if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
  const TemporaryFolder folder;
  const ProgramResult result = RunProgram(RealProgram(),
                                          {"bench",
                                           "--shape",
                                           "SmolLM2-135M",
                                           "--layers",
                                           "1",
                                           "-p",
                                           "0",
                                           "-n",
                                           "2",
                                           "-d",
                                           "300",
                                           "-r",
                                           "1",
                                           "--kv-method",
                                           "kvswap",
                                           "--kv-select",
                                           "100",
                                           "--kv-dir",
                                           folder.Path("kv"),
                                           "--kv-tmpfs",
                                           "--json",
                                           "--quiet"},
                                          WithDrivers({"XDG_CACHE_HOME=" + folder.Path("cache")}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json results = Json::parse(result.out, nullptr, false);
  ASSERT_EQ(results.size(), 1U);
  EXPECT_GT(results[0]["decode_tps"].get<double>(), 0.0);
  EXPECT_NEAR(results[0]["hit_rate"].get<double>(), 0.78, 0.03);
}

}  // namespace
}  // namespace kvrun::testing
