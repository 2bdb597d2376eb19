// Configs in the C API: what is taken for a session, what is refused, and what is noted.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/engine/config/config_file.h"
#include "runtime/engine/machine/machine.h"
#include "tests/support/capi_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"

namespace kvrun {
namespace {

using testing::LastError;
using testing::ParseAndFree;
using Json = nlohmann::json;

class CapiConfigTest : public testing::CapiFixture {
 protected:
  void SetUp() override {
    CapiFixture::SetUp();
    kvrun_config_options_init(&options_);
    options_.n_ctx = 64;
    config_.model_fingerprint = testing::OrDie(model_->model->Fingerprint());
    config_.device = "Fake device";
    config_.storage = StorageName("");
    config_.cpu = CpuName();
    ConfigSolution solution;
    solution.ctx = 64;
    solution.budget_bytes = 100000;
    solution.options = {{"group", "2"}, {"select", "8"}};
    solution.kl = 0.5;
    config_.solutions = {solution};
  }

  kvrun_status Ask(const kvrun_engine* engine, char** json) {
    const std::string path = folder_.Write("c.toml", ConfigToToml(config_));
    return kvrun_config_json(path.c_str(), model_, engine, &options_, json);
  }
  Json Take(const kvrun_engine* engine) {
    char* json = nullptr;
    EXPECT_EQ(Ask(engine, &json), KVRUN_OK) << LastError();
    return ParseAndFree(json);
  }
  std::string Refusal(const kvrun_engine* engine) {
    char* json = nullptr;
    EXPECT_EQ(Ask(engine, &json), KVRUN_UNSUPPORTED);
    EXPECT_EQ(json, nullptr);
    return LastError();
  }

  TemporaryFolder folder_;
  KvConfig config_;
  kvrun_config_options options_;
};

TEST_F(CapiConfigTest, AnExactSolutionIsTakenWithoutAWord) {
  const Json taken = Take(engine_);
  EXPECT_EQ(taken, Json::parse(R"({"kv_options": [{"name": "method", "value": "kvswap"},
                                                  {"name": "budget", "value": "100000"},
                                                  {"name": "group", "value": "2"},
                                                  {"name": "select", "value": "8"}],
                                   "exact": true,
                                   "solution": {"batch": 1, "ctx": 64, "budget_bytes": 100000,
                                                "predicted_ms": null, "measured_ms": null, "kl": 0.5,
                                                "bound": null},
                                   "notes": []})"));
  EXPECT_EQ(Take(nullptr), taken);
}

TEST_F(CapiConfigTest, ControlCharactersOfAFileAreTextInMessages) {
  const std::string path = folder_.Path("c.toml");
  config_.solutions[0].options = {{"adapter", std::string("a\0b\x1B[31m\n", 9)}};
  char* json = nullptr;
  EXPECT_EQ(Ask(engine_, &json), KVRUN_INVALID_ARGUMENT);
  EXPECT_NE(LastError().find("KV option adapter: \"a\\x00b\\x1b[31m\\n\" is not a path"), std::string::npos)
      << LastError();
  folder_.Write("c.toml", "version = 1\n\"\\u001b[31m\\n\" = 2\n");
  EXPECT_EQ(kvrun_config_json(path.c_str(), model_, engine_, &options_, &json), KVRUN_INVALID_ARGUMENT);
  EXPECT_TRUE(LastError().starts_with(path + ":2:1: there is no key \"\\x1b[31m\\n\"; known: "))
      << LastError();
  config_.solutions[0].options = {};
  config_.device = "A\nB";
  EXPECT_NE(Refusal(engine_).find("on the device A\\nB, and this is Fake device"), std::string::npos);
  options_.force = 1;
  EXPECT_EQ(Take(engine_)["notes"][0],
            "it was tuned on the device A\\nB, and this is Fake device: taken all the same");
}

TEST_F(CapiConfigTest, TheNearestSolutionIsNoted) {
  options_.n_sequences = 2;
  options_.n_ctx = 128;
  const Json taken = Take(engine_);
  EXPECT_EQ(taken["exact"], false);
  EXPECT_EQ(taken["kv_options"][1], Json({{"name", "budget"}, {"value", "200000"}}));
  EXPECT_EQ(taken["kv_options"].size(), 3U);  // without select
  EXPECT_EQ(taken["notes"], Json({"it was tuned for 64 tokens, 1 sequence, which is the nearest that it has "
                                  "to 128 tokens, 2 sequences"}));
}

TEST_F(CapiConfigTest, AContextOf0IsTheSessions) {
  options_.n_ctx = 0;
  kvrun_session* session = MakeSession(1, 0);
  const uint32_t n_ctx = kvrun_session_context(session);
  kvrun_session_destroy(session);
  config_.solutions[0].ctx = n_ctx;
  EXPECT_EQ(Take(engine_)["exact"], true);
}

TEST_F(CapiConfigTest, TheDeviceIsComparedOnceThereIsAnEngine) {
  config_.device = "Other device";
  EXPECT_EQ(Take(nullptr)["notes"].size(), 0U);
  EXPECT_EQ(Refusal(engine_), folder_.Path("c.toml") +
                                  ": it was tuned on the device Other device, and this is Fake device: run "
                                  "kvadapt tune here, or take it all the same with --force-config");
  options_.force = 1;
  EXPECT_EQ(Take(engine_)["notes"],
            Json({"it was tuned on the device Other device, and this is Fake device: taken all the same"}));
}

TEST_F(CapiConfigTest, ADriverWhoseNameIsNoUtf8IsTheSameOne) {
  config_.driver = device_->info().driver;
  const Json taken = Take(engine_);
  EXPECT_EQ(taken["notes"], Json::array());
  config_.driver += "x";
  EXPECT_EQ(Take(engine_)["notes"].size(), 1U);
}

TEST_F(CapiConfigTest, AnotherModelIsRefusedAtOnce) {
  config_.model_fingerprint = "ffff";
  EXPECT_NE(Refusal(nullptr).find("it was tuned for the model ffff, and this is "), std::string::npos);
  options_.force = 1;
  EXPECT_EQ(Take(nullptr)["notes"].size(), 1U);
}

TEST_F(CapiConfigTest, StorageIsThatOfTheFolderAndOfNoMatterWhereNothingLiesThere) {
  options_.kv_dir = "/proc";
  EXPECT_EQ(Take(nullptr)["notes"],
            Json({"it was tuned with the KV on " + config_.storage + ", and here it lies on proc"}));
  config_.method = "full";
  EXPECT_EQ(Take(nullptr)["notes"].size(), 0U);
}

TEST_F(CapiConfigTest, ExactActivationsAreTheEngines) {
  engine_->exact_activations = true;
  EXPECT_EQ(Take(engine_)["notes"], Json({"it was tuned without --exact-activations"}));
  config_.exact_activations = true;
  EXPECT_EQ(Take(engine_)["notes"].size(), 0U);
}

TEST_F(CapiConfigTest, WhatIsWrongIsSaid) {
  char* json = nullptr;
  const std::string path = folder_.Write("bad.toml", "version = 1\nsize = 3\n");
  EXPECT_EQ(kvrun_config_json(path.c_str(), model_, nullptr, &options_, &json), KVRUN_INVALID_ARGUMENT);
  EXPECT_TRUE(LastError().starts_with(path + ":2:1: there is no key \"size\"")) << LastError();
  EXPECT_EQ(kvrun_config_json(folder_.Path("none").c_str(), model_, nullptr, &options_, &json),
            KVRUN_NOT_FOUND);
  EXPECT_EQ(kvrun_config_json(nullptr, model_, nullptr, &options_, &json), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(kvrun_config_json("a", nullptr, nullptr, &options_, &json), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(kvrun_config_json("a", model_, nullptr, &options_, nullptr), KVRUN_INVALID_ARGUMENT);
  options_.n_sequences = 17;
  EXPECT_EQ(Ask(nullptr, &json), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(json, nullptr);
}

}  // namespace
}  // namespace kvrun
