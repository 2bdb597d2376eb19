// Statistics of the KV cache in the C API: the object "kv".
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/capi/kv_info.h"
#include "tests/support/capi_kv_fixture.h"

namespace kvrun {
namespace {

using testing::CapiKvTest;
using testing::LastError;
using testing::ParseAndFree;
using Json = nlohmann::json;

KvReport SomeReport() {
  KvReport report;
  report.plan.method = *FindKvMethod("kvswap");
  report.plan.family = GroupsPlan{};
  report.plan.budget.full_bytes = 1000;
  report.plan.budget.bytes = 100;
  report.plan.parts = {{"index", 10, true, true}, {"slots", 50, false, true}, {"prefill", 70, true, false}};
  report.stats.chosen_groups = 200;
  report.stats.drawn_groups = 30;
  report.stats.stand_in_groups = 25;
  report.stats.hit_groups = 150;
  report.stats.pool_groups = 20;
  report.stats.choices = 16;
  report.stats.least_groups = 5;
  report.stats.most_groups = 40;
  report.plan.record.group_tokens = 4;
  report.stats.io_ms = 40.0;
  report.stats.stall_ms = 10.0;
  report.stats.layer_loads = {3, 4};
  report.stats.layer_fetch_ms = {1.5, 2.5};
  report.store.reads = 4;
  report.store.read_bytes = 8000;
  report.store.read_wait_ms = 2.0;
  report.store.written_bytes = 999;
  report.store.records_read_again = 1;
  report.later_prompts = {.n_exact = 2, .n_selected = 3, .share_sum = 0.75};
  report.io = IoMode{.backend = IoBackend::kAio, .direct = true, .notes = {"io_uring cannot be used"}};
  return report;
}

TEST_F(CapiKvTest, StatisticsHaveAKvObjectWhereKvIsInRecords) {
  kv_report_ = SomeReport();
  kvrun_session* session = MakeSession();
  const std::vector<int32_t> ids = {1, 2, 3};
  ASSERT_EQ(kvrun_session_feed(session, 0, ids.data(), ids.size()), KVRUN_OK);
  const uint32_t sequence = 0;
  kvrun_generate_options generate;
  kvrun_generate_options_init(&generate);
  generate.max_tokens = 6;  // 5 steps: the first is the feed's
  generate.ignore_end = 1;
  ASSERT_EQ(kvrun_session_generate(session, &sequence, 1, &generate, nullptr, nullptr, nullptr), KVRUN_OK);
  const auto statistics = [session] {
    char* text = nullptr;
    EXPECT_EQ(kvrun_session_stats_json(session, &text), KVRUN_OK) << LastError();
    return ParseAndFree(text);
  };
  const Json kv = statistics()["kv"];
  const Json expected = {
      {"method", "kvswap"},
      {"full_bytes", 1000},
      {"budget_bytes", 100},
      {"prefill_bytes", 80},
      {"decode_bytes", 60},
      {"chosen_groups", 200},
      {"drawn_groups", 30},
      {"entries_per_layer", {{"mean", 50.0}, {"least", 20}, {"most", 160}}},
      {"own_hits", 150},
      {"stand_in_groups", 25},
      {"pool_reads", 20},
      {"hit_rate", 0.75},
      {"io_mode", "aio direct"},
      {"io_notes", Json::array({"io_uring cannot be used"})},
      {"reads", 4},
      {"read_bytes", 8000},
      {"records_read_again", 1},
      {"mean_read_bytes", 2000.0},
      {"read_mbps", 4.0},  // 8000 bytes in 2 ms
      {"bytes_written", 999},
      {"stall_ms_per_token", 2.0},
      {"io_hidden", 0.75},
  };
  for (const auto& [key, value] : expected.items()) EXPECT_EQ(kv[key], value) << key;
  EXPECT_EQ(kv["parts"][0]["name"], "prefill");
  EXPECT_TRUE(kv["line"].get<std::string>().starts_with("kvswap: ")) << kv["line"];
  EXPECT_FALSE(kv.contains("layers")) << "with profile only";
  EXPECT_TRUE(kv["clusters"].is_null()) << "of methods with clusters only";
  EXPECT_EQ(kv["later_prompts"], (Json{{"exact", 2}, {"selected", 3}, {"selected_share", 0.25}}));
  EXPECT_TRUE(kv["kept"].is_null()) << "of methods that evict only";
  EXPECT_TRUE(kv["states"].is_null()) << "of models with layers that keep no growing KV only";
  EXPECT_EQ(kv.size(), expected.size() + 6);
  kvrun_session_stats_reset(session);
  const Json after = statistics()["kv"];
  EXPECT_EQ(after["reads"], 0);
  EXPECT_EQ(after["full_bytes"], 1000);
  for (const char* key :
       {"entries_per_layer", "hit_rate", "mean_read_bytes", "read_mbps", "stall_ms_per_token", "io_hidden"}) {
    EXPECT_EQ(after[key], nullptr) << key << ": nothing was counted";
  }
  kvrun_session_destroy(session);
}

TEST_F(CapiKvTest, LayersComeWithProfile) {
  kv_report_ = SomeReport();
  engine_->profile = true;
  kvrun_session* session = MakeSession();
  char* text = nullptr;
  ASSERT_EQ(kvrun_session_stats_json(session, &text), KVRUN_OK) << LastError();
  EXPECT_EQ(ParseAndFree(text)["kv"]["layers"],
            Json::parse(R"([{"loads": 3, "ms": 1.5}, {"loads": 4, "ms": 2.5}])"));
  kvrun_session_destroy(session);
}

TEST(KvReportInfo, WhatIsKeptIsCounted) {
  KvReport report = SomeReport();
  report.kept =
      KeptReport{.original = 100, .low = 20, .evicted = 300, .lowered = 7, .original_shares = {0.25, 1.0}};
  const Json kept = capi::KvReportInfo(report, 1, false)["kept"];  // its keys sorted
  EXPECT_EQ(kept, Json::parse(R"({"original": 100, "low": 20, "evicted": 300, "lowered": 7,
                            "original_shares": [0.25, 1.0]})"));
}

TEST(KvReportInfo, MoreStallThanReadingHidesNothing) {
  KvReport report = SomeReport();
  report.stats.stall_ms = 50.0;
  EXPECT_EQ(capi::KvReportInfo(report, 1, false)["io_hidden"], 0.0);
  report.io.reset();
  EXPECT_EQ(capi::KvReportInfo(report, 1, false)["io_mode"], nullptr);
  EXPECT_TRUE(capi::KvReportInfo(report, 1, false)["io_notes"].empty());
}

}  // namespace
}  // namespace kvrun
