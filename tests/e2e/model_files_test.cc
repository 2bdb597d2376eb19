// What becomes of a model's file while kvrun uses it: cut, replaced, split into several.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "runtime/include/kvrun/kvrun.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/real_program.h"
#include "tests/support/reference_files.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing {
namespace {

namespace fs = std::filesystem;

struct Handles {
  ~Handles() {
    kvrun_session_destroy(session);
    kvrun_engine_destroy(engine);
    kvrun_model_close(model);
  }
  kvrun_model* model = nullptr;
  kvrun_engine* engine = nullptr;
  kvrun_session* session = nullptr;
};

class ModelFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    path_ = WriteModel(folder_, "tiny.gguf", TalkingModel().Build());
  }
  kvrun_status CreateEngine(Handles* handles) const {
    kvrun_engine_options options = EngineOptionsHere();
    return kvrun_engine_create(handles->model, &options, &handles->engine);
  }
  std::vector<float> Logits(const std::string& path, const std::string& out) const {
    const std::string ids = folder_.Write("ids", "5 6 7 8 9 10");
    const ProgramResult result = RunProgram(
        RealProgram(), {"logits", "-m", path, "--ids", ids, "--out", folder_.Path(out)}, WithDrivers());
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return ReadFloats(folder_.Path(out));
  }

  TemporaryFolder folder_;
  std::string path_;
};

TEST_F(ModelFiles, OneThatIsCutBetweenOpeningAndLoadingIsAnError) {
  const uint64_t size = fs::file_size(path_);
  for (const uint64_t left : {size - 1, size / 2, uint64_t{100}, uint64_t{0}}) {
    path_ = WriteModel(folder_, "tiny.gguf", TalkingModel().Build());
    Handles handles;
    ASSERT_EQ(kvrun_model_open(path_.c_str(), &handles.model), KVRUN_OK) << kvrun_last_error();
    fs::resize_file(path_, left);
    EXPECT_EQ(CreateEngine(&handles), KVRUN_CORRUPT) << left;
    const std::string message = kvrun_last_error();
    EXPECT_NE(message.find(fmt::format("{}: it was cut to {} bytes while it was being read, and had {}",
                                       path_, left, size)),
              std::string::npos)
        << message;
    EXPECT_NE(message.find("tensor \""), std::string::npos) << message;
  }
}

TEST_F(ModelFiles, OneThatIsWrittenToBetweenOpeningAndLoadingIsAnError) {
  fs::last_write_time(path_, fs::file_time_type::clock::now() - std::chrono::hours(1));
  Handles handles;
  ASSERT_EQ(kvrun_model_open(path_.c_str(), &handles.model), KVRUN_OK) << kvrun_last_error();
  WriteModel(folder_, "tiny.gguf", TalkingModel().Build());
  EXPECT_EQ(CreateEngine(&handles), KVRUN_CORRUPT);
  EXPECT_NE(std::string(kvrun_last_error()).find("it was written to after it was opened"), std::string::npos)
      << kvrun_last_error();
}

// An application may run for days.
TEST_F(ModelFiles, WhatBecomesOfOneThatIsLoadedDoesNotMatter) {
  Handles handles;
  ASSERT_EQ(kvrun_model_open(path_.c_str(), &handles.model), KVRUN_OK) << kvrun_last_error();
  ASSERT_EQ(CreateEngine(&handles), KVRUN_OK) << kvrun_last_error();
  fs::resize_file(path_, 0);
  char* info = nullptr;
  ASSERT_EQ(kvrun_model_info_json(handles.model, 0, &info), KVRUN_OK) << kvrun_last_error();
  kvrun_string_free(info);
  char* text = nullptr;
  const kvrun_chat_message message = {"user", "hello"};
  ASSERT_EQ(kvrun_chat_format(handles.model, &message, 1, 0, &text), KVRUN_OK) << kvrun_last_error();
  std::vector<int32_t> ids(200);
  size_t count = ids.size();
  ASSERT_EQ(kvrun_tokenize(handles.model, text, std::string(text).size(), 0, ids.data(), &count), KVRUN_OK);
  kvrun_string_free(text);
  // KV on flash asks for the model's identity too.
  for (const char* method : {"full", "kvswap"}) {
    const std::string kv_folder = folder_.Path("kv");
    const kvrun_option kv[] = {{"method", method}, {"dir", kv_folder.c_str()}, {"tmpfs", "on"}};
    kvrun_session_options options;
    kvrun_session_options_init(&options);
    options.n_ctx = 512;
    options.kv_options = kv;
    options.n_kv_options = std::string(method) == "full" ? 1 : 3;
    ASSERT_EQ(kvrun_session_create(handles.engine, &options, &handles.session), KVRUN_OK)
        << kvrun_last_error();
    EXPECT_EQ(kvrun_session_feed(handles.session, 0, ids.data(), count), KVRUN_OK) << kvrun_last_error();
    kvrun_session_destroy(std::exchange(handles.session, nullptr));
  }
}

// The program, with a file that is large enough for the cut to meet it while it loads.
TEST_F(ModelFiles, ALiveCutEndsTheProgramWithOneMessage) {
  TinyModelOptions large;
  large.n_vocab = 300;
  large.n_layers = 24;
  large.n_embd = 512;
  large.n_ff = 2048;
  large.n_heads = 8;
  large.n_kv_heads = 8;
  large.head_dim = 64;
  const Bytes bytes = TinyModel(large).Build();
  for (const int delay_ms : {0, 20, 60}) {
    const std::string path = WriteModel(folder_, "live.gguf", bytes);
    RunningProgram program(RealProgram(), {"run", "-m", path, "-p", "x", "-n", "1", "--progress", "always"},
                           WithDrivers());
    EXPECT_TRUE(program.WaitForOutput("loading"));
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    fs::resize_file(path, 5000);
    const ProgramResult result = program.Finish();
    // Loaded before the cut, or one message.
    if (result.exit_code == 0) continue;
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_NE(result.err.find("kvrun: "), std::string::npos);
    EXPECT_NE(result.err.find("it was cut to 5000 bytes while it was being read"), std::string::npos)
        << result.err;
    EXPECT_EQ(result.err.find("kvrun: "), result.err.rfind("kvrun: ")) << result.err;
  }
}

TEST_F(ModelFiles, ASplitModelComputesWhatTheWholeOneDoes) {
  const std::vector<float> whole = Logits(path_, "whole.f32");
  ASSERT_FALSE(whole.empty());
  const std::vector<GgufBuilder> parts = TalkingModel().Split(3, 0);
  std::string first;
  for (size_t i = parts.size(); i-- > 0;) {
    first = WriteModel(folder_, fmt::format("split-{:05}-of-00003.gguf", i + 1), parts[i].Build());
  }
  EXPECT_EQ(Logits(first, "split.f32"), whole);
  EXPECT_EQ(Logits(folder_.Path("split-00003-of-00003.gguf"), "last.f32"), whole);
  // No part is taken for an output.
  const ProgramResult refused = RunProgram(RealProgram(),
                                           {"logits", "-m", first, "--ids", folder_.Path("ids"), "--out",
                                            folder_.Path("split-00002-of-00003.gguf"), "--force"},
                                           WithDrivers());
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("split-00002-of-00003.gguf would replace"), std::string::npos) << refused.err;
}

// An application's calibration, too, spares the model.
TEST_F(ModelFiles, ACalibrationDoesNotWriteOverIt) {
  Handles handles;
  ASSERT_EQ(kvrun_model_open(path_.c_str(), &handles.model), KVRUN_OK) << kvrun_last_error();
  ASSERT_EQ(CreateEngine(&handles), KVRUN_OK) << kvrun_last_error();
  std::vector<int32_t> ids(200);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(3 + i);
  const int32_t* texts[] = {ids.data()};
  const size_t counts[] = {ids.size()};
  fs::create_hard_link(path_, folder_.Path("hard"));
  const std::string before = ReadWholeFile(path_);
  const auto calibrate = [&](const std::string& path, const std::string& sums,
                             const std::string& checkpoint) {
    kvrun_calibrate_options options;
    kvrun_calibrate_options_init(&options);
    options.texts = texts;
    options.counts = counts;
    options.n_texts = 1;
    options.sums = sums.c_str();
    options.checkpoint = checkpoint.c_str();
    options.restart = 1;
    char* json = nullptr;
    EXPECT_EQ(kvrun_calibrate(handles.engine, &options, path.c_str(), &json), KVRUN_INVALID_ARGUMENT);
    kvrun_string_free(json);
    return std::string(kvrun_last_error());
  };
  const std::string a = folder_.Path("a");
  const std::string b = folder_.Path("b");
  const std::string hard = folder_.Path("hard");
  const std::string lost = hard + " is the model that is calibrated, and would be lost: name another file";
  EXPECT_EQ(calibrate(hard, a, b), lost);
  EXPECT_EQ(calibrate(a, hard, b), lost);
  EXPECT_EQ(calibrate(a, b, hard), lost);
  EXPECT_EQ(calibrate(a, a, b), a + " would hold two results: name two files");
  EXPECT_EQ(ReadWholeFile(path_), before);
  EXPECT_FALSE(fs::exists(a) || fs::exists(b));
}

}  // namespace
}  // namespace kvrun::testing
