// The search space of kvadapt tune: what a budget makes of a point, and which points lie beside it.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "offline/candidate.h"
#include "offline/step_sampler.h"
#include "runtime/kv/planner/plan_kv.h"
#include "tests/support/tune_cases.h"

namespace kvrun::offline {
namespace {

using testing::SettingFor;
using testing::SmolLm2Setting;

uint64_t NeededBytes(const KvPlan& plan) { return std::max(plan.prefill_bytes(), plan.decode_bytes()); }

// As a session plans what a config names.
Result<KvPlan> PlanOf(const NamedKvOptions& options, const SearchSetting& setting, bool from_file = false) {
  KVRUN_ASSIGN_OR_RETURN(KvSettings settings, SettingsOf(options, {}));
  settings.kv.budget_bytes = setting.budget_bytes;
  settings.kv.adapter_from_file = from_file;
  return PlanKv(settings.kv, setting.model, setting.ctx, setting.batch, setting.io_alignment_bytes);
}

void ExpectSamePlan(const KvPlan& a, const KvPlan& b) {
  EXPECT_EQ(a.choice.n_chosen, b.choice.n_chosen);
  EXPECT_EQ(a.slots.n_cache_slots, b.slots.n_cache_slots);
  EXPECT_EQ(a.choice.n_sampled, b.choice.n_sampled);
  EXPECT_EQ(a.choice.n_usual, b.choice.n_usual);
  EXPECT_EQ(a.slots.n_pool_slots, b.slots.n_pool_slots);
  EXPECT_EQ(a.choice.n_pinned, b.choice.n_pinned);
  EXPECT_EQ(a.n_statics(), b.n_statics());
  EXPECT_EQ(a.n_streams, b.n_streams);
  EXPECT_EQ(a.window.n_entries, b.window.n_entries);
  EXPECT_EQ(a.record.k_type, b.record.k_type);
  EXPECT_EQ(a.record.v_type, b.record.v_type);
  EXPECT_EQ(a.record.group_tokens, b.record.group_tokens);
  EXPECT_EQ(a.record.n_heads, b.record.n_heads);
  EXPECT_EQ(a.index.rank, b.index.rank);
  EXPECT_EQ(a.index.type, b.index.type);
  EXPECT_EQ(a.choice.heads, b.choice.heads);
  EXPECT_EQ(a.slots.policy, b.slots.policy);
  EXPECT_EQ(a.adapter.kind, b.adapter.kind);
}

// What holds for each candidate of a setting; `step`: of so many one is planned again from its options.
void ExpectSound(const SearchSetting& setting, size_t step) {
  const std::vector<SizedCandidate> all = AllCandidates(setting);
  ASSERT_FALSE(all.empty());
  size_t n_with_pool = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const SizedCandidate& sized = all[i];
    SCOPED_TRACE(OptionLine(sized.options));
    EXPECT_LE(NeededBytes(sized.plan), setting.budget_bytes);
    const bool has_pool = sized.candidate.pool_entries > 0;
    EXPECT_EQ(sized.plan.slots.n_pool_slots > 0, has_pool);
    if (has_pool) {
      const uint32_t sampled = sized.plan.choice.n_sampled * sized.plan.record.group_tokens;
      const uint32_t attended = sized.plan.selected_entries() + sampled;
      EXPECT_LE(attended, sized.candidate.pool_entries);
      // Groups in whole, and what is pinned cannot be chosen.
      EXPECT_GE(attended + 4 * sized.plan.record.group_tokens + 4, sized.candidate.pool_entries);
      n_with_pool += 1;
    } else {
      EXPECT_GE(sized.plan.slots.n_cache_slots, sized.plan.choice.n_chosen);
    }
    EXPECT_GT(sized.plan.choice.n_chosen, sized.plan.choice.n_pinned);
    EXPECT_TRUE(sized.plan.selected_entries() >= 64 || sized.plan.choice.n_chosen == sized.plan.n_groups());
    if (i % step == 0) {
      const Result<KvPlan> again = PlanOf(sized.options, setting, !sized.candidate.adapter.empty());
      ASSERT_TRUE(again.ok()) << again.status().message();
      ExpectSamePlan(*again, sized.plan);
      EXPECT_LE(NeededBytes(*again), setting.budget_bytes);
      SizedCandidate other_policy = sized;
      SetPolicy("non-hit", &other_policy);
      if (sized.plan.choice.n_chosen == sized.plan.slots.n_cache_slots && !has_pool) {
        const Result<KvPlan> planned =
            PlanOf(other_policy.options, setting, !sized.candidate.adapter.empty());
        ASSERT_TRUE(planned.ok()) << planned.status().message();
        ExpectSamePlan(*planned, [&] {
          KvPlan expected = sized.plan;
          expected.slots.policy = "non-hit";
          return expected;
        }());
      }
      const Result<SizedCandidate> sized_again = SizeCandidate(sized.candidate, setting);
      ASSERT_TRUE(sized_again.ok());
      EXPECT_EQ(sized_again->options, sized.options);
    }
    if (::testing::Test::HasFailure()) return;  // one is enough to read
  }
  const SizedCandidate& first = all.front();
  const bool all_have_slots = first.plan.choice.n_chosen == first.plan.n_groups();
  EXPECT_TRUE(n_with_pool > 0 || all_have_slots);
}

TEST(OfflineCandidate, AllFitTheBudgetAndAreWhatTheirOptionsSay) {
  ExpectSound(SmolLm2Setting(13), 211);
  ExpectSound(SmolLm2Setting(34), 101);
  ExpectSound(SmolLm2Setting(13, 4, 2048), 211);
  ExpectSound(SmolLm2Setting(1), 211);
}

TEST(OfflineCandidate, AdaptersOfAFileLimitTheRank) {
  SearchSetting setting = SmolLm2Setting(13);
  const size_t n_without = AllCandidates(setting).size();
  setting.adapter_path = "/there/a.gguf";
  setting.max_rank = 20;
  EXPECT_EQ(Ranks(setting, true), (std::vector<uint32_t>{4, 8, 12, 16, 20}));
  EXPECT_EQ(Ranks(setting, false), (std::vector<uint32_t>{4, 8, 12, 16, 20, 24, 32, 40, 48, 64, 96}));
  ExpectSound(setting, 211);
  size_t n_from_file = 0;
  size_t n_from_prompts = 0;
  for (const SizedCandidate& sized : AllCandidates(setting)) {
    ++(sized.candidate.adapter.empty() ? n_from_prompts : n_from_file);
    if (sized.candidate.adapter.empty()) continue;
    ASSERT_LE(sized.candidate.rank, 20U);
    ASSERT_EQ(sized.options.back(), std::pair(std::string("adapter"), setting.adapter_path));
  }
  EXPECT_EQ(n_from_prompts, n_without);
  EXPECT_GT(n_from_file, n_without / 3);
  setting.max_rank = 3;
  EXPECT_EQ(Ranks(setting, true), std::vector<uint32_t>{3});
}

TEST(OfflineCandidate, SmallAndStrangeModels) {
  const KvModelShape one_head = {.n_layers = 2, .n_heads = 4, .n_kv_heads = 1, .head_dim = 8, .n_embd = 32};
  const SearchSetting small = SettingFor(one_head, 256, 1);
  EXPECT_EQ(HeadReductions(small), std::vector<HeadReduction>{HeadReduction::kSoftmax})
      << "with one KV head, each for itself is the same";
  EXPECT_EQ(Ranks(small, false), std::vector<uint32_t>{4});
  SearchSetting roomy = small;
  roomy.budget_bytes *= 32;  // a small model's staging takes more than its KV
  ExpectSound(roomy, 7);
  const KvModelShape stories = {.n_layers = 5, .n_heads = 8, .n_kv_heads = 4, .head_dim = 8, .n_embd = 64};
  roomy = SettingFor(stories, 512, 1);
  roomy.budget_bytes *= 4;
  ExpectSound(roomy, 17);
  const KvModelShape tiny = {.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 2, .n_embd = 2};
  EXPECT_EQ(Ranks(SettingFor(tiny, 256, 1), false), std::vector<uint32_t>{1});
}

TEST(OfflineCandidate, ABudgetTooSmallIsRefused) {
  SearchSetting setting = SmolLm2Setting(13);
  setting.budget_bytes = 100000;
  EXPECT_TRUE(AllCandidates(setting).empty());
  EXPECT_EQ(SizeCandidate({}, setting).status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(BudgetsOwnChoice(setting).status().code(), StatusCode::kOutOfMemory);
}

TEST(OfflineCandidate, TheOwnChoiceIsWhatKvrunPlans) {
  for (const uint32_t divisor : {1U, 2U, 6U, 13U, 20U, 34U}) {
    for (const uint32_t batch : {1U, 4U}) {
      const SearchSetting setting = SmolLm2Setting(divisor, batch);
      SCOPED_TRACE(divisor);
      KvOptions options;
      options.method = "kvswap";
      options.budget_bytes = setting.budget_bytes;
      const Result<KvPlan> plan =
          PlanKv(options, setting.model, setting.ctx, setting.batch, setting.io_alignment_bytes);
      const Result<SizedCandidate> own = BudgetsOwnChoice(setting);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      ASSERT_TRUE(own.ok()) << own.status().message();
      ExpectSamePlan(own->plan, *plan);
      const Result<KvPlan> named = PlanOf(own->options, setting);
      ASSERT_TRUE(named.ok()) << named.status().message();
      ExpectSamePlan(*named, *plan);
      // The same point of the search space.
      const Result<SizedCandidate> sized = SizeCandidate(own->candidate, setting);
      ASSERT_TRUE(sized.ok()) << sized.status().message();
      EXPECT_EQ(sized->options, own->options);
    }
  }
}

TEST(OfflineCandidate, TheOwnChoiceReadsAsMuchAsFlashAllows) {
  for (const uint32_t divisor : {13U, 34U}) {
    SearchSetting setting = SmolLm2Setting(divisor);
    const uint32_t in_slots = BudgetsOwnChoice(setting)->plan.selected_entries();
    setting.flash_times = FlashTimes{.reads_per_s = 1e5, .layer_us = 3000.0};
    const Result<SizedCandidate> own = BudgetsOwnChoice(setting);
    ASSERT_TRUE(own.ok()) << own.status().message();
    EXPECT_GT(own->plan.selected_entries(), in_slots);
    EXPECT_EQ(own->candidate.pool_entries, own->plan.selected_entries());
    const Result<KvPlan> named = PlanOf(own->options, setting);
    ASSERT_TRUE(named.ok()) << named.status().message();
    ExpectSamePlan(*named, own->plan);
    const Result<SizedCandidate> sized = SizeCandidate(own->candidate, setting);
    ASSERT_TRUE(sized.ok()) << sized.status().message();
    EXPECT_EQ(sized->options, own->options);
  }
}

size_t Differences(const Candidate& a, const Candidate& b) {
  const bool differs[] = {a.group_tokens != b.group_tokens,
                          a.k_type != b.k_type || a.v_type != b.v_type,
                          a.rank != b.rank,
                          a.index_type != b.index_type,
                          a.heads != b.heads,
                          a.window_entries != b.window_entries,
                          a.chosen_percent != b.chosen_percent,
                          a.pool_entries != b.pool_entries,
                          a.sampled_share != b.sampled_share,
                          a.adapts != b.adapts,
                          a.reads_percent != b.reads_percent,
                          a.static_share != b.static_share,
                          a.policy != b.policy,
                          a.adapter != b.adapter};
  return static_cast<size_t>(std::count(std::begin(differs), std::end(differs), true));
}

TEST(OfflineCandidate, NeighboursOfAPool) {
  const SearchSetting setting = SmolLm2Setting(13);
  const auto changes_of = [&](const Candidate& from) {
    std::set<std::string> changes;
    for (const Neighbour& neighbour : Neighbours(from, setting)) changes.insert(neighbour.change);
    return changes;
  };
  Candidate from;
  from.k_type = KvType::kInt8;
  from.v_type = KvType::kInt4;
  EXPECT_TRUE(changes_of(from).contains("2048 entries read")) << "1,000 have slots";
  EXPECT_FALSE(changes_of(from).contains("adapt on"));
  from.pool_entries = 2048;
  for (const char* change : {"what has slots", "4096 entries read", "a sampled share of 0.4", "adapt on",
                             "a static share of 0.25"})
    EXPECT_TRUE(changes_of(from).contains(change)) << change;
  EXPECT_FALSE(changes_of(from).contains("80 % of the cache chosen"));
  from.sampled_share = 0.4;
  from.adapts = true;
  EXPECT_FALSE(changes_of(from).contains("a static share of 0.25")) << "it does not go with a sample";
  EXPECT_TRUE(changes_of(from).contains("adapt off"));
  for (const Neighbour& neighbour : Neighbours(from, setting)) {
    EXPECT_EQ(Differences(from, neighbour.candidate), neighbour.change == "what has slots" ? 3U : 1U)
        << neighbour.change;
  }
  from.pool_entries = 512;
  EXPECT_EQ(SizeCandidate(from, setting).status().code(), StatusCode::kOk) << "what is drawn has no slots";
  from.sampled_share = 0.0;
  EXPECT_EQ(SizeCandidate(from, setting).status().code(), StatusCode::kInvalidArgument);
}

TEST(OfflineCandidate, NeighboursDifferInOneThing) {
  const SearchSetting setting = SmolLm2Setting(13);
  Candidate odd;  // between the values that are looked at
  odd.window_entries = 50;
  odd.rank = 22;
  for (const Candidate& from : {Candidate{}, odd, BudgetsOwnChoice(setting)->candidate}) {
    std::set<std::string> changes;
    for (const Neighbour& neighbour : Neighbours(from, setting)) {
      EXPECT_EQ(Differences(from, neighbour.candidate), 1U) << neighbour.change;
      EXPECT_TRUE(changes.insert(neighbour.change).second) << neighbour.change << " twice";
    }
    EXPECT_TRUE(changes.contains("group 2") && changes.contains("group 8")) << "both sides";
    EXPECT_TRUE(changes.contains("heads per-kv-head"));
    const bool has_statics = from.static_share > 0.0;
    EXPECT_EQ(changes.contains("80 % of the cache chosen"), !has_statics) << "a set goes with M = C";
    EXPECT_TRUE(changes.contains(has_statics ? "a static share of 0" : "a static share of 0.25"));
    EXPECT_FALSE(changes.contains("group 16")) << "one step";
  }
  std::set<std::string> beside;
  for (const Neighbour& neighbour : Neighbours(odd, setting)) beside.insert(neighbour.change);
  for (const char* change : {"window 48", "window 64", "rank 20", "rank 24"})
    EXPECT_TRUE(beside.contains(change)) << change;
}

TEST(OfflineCandidate, OptionsReadAsOnACommandLine) {
  EXPECT_EQ(OptionLine({{"group", "4"}, {"type", "fp8,int4"}}), "--kv-group 4 --kv-type fp8,int4");
  EXPECT_EQ(OptionLine({}), "");
  EXPECT_EQ(TypeName(KvType::kInt4), "int4");
}

}  // namespace
}  // namespace kvrun::offline
