// Adapters computed from texts serve sessions of the model that they are of; while they are computed, the
// engine can be used, and what fails or is cancelled leaves no file. tests/e2e/calibrate_test.cc says of
// which models.
// Not grouped (cmake/KvrunCompile.cmake): its names are others', too.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/calibrate_fixture.h"
#include "tests/support/real_program.h"

namespace kvrun::testing::calibrations {
namespace {

int KeepLogits(void* user, uint32_t, uint32_t rows, const float* logits) {
  auto* kept = static_cast<std::pair<size_t, std::vector<float>>*>(user);
  kept->second.insert(kept->second.end(), logits, logits + rows * kept->first);
  return 0;
}

TEST_P(Calibrate, AFileServesASession) {
  ASSERT_EQ(opened_->Calibrate({.rank = 8, .texts = {Text(200, 10)}}, out_), KVRUN_OK) << kvrun_last_error();
  kvrun_session* session = nullptr;
  ASSERT_EQ(opened_->StartSession(out_, folder_.Path(""), &session), KVRUN_OK) << kvrun_last_error();
  const Ids prompt = Text(70, 11);
  EXPECT_EQ(kvrun_session_feed(session, 0, prompt.data(), prompt.size()), KVRUN_OK) << kvrun_last_error();
  std::pair<size_t, std::vector<float>> kept{opened_->config().n_vocab, {}};
  for (const int32_t id : Text(6, 12)) {
    EXPECT_EQ(kvrun_session_feed_logits(session, 0, &id, 1, 1, KeepLogits, &kept), KVRUN_OK)
        << kvrun_last_error();
  }
  kvrun_session_destroy(session);
  EXPECT_EQ(kept.second.size(), 6 * kept.first);
  EXPECT_TRUE(std::all_of(kept.second.begin(), kept.second.end(), [](float x) { return std::isfinite(x); }));
}

TEST_P(Calibrate, AnotherModelsAdapterIsRefused) {
  TinyModelOptions options;
  options.n_vocab = 300;
  options.seed = 77;
  const Opened other(WriteModel(folder_, "other.gguf", TinyModel(options).Build()));
  ASSERT_EQ(other.Calibrate({.texts = {SomeIds(200, 1, 300)}}, out_), KVRUN_OK) << kvrun_last_error();
  kvrun_session* session = nullptr;
  EXPECT_EQ(opened_->StartSession(out_, folder_.Path(""), &session), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(session, nullptr);
  EXPECT_NE(std::string(kvrun_last_error()).find("the adapter is of another model"), std::string::npos)
      << kvrun_last_error();
}

// Cancels at `cancel_at` tokens; meanwhile another session of the engine can be used.
struct Watcher {
  kvrun_session* session = nullptr;
  uint64_t cancel_at = UINT64_MAX;
  std::vector<uint64_t> done;
  uint64_t total = 0;

  static int Callback(void* user, kvrun_phase phase, uint64_t done, uint64_t total) {
    auto* watcher = static_cast<Watcher*>(user);
    EXPECT_EQ(phase, KVRUN_PHASE_CALIBRATE);
    watcher->done.push_back(done);
    watcher->total = total;
    const int32_t id = 5;
    if (watcher->session != nullptr) {
      EXPECT_EQ(kvrun_session_feed(watcher->session, 0, &id, 1), KVRUN_OK) << kvrun_last_error();
    }
    return done >= watcher->cancel_at ? 1 : 0;
  }
};

TEST_P(Calibrate, ProgressIsOverAllPiecesAndTheEngineIsFreeMeanwhile) {
  Watcher watcher;
  kvrun_session_options options;
  kvrun_session_options_init(&options);
  options.n_ctx = 64;
  ASSERT_EQ(kvrun_session_create(opened_->engine(), &options, &watcher.session), KVRUN_OK)
      << kvrun_last_error();
  EXPECT_EQ(opened_->Calibrate({.rank = 4,
                                .n_ctx = 64,
                                .texts = {Text(130, 13), Text(64, 14)},
                                .progress = Watcher::Callback,
                                .user = &watcher},
                               out_),
            KVRUN_OK)
      << kvrun_last_error();
  EXPECT_EQ(kvrun_session_length(watcher.session, 0), watcher.done.size());
  kvrun_session_destroy(watcher.session);
  EXPECT_TRUE(std::is_sorted(watcher.done.begin(), watcher.done.end()));
  EXPECT_EQ(watcher.total, 192U);
  EXPECT_EQ(watcher.done.front(), 0U);
  EXPECT_EQ(watcher.done.back(), 192U);
  for (const uint64_t piece : {64U, 128U})
    EXPECT_EQ(std::count(watcher.done.begin(), watcher.done.end(), piece), 1) << piece;
}

TEST_P(Calibrate, CancellingLeavesNoFile) {
  const size_t n_files = FilesInFolder();
  for (const uint64_t cancel_at : {0U, 64U, 127U, 128U}) {
    Watcher watcher;
    watcher.cancel_at = cancel_at;
    const Asked asked{
        .rank = 4, .n_ctx = 64, .texts = {Text(128, 15)}, .progress = Watcher::Callback, .user = &watcher};
    Json info = 1;
    EXPECT_EQ(opened_->Calibrate(asked, out_, &info), KVRUN_CANCELLED) << cancel_at;
    EXPECT_TRUE(info.is_null());
    EXPECT_EQ(FilesInFolder(), n_files) << cancel_at;
  }
}

TEST_P(Calibrate, WhatCannotSucceedFailsBeforeItIsComputed) {
  Watcher watcher;
  const auto expect_refused = [&](Asked asked, const std::string& path, kvrun_status status,
                                  const std::string& part) {
    asked.progress = Watcher::Callback;
    asked.user = &watcher;
    EXPECT_EQ(opened_->Calibrate(asked, path), status) << part;
    EXPECT_NE(std::string(kvrun_last_error()).find(part), std::string::npos) << kvrun_last_error();
  };
  const std::vector<Ids> texts = {Text(100, 16)};
  expect_refused({.rank = 4, .texts = texts}, folder_.Path("no/such/file"), KVRUN_NOT_FOUND, "no/such/file");
  expect_refused({.rank = 4, .texts = texts}, folder_.Path(""), KVRUN_INVALID_ARGUMENT, "not a file");
  expect_refused({.rank = 4, .texts = {Text(7, 1)}}, out_, KVRUN_INVALID_ARGUMENT,
                 "too little text: 7 tokens");
  expect_refused({.rank = 4096, .texts = texts}, out_, KVRUN_INVALID_ARGUMENT, "rank 4096");
  expect_refused({.rank = 4, .texts = {{1, 2, 1 << 30}}}, out_, KVRUN_INVALID_ARGUMENT, "token 3");
  expect_refused({.kind = "svd", .texts = texts}, out_, KVRUN_INVALID_ARGUMENT, "svd");
  EXPECT_TRUE(watcher.done.empty());
  EXPECT_FALSE(std::filesystem::exists(out_));
}

// The program as a person runs it: what kvadapt writes, kvrun reads.
TEST(CalibrateProgram, WritesWhatKvrunReads) {
  if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
  const TemporaryFolder folder;
  const std::string model = WriteModel(folder, "tiny.gguf", TalkingModel().Build());
  const std::string adapter = folder.Path("adapter.gguf");
  std::string text;
  for (int i = 0; i < 60; ++i) text += fmt::format("{} words and {} more. ", i * i, i * 37 % 11);
  const std::string file = folder.Write("text", text);
  const std::string kvadapt = std::filesystem::path(RealProgram()).replace_filename("kvadapt");
  const ProgramResult made = RunProgram(
      kvadapt, {"calibrate", "-m", model, "-f", file, "-f", file, "-o", adapter, "--json"},
      WithDrivers({"XDG_CACHE_HOME=" + folder.Path("")}));  // reuse rates are measured with KV on flash
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const Json info = Json::parse(made.out);
  EXPECT_EQ(info["path"], adapter);
  EXPECT_EQ(info["kind"], "query-centred");
  EXPECT_EQ(info["layers"].size(), 2U);
  const ProgramResult run =
      RunProgram(RealProgram(),
                 {"run",   "-m",       model,           "-f",         file,           "-n",     "5",
                  "--ctx", "2048",     "--ignore-end",  "--json",     "--kv-method",  "kvswap", "--kv-rank",
                  "4",     "--kv-dir", folder.Path(""), "--kv-tmpfs", "--kv-adapter", adapter},
                 WithDrivers());
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(Json::parse(run.out)["tokens"].size(), 5U);
}

}  // namespace
}  // namespace kvrun::testing::calibrations
