// Plans of methods that evict: what options and budgets make of them, and what is refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/capi/kv_info.h"
#include "runtime/kv/plan/kv_method.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/plan/kv_plan_input.h"
#include "runtime/kv/planner/describe_plan.h"
#include "runtime/kv/planner/kv_options.h"
#include "tests/support/kv_plan_cases.h"
#include "tests/support/or_die.h"

namespace kvrun::testing {
namespace {

std::vector<std::string> EvictingMethods() {
  std::vector<std::string> names;
  for (const KvMethod& method : KvMethods()) {
    if (method.evicts()) names.emplace_back(method.name);
  }
  return names;
}

KvOptions OptionsOf(const std::string& line) {
  KvSettings settings;
  RunOrDie(ParseKvOptions("--kv-method " + line, &settings));
  return settings.kv;
}

KvPlan PlanFor(const std::string& line, uint32_t n_ctx = 8192, uint32_t n_sequences = 1) {
  return Plan(OptionsOf(line), kSmolLm2, n_ctx, n_sequences, 4096);
}

TEST(KeptPlan, ThereAreMethodsThatEvict) {
  EXPECT_EQ(EvictingMethods(),
            (std::vector<std::string>{"arkv", "h2o", "snapkv", "defensivekv", "lazyeviction"}));
}

TEST(KeptPlan, ListsAreOfKvHeadsAndEntriesByThemselves) {
  for (const std::string& method : EvictingMethods()) {
    SCOPED_TRACE(method);
    const KvPlan plan = PlanFor(method + " --kv-select 300", 8192, 2);
    ExpectSound(plan, kSmolLm2);
    EXPECT_EQ(plan.n_streams, 6U);
    EXPECT_EQ(plan.heads_per_sequence(), 3U);
    EXPECT_EQ(plan.of_kept().n_entries, 300U);
    EXPECT_EQ(plan.window.n_entries, 64U);
    EXPECT_EQ(plan.record.k_type, KvType::kF16);
    EXPECT_FALSE(plan.method.is_on_flash());
    EXPECT_TRUE(plan.method.needs_file()) << "prompts put aside what is kept";
  }
}

TEST(KeptPlan, EveryBudgetIsHeldAndUsed) {
  constexpr double kShares[] = {0.9,     0.75,     0.74,     0.5,      0.25,     0.24,
                                1 / 8.0, 1 / 13.0, 1 / 16.0, 1 / 20.0, 1 / 26.0, 1 / 34.0};
  for (const std::string& method : EvictingMethods()) {
    for (const double share : kShares) {
      for (const uint32_t n_sequences : {1U, 4U}) {
        SCOPED_TRACE(fmt::format("{} {} {}", method, share, n_sequences));
        KvOptions options = Unlimited(method);
        options.budget_fraction = share;
        const KvPlan plan = Plan(options, kSmolLm2, 8192, n_sequences, 4096);
        ExpectSound(plan, kSmolLm2);
        EXPECT_TRUE(plan.notes.for_people.empty());
        EXPECT_GT(plan.of_kept().n_entries, 100U);
        if (plan.of_kept().n_entries < plan.n_ctx) {
          EXPECT_GE(plan.decode_bytes(), plan.budget.bytes / 100 * 97);
        }
        // In bytes it is the same.
        options.budget_fraction.reset();
        options.budget_bytes = plan.budget.bytes;
        EXPECT_EQ(DescribePlan(Plan(options, kSmolLm2, 8192, n_sequences, 4096)), DescribePlan(plan));
      }
    }
  }
}

TEST(KeptPlan, LargerModelsKeepToTheirBudgets) {
  for (const std::string& method : EvictingMethods()) {
    for (const double share : {0.5, 1 / 8.0, 1 / 13.0, 1 / 34.0}) {
      KvOptions options = Unlimited(method);
      options.budget_fraction = share;
      const KvPlan plan = Plan(options, kLlama8b, 32768, 1, 4096);
      ExpectSound(plan, kLlama8b);
      EXPECT_GT(plan.of_kept().n_entries, 500U);
    }
  }
}

TEST(KeptPlan, OptionsKeepToTheBudgetToo) {
  for (const char* options :
       {"arkv --kv-precisions bytes", "arkv --kv-precisions entries", "arkv --kv-precisions original",
        "arkv --kv-precisions quantised", "arkv --kv-moments rows", "arkv --kv-shares heads",
        "arkv --kv-shares layers", "arkv --kv-shares layers --kv-precisions entries", "arkv --kv-type f32",
        "arkv --kv-type int8", "arkv --kv-type int4", "arkv --kv-type f16,int4", "h2o --kv-shares heads",
        "snapkv --kv-shares layers", "lazyeviction --kv-type int4 --kv-window 200",
        "defensivekv --kv-window 0"}) {
    for (const char* budget : {"--kv-budget 3/4", "--kv-budget 1/8", "--kv-budget 1/20", "--kv-budget 12M"}) {
      SCOPED_TRACE(fmt::format("{} {}", options, budget));
      ExpectSound(PlanFor(fmt::format("{} {}", options, budget)), kSmolLm2);
    }
    ExpectSound(PlanFor(options), kSmolLm2);
    ExpectSound(PlanFor(fmt::format("{} --kv-select 77", options)), kSmolLm2);
  }
}

// In the same types and beside the same window: the table of types gives better ones for more.
TEST(KeptPlan, MoreBudgetKeepsNoFewerEntries) {
  for (const std::string& method : EvictingMethods()) {
    for (const char* shares : {"even", "layers"}) {
      uint32_t last = 0;
      for (uint32_t mebibytes = 6; mebibytes <= 260; ++mebibytes) {
        const KvPlan plan = PlanFor(fmt::format(
            "{} --kv-type f16 --kv-window 64 --kv-shares {} --kv-budget {}M", method, shares, mebibytes));
        EXPECT_GE(plan.of_kept().n_entries, last) << method << " " << mebibytes;
        last = plan.of_kept().n_entries;
      }
      EXPECT_EQ(last, 8192U) << method;
    }
  }
}

TEST(KeptPlan, WithoutABudgetSelectSaysHowManyAreKept) {
  for (const std::string& method : EvictingMethods()) {
    for (const uint32_t n : {1U, 2U, 300U, 8191U, 8192U, 100000U}) {
      const KvPlan plan = PlanFor(fmt::format("{} --kv-select {}", method, n));
      ExpectSound(plan, kSmolLm2);
      EXPECT_EQ(plan.of_kept().n_entries, std::min(n, 8192U)) << method;
    }
    EXPECT_EQ(PlanFor(method + " --kv-select 0").of_kept().n_entries, 1U) << "one at least";
    const KvPlan all = PlanFor(method);
    ExpectSound(all, kSmolLm2);
    EXPECT_EQ(all.of_kept().n_entries, all.n_ctx);
    EXPECT_EQ(all.of_kept().most_entries, all.n_ctx);
  }
}

TEST(KeptPlan, SmallContextsAreFine) {
  for (const std::string& method : EvictingMethods()) {
    for (const uint32_t n_ctx : {1U, 3U, 15U, 16U, 17U, 63U, 64U, 65U, 255U, 257U}) {
      SCOPED_TRACE(fmt::format("{} {}", method, n_ctx));
      const KvPlan plan = PlanFor(method, n_ctx, 2);
      ExpectSound(plan, kSmolLm2);
      EXPECT_EQ(plan.of_kept().n_entries, n_ctx);
      ExpectSound(PlanFor(method + " --kv-budget 1/13", n_ctx, 2), kSmolLm2);
      ExpectSound(PlanFor(method + " --kv-budget 100%", n_ctx, 2), kSmolLm2);
    }
  }
}

TEST(KeptPlan, AShareThatIsTooSmallIsRaisedAndSaid) {
  for (const std::string& method : EvictingMethods()) {
    const KvPlan plan = PlanFor(method + " --kv-budget 1/1000");
    ExpectSound(plan, kSmolLm2);
    EXPECT_TRUE(plan.budget.is_raised);
    EXPECT_EQ(std::max(plan.prefill_bytes(), plan.decode_bytes()), plan.budget.bytes);
    EXPECT_GE(plan.of_kept().n_entries, 128U) << "fewer miss too much";
    ASSERT_EQ(plan.notes.for_people.size(), 1U);
    const std::string& note = plan.notes.for_people[0];
    EXPECT_NE(note.find(fmt::format("(188743 bytes), which is too small for the method {} and 8192 tokens",
                                    method)),
              std::string::npos)
        << note;
    EXPECT_NE(note.find("it is raised to "), std::string::npos) << note;
    EXPECT_EQ(BytesAfter(note, "raised to "), plan.budget.bytes);
    // What is asked for is kept, and so is the advice.
    const KvPlan asked = PlanFor(method + " --kv-budget 1/20 --kv-select 4000");
    EXPECT_EQ(asked.of_kept().n_entries, 4000U);
    ASSERT_EQ(asked.notes.for_people.size(), 1U);
    const size_t at = asked.notes.for_people[0].find("to stay within the share, keep at most ");
    ASSERT_NE(at, std::string::npos) << asked.notes.for_people[0];
    const uint64_t fits = std::stoull(asked.notes.for_people[0].substr(at + 39));
    const KvPlan less = PlanFor(fmt::format("{} --kv-budget 1/20 --kv-select {}", method, fits));
    EXPECT_FALSE(less.budget.is_raised) << fits;
    EXPECT_TRUE(
        PlanFor(fmt::format("{} --kv-budget 1/20 --kv-select {}", method, fits + 1)).budget.is_raised);
  }
}

TEST(KeptPlan, BytesThatAreTooFewAreRefusedWithWhatSuffices) {
  for (const std::string& method : EvictingMethods()) {
    for (const char* more :
         {"", " --kv-select 400", " --kv-window 30 --kv-type f16", " --kv-shares layers"}) {
      SCOPED_TRACE(method + more);
      KvOptions options = OptionsOf(method + more);
      options.budget_bytes = 100 * 1024;
      const Status status = Refusal(options);
      const std::string begin = fmt::format(
          "the KV budget of 100.0 KiB (102400 bytes) is too small: the method {} needs at least ", method);
      EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
      EXPECT_TRUE(status.message().starts_with(begin)) << status.message();
      EXPECT_TRUE(
          status.message().ends_with("raise the budget to that (--kv-budget), or shorten the context"))
          << status.message();
      const uint64_t smallest = BytesAfter(status.message(), "needs at least ");
      options.budget_bytes = smallest;
      const KvPlan plan = Plan(options);
      ExpectSound(plan, kSmolLm2);
      EXPECT_EQ(std::max(plan.prefill_bytes(), plan.decode_bytes()), smallest);
      options.budget_bytes = smallest - 1;
      ExpectMessage(Refusal(options), StatusCode::kOutOfMemory, std::to_string(smallest));
    }
    ExpectMessage(Refusal(OptionsOf(method + " --kv-budget 8M --kv-select 4000")), StatusCode::kOutOfMemory,
                  "); keep at most ");
    ExpectMessage(Refusal(OptionsOf(method + " --kv-budget 100K --kv-select 4000")), StatusCode::kOutOfMemory,
                  "no number of kept entries would fit: raise the budget");
  }
}

TEST(KeptPlan, WhatDoesNotGoWithAMethodIsRefused) {
  const auto expect_refused = [](const std::string& line, const std::string& option, const char* what) {
    const std::string method = line.substr(0, line.find(' '));
    ExpectMessage(Refusal(OptionsOf(line)), StatusCode::kInvalidArgument,
                  fmt::format("--kv-{} does not go with the KV method {}, which has no {}: leave it out",
                              option, method, what));
  };
  struct Case {
    const char* option;
    const char* value;
    const char* what;
  };
  for (const std::string& method : EvictingMethods()) {
    for (const Case& test : {Case{"sinks", "4", "pinned sinks"},
                             {"group", "4", "groups"},
                             {"reuse", "8", "reuse buffer"},
                             {"policy", "lru", "replacement policy"},
                             {"rank", "16", "index"},
                             {"index", "int4", "index"},
                             {"heads", "sum", "reduction of heads"},
                             {"mass", "0.9", "scores of an index"},
                             {"adapter", "a.gguf", "adapter"},
                             {"adapter-kind", "plain", "adapter"},
                             {"cluster", "8", "clusters"},
                             {"cluster-max", "8", "clusters"},
                             {"cluster-room", "8", "clusters"},
                             {"pending", "8", "clusters"},
                             {"upkeep", "8", "clusters"},
                             {"split", "2", "clusters"},
                             {"update", "static", "clusters"},
                             {"layout", "cluster", "clusters"},
                             {"representatives", "flash", "clusters"}}) {
      expect_refused(fmt::format("{} --kv-{} {}", method, test.option, test.value), test.option, test.what);
    }
    if (method == "arkv") continue;
    expect_refused(method + " --kv-precisions bytes", "precisions", "choice of precisions");
    expect_refused(method + " --kv-moments rows", "moments", "moments of attention");
  }
  for (const std::string method : {"full", "flexgen", "kvswap", "dynakv", "streaming", "quest"}) {
    if (method != "kvswap")  // it has shares of layers (KvPlanLayers)
      expect_refused(method + " --kv-shares heads", "shares", "shares of what is kept");
    expect_refused(method + " --kv-precisions bytes", "precisions", "choice of precisions");
    expect_refused(method + " --kv-moments rows", "moments", "moments of attention");
  }
}

TEST(KeptPlan, PrecisionsSayHowManyAListMayHave) {
  const auto most = [](const std::string& options) {
    return PlanFor("arkv --kv-select 300 " + options).of_kept().most_entries;
  };
  const KvPlan plan = PlanFor("arkv --kv-select 300");
  EXPECT_EQ(plan.of_kept().precisions, KeptPrecisions::kBytes);
  EXPECT_EQ(plan.of_kept().moments, AttentionMoments::kKeys);
  EXPECT_EQ(plan.of_kept().low_record.k_type, KvType::kFp8);
  EXPECT_EQ(plan.of_kept().most_entries,
            300 * plan.record.size_bytes() / plan.of_kept().low_record.size_bytes());
  EXPECT_GT(plan.of_kept().most_entries, 500U);
  for (const char* precisions : {"entries", "original", "quantised"}) {
    EXPECT_EQ(most(fmt::format("--kv-precisions {}", precisions)), 300U) << precisions;
  }
  // Twice an even share for a head, three times where layers share, too; never more than there are.
  EXPECT_EQ(most("--kv-precisions entries --kv-shares heads"), 600U);
  EXPECT_EQ(most("--kv-precisions entries --kv-shares layers"), 900U);
  EXPECT_EQ(most("--kv-shares heads"),
            2 * (300 * plan.record.size_bytes() / plan.of_kept().low_record.size_bytes()));
  EXPECT_EQ(PlanFor("h2o --kv-select 5000 --kv-shares layers").of_kept().most_entries, 8192U);
  // All in 8 bits take about half of the memory, so that a budget keeps more of them.
  const auto kept = [](const char* precisions) {
    return PlanFor(fmt::format("arkv --kv-budget 1/8 --kv-precisions {}", precisions)).of_kept().n_entries;
  };
  EXPECT_GT(kept("quantised"), kept("original") * 3 / 2);
  EXPECT_GT(kept("original"), kept("entries"));
  EXPECT_GT(kept("entries"), kept("bytes"));
}

// Nothing is lowered to what takes more.
TEST(KeptPlan, WhatHasFewBitsAlreadyIsNotLowered) {
  struct Case {
    const char* type;
    KvType low_k;
    KvType low_v;
  };
  for (const Case& test : {Case{"f32", KvType::kFp8, KvType::kFp8},
                           {"f16", KvType::kFp8, KvType::kFp8},
                           {"fp8", KvType::kFp8, KvType::kFp8},
                           {"int8", KvType::kInt8, KvType::kInt8},
                           {"int4", KvType::kInt4, KvType::kInt4},
                           {"f16,int4", KvType::kFp8, KvType::kInt4}}) {
    const KvPlan plan = PlanFor(fmt::format("arkv --kv-select 300 --kv-type {}", test.type));
    EXPECT_EQ(plan.of_kept().low_record.k_type, test.low_k) << test.type;
    EXPECT_EQ(plan.of_kept().low_record.v_type, test.low_v) << test.type;
    EXPECT_GE(plan.of_kept().most_entries, plan.of_kept().n_entries) << test.type;
  }
}

// The last rows of a prompt, or some of all of them.
TEST(KeptPlan, RowsThatAreObserved) {
  for (const std::string& method : EvictingMethods()) {
    const KvPlan plan = PlanFor(method);
    EXPECT_EQ(plan.of_kept().samples_rows, method == "h2o") << method;
    EXPECT_EQ(plan.of_kept().observed_rows, method == "h2o" ? 256U : 32U) << method;
    EXPECT_EQ(PlanFor(method, 20).of_kept().observed_rows, 20U) << method;
  }
}

TEST(KeptPlan, ThePlansLineSaysWhatIsKept) {
  const auto ends = [](const std::string& options, const std::string& end) {
    const std::string line = DescribePlan(PlanFor(options));
    EXPECT_TRUE(line.ends_with(end)) << line;
  };
  const std::string f16 = "; K f16, V f16; ";
  ends("h2o --kv-select 300", f16 +
                                  "300 of 8192 entries of each list are kept beside a window of 64; "
                                  "prefill in tiles of 8192");
  ends("snapkv --kv-window 32",
       f16 + "all 8192 entries of each list are kept beside a window of 32; prefill in tiles of 8192");
  const std::string arkv = f16 + "300 of 8192 entries of each list are kept beside a window of 64, ";
  ends("arkv --kv-select 300", arkv +
                                   "the best of them exact and as many of 8 bits as fit; "
                                   "prefill in tiles of 8192");
  ends("arkv --kv-select 300 --kv-precisions entries",
       arkv + "the best of them exact, the others in 8 bits; prefill in tiles of 8192");
  ends("arkv --kv-select 300 --kv-precisions original", arkv + "exact; prefill in tiles of 8192");
  ends("arkv --kv-select 300 --kv-precisions quantised --kv-shares layers",
       arkv + "in 8 bits, shares by layers; prefill in tiles of 8192");
  ends("arkv", f16 +
                   "all 8192 entries of each list are kept beside a window of 64, exact; "
                   "prefill in tiles of 8192");
}

TEST(KeptPlan, JsonHasWhatIsKept) {
  using Json = nlohmann::json;
  const Json arkv = capi::KvPlanInfo(PlanFor("arkv --kv-select 300 --kv-shares heads --kv-moments rows"));
  EXPECT_EQ(arkv["kept"], (Json{{"entries", 300},
                                {"most_entries", 1066},
                                {"shares", "heads"},
                                {"precisions", "bytes"},
                                {"moments", "rows"},
                                {"observed_rows", 32}}));
  EXPECT_EQ(arkv["select"], 300);
  EXPECT_EQ(arkv["on_flash"], false);
  EXPECT_EQ(arkv["group"], 1);
  EXPECT_EQ(arkv["sinks"], 0);
  EXPECT_EQ(arkv["reuse"], 0);
  for (const char* key : {"index", "heads", "mass", "clusters", "policy", "adapter_kind"}) {
    EXPECT_TRUE(arkv[key].is_null()) << key;
  }
  const Json h2o = capi::KvPlanInfo(PlanFor("h2o --kv-budget 1/13"));
  EXPECT_EQ(h2o["kept"]["precisions"], nullptr);
  EXPECT_EQ(h2o["kept"]["moments"], nullptr);
  EXPECT_EQ(h2o["kept"]["shares"], "even");
  EXPECT_EQ(h2o["select"], h2o["kept"]["entries"]);
  for (const char* method : {"full", "kvswap", "dynakv"}) {
    EXPECT_EQ(capi::KvPlanInfo(PlanFor(method))["kept"], nullptr) << method;
  }
}

}  // namespace
}  // namespace kvrun::testing
