// kvrun eval through the C API, on the test model and a text that every Debian machine has.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/capi_fixture.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/program_runner.h"
#include "tests/support/reference_files.h"

namespace kvrun::testing {
namespace {

using Json = nlohmann::json;

class Eval : public ::testing::Test {
 protected:
  static constexpr const char* kText = "/usr/share/common-licenses/GPL-3";

  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    const std::optional<std::string> path = TestModelPath();
    std::ifstream file(kText);
    if (!path || !file) GTEST_SKIP() << "no test model, or no " << kText;
    ASSERT_EQ(kvrun_model_open(path->c_str(), &model_), KVRUN_OK) << LastError();
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    ids_.resize(text.size());
    size_t count = ids_.size();
    ASSERT_EQ(kvrun_tokenize(model_, text.data(), text.size(), 0, ids_.data(), &count), KVRUN_OK)
        << LastError();
    ids_.resize(count);
    const kvrun_engine_options engine_options = EngineOptionsHere();
    ASSERT_EQ(kvrun_engine_create(model_, &engine_options, &engine_), KVRUN_OK) << LastError();
  }
  void TearDown() override {
    kvrun_engine_destroy(engine_);
    kvrun_model_close(model_);
  }

  // The results of these lines of options, on a context of n_ctx.
  Json Run(uint32_t n_ctx, uint32_t n_steps, const std::vector<std::string>& configs) {
    std::vector<std::string> lines;
    std::vector<const char*> pointers;
    for (const std::string& config : configs)
      lines.push_back(config + " --kv-tmpfs --kv-dir " + folder_.Path("kv"));
    for (const std::string& line : lines) pointers.push_back(line.c_str());
    kvrun_eval_options options;
    kvrun_eval_options_init(&options);
    options.n_ctx = n_ctx;
    options.n_steps = n_steps;
    options.configs = pointers.data();
    options.n_configs = pointers.size();
    options.result = [](void* user, const char* json) {
      static_cast<std::vector<std::string>*>(user)->emplace_back(json);
    };
    options.result_user = &told_;
    char* json = nullptr;
    EXPECT_EQ(kvrun_eval_json(engine_, &options, ids_.data(), ids_.size(), &json), KVRUN_OK) << LastError();
    if (json == nullptr) return Json::array();
    Json results = Json::parse(json);
    kvrun_string_free(json);
    return results;
  }

  TemporaryFolder folder_;
  kvrun_model* model_ = nullptr;
  kvrun_engine* engine_ = nullptr;
  std::vector<int32_t> ids_;
  std::vector<std::string> told_;  // results as they came
};

// Contexts that are no multiple of any group, and shorter than one.
TEST_F(Eval, EverythingAttendedToIsFull) {
  const Json results =
      Run(27, 2,
          {"--kv-method full", "--kv-method full --kv-type f32", "--kv-method flexgen",
           "--kv-method kvswap --kv-select 4096 --kv-window 5 --kv-group 7 --kv-rank 8",
           "--kv-method kvswap --kv-select 4096 --kv-window 0 --kv-group 256 --kv-heads per-kv-head"});
  ASSERT_EQ(results.size(), 5U);
  ASSERT_EQ(told_.size(), 5U);
  for (size_t i = 0; i < results.size(); ++i) {
    const Json& result = results[i];
    ASSERT_FALSE(result.contains("error")) << result;
    EXPECT_NEAR(result["kl_mean"], 0.0, 1e-3) << result["config"];
    EXPECT_LE(result["kl_error"].get<double>(), 1e-3) << result["config"];
    EXPECT_EQ(result["kl_parts"].size(), 8U) << result["config"];
    EXPECT_NEAR(result["ppl"].get<double>() / result["ppl_full"].get<double>(), 1.0, 0.01)
        << result["config"];
    EXPECT_NEAR(result["recall"], 1.0, 1e-6) << result["config"];
    EXPECT_EQ(Json::parse(told_[i]), result);
  }
}

// Without it KVSwap loses 29 points of accuracy and more, by its paper.
TEST_F(Eval, TheRecentWindowMatters) {
  const std::string options =
      "--kv-method kvswap --kv-rank 12 --kv-index int8 --kv-adapter-kind plain --kv-select 100 --kv-sinks 0 "
      "--kv-group 4 --kv-window ";
  const Json results = Run(900, 32, {options + "64", options + "0", options + "64 --kv-heads sum"});
  ASSERT_EQ(results.size(), 3U);
  for (const Json& result : results) {
    ASSERT_FALSE(result.contains("error")) << result;
    const double recall = result["recall"];
    EXPECT_GT(recall, result["recall_random"].get<double>()) << result["config"];
    EXPECT_GT(result["recall_oracle"].get<double>(), recall - 0.02) << result["config"];
    EXPECT_LE(result["recall_oracle"].get<double>(), 1.0) << result["config"];
    EXPECT_GT(result["hit_rate"].get<double>(), 0.3) << result["config"];
  }
  EXPECT_GT(results[1]["kl_mean"].get<double>(), 2 * results[0]["kl_mean"].get<double>());
  EXPECT_LT(results[1]["top1_agreement"].get<double>(), results[0]["top1_agreement"].get<double>());
}

// What attends to everything answers as full does; what has forgotten all but the newest cannot.
TEST_F(Eval, NeedlesAreFoundByWhatKeepsThem) {
  const std::string folder = " --kv-tmpfs --kv-dir " + folder_.Path("kv");
  const std::vector<std::string> lines = {"--kv-method kvswap --kv-select 4096" + folder,
                                          "--kv-method snapkv --kv-select 4096" + folder,
                                          "--kv-method streaming --kv-window 64" + folder, "--kv-bogus 1"};
  std::vector<const char*> pointers;
  for (const std::string& line : lines) pointers.push_back(line.c_str());
  kvrun_needle_options options;
  kvrun_needle_options_init(&options);
  options.n_ctx = 500;
  options.n_needles = 10;
  options.n_per_document = 5;
  options.n_copies = 2;
  options.configs = pointers.data();
  options.n_configs = pointers.size();
  char* json = nullptr;
  ASSERT_EQ(kvrun_needles_json(engine_, &options, ids_.data(), ids_.size(), &json), KVRUN_OK) << LastError();
  const Json results = Json::parse(json);
  kvrun_string_free(json);
  ASSERT_EQ(results.size(), 4U);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_FALSE(results[i].contains("error")) << results[i];
    EXPECT_EQ(results[i]["right"].size(), 10U);
    EXPECT_EQ(results[i]["right_full"].size(), 10U);
    EXPECT_GE(results[i]["answered_full"].get<double>(), 0.8);
  }
  EXPECT_NEAR(results[0]["answered"], results[0]["answered_full"].get<double>(), 0.11);
  EXPECT_NEAR(results[1]["answered"], results[1]["answered_full"].get<double>(), 0.11);
  EXPECT_LE(results[2]["answered"].get<double>(), 0.4);
  EXPECT_NE(results[3]["error"].get<std::string>().find("bogus"), std::string::npos);
}

}  // namespace
}  // namespace kvrun::testing
