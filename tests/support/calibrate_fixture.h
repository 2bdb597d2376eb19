// Adapters computed from texts on a device, through the C API: a small model that is opened, and what is
// asked of it.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/capi/handles.h"
#include "runtime/kv/math/adapter.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing::calibrations {

using Ids = std::vector<int32_t>;
using Json = nlohmann::json;

struct Asked {
  std::string kind = "query-centred";
  uint32_t rank = 0;
  uint32_t n_ctx = 0;
  std::vector<Ids> texts;
  kvrun_progress_fn progress = nullptr;
  void* user = nullptr;
  uint32_t max_ms = 0;
};

// A model and its engine through the C API.
class Opened {
 public:
  explicit Opened(const std::string& path) {
    EXPECT_EQ(kvrun_model_open(path.c_str(), &model_), KVRUN_OK) << kvrun_last_error();
    const kvrun_engine_options options = EngineOptionsHere();
    EXPECT_EQ(kvrun_engine_create(model_, &options, &engine_), KVRUN_OK) << kvrun_last_error();
  }
  ~Opened() {
    kvrun_engine_destroy(engine_);
    kvrun_model_close(model_);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  kvrun_engine* engine() const { return engine_; }
  const Model& model() const { return *model_->model; }
  const ModelConfig& config() const { return model().config; }

  kvrun_status Calibrate(const Asked& asked, const std::string& path, Json* info = nullptr) const {
    std::vector<const int32_t*> texts;
    std::vector<size_t> counts;
    for (const Ids& ids : asked.texts) {
      texts.push_back(ids.data());
      counts.push_back(ids.size());
    }
    kvrun_calibrate_options options;
    kvrun_calibrate_options_init(&options);
    options.kind = asked.kind.c_str();
    options.rank = asked.rank;
    options.n_ctx = asked.n_ctx;
    options.texts = texts.data();
    options.counts = counts.data();
    options.n_texts = texts.size();
    options.progress = asked.progress;
    options.progress_user = asked.user;
    options.max_ms = asked.max_ms;
    char* json = nullptr;
    const kvrun_status status =
        kvrun_calibrate(engine_, &options, path.c_str(), info == nullptr ? nullptr : &json);
    if (info != nullptr) *info = Json::parse(json == nullptr ? "null" : json);
    kvrun_string_free(json);
    return status;
  }

  Adapter CalibrateOrDie(const Asked& asked, const std::string& path, uint32_t rank) const {
    EXPECT_EQ(Calibrate(asked, path), KVRUN_OK) << kvrun_last_error();
    return OrDie(ReadAdapter(path, OrDie(model().Fingerprint()), config().n_layers, config().kv_dim(), rank));
  }

  kvrun_status StartSession(const std::string& adapter, const std::string& folder,
                            kvrun_session** session) const {
    const kvrun_option kv[] = {{"method", "kvswap"}, {"dir", folder.c_str()}, {"tmpfs", "on"},
                               {"rank", "4"},        {"select", "16"},        {"window", "6"},
                               {"sinks", "4"},       {"group", "4"},          {"adapter", adapter.c_str()}};
    kvrun_session_options options;
    kvrun_session_options_init(&options);
    options.n_ctx = 128;
    options.kv_options = kv;
    options.n_kv_options = std::size(kv);
    return kvrun_session_create(engine_, &options, session);
  }

 private:
  kvrun_model* model_ = nullptr;
  kvrun_engine* engine_ = nullptr;
};

class Calibrate : public ::testing::TestWithParam<SmallModel> {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    path_ = GetParam().path;
    if (path_.empty()) {
      TinyModelOptions options;
      options.n_vocab = 300;
      options.n_ctx_train = 1024;
      path_ = WriteModel(folder_, "tiny.gguf", TinyModel(options).Build());
    }
    opened_ = std::make_unique<Opened>(path_);
    out_ = folder_.Path("adapter.gguf");
  }

  Ids Text(size_t n, size_t seed) const { return SomeIds(n, seed, opened_->config().n_vocab); }
  size_t FilesInFolder() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_.Path("")), {}));
  }

  TemporaryFolder folder_;
  std::string path_;
  std::unique_ptr<Opened> opened_;
  std::string out_;
};

}  // namespace kvrun::testing::calibrations
