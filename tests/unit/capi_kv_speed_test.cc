// The KV cache in the C API where it is known how fast the storage under it reads.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "platform/io/block_file.h"
#include "runtime/engine/machine/storage_speed.h"
#include "runtime/engine/machine/storage_speed_file.h"
#include "tests/support/capi_kv_fixture.h"
#include "tests/support/program_runner.h"

namespace kvrun {
namespace {

using testing::CapiKvTest;
using testing::LastError;
using testing::ParseAndFree;
using Json = nlohmann::json;

// What is kept says that the storage under the KV is slow.
class CapiKvSpeedTest : public CapiKvTest {
 protected:
  void SetUp() override {
    CapiKvTest::SetUp();
    const char* old = std::getenv("XDG_CACHE_HOME");
    if (old != nullptr) old_cache_ = old;
    setenv("XDG_CACHE_HOME", cache_.Path("").c_str(), 1);
  }
  void TearDown() override {
    old_cache_ ? setenv("XDG_CACHE_HOME", old_cache_->c_str(), 1) : unsetenv("XDG_CACHE_HOME");
    CapiKvTest::TearDown();
  }
  void Keep(double reads_per_s) {
    const auto file = CreateBlockFile({.folder = folder_, .allow_tmpfs = true});
    ASSERT_TRUE(file.ok()) << file.status().message();
    const auto key = SpeedKeyOf(folder_, (*file)->mode(), kvrun_version());
    ASSERT_TRUE(key.ok()) << key.status().message();
    ASSERT_TRUE(WriteSpeed(SpeedsPath().value(), {*key, reads_per_s}).ok());
  }
  // Of the plan, after a session was made that has the same.
  uint32_t Group() {
    const Json plan = Plan();
    EXPECT_EQ(CreateAndDestroy(), KVRUN_OK) << LastError();
    EXPECT_EQ(plan_->record.group_tokens, plan["group"].get<uint32_t>());
    EXPECT_EQ(Json(plan_->notes.for_experts), plan["details"]);
    notes_ = plan["details"];
    return plan["group"];
  }
  bool CanBePlanned(const std::vector<kvrun_option>& more) {
    AskForKvswap(more);
    char* text = nullptr;
    const kvrun_status status = kvrun_kv_plan_json(model_, &options_, &text);
    kvrun_string_free(text);
    return status == KVRUN_OK;
  }

  TemporaryFolder cache_;
  std::optional<std::string> old_cache_;
  Json notes_;
};

TEST_F(CapiKvSpeedTest, OfSlowStoragePlanAndSessionTakeLongerGroups) {
  Keep(4200.0);
  AskForKvswap();
  EXPECT_EQ(Group(), 8U);
  EXPECT_EQ(notes_, Json({"the flash reads 4,200 blocks of 4 KiB a second, so KV is read in groups of 8 "
                          "entries, as on eMMC"}));
  kvrun_session* session = nullptr;
  ASSERT_EQ(kvrun_session_create(engine_, &options_, &session), KVRUN_OK) << LastError();
  char* text = nullptr;
  EXPECT_EQ(kvrun_session_stats_json(session, &text), KVRUN_OK);
  EXPECT_EQ(ParseAndFree(text)["details"].back(), notes_[0]);
  kvrun_session_destroy(session);
  // What is given, or of another method, or too long for what is asked for, stays as it is.
  for (const auto& more : std::vector<std::vector<kvrun_option>>{
           {{"group", "4"}}, {{"group", "2"}}, {{"method", "flexgen"}}, {{"select", "6"}}}) {
    const bool is_flexgen = more[0].value == std::string("flexgen");
    const bool is_two = more[0].value == std::string("2");
    AskForKvswap(more);
    EXPECT_EQ(Group(), is_flexgen ? 16U : is_two ? 2U : 4U) << more[0].value;
    EXPECT_TRUE(notes_.empty()) << notes_;
  }
}

TEST_F(CapiKvSpeedTest, OfHardDisksToo) {
  Keep(110.0);
  AskForKvswap();
  EXPECT_EQ(Group(), 16U);
  EXPECT_EQ(notes_.size(), 1U);
}

TEST_F(CapiKvSpeedTest, FastStorageSaysNothing) {
  Keep(15000.0);
  AskForKvswap();
  EXPECT_EQ(Group(), 4U);
  EXPECT_TRUE(notes_.empty()) << notes_;
}

TEST_F(CapiKvSpeedTest, LongerGroupsCostNothingThatCanBeHadWithoutThem) {
  Keep(110.0);
  options_.n_ctx = 32768;
  uint32_t n_rescued = 0;
  for (uint32_t budget = 65536; budget < 2097152; budget += 65536) {
    const std::string bytes = std::to_string(budget);
    // Counted in groups: longer ones take more.
    std::vector<kvrun_option> kv = {{"budget", bytes.c_str()}, {"reuse", "2000"}, {"group", "4"}};
    if (!CanBePlanned(kv)) continue;
    kv.back().value = "16";
    if (!CanBePlanned(kv)) ++n_rescued;
    kv.pop_back();
    EXPECT_TRUE(CanBePlanned(kv)) << budget << LastError();
  }
  EXPECT_GT(n_rescued, 0U);
}

}  // namespace
}  // namespace kvrun
