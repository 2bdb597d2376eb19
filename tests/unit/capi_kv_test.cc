// The KV cache in the C API: options by name, what a budget buys, statistics.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "platform/io/block_file.h"
#include "runtime/capi/kv_info.h"
#include "runtime/engine/machine/storage_speed.h"
#include "runtime/engine/machine/storage_speed_file.h"
#include "tests/support/capi_fixture.h"
#include "tests/support/program_runner.h"

namespace kvrun {
namespace {

using testing::LastError;
using testing::ParseAndFree;
using Json = nlohmann::json;

class CapiKvTest : public testing::CapiFixture {
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
  Json Plan() {
    char* text = nullptr;
    EXPECT_EQ(kvrun_kv_plan_json(model_, &options_, &text), KVRUN_OK) << LastError();
    return ParseAndFree(text);
  }

  std::string folder_ = ::testing::TempDir();
  std::vector<kvrun_option> kv_;
  kvrun_session_options options_;
};

TEST_F(CapiKvTest, AnOptionCanBeCheckedAlone) {
  EXPECT_EQ(kvrun_kv_option_check("budget", "1/13"), KVRUN_OK) << LastError();
  EXPECT_EQ(kvrun_kv_option_check("budget", "much"), KVRUN_INVALID_ARGUMENT);
  EXPECT_NE(LastError().find("KV option budget: \"much\""), std::string::npos) << LastError();
  EXPECT_EQ(kvrun_kv_option_check("size", "1"), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(kvrun_kv_option_check(nullptr, "1"), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(kvrun_kv_option_check("budget", nullptr), KVRUN_INVALID_ARGUMENT);
}

TEST_F(CapiKvTest, APlanSaysWhatToExpectBeyondTheTrainedContext) {
  EXPECT_TRUE(Plan()["notes"].empty());
  options_.n_ctx = 129;
  const Json notes = Plan()["notes"];
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].get<std::string>().find("129 tokens is longer than the 128"), std::string::npos)
      << notes;
}

TEST_F(CapiKvTest, AnOptionsChoicesAreListed) {
  char* text = nullptr;
  ASSERT_EQ(kvrun_kv_option_choices_json("method", &text), KVRUN_OK) << LastError();
  const Json methods = ParseAndFree(text);
  for (const char* method : {"full", "flexgen", "kvswap", "quest"}) {
    EXPECT_NE(std::find(methods.begin(), methods.end(), method), methods.end()) << method;
  }
  for (const char* free : {"budget", "dir", "no such option"}) {
    ASSERT_EQ(kvrun_kv_option_choices_json(free, &text), KVRUN_OK) << LastError();
    EXPECT_EQ(ParseAndFree(text), Json::array());
  }
  EXPECT_EQ(kvrun_kv_option_choices_json(nullptr, &text), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(kvrun_kv_option_choices_json("method", nullptr), KVRUN_INVALID_ARGUMENT);
}

TEST_F(CapiKvTest, TheOptionTypeWinsOverTheField) {
  EXPECT_EQ(CreateAndDestroy(), KVRUN_OK) << LastError();
  EXPECT_EQ(kv_type_, KvType::kF16);
  options_.kv_type = KVRUN_KV_F32;
  EXPECT_EQ(CreateAndDestroy(), KVRUN_OK) << LastError();
  EXPECT_EQ(kv_type_, KvType::kF32);
  Ask({{"type", "f16"}});
  EXPECT_EQ(CreateAndDestroy(), KVRUN_OK) << LastError();
  EXPECT_EQ(kv_type_, KvType::kF16);
}

TEST_F(CapiKvTest, OptionsReachTheForwardPass) {
  AskForKvswap({{"type", "fp8,int4"}, {"group", "8"}, {"sinks", "4"}, {"heads", "gqa"}, {"heads", "sum"}});
  ASSERT_EQ(CreateAndDestroy(), KVRUN_OK) << LastError();
  ASSERT_TRUE(plan_.has_value());
  EXPECT_EQ(plan_->method.name, "kvswap");
  EXPECT_EQ(plan_->record.k_type, KvType::kFp8);
  EXPECT_EQ(plan_->record.v_type, KvType::kInt4);
  EXPECT_EQ(plan_->record.group_tokens, 8U);
  EXPECT_EQ(plan_->choice.heads, HeadReduction::kSum) << "of two with the same name the later counts";
}

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

TEST_F(CapiKvTest, BadOptionsAreRefused) {
  Ask({{"budget", "1/0"}});
  EXPECT_EQ(CreateAndDestroy(), KVRUN_INVALID_ARGUMENT);
  EXPECT_NE(LastError().find("\"1/0\""), std::string::npos);
  Ask({{"method", nullptr}});
  EXPECT_EQ(CreateAndDestroy(), KVRUN_INVALID_ARGUMENT);
  EXPECT_NE(LastError().find("kv_options[].value"), std::string::npos);
  options_.kv_options = nullptr;
  EXPECT_EQ(CreateAndDestroy(), KVRUN_INVALID_ARGUMENT);
  EXPECT_NE(LastError().find("'kv_options'"), std::string::npos);
}

TEST_F(CapiKvTest, WhatIsResidentKeepsToItsBudgetToo) {
  const uint64_t full_bytes = uint64_t{128} * 128;  // 128 bytes per token of f16
  const std::string enough = std::to_string(full_bytes);
  Ask({{"budget", enough.c_str()}});
  EXPECT_EQ(CreateAndDestroy(), KVRUN_OK) << LastError();
  EXPECT_FALSE(plan_.has_value());
  const std::string too_little = std::to_string(full_bytes - 1);
  Ask({{"budget", too_little.c_str()}});
  EXPECT_EQ(CreateAndDestroy(), KVRUN_OUT_OF_MEMORY);
}

TEST_F(CapiKvTest, ABudgetThatHoldsAllKvMeansFullInPlanSessionAndNotes) {
  Ask({{"budget", "1/1"}, {"rank", "4"}, {"adapter", "/is/not/read"}});
  const Json plan = Plan();
  EXPECT_EQ(plan["method"], "full");
  EXPECT_EQ(plan["budget_bytes"], 128 * 128);
  ASSERT_EQ(plan["notes"].size(), 1U);
  const std::string note = plan["notes"][0];
  EXPECT_NE(note.find("holds all KV of 128 tokens"), std::string::npos) << note;
  EXPECT_NE(note.find("rank, adapter"), std::string::npos) << note;
  kvrun_session* session = nullptr;
  ASSERT_EQ(kvrun_session_create(engine_, &options_, &session), KVRUN_OK) << LastError();
  EXPECT_FALSE(plan_.has_value()) << "nothing is kept in records";
  char* text = nullptr;
  EXPECT_EQ(kvrun_session_stats_json(session, &text), KVRUN_OK);
  EXPECT_EQ(ParseAndFree(text)["notes"].back(), note);
  kvrun_session_destroy(session);
}

TEST_F(CapiKvTest, ABudgetAloneMeansKvswap) {
  options_.n_ctx = 8192;
  options_.n_sequences = 2;
  Ask({{"budget", "1/2"}, {"dir", folder_.c_str()}, {"tmpfs", "on"}});
  const Json plan = Plan();
  EXPECT_EQ(plan["method"], "kvswap");
  EXPECT_EQ(plan["notes"].dump().find("KV budget"), std::string::npos) << plan["notes"];
  ASSERT_EQ(CreateAndDestroy(), KVRUN_OK) << LastError();
  ASSERT_TRUE(plan_.has_value());
  EXPECT_EQ(plan_->method.name, "kvswap");
  EXPECT_EQ(plan_->budget.bytes, plan["budget_bytes"]);
  Ask({{"budget", "1/2"}, {"method", "full"}});
  EXPECT_EQ(CreateAndDestroy(), KVRUN_OUT_OF_MEMORY) << "a method that is said is kept";
}

TEST_F(CapiKvTest, AShareThatIsTooSmallIsRaisedButBytesAreKept) {
  AskForKvswap({{"budget", "1/1000"}});
  const Json plan = Plan();
  ASSERT_EQ(plan["notes"].size(), 1U);
  EXPECT_NE(plan["notes"][0].get<std::string>().find("it is raised to "), std::string::npos);
  const uint64_t raised = plan["budget_bytes"];
  EXPECT_GT(raised, uint64_t{128} * 128 * 2 / 1000);
  ASSERT_EQ(CreateAndDestroy(), KVRUN_OK) << LastError();
  ASSERT_TRUE(plan_.has_value());
  EXPECT_EQ(plan_->budget.bytes, raised);
  EXPECT_EQ(Json(plan_->notes.for_people), plan["notes"]);
  const std::string enough = std::to_string(raised);
  AskForKvswap({{"budget", enough.c_str()}});
  EXPECT_EQ(CreateAndDestroy(), KVRUN_OK) << LastError();
  AskForKvswap({{"budget", "1"}});
  EXPECT_EQ(CreateAndDestroy(), KVRUN_OUT_OF_MEMORY);
  const std::string refusal = LastError();
  const size_t at = refusal.find("needs at least ");
  ASSERT_NE(at, std::string::npos) << refusal;
  const uint64_t least = std::stoull(refusal.substr(refusal.find('(', at) + 1));
  EXPECT_LE(least, raised) << "bytes may select fewer";
  const std::string too_little = std::to_string(least - 1);
  AskForKvswap({{"budget", too_little.c_str()}});
  EXPECT_EQ(CreateAndDestroy(), KVRUN_OUT_OF_MEMORY);
}

TEST_F(CapiKvTest, AStructFromBeforeTheOptionsIsAllDefaults) {
  std::vector<std::byte> memory(sizeof(options_), std::byte{0xFF});
  auto* older = reinterpret_cast<kvrun_session_options*>(memory.data());
  const auto older_bytes = static_cast<uint32_t>(offsetof(kvrun_session_options, kv_options));
  std::memcpy(memory.data(), &options_, older_bytes);
  older->struct_size = older_bytes;
  kvrun_session* session = nullptr;
  ASSERT_EQ(kvrun_session_create(engine_, older, &session), KVRUN_OK) << LastError();
  kvrun_session_destroy(session);
}

TEST_F(CapiKvTest, ThePlanOfTheDefaults) {
  const Json plan = Plan();
  EXPECT_EQ(plan["method"], "full");
  EXPECT_EQ(plan["full_bytes"], 128 * 128);
  EXPECT_EQ(plan["budget_bytes"], nullptr);
  EXPECT_EQ(plan["decode_bytes"], 128 * 128);
  EXPECT_EQ(plan["rank"], 0);
  EXPECT_EQ(plan["k_type"], "f16");
  for (const char* key : {"index", "heads", "policy", "adapter_kind"}) EXPECT_EQ(plan[key], nullptr) << key;
}

TEST_F(CapiKvTest, ThePlanSaysWhatTheBudgetBuys) {
  AskForKvswap({{"type", "fp8"},
                {"group", "4"},
                {"select", "32"},
                {"window", "16"},
                {"sinks", "3"},
                {"rank", "4"},
                {"index", "int8"},
                {"heads", "softmax"},
                {"policy", "lru"},
                {"reuse", "20"},
                {"adapter-kind", "plain"}});
  options_.n_sequences = 2;
  const Json plan = Plan();
  EXPECT_EQ(plan["method"], "kvswap");
  EXPECT_EQ(plan["full_bytes"], 2 * 128 * 128);
  EXPECT_NE(plan["line"].get<std::string>().find("kvswap"), std::string::npos);
  // As they were asked for; sinks are whole groups.
  const Json expected = {{"group", 4},  {"select", 32},    {"window", 16},       {"sinks", 4},
                         {"rank", 4},   {"index", "int8"}, {"heads", "softmax"}, {"policy", "lru"},
                         {"reuse", 20}, {"k_type", "fp8"}, {"v_type", "fp8"},    {"adapter_kind", "plain"}};
  for (const auto& [key, value] : expected.items()) EXPECT_EQ(plan[key], value) << key;
  uint64_t prefill_bytes = 0;
  uint64_t decode_bytes = 0;
  uint64_t last_bytes = UINT64_MAX;
  for (const Json& part : plan["parts"]) {
    const auto bytes = part["bytes"].get<uint64_t>();
    EXPECT_FALSE(part["name"].get<std::string>().empty());
    EXPECT_LE(bytes, last_bytes) << "the largest first";
    last_bytes = bytes;
    if (part["prefill"].get<bool>()) prefill_bytes += bytes;
    if (part["decode"].get<bool>()) decode_bytes += bytes;
  }
  EXPECT_GT(decode_bytes, 0U);
  EXPECT_EQ(plan["prefill_bytes"], prefill_bytes);
  EXPECT_EQ(plan["decode_bytes"], decode_bytes);
}

TEST_F(CapiKvTest, AFolderIsMadeByASessionAloneAndOnlyIfItCanBe) {
  const TemporaryFolder folder;
  const std::string kv_folder = folder.Path("kv");
  const auto is_there = [&kv_folder] { return std::filesystem::exists(kv_folder); };
  AskForKvswap({{"dir", kv_folder.c_str()}});
  Plan();
  EXPECT_FALSE(is_there()) << "a plan";
  AskForKvswap({{"dir", kv_folder.c_str()}, {"budget", "100"}});
  EXPECT_EQ(CreateAndDestroy(), KVRUN_OUT_OF_MEMORY);
  AskForKvswap({{"dir", kv_folder.c_str()}, {"rank", "4096"}});
  EXPECT_EQ(CreateAndDestroy(), KVRUN_INVALID_ARGUMENT);
  AskForKvswap({{"dir", kv_folder.c_str()}, {"adapter", "/no/such/file"}});
  EXPECT_EQ(CreateAndDestroy(), KVRUN_NOT_FOUND) << LastError();
  EXPECT_FALSE(is_there()) << "a session that could not be had";
  AskForKvswap({{"dir", kv_folder.c_str()}});
  EXPECT_EQ(CreateAndDestroy(), KVRUN_OK) << LastError();
  EXPECT_TRUE(is_there());

  const std::string deep = folder.Path("no/kv");
  AskForKvswap({{"dir", deep.c_str()}});
  char* text = nullptr;
  EXPECT_EQ(kvrun_kv_plan_json(model_, &options_, &text), KVRUN_IO_ERROR);
  EXPECT_NE(LastError().find("there is no folder " + folder.Path("no")), std::string::npos) << LastError();
  EXPECT_EQ(CreateAndDestroy(), KVRUN_IO_ERROR);
}

TEST_F(CapiKvTest, ThePlanReadsTheAdapter) {
  const TemporaryFolder folder;
  const std::string wrong = folder.Write("adapter.gguf", "no GGUF file");
  char* text = nullptr;
  AskForKvswap({{"adapter", wrong.c_str()}});
  EXPECT_EQ(kvrun_kv_plan_json(model_, &options_, &text), KVRUN_CORRUPT) << LastError();
  EXPECT_NE(LastError().find(wrong), std::string::npos) << LastError();
  EXPECT_EQ(text, nullptr);
}

TEST_F(CapiKvTest, ThePlanNeedsWhatTheSessionNeeds) {
  char* text = nullptr;
  EXPECT_EQ(kvrun_kv_plan_json(nullptr, &options_, &text), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(kvrun_kv_plan_json(model_, &options_, nullptr), KVRUN_INVALID_ARGUMENT);
  AskForKvswap({{"budget", "100"}});
  EXPECT_EQ(kvrun_kv_plan_json(model_, &options_, &text), KVRUN_OUT_OF_MEMORY);
  EXPECT_EQ(text, nullptr);
  Ask({});
  options_.n_sequences = 17;
  EXPECT_EQ(kvrun_kv_plan_json(model_, &options_, &text), KVRUN_INVALID_ARGUMENT);
  EXPECT_NE(LastError().find("17"), std::string::npos);
  EXPECT_EQ(kvrun_kv_plan_json(model_, nullptr, &text), KVRUN_OK) << LastError();
  EXPECT_EQ(ParseAndFree(text)["full_bytes"], 128 * 128) << "the context that a session would get";
}

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
  EXPECT_TRUE(kv["kept"].is_null()) << "of methods that evict only";
  EXPECT_TRUE(kv["states"].is_null()) << "of models with layers that keep no growing KV only";
  EXPECT_EQ(kv.size(), expected.size() + 5);
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
