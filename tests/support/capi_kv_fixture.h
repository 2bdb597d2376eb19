// The C API as tests/support/capi_fixture.h has it, with options of the KV cache by name.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/capi_fixture.h"

namespace kvrun::testing {

class CapiKvTest : public CapiFixture {
 protected:
  CapiKvTest() {
    kvrun_session_options_init(&options_);
    options_.n_ctx = 128;
  }

  void Ask(std::vector<kvrun_option> kv) {
    kv_ = std::move(kv);
    options_.kv_options = kv_.data();
    options_.n_kv_options = kv_.size();
  }
  // On flash, wherever temporary files are.
  void AskForKvswap(const std::vector<kvrun_option>& more = {}) {
    std::vector<kvrun_option> kv = {{"method", "kvswap"}, {"dir", folder_.c_str()}, {"tmpfs", "on"}};
    kv.insert(kv.end(), more.begin(), more.end());
    Ask(kv);
  }

  kvrun_status CreateAndDestroy() {
    kvrun_session* session = nullptr;
    const kvrun_status status = kvrun_session_create(engine_, &options_, &session);
    EXPECT_EQ(session != nullptr, status == KVRUN_OK);
    kvrun_session_destroy(session);
    return status;
  }
  nlohmann::json Plan() {
    char* text = nullptr;
    EXPECT_EQ(kvrun_kv_plan_json(model_, &options_, &text), KVRUN_OK) << LastError();
    return ParseAndFree(text);
  }

  std::string folder_ = ::testing::TempDir();
  std::vector<kvrun_option> kv_;
  kvrun_session_options options_;
};

}  // namespace kvrun::testing
