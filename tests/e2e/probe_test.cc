// What kvadapt probe measures of a tiny model, through the engine and as a program.
#include "offline/probe.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/capi/handles.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/real_program.h"
#include "tests/support/small_models.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing {
namespace {

using Json = nlohmann::json;
using offline::OperationProbeOptions;
using offline::OperationRow;

class Probe : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(kvrun_model_open(path_.c_str(), &model_), KVRUN_OK) << kvrun_last_error();
    engine_ = Make(true);
  }
  void TearDown() override {
    kvrun_engine_destroy(engine_);
    kvrun_model_close(model_);
  }
  kvrun_engine* Make(bool profile) const {
    kvrun_engine_options options = EngineOptionsHere();
    options.profile = profile ? 1 : 0;
    kvrun_engine* engine = nullptr;
    EXPECT_EQ(kvrun_engine_create(model_, &options, &engine), KVRUN_OK) << kvrun_last_error();
    return engine;
  }
  OperationProbeOptions Options() const {
    return {.batches = {1, 2}, .contexts = {512, 1024}, .folder = folder_.Path("kv"), .allow_tmpfs = true};
  }

  TemporaryFolder folder_;
  std::string path_ = WriteModel(folder_, "tiny.gguf", TalkingModel().Build());
  kvrun_model* model_ = nullptr;
  kvrun_engine* engine_ = nullptr;
};

std::set<uint32_t> ValuesOf(const std::vector<OperationRow>& rows, const std::string& key) {
  std::set<uint32_t> values;
  for (const OperationRow& row : rows) {
    if (const auto found = row.shape.find(key); found != row.shape.end()) values.insert(found->second);
  }
  return values;
}

TEST_F(Probe, OperationsAreTimedByShape) {
  uint64_t last = 0;
  const auto profile =
      offline::ProbeOperations(engine_, Options(), [&](const std::string& what, uint64_t done, uint64_t n) {
        EXPECT_EQ(what, "operations");
        EXPECT_LE(last, done);
        EXPECT_LE(done, n);
        last = done;
        return false;
      });
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_EQ(profile->skipped, std::vector<std::string>());
  const std::vector<OperationRow>& rows = profile->rows;
  EXPECT_EQ(ValuesOf(rows, "batch"), (std::set<uint32_t>{1, 2}));
  EXPECT_EQ(ValuesOf(rows, "ctx"), (std::set<uint32_t>{512, 1024}));
  EXPECT_GE(ValuesOf(rows, "entries").size(), 4U);
  EXPECT_EQ(ValuesOf(rows, "index_type"), (std::set<uint32_t>{2, 4, 5}));
  EXPECT_EQ(ValuesOf(rows, "k_type"), (std::set<uint32_t>{2, 3, 4, 5}));
  EXPECT_EQ(ValuesOf(rows, "v_type"), (std::set<uint32_t>{2, 3, 4, 5}));
  EXPECT_EQ(rows.front().shape.at("batch"), 1U);
  EXPECT_EQ(rows.front().shape.at("ctx"), 512U);
  double total_us = 0;
  for (const OperationRow& row : rows) {
    EXPECT_GE(row.us, 0.0);
    EXPECT_NE(row.operation, "");
    if (row.shape == rows.front().shape) total_us += row.us;
  }
  EXPECT_GT(total_us, 1.0);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.Path("kv")));
}

// What scoring takes with the first point's choices, by context.
std::map<uint32_t, double> ScoringByContext(const std::vector<OperationRow>& rows) {
  std::map<uint32_t, double> us;
  for (const OperationRow& row : rows) {
    std::map<std::string, uint32_t> shape = row.shape;
    shape["ctx"] = rows.front().shape.at("ctx");
    if (shape == rows.front().shape && row.operation.find("score") != std::string::npos) {
      us[row.shape.at("ctx")] += row.us;
    }
  }
  return us;
}

// All groups of a context are scored: 256 times as many take 15 to 35 times as long here. What else the
// machine does can add more to either, so one try of some counts; chance alone would hardly give four times.
TEST_F(Probe, LongerContextsTakeLongerToScore) {
  OperationProbeOptions options = Options();
  options.batches = {1};
  options.contexts = {256, 65536};
  std::string measured;
  for (int i = 0; i < 5; ++i) {
    const auto profile = offline::ProbeOperations(engine_, options, {});
    ASSERT_TRUE(profile.ok()) << profile.status().message();
    std::map<uint32_t, double> us = ScoringByContext(profile->rows);
    ASSERT_EQ(us.size(), 2U);
    if (us[256] > 0 && us[65536] > 4 * us[256]) return;
    measured += " " + std::to_string(us[256]) + " and " + std::to_string(us[65536]) + " us";
  }
  FAIL() << "256 and 65536 tokens:" << measured;
}

TEST_F(Probe, WhatCannotBeMeasuredIsSaid) {
  const auto message = [](kvrun_engine* engine, const OperationProbeOptions& options) {
    return offline::ProbeOperations(engine, options, {}).status().message();
  };
  OperationProbeOptions options = Options();
  options.batches = {17};
  EXPECT_NE(message(engine_, options).find("a batch of 17"), std::string::npos);
  options = Options();
  options.contexts = {};
  EXPECT_NE(message(engine_, options), "");
  options.contexts = {8};
  EXPECT_NE(message(engine_, options).find("a context of 8"), std::string::npos);
  kvrun_engine* unprofiled = Make(false);
  EXPECT_NE(message(unprofiled, Options()).find("profile"), std::string::npos);
  kvrun_engine_destroy(unprofiled);
  const auto cancelled = offline::ProbeOperations(
      engine_, Options(), [](const std::string&, uint64_t done, uint64_t) { return done == 1; });
  EXPECT_EQ(cancelled.status().code(), StatusCode::kCancelled);
}

TEST_F(Probe, MachineAndModelAreIdentified) {
  const offline::MachineIdentity machine = offline::IdentifyMachine(engine_, folder_.Path("")).value();
  char* text = nullptr;
  ASSERT_EQ(kvrun_engine_info_json(engine_, &text), KVRUN_OK);
  const Json info = Json::parse(text);
  kvrun_string_free(text);
  EXPECT_EQ(machine.device, info["device"]);
  EXPECT_EQ(machine.driver, info["driver"]);
  EXPECT_GT(machine.n_cpus, 0U);
  EXPECT_EQ(machine.kvrun, kvrun_version());
  EXPECT_NE(machine.storage, "");
  const offline::MachineIdentity without = offline::IdentifyMachine(nullptr, folder_.Path("")).value();
  EXPECT_EQ(without.device, "");
  EXPECT_EQ(without.cpu, machine.cpu);
  EXPECT_EQ(offline::IdentifyModel(engine_).fingerprint.size(), 32U);
}

TEST_F(Probe, TheProgramWritesAProfileThatIsRead) {
  const std::string program = std::filesystem::path(RealProgram()).replace_filename("kvadapt").string();
  const std::string out = folder_.Path("profile.json");
  const ProgramResult result =
      RunProgram(program,
                 {"probe", "-m", path_, "-o", out, "--kv-dir", folder_.Path("kv"), "--kv-tmpfs", "--ctx",
                  "512", "--storage-seconds", "1", "--plot", folder_.Path("p"), "--json", "-q"},
                 WithDrivers());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const auto profile = offline::ReadProfile(out);
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_FALSE(profile->storage.rates.empty());
  EXPECT_FALSE(profile->operations.empty());
  EXPECT_EQ(profile->model_fingerprint, offline::IdentifyModel(engine_).fingerprint);
  EXPECT_EQ(profile->machine, offline::IdentifyMachine(engine_, folder_.Path("kv")).value());
  EXPECT_EQ(Json::parse(result.out)["operations"].size(), profile->operations.size());
  for (const char* name : {"p-storage.svg", "p-modes.svg", "p-operations.svg"}) {
    EXPECT_NE(ReadWholeFile(folder_.Path(name)).find("<circle"), std::string::npos) << name;
  }
  const ProgramResult missing =
      RunProgram(program, {"probe", "--storage-only", "--kv-dir", folder_.Path("none/there")}, WithDrivers());
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_NE(missing.err.find("--kv-dir"), std::string::npos) << missing.err;
}

}  // namespace
}  // namespace kvrun::testing
