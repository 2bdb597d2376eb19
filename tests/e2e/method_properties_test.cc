// What every row of the table of methods keeps to over histories that nobody has thought of
// (tests/support/method_history.h), the same for all methods. The model is the tokens of each sequence, and
// what `full` in memory says after them.
//
// A history that fails is printed; KVRUN_SEED=<its seed> KVRUN_HISTORIES=1 runs it again.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "platform/io/block_file.h"
#include "runtime/engine/session/session_kv.h"
#include "runtime/kv/plan/kv_method.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/method_exclusions.h"
#include "tests/support/method_history.h"
#include "tests/support/method_history_run.h"
#include "tests/support/mischievous_file.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/seeds.h"
#include "tests/support/small_models.h"

namespace kvrun::testing {
namespace {

constexpr uint64_t kUsualHistories = 5;

constexpr MethodExclusion kExclusionsOfProperties[] = {
    {"AllHeldIsFullAttention", "arkv-flash", "a part of its static set has 8 bits whatever the budget"},
    {"APromptThatFailsLeavesOthersAsTheyWere", "arkv-flash",
     "how many entries keep their precision is the mean of what all sequences' prompts say"},
};

class MethodProperties : public ::testing::TestWithParam<KvMethod> {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    loaded_ = LoadSmallModel(SmallModels().front(), folder_);
    ASSERT_EQ(loaded_.model->config.n_vocab, kHistoryVocabulary);
  }

  // As much as there is, and nothing rounded.
  std::string Everything() const {
    const KvMethod& method = GetParam();
    if (method.counts_groups()) return "--kv-type f32 --kv-select 4096 --kv-window 6";
    return method.selects() ? "--kv-type f32 --kv-window 4096" : "--kv-type f32";
  }
  // A third of the KV, or what the method takes at the least: full takes all, in 8 bits.
  std::string Usual() const { return GetParam().needs_file() ? "--kv-budget 1/3" : "--kv-type int8"; }
  // Some of it, and nothing rounded.
  std::string SomeExact() const {
    const KvMethod& method = GetParam();
    if (method.counts_groups()) return "--kv-type f32 --kv-select 32 --kv-window 16";
    if (method.evicts()) return "--kv-type f32 --kv-select 48 --kv-window 16";
    return method.needs_file() ? "--kv-type f32 --kv-window 16" : "--kv-type f32";
  }

  KvPlan PlanOf(const std::string& options, uint32_t n_sequences) const {
    KvSettings settings;
    settings.storage.folder = folder_.Path("kv");
    settings.storage.allow_tmpfs = true;
    RunOrDie(ParseKvOptions(fmt::format("--kv-method {} {}", GetParam().name, options), &settings));
    return OrDie(PlanSessionKv(*loaded_.model, settings, kHistoryContext, n_sequences));
  }

  std::unique_ptr<BlockFile> NewFile(Mischief& mischief, uint32_t queue_depth) const {
    const BlockFileOptions options{
        .folder = folder_.Path("kv"), .queue_depth = queue_depth, .allow_tmpfs = true};
    return std::make_unique<MischievousFile>(OrDie(CreateBlockFile(options)), mischief);
  }

  std::unique_ptr<ForwardPass> NewPass(const KvPlan& plan, Mischief& mischief) const {
    return NewHistoryPass(loaded_, plan,
                          [&](PassFile, uint32_t queue_depth) { return NewFile(mischief, queue_depth); });
  }

  SaidInHistory Run(const History& history, const KvPlan& plan, Troubles troubles) const {
    const uint64_t bytes_before = KvBytesInUse(loaded_);
    Mischief mischief;
    const auto pass = NewPass(plan, mischief);
    return RunHistory(history, plan, loaded_, bytes_before, *pass, mischief, troubles);
  }

  // What `full` in memory says, given each sequence's tokens from the first on, whatever has led to them. For
  // all methods the same.
  const std::vector<std::vector<float>>& FullOf(const History& history) const {
    static std::map<uint64_t, std::vector<std::vector<float>>> of_seeds;
    const auto [found, is_new] = of_seeds.try_emplace(history.seed);
    if (!is_new) return found->second;
    const auto pass = loaded_.NewPass(
        {.n_sequences = 1, .n_ctx = kHistoryContext, .kv_type = KvType::kF32, .offloaded = nullptr});
    std::vector<std::vector<int>> texts(history.n_sequences);
    for (const StepOfHistory& step : history.steps) {
      std::vector<float>& logits = found->second.emplace_back();
      for (const SpanOfHistory& span : step.spans) {
        std::vector<int>& text = texts[span.sequence];
        text.resize(span.begin);
        if (step.is_abandoned) continue;
        text.insert(text.end(), span.ids.begin(), span.ids.end());
        const std::vector<float> of_span = LogitsOf(*pass, text, span.n_rows() - span.first_output());
        logits.insert(logits.end(), of_span.begin(), of_span.end());
        text.resize(span.begin + span.n_kept);
      }
    }
    return found->second;
  }

  // Calls `check` with each history, prints the one that fails, and ends with it. None, unless they are asked
  // for, on other devices than the CPU: what is looked for is in what the host does.
  template <class Check>
  void ForHistories(const Check& check) const {
    const Seeds seeds = SeedsHere(loaded_.device->info().kind == "cpu" ? kUsualHistories : 0);
    for (uint64_t seed = seeds.first; seed < seeds.end() && !HasFailure(); ++seed) {
      const History history = MakeHistory(seed);
      SCOPED_TRACE(Describe(history));
      check(history);
    }
  }

  // Histories without troubles would say little. What lies in memory has none.
  void ExpectTroubles(size_t n_failed, size_t n_cancelled) const {
    const bool is_usual = SeedsHere(0).n == 0 && loaded_.device->info().kind == "cpu";
    if (HasFailure() || !is_usual || !GetParam().needs_file()) return;
    EXPECT_GT(n_failed, 0U);
    EXPECT_GT(n_cancelled, 0U);
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
};

INSTANTIATE_TEST_SUITE_P(All, MethodProperties, ::testing::ValuesIn(KvMethods().begin(), KvMethods().end()),
                         MethodTestName);

TEST_P(MethodProperties, AllHeldIsFullAttention) {
  if (IsExcluded(kExclusionsOfProperties, "AllHeldIsFullAttention", GetParam().name)) return;
  size_t n_failed = 0;
  size_t n_cancelled = 0;
  ForHistories([&](const History& history) {
    KvPlan plan = PlanOf(Everything(), history.n_sequences);
    plan.prefill.spills_hidden = plan.method.needs_file();  // so that prompts read and write, too
    const SaidInHistory said = Run(history, plan, Troubles::kHappen);
    const std::vector<std::vector<float>>& expected = FullOf(history);
    for (size_t i = 0; i < history.steps.size() && !HasFailure(); ++i) {
      if (history.steps[i].is_abandoned) continue;
      const LogitsDifference difference = CompareLogits(expected[i], said.logits[i], kHistoryVocabulary);
      EXPECT_LE(difference.max_absolute, 0.02) << "step " << i;
      EXPECT_EQ(difference.wrong_top1, 0U) << "step " << i;
    }
    n_failed += said.n_failed;
    n_cancelled += said.n_cancelled;
  });
  ExpectTroubles(n_failed, n_cancelled);
}

TEST_P(MethodProperties, AHistoryRepeatsWithinThePlan) {
  ForHistories([&](const History& history) {
    const KvPlan plan = PlanOf(Usual(), history.n_sequences);
    EXPECT_LE(std::max(plan.decode_bytes(), plan.prefill_bytes()), plan.budget.bytes);
    const SaidInHistory said = Run(history, plan, Troubles::kHappen);
    if (HasFailure()) return;
    const SaidInHistory again = Run(history, plan, Troubles::kHappen);
    EXPECT_EQ(said.n_failed, again.n_failed);
    for (size_t i = 0; i < history.steps.size() && !HasFailure(); ++i) {
      EXPECT_TRUE(said.logits[i] == again.logits[i]) << "step " << i << " says something else";
    }
  });
}

// A step that has failed, or was cancelled, and is given again says what it says without that, and so does
// all that follows. Nothing is rounded where it is stored: what comes back from there is what it was.
TEST_P(MethodProperties, WhatFailedAndIsGivenAgainIsAsIfItHadNot) {
  size_t n_failed = 0;
  size_t n_cancelled = 0;
  ForHistories([&](const History& history) {
    const KvPlan plan = PlanOf(SomeExact(), history.n_sequences);
    const SaidInHistory said = Run(history, plan, Troubles::kHappen);
    if (HasFailure()) return;
    const SaidInHistory untroubled = Run(history, plan, Troubles::kLeftOut);
    EXPECT_EQ(untroubled.n_failed + untroubled.n_cancelled, 0U);
    const size_t n_same = std::min(said.n_same, untroubled.n_same);
    for (size_t i = 0; i < n_same && !HasFailure(); ++i) {
      EXPECT_TRUE(said.logits[i] == untroubled.logits[i]) << "step " << i << " says something else";
    }
    n_failed += said.n_failed;
    n_cancelled += said.n_cancelled;
  });
  ExpectTroubles(n_failed, n_cancelled);
}

// Whichever write of a prompt fails, another sequence goes on as if it had not, and at once.
TEST_P(MethodProperties, APromptThatFailsLeavesOthersAsTheyWere) {
  if (IsExcluded(kExclusionsOfProperties, "APromptThatFailsLeavesOthersAsTheyWere", GetParam().name)) return;
  const std::vector<int> ids = SomeIds(70, 3, kHistoryVocabulary);
  const KvPlan plan = PlanOf(SomeExact(), 2);
  // The token after a prompt of the other sequence; nothing: as many writes were not asked for.
  const auto say = [&](std::optional<uint32_t> n_good) {
    Mischief mischief;
    const auto pass = NewPass(plan, mischief);
    Feed(*pass, ids, 0, 60, 60, 0);
    Feed(*pass, ids, 0, 50, 50, 1);
    Feed(*pass, ids, 60, 64, 1, 0);
    if (n_good) mischief = {.fails = IoKind::kWrite, .n_good = *n_good};
    ForwardStep prompt;
    prompt.Add(SpanKind::kPrompt, std::span(ids).first(40), 0, 1);
    const Status status = pass->Run(prompt, {}, {});
    EXPECT_EQ(status.code(), mischief.n_failed > 0 ? StatusCode::kIo : StatusCode::kOk) << status.message();
    const bool is_beyond = n_good && mischief.n_failed == 0;
    mischief = {};
    return is_beyond ? std::vector<float>() : Feed(*pass, ids, 64, 65, 1, 0);
  };
  const std::vector<float> expected = say(std::nullopt);
  for (uint32_t n_good = 0; !HasFailure(); ++n_good) {
    SCOPED_TRACE(fmt::format("writes fail from number {} on", n_good));
    const std::vector<float> said = say(n_good);
    if (said.empty()) break;
    EXPECT_TRUE(said == expected) << "it differs by "
                                  << CompareLogits(expected, said, kHistoryVocabulary).max_absolute;
  }
}

TEST(MethodPropertiesList, NamesRowsOfTheTable) { ExpectRowsOfTheTable(kExclusionsOfProperties); }

}  // namespace
}  // namespace kvrun::testing
