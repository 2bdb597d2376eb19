// The KV cache in the C API: options by name, and what a budget buys.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "platform/io/seal.h"
#include "tests/support/capi_kv_fixture.h"
#include "tests/support/program_runner.h"

namespace kvrun {
namespace {

using testing::CapiKvTest;
using testing::LastError;
using testing::ParseAndFree;
using Json = nlohmann::json;

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

// Of one that is encrypted, what that takes, too, and records are as long as in its files.
TEST_F(CapiKvTest, ThePlanOfASessionThatIsKeptIsTheSessions) {
  const std::string path = path_ + ".session";
  options_.session = path.c_str();
  AskForKvswap();
  const Json plain = Plan();
  options_.session_key = [](void*, uint8_t* key) {
    std::fill_n(key, 32, uint8_t{7});
    return 0;
  };
  const auto seals = [](const Json& plan) {
    uint64_t bytes = 0;
    for (const Json& part : plan["parts"])
      bytes += part["name"] == "seals" ? part["bytes"].get<uint64_t>() : 0;
    return bytes;
  };
  EXPECT_EQ(seals(plain), 0U);
  const Json plan = Plan();
  EXPECT_GT(seals(plan), 100'000U) << "what is sealed on its way";
  if (!CheckEncryption().ok()) GTEST_SKIP() << CheckEncryption().message();
  EXPECT_EQ(CreateAndDestroy(), KVRUN_UNSUPPORTED) << "the fake keeps nothing";
  for (const char* ending : {"", ".kv"}) std::filesystem::remove(path + ending);
  ASSERT_TRUE(plan_.has_value());
  EXPECT_EQ(plan["decode_bytes"], plan_->decode_bytes());
  EXPECT_EQ(plan["prefill_bytes"], plan_->prefill_bytes());
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

TEST_F(CapiKvTest, ThePlanOfASessionThatIsKeptSaysWhereAndWhatItsKeyTakes) {
  if (kvrun_session_encryption() == KVRUN_ENCRYPTION_NONE) GTEST_SKIP() << "this build cannot encrypt";
  const auto seal_bytes = [](const Json& plan) {
    for (const Json& part : plan["parts"]) {
      if (part["name"] == "seals") return part["bytes"].get<uint64_t>();
    }
    return uint64_t{0};
  };
  AskForKvswap();
  EXPECT_EQ(Plan()["folder"], folder_);
  options_.session = "/nowhere/x.session";
  EXPECT_EQ(Plan()["folder"], "/nowhere");
  EXPECT_EQ(seal_bytes(Plan()), 0U);
  options_.session_key = [](void*, uint8_t* key) {
    for (uint8_t i = 0; i < 32; ++i) key[i] = i;
    return 0;
  };
  EXPECT_GT(seal_bytes(Plan()), 0U);
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

}  // namespace
}  // namespace kvrun
