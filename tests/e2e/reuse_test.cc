// Reuse rates: replayed choices have the hit rate of a session, and the table finds its way into the file.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/capi/handles.h"
#include "runtime/engine/measure/calibration.h"
#include "runtime/engine/measure/evaluation.h"
#include "runtime/engine/measure/reuse_trace.h"
#include "runtime/kv/math/adapter.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/real_program.h"
#include "tests/support/small_models.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing {
namespace {

using Ids = std::vector<int32_t>;
using Json = nlohmann::json;

class Reuse : public ::testing::Test {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    TinyModelOptions options;
    options.n_vocab = 300;
    options.n_ctx_train = 1024;
    path_ = WriteModel(folder_, "tiny.gguf", TinyModel(options).Build());
    ASSERT_EQ(kvrun_model_open(path_.c_str(), &model_), KVRUN_OK) << kvrun_last_error();
    const kvrun_engine_options engine_options = EngineOptionsHere();
    ASSERT_EQ(kvrun_engine_create(model_, &engine_options, &engine_), KVRUN_OK) << kvrun_last_error();
    CalibrationOptions calibration;
    const Ids text = SomeIds(400, 1, 300);
    calibration.texts = {text};
    OrDie(engine_->engine->Calibrate(calibration, adapter_, {}));
  }
  void TearDown() override {
    kvrun_engine_destroy(engine_);
    kvrun_model_close(model_);
  }

  kvrun_status Measure(const Ids& ids, Json* info, kvrun_progress_fn progress = nullptr, void* user = nullptr,
                       uint32_t n_ctx = 0, uint32_t max_ms = 0) {
    kvrun_reuse_options options;
    kvrun_reuse_options_init(&options);
    options.n_ctx = n_ctx;
    const std::string kv = folder_.Path("kv");
    options.folder = kv.c_str();
    options.allow_tmpfs = 1;
    options.progress = progress;
    options.progress_user = user;
    options.max_ms = max_ms;
    char* json = nullptr;
    const kvrun_status status =
        kvrun_measure_reuse(engine_, &options, adapter_.c_str(), ids.data(), ids.size(), &json);
    *info = Json::parse(json == nullptr ? "null" : json);
    kvrun_string_free(json);
    return status;
  }
  KvStorageOptions Storage() const {
    KvStorageOptions storage;
    storage.folder = folder_.Path("kv");
    storage.allow_tmpfs = true;
    storage.adapter_path = adapter_;
    return storage;
  }

  TemporaryFolder folder_;
  std::string path_;
  std::string adapter_ = folder_.Path("adapter.gguf");
  kvrun_model* model_ = nullptr;
  kvrun_engine* engine_ = nullptr;
};

// To the group: what is replayed is what was chosen, and capacities change no choice.
TEST_F(Reuse, ReplayedChoicesHaveASessionsHitRate) {
  constexpr uint32_t kPrefill = 300;
  constexpr uint32_t kSteps = 60;
  const Ids ids = SomeIds(kPrefill + kSteps, 2, 300);
  const LoadedModel loaded = LoadModelOrDie(path_);
  std::mutex mutex;
  const auto recorder =
      OrDie(ReuseRecorder::Create(*loaded.model, loaded.weights, *loaded.device, &mutex, ids, kPrefill, {}));
  const auto evaluation = OrDie(Evaluation::Create(*loaded.model, loaded.weights, *loaded.device, &mutex, ids,
                                                   {.n_ctx = kPrefill + kSteps, .n_steps = kSteps}, {}));
  KvStorageOptions computed = Storage();  // the adapter, from the prompt
  computed.adapter_path.clear();
  const std::tuple<uint32_t, std::optional<HeadReduction>, KvStorageOptions> settings_of[] = {
      {1, std::nullopt, Storage()},
      {4, std::nullopt, Storage()},
      {4, HeadReduction::kPerKvHead, Storage()},
      {4, std::nullopt, computed}};
  for (const auto& [group, heads, storage] : settings_of) {
    KvSettings settings = ReuseSettings(storage, 4, group, 32);
    if (heads) settings.kv.heads = heads;
    const ReuseTrace trace = OrDie(recorder->Record(settings, kSteps, {}));
    EXPECT_EQ(trace.n_chosen, 32 / group);
    for (const char* policy : {"lru", "fifo"}) {
      for (const uint32_t n_slots : {32 / group, 64 / group}) {
        settings.kv.policy = policy;
        settings.kv.reuse_groups = n_slots + trace.n_pinned;
        const EvaluationResult result = OrDie(evaluation->Run(settings, {}));
        const double rate = static_cast<double>(result.report.stats.hit_groups) /
                            static_cast<double>(result.report.stats.chosen_groups);
        EXPECT_NEAR(ReuseRateOf(trace, *OrDie(FindReplacementPolicy(policy)), n_slots, 0), rate, 1e-9)
            << group << " " << policy << " " << n_slots;
        EXPECT_GT(rate, 0.05);
        EXPECT_LT(rate, 0.999);
      }
    }
  }
}

// Of the same choices and the same steps: thresholds that nothing exceeds divide nothing, and those that
// everything exceeds divide what gets an entry. A factor that is given takes their place.
TEST_F(Reuse, ClustersAreDividedByTheFilesThresholds) {
  constexpr uint32_t kPrefill = 300;
  constexpr uint32_t kSteps = 60;
  const Ids ids = SomeIds(kPrefill + kSteps, 2, 300);
  const LoadedModel loaded = LoadModelOrDie(path_);
  std::mutex mutex;
  const auto evaluation = OrDie(Evaluation::Create(*loaded.model, loaded.weights, *loaded.device, &mutex, ids,
                                                   {.n_ctx = kPrefill + kSteps, .n_steps = kSteps}, {}));
  KvSettings settings;
  settings.storage = Storage();
  settings.kv.method = "dynakv";
  settings.kv.adapter_from_file = true;
  settings.kv.select_entries = 100;
  settings.kv.window_entries = 8;
  settings.kv.cluster_entries = 8;
  const Status refused = evaluation->Run(settings, {}).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("the adapter has no thresholds for the clusters"), std::string::npos)
      << refused.message();
  const auto divisions = [&](float threshold) {
    Adapter adapter = OrDie(ReadWholeAdapter(adapter_));
    adapter.cluster_thresholds.assign(size_t{loaded.model->config.n_layers} * loaded.model->config.n_kv_heads,
                                      threshold);
    RunOrDie(WriteAdapter(adapter, adapter_));
    const EvaluationResult result = OrDie(evaluation->Run(settings, {}));
    return result.report.clusters ? result.report.clusters->divisions : UINT64_MAX;
  };
  EXPECT_EQ(divisions(1e9F), 0U);
  const uint64_t most = divisions(0.0F);
  EXPECT_GT(most, 100U);
  EXPECT_NE(most, UINT64_MAX);
  settings.kv.split_factor = 1e9;
  EXPECT_EQ(divisions(0.0F), 0U);
}

TEST_F(Reuse, TheTableIsWrittenIntoTheFile) {
  const Adapter before = OrDie(ReadWholeAdapter(adapter_));
  EXPECT_TRUE(before.reuse.empty());
  Json info;
  ASSERT_EQ(Measure(SomeIds(700, 3, 300), &info), KVRUN_OK) << kvrun_last_error();
  EXPECT_EQ(info["n_ctx"], 700);
  EXPECT_FALSE(info.contains("note"));
  const Adapter after = OrDie(ReadWholeAdapter(adapter_));
  ASSERT_EQ(after.reuse.size(), info["rates"].size());
  EXPECT_EQ(after.layers[1].key_side, before.layers[1].key_side);
  EXPECT_EQ(after.layers[1].query_side, before.layers[1].query_side);
  EXPECT_EQ(after.layers[1].mean, before.layers[1].mean);
  EXPECT_TRUE(before.cluster_thresholds.empty());
  const kvrun::ModelConfig& config = model_->model->config;
  ASSERT_EQ(after.cluster_thresholds.size(), size_t{config.n_layers} * config.n_kv_heads);
  for (const float threshold : after.cluster_thresholds) {
    EXPECT_GE(threshold, 1.0F);
    EXPECT_LE(threshold, 3.0F);
  }
  EXPECT_TRUE(before.entry_means.empty());
  ASSERT_EQ(after.entry_means.size(), size_t{config.n_layers} * config.kv_dim() * 2);
  EXPECT_EQ(after.layers[1].energy, before.layers[1].energy);
  for (size_t i = 0; i < after.reuse.size(); ++i) {
    const ReuseRate& row = after.reuse[i];
    EXPECT_EQ(info["rates"][i]["policy"], row.policy);
    EXPECT_EQ(info["rates"][i]["capacity"], row.reuse_groups);
    EXPECT_EQ(info["rates"][i]["rate"].get<float>(), row.rate);
    EXPECT_LE(row.select_entries, 350U) << "at most a half of the context";
    EXPECT_EQ(row.n_ctx, 700 - info["n_steps"].get<uint32_t>());
  }
  for (const uint32_t group : {1U, 2U, 4U, 8U, 16U}) {
    for (const uint32_t select : {96U, 192U}) {
      EXPECT_TRUE(std::any_of(after.reuse.begin(), after.reuse.end(),
                              [&](const ReuseRate& row) {
                                return row.policy == "lru" && row.group_tokens == group &&
                                       row.select_entries == select && row.reuse_groups == 2 * select / group;
                              }))
          << group << " " << select;
    }
  }
  // Measured again, it is replaced; of a short text it is empty.
  ASSERT_EQ(Measure(SomeIds(100, 3, 300), &info), KVRUN_OK) << kvrun_last_error();
  EXPECT_NE(info["note"].get<std::string>().find("reuse rates were not measured: a text of 100 tokens"),
            std::string::npos);
  EXPECT_TRUE(info["rates"].empty());
  EXPECT_TRUE(OrDie(ReadWholeAdapter(adapter_)).reuse.empty());
}

// Of what there is no time for nothing is measured but what the prompt itself says.
TEST_F(Reuse, WhatThereIsNoTimeForIsLeftOutAndSaid) {
  Json info;
  ASSERT_EQ(Measure(SomeIds(700, 3, 300), &info), KVRUN_OK) << kvrun_last_error();
  EXPECT_TRUE(info["left_out"].empty());
  EXPECT_EQ(info["measured_on"],
            "reuse rates: 10 of 10 settings after 572 tokens; shares of layers: 64 steps at 700 tokens");
  const Adapter whole = OrDie(ReadWholeAdapter(adapter_));
  EXPECT_EQ(whole.measured_on, info["measured_on"]);
  EXPECT_EQ(whole.made_from, "400 tokens in 1 piece of at most 400");
  ASSERT_EQ(Measure(SomeIds(700, 3, 300), &info, nullptr, nullptr, 0, 1), KVRUN_OK) << kvrun_last_error();
  EXPECT_EQ(info["left_out"], Json({"10 of 10 settings of reuse rates", "shares of layers"}));
  EXPECT_EQ(info["measured_on"],
            "reuse rates: 0 of 10 settings after 572 tokens; shares of layers: not measured");
  EXPECT_TRUE(info["rates"].empty());
  const Adapter cut = OrDie(ReadWholeAdapter(adapter_));
  EXPECT_EQ(cut.measured_on, info["measured_on"]);
  EXPECT_EQ(cut.made_from, whole.made_from);
  EXPECT_EQ(cut.cluster_thresholds, whole.cluster_thresholds);
  EXPECT_EQ(cut.entry_means, whole.entry_means);
  // In any order the rows are in the file's.
  ASSERT_EQ(Measure(SomeIds(700, 3, 300), &info, nullptr, nullptr, 0, 1000000000), KVRUN_OK);
  EXPECT_EQ(OrDie(ReadWholeAdapter(adapter_)).reuse, whole.reuse);
}

TEST_F(Reuse, HowLongItWillTakeIsToldBefore) {
  const Ids text = SomeIds(700, 3, 300);
  const int32_t* ids = text.data();
  const size_t count = text.size();
  kvrun_calibrate_options options;
  kvrun_calibrate_options_init(&options);
  options.texts = &ids;
  options.counts = &count;
  options.n_texts = 1;
  kvrun_reuse_options reuse;
  kvrun_reuse_options_init(&reuse);
  const auto times = [&](const kvrun_reuse_options* measured) {
    char* json = nullptr;
    EXPECT_EQ(kvrun_calibrate_time_json(engine_, &options, measured, &json), KVRUN_OK) << kvrun_last_error();
    Json object = Json::parse(json == nullptr ? "null" : json);
    kvrun_string_free(json);
    return object;
  };
  const Json all = times(&reuse);
  EXPECT_EQ(all["n_ctx"], 1024);
  EXPECT_EQ(all["sums_ms"], 0);
  EXPECT_GT(all["seconds"].get<double>(), all["later_s"].get<double>());
  EXPECT_GT(all["later_s"].get<double>(), 0.0);
  EXPECT_EQ(times(nullptr)["later_s"], 0.0);
  options.max_ms = 1;
  EXPECT_EQ(times(&reuse)["n_ctx"], 512) << "shorter pieces";
  options.max_ms = 1000000000;
  EXPECT_GT(times(&reuse)["sums_ms"].get<double>(), 1000.0);
  options.n_texts = 0;
  char* json = nullptr;
  EXPECT_EQ(kvrun_calibrate_time_json(engine_, &options, &reuse, &json), KVRUN_INVALID_ARGUMENT);
  EXPECT_NE(std::string(kvrun_last_error()).find("too little text"), std::string::npos);
}

// Sessions that take the file select by its shares, and as many in all.
TEST_F(Reuse, LayersSelectByTheFilesShares) {
  Json info;
  ASSERT_EQ(Measure(SomeIds(700, 3, 300), &info), KVRUN_OK) << kvrun_last_error();
  const kvrun::ModelConfig& config = model_->model->config;
  ASSERT_EQ(info["layers"].size(), config.n_layers);
  Adapter adapter = OrDie(ReadWholeAdapter(adapter_));
  ASSERT_EQ(adapter.layer_shares.size(), config.n_layers);
  for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
    EXPECT_GT(info["layers"][layer]["kl"].get<double>(), 0.0) << "a cut shows";
    EXPECT_EQ(info["layers"][layer]["share"].get<float>(), adapter.layer_shares[layer]);
  }
  adapter.layer_shares.assign(config.n_layers, 2.0F / 3.0F);
  adapter.layer_shares[1] = 1.0F + static_cast<float>(config.n_layers - 1) / 3.0F;
  RunOrDie(WriteAdapter(adapter, adapter_));
  constexpr uint32_t kSteps = 40;
  const Ids ids = SomeIds(440, 2, 300);
  const LoadedModel loaded = LoadModelOrDie(path_);
  std::mutex mutex;
  const auto evaluation = OrDie(Evaluation::Create(*loaded.model, loaded.weights, *loaded.device, &mutex, ids,
                                                   {.n_ctx = 440, .n_steps = kSteps}, {}));
  for (const char* how : {"", " --kv-reuse 20", " --kv-heads per-kv-head", " --kv-static 0.25"}) {
    SCOPED_TRACE(how);
    KvSettings settings;
    RunOrDie(ParseKvOptions(std::string("--kv-method kvswap --kv-select 120 --kv-rank 4 --kv-type f16") + how,
                            &settings));
    settings.storage = Storage();
    settings.kv.adapter_from_file = true;
    const KvReport shared = OrDie(evaluation->Run(settings, {})).report;
    ASSERT_TRUE(shared.plan.has_layer_shares);
    ASSERT_EQ(shared.plan.layers.size(), config.n_layers);
    EXPECT_LT(shared.plan.layers[0].n_chosen, shared.plan.layers[1].n_chosen);
    EXPECT_EQ(shared.stats.least_groups, shared.plan.least_chosen() - shared.plan.choice.n_pinned);
    EXPECT_EQ(shared.stats.most_groups, shared.plan.most_chosen() - shared.plan.choice.n_pinned);
    settings.kv.kept_shares = KeptShares::kEven;
    const KvReport even = OrDie(evaluation->Run(settings, {})).report;
    EXPECT_FALSE(even.plan.has_layer_shares);
    const auto n_even = static_cast<double>(even.stats.chosen_groups);
    EXPECT_NEAR(static_cast<double>(shared.stats.chosen_groups), n_even, 0.06 * n_even);
    EXPECT_LE(static_cast<double>(shared.stats.chosen_groups), n_even);
  }
}

TEST_F(Reuse, WhatIsTooShortIsNamedAndHowMuchWouldDo) {
  Json info;
  const auto note = [&](size_t n_ids, uint32_t n_ctx) {
    EXPECT_EQ(Measure(SomeIds(n_ids, 3, 300), &info, nullptr, nullptr, n_ctx), KVRUN_OK)
        << kvrun_last_error();
    return info.value("note", "");
  };
  EXPECT_EQ(note(700, 256),
            "reuse rates were not measured: a context of 256 tokens is too short to select from; give one of "
            "at least 346 tokens");
  EXPECT_EQ(note(256, 0),
            "reuse rates were not measured: a text of 256 tokens is too short to select from; give one of at "
            "least 346 tokens");
  EXPECT_NE(note(700, 345), "");
  EXPECT_EQ(note(700, 346), "");
  EXPECT_FALSE(info["rates"].empty());
}

TEST_F(Reuse, FailuresLeaveTheFileAsItWas) {
  const std::string bytes = ReadWholeFile(adapter_);
  Json info;
  for (const uint64_t cancel_at : {uint64_t{0}, uint64_t{600}}) {
    uint64_t at = cancel_at;
    const auto cancel = [](void* user, kvrun_phase, uint64_t done, uint64_t) {
      return done >= *static_cast<uint64_t*>(user) ? 1 : 0;
    };
    EXPECT_EQ(Measure(SomeIds(700, 3, 300), &info, cancel, &at), KVRUN_CANCELLED);
    EXPECT_TRUE(info.is_null());
  }
  Ids ids = SomeIds(700, 3, 300);
  ids[650] = 1 << 30;
  EXPECT_EQ(Measure(ids, &info), KVRUN_INVALID_ARGUMENT);
  EXPECT_TRUE(bytes == ReadWholeFile(adapter_));
  Adapter other = OrDie(ReadWholeAdapter(adapter_));
  other.fingerprint = "another";
  ASSERT_TRUE(WriteAdapter(other, adapter_).ok());
  EXPECT_EQ(Measure(SomeIds(700, 3, 300), &info), KVRUN_INVALID_ARGUMENT);
  EXPECT_NE(std::string(kvrun_last_error()).find("of another model"), std::string::npos);
}

// The program as a person runs it.
TEST_F(Reuse, TheProgramMeasuresInspectsAndVerifies) {
  std::string text;
  for (const int32_t id : SomeIds(400, 4, 300)) text += std::to_string(id) + " ";
  const std::string ids = folder_.Write("ids", text);
  const std::string kvadapt = std::filesystem::path(RealProgram()).replace_filename("kvadapt");
  const std::string out = folder_.Path("made.gguf");
  const ProgramInput input = WithDrivers({"XDG_CACHE_HOME=" + folder_.Path("")});
  const ProgramResult made =
      RunProgram(kvadapt, {"calibrate", "-m", path_, "--ids", ids, "-o", out, "--json"}, input);
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const Json info = Json::parse(made.out);
  ASSERT_FALSE(info["reuse"]["rates"].empty());
  const ProgramResult seen = RunProgram(kvadapt, {"inspect", out, "--json"}, input);
  ASSERT_EQ(seen.exit_code, 0) << seen.err;
  EXPECT_EQ(Json::parse(seen.out)["reuse"]["rates"], info["reuse"]["rates"]);
  EXPECT_EQ(Json::parse(seen.out)["layers"], info["layers"]);
  const ProgramResult verified = RunProgram(kvadapt, {"verify", out, "-m", path_}, input);
  EXPECT_EQ(verified.exit_code, 0) << verified.out << verified.err;
  Adapter broken = OrDie(ReadWholeAdapter(out));
  for (float& value : broken.layers[1].key_side) value *= 1.5F;
  ASSERT_TRUE(WriteAdapter(broken, out).ok());
  const ProgramResult failed = RunProgram(kvadapt, {"verify", out, "-m", path_}, input);
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_NE(failed.out.find("FAILED  sides inverse: off by at most 0.5"), std::string::npos) << failed.out;
  std::filesystem::resize_file(out, std::filesystem::file_size(out) - 8);
  EXPECT_EQ(RunProgram(kvadapt, {"verify", out, "-m", path_}, input).exit_code, 1);
}

}  // namespace
}  // namespace kvrun::testing
