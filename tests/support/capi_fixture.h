// The C API over a real model file and the real reader; device and forward pass are fakes.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "runtime/capi/handles.h"
#include "runtime/engine/offloaded/offloaded_pass.h"
#include "runtime/include/kvrun/kvrun.h"
#include "tests/support/fake_device.h"
#include "tests/support/fake_forward_pass.h"
#include "tests/support/gguf_builder.h"

namespace kvrun::testing {

// Takes the text over.
inline nlohmann::json ParseAndFree(char* text) {
  auto json = nlohmann::json::parse(text == nullptr ? "null" : text);
  kvrun_string_free(text);
  return json;
}

inline std::string LastError() { return kvrun_last_error(); }

class CapiFixture : public ::testing::Test {
 public:
  static constexpr uint32_t kVocab = 300;

 protected:
  // The file at path_.
  void Rewrite(const GgufBuilder& builder) const {
    const Bytes bytes = builder.Build();
    std::ofstream(path_, std::ios::binary | std::ios::trunc)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }

  void SetUp() override {
    // ctest may run tests at the same time.
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = ::testing::TempDir() + "kvrun_capi_" + test->name() + std::to_string(::getpid()) + ".gguf";
    TinyModelOptions options;
    options.n_vocab = kVocab;
    Rewrite(TinyModel(options));
    ASSERT_EQ(kvrun_model_open(path_.c_str(), &model_), KVRUN_OK) << LastError();
    auto device = std::make_unique<FakeDevice>();
    device_ = device.get();
    engine_ = new kvrun_engine{std::make_unique<Engine>(
        *model_->model, std::move(device),
        [this](const ForwardPassOptions& pass) -> Result<std::unique_ptr<ForwardPass>> {
          if (pass.n_ctx > 100000) return Status(StatusCode::kOutOfMemory, "too long");
          FakePassOptions fake;
          fake.n_sequences = pass.n_sequences;
          fake.n_ctx = pass.n_ctx;
          fake.n_vocab = kVocab;
          fake.log = &log_;
          fake.kv_report = kv_report_;
          kv_type_ = pass.kv_type;
          plan_.reset();
          if (pass.offloaded != nullptr) plan_ = pass.offloaded->plan;
          return std::unique_ptr<ForwardPass>(std::make_unique<FakeForwardPass>(fake));
        })};
  }

  void TearDown() override {
    kvrun_engine_destroy(engine_);
    kvrun_model_close(model_);
    std::filesystem::remove(path_);
  }

  kvrun_session* MakeSession(uint32_t n_sequences = 1, uint32_t n_ctx = 64) {
    kvrun_session_options options;
    kvrun_session_options_init(&options);
    options.n_sequences = n_sequences;
    options.n_ctx = n_ctx;
    kvrun_session* session = nullptr;
    EXPECT_EQ(kvrun_session_create(engine_, &options, &session), KVRUN_OK) << LastError();
    return session;
  }

  FakePassLog log_;
  std::optional<KvReport> kv_report_;  // of the sessions to come
  // What the last session's forward pass was asked for.
  KvType kv_type_ = KvType::kF16;
  std::optional<KvPlan> plan_;
  std::string path_;
  kvrun_model* model_ = nullptr;
  kvrun_engine* engine_ = nullptr;
  FakeDevice* device_ = nullptr;
};

// Of what needs no more than that: tests/unit/capi_{model,session,errors}_test.cc.
class CapiTest : public CapiFixture {};

}  // namespace kvrun::testing
