// What calibration comes to before anything is computed, and its C API without a device.
#include "runtime/engine/measure/calibration.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/capi_fixture.h"
#include "tests/support/program_runner.h"

namespace kvrun {
namespace {

using testing::LastError;

ModelConfig Config() {
  ModelConfig config;
  config.n_layers = 2;
  config.layers.resize(2);
  config.kv_layers = {0, 1};
  config.n_heads = 4;
  config.n_kv_heads = 2;
  config.head_dim = 8;
  config.n_vocab = 100;
  config.n_ctx_train = 64;
  return config;
}

CalibrationOptions Options(const std::vector<std::vector<TokenId>>& texts, uint32_t n_ctx, uint32_t rank) {
  CalibrationOptions options;
  options.n_ctx = n_ctx;
  options.rank = rank;
  for (const auto& text : texts) options.texts.emplace_back(text);
  return options;
}

std::vector<TokenId> Text(size_t n) { return std::vector<TokenId>(n, 7); }

std::vector<size_t> PieceSizes(const CalibrationPlan& plan) {
  std::vector<size_t> sizes;
  for (const auto& piece : plan.pieces) sizes.push_back(piece.size());
  return sizes;
}

TEST(CalibrationPlan, TextsAreCutAndShortEndsLeftOut) {
  const std::vector<std::vector<TokenId>> texts = {Text(47), Text(7), Text(28), {}, Text(12)};
  const auto plan = PlanCalibration(Options(texts, 20, 5), Config());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(PieceSizes(*plan), (std::vector<size_t>{20, 20, 20, 8, 12}));
  EXPECT_EQ(plan->n_tokens, 80U);
  EXPECT_EQ(plan->max_piece_tokens, 20U);
  EXPECT_EQ(plan->rank, 5U);
  EXPECT_EQ(plan->pieces[1].data(), texts[0].data() + 20);
}

TEST(CalibrationPlan, DefaultsFollowTheModel) {
  const std::vector<std::vector<TokenId>> texts = {Text(100)};
  const auto plan = PlanCalibration(Options(texts, 0, 0), Config());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(PieceSizes(*plan), (std::vector<size_t>{64, 36}));
  EXPECT_EQ(plan->rank, 16U);
  EXPECT_EQ(DefaultPieceTokens(Config()), 64U);
  ModelConfig large = Config();
  large.n_layers = 32;
  large.layers.resize(32);
  large.kv_layers.resize(32);
  large.n_kv_heads = 8;
  large.head_dim = 128;
  large.n_ctx_train = 131072;
  EXPECT_EQ(DefaultPieceTokens(large), 4096U);  // of 128 KiB each
  large.n_kv_heads = 2;
  EXPECT_EQ(DefaultPieceTokens(large), 8192U);
}

TEST(CalibrationPlan, KeysMustBeAsManyAsColumns) {
  const std::vector<std::vector<TokenId>> enough = {Text(8), Text(12)};
  EXPECT_TRUE(PlanCalibration(Options(enough, 0, 12), Config()).ok());
  const auto few = PlanCalibration(Options(enough, 0, 13), Config());
  EXPECT_EQ(few.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(few.status().message().find("20 tokens (text 1: 8, text 2: 12), of which 12 count"),
            std::string::npos)
      << few.status().message();
  EXPECT_NE(few.status().message().find("rank 13 needs 13"), std::string::npos) << few.status().message();
  EXPECT_FALSE(PlanCalibration(Options({}, 0, 1), Config()).ok());
  EXPECT_FALSE(PlanCalibration(Options({{}}, 0, 1), Config()).ok());
}

TEST(CalibrationPlan, NonsenseIsNamed) {
  const auto expect_refused = [](const std::vector<std::vector<TokenId>>& texts, uint32_t n_ctx,
                                 uint32_t rank, const std::string& part) {
    const auto plan = PlanCalibration(Options(texts, n_ctx, rank), Config());
    EXPECT_EQ(plan.status().code(), StatusCode::kInvalidArgument) << part;
    EXPECT_NE(plan.status().message().find(part), std::string::npos) << plan.status().message();
  };
  expect_refused({Text(50)}, 7, 4, "pieces of 7 tokens");
  expect_refused({Text(50)}, 0, 17, "ask for 1 to 16");
  expect_refused({Text(50), {1, 100}}, 0, 4,
                 "text 2: token 2 (the id 100) is not in the vocabulary (0 to 99)");
  expect_refused({{-1}}, 0, 4, "the id -1");
}

TEST(CalibrationPlan, WhichTextsAreShortIsSaid) {
  const auto expect_said = [](const std::vector<std::vector<TokenId>>& texts, const std::string& part) {
    const auto plan = PlanCalibration(Options(texts, 0, 4), Config());
    EXPECT_NE(plan.status().message().find(part), std::string::npos) << plan.status().message();
  };
  expect_said({Text(1)}, "too little text: 1 token (text 1: 1), of which 0 count");
  expect_said({Text(2), Text(0)}, "too little text: 2 tokens (text 1: 2, text 2: 0), of which 0 count");
  expect_said({}, "too little text: 0 tokens, of which 0 count");
  expect_said(std::vector(9, Text(1)), "too little text: 9 tokens, of which 0 count");
}

// A file that does not fit is named as it was asked for.
TEST(CalibrationSumsFile, WhatDoesNotFitIsSaidByItsOwnName) {
  const TemporaryFolder folder;
  CalibrationSums sums;
  sums.layers.resize(1);
  sums.layers[0] = {
      .n_kv_heads = 1, .head_dim = 2, .keys = std::vector<double>(6), .queries = std::vector<double>(4)};
  const std::string path = folder.Path("sums.gguf");
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {100, before.rlim_max};
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = WriteSums(sums, path);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(status.message(),
            "cannot write " + path + ": File too large: free space there or name another file");
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(WriteSums(sums, path).ok());
}

class CapiCalibrate : public testing::CapiFixture {
 protected:
  CapiCalibrate() { kvrun_calibrate_options_init(&options_); }
  void ExpectRefused(kvrun_status status, const std::string& part) {
    char* json = nullptr;
    EXPECT_EQ(kvrun_calibrate(engine_, &options_, "/no/such/file", &json), status) << part;
    EXPECT_NE(LastError().find(part), std::string::npos) << LastError();
    EXPECT_EQ(json, nullptr);
  }

  kvrun_calibrate_options options_;
};

TEST_F(CapiCalibrate, ArgumentsAreChecked) {
  EXPECT_EQ(kvrun_calibrate(nullptr, &options_, "x", nullptr), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(kvrun_calibrate(engine_, nullptr, "x", nullptr), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(kvrun_calibrate(engine_, &options_, nullptr, nullptr), KVRUN_INVALID_ARGUMENT);
  options_.kind = "svd";
  ExpectRefused(KVRUN_INVALID_ARGUMENT, "unknown kind of adapter 'svd'; known: plain, centred");
  options_.kind = nullptr;
  options_.n_texts = 1;
  ExpectRefused(KVRUN_INVALID_ARGUMENT, "'texts' is NULL");
  const int32_t* text = nullptr;
  options_.texts = &text;
  ExpectRefused(KVRUN_INVALID_ARGUMENT, "'counts' is NULL");
  const size_t count = 3;
  options_.counts = &count;
  ExpectRefused(KVRUN_INVALID_ARGUMENT, "'texts[]' is NULL");
  options_.n_texts = 0;
  options_.n_ctx = 7;
  char* json = nullptr;
  EXPECT_EQ(kvrun_calibrate_checkpoint_json(engine_, &options_, &json), KVRUN_INVALID_ARGUMENT);
  EXPECT_NE(LastError().find("pieces of 7 tokens"), std::string::npos) << LastError();
  EXPECT_EQ(kvrun_calibrate_checkpoint_json(engine_, &options_, nullptr), KVRUN_INVALID_ARGUMENT);
  ExpectRefused(KVRUN_UNSUPPORTED, "no weights");  // the fixture's engine is a fake
  options_.struct_size = 0;
  ExpectRefused(KVRUN_INVALID_ARGUMENT, "kvrun_calibrate_options.struct_size");
}

}  // namespace
}  // namespace kvrun
