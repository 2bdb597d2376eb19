// A short prompt after a long text, whose rows choose together what they attend to (--kv-later-prompts):
// where they choose everything it is the prompt that reads everything, and what it leaves behind is as good a
// past.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/engine/session/session_kv.h"
#include "runtime/kv/plan/kv_method.h"
#include "runtime/kv/serve/record_cache.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/small_models.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kLaterContext = 640;
constexpr uint32_t kTextEntries = 500;  // entries, then the question
constexpr uint32_t kQuestionTokens = 13;

class LaterPrompts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    loaded_ = LoadSmallModel({"SelfMade", ""}, folder_);
  }

  std::unique_ptr<ForwardPass> NewPass(const std::string& way, const std::string& options,
                                       uint32_t n_sequences = 1) {
    auto offloaded = OffloadedOptionsOrDie(
        loaded_, folder_, fmt::format("--kv-window 6 --kv-later-prompts {} --kv-method {}", way, options),
        kLaterContext, n_sequences);
    // A slow flash, which takes as long for records that lie apart.
    offloaded->plan.flash_times = FlashTimes{.reads_per_s = 1e3, .bytes_per_s = 1e6};
    plan_ = offloaded->plan;
    return loaded_.NewPass(
        {.n_sequences = n_sequences, .n_ctx = kLaterContext, .offloaded = std::move(offloaded)});
  }
  size_t n_vocab() const { return loaded_.model->config.n_vocab; }
  std::vector<int> Ids(size_t seed = 3) const { return SomeIds(kLaterContext, seed, n_vocab()); }
  bool is_host() const { return loaded_.device->info().driver == "kvrun host"; }
  static LaterPromptsReport ReportOf(const ForwardPass& pass) { return pass.kv_report()->later_prompts; }

  // Logits of the question's last token, and of some that follow it one by one.
  std::vector<float> Ask(ForwardPass& pass, std::span<const int> ids, uint32_t sequence = 0) const {
    std::vector<float> said =
        Feed(pass, ids, kTextEntries, kTextEntries + kQuestionTokens, kQuestionTokens, sequence);
    for (uint32_t i = kTextEntries + kQuestionTokens; i < kTextEntries + kQuestionTokens + 10; ++i) {
      const std::vector<float> more = Feed(pass, ids, i, i + 1, 1, sequence);
      said.insert(said.end(), more.begin(), more.end());
    }
    return said;
  }
  std::vector<float> ReadAndAsk(ForwardPass& pass, uint32_t sequence = 0) const {
    Feed(pass, Ids(), 0, kTextEntries, kTextEntries, sequence);
    return Ask(pass, Ids(), sequence);
  }
  void ExpectSame(std::span<const float> expected, std::span<const float> found) const {
    if (is_host()) {
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), found.begin(), found.end()));
    }
    EXPECT_LE(CompareLogits(expected, found, n_vocab()).mean_kl, 0.01);
  }

  // Those whose KV heads have one list.
  std::vector<std::string> Methods() const {
    std::vector<std::string> methods;
    for (const KvMethod& method : KvMethods()) {
      const bool is_needed = is_host() || method.name == "kvswap";
      const bool scores = method.selector == KvSelectorKind::kTopGroups && method.may_have_statics();
      KvSettings settings;
      if (!scores || !method.has_index() || !is_needed) continue;
      RunOrDie(
          ParseKvOptions(fmt::format("--kv-method {} --kv-later-prompts selected", method.name), &settings));
      const auto plan = OffloadedOptionsOf(settings);
      if (plan.ok()) methods.emplace_back(method.name);
    }
    return methods;
  }
  Result<OffloadedPassOptions> OffloadedOptionsOf(KvSettings settings) const {
    settings.storage.folder = folder_.Path("kv");
    settings.storage.allow_tmpfs = true;
    return PrepareOffloadedPass(*loaded_.model, settings, kLaterContext, 1);
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
  KvPlan plan_;
};

TEST_F(LaterPrompts, WhatChoosesEverythingIsAsIfAllWereRead) {
  const std::vector<std::string> methods = Methods();
  size_t n_tried = 0;
  for (const std::string& method : methods) {
    SCOPED_TRACE(method);
    const std::string options = method + " --kv-select 4096";
    const auto exact = NewPass("exact", options);
    const std::vector<float> expected = ReadAndAsk(*exact);
    const auto chooses_all = [this](const KvLayerPlan& layer) {
      return layer.n_chosen >= plan_.n_choosable();
    };
    if (!std::all_of(plan_.layers.begin(), plan_.layers.end(), chooses_all)) continue;
    ++n_tried;
    EXPECT_EQ(ReportOf(*exact).n_exact, 1U);
    EXPECT_EQ(ReportOf(*exact).n_selected, 0U);
    const auto selected = NewPass("selected", options);
    ExpectSame(expected, ReadAndAsk(*selected));
    EXPECT_EQ(ReportOf(*selected).n_exact, 0U);
    EXPECT_EQ(ReportOf(*selected).n_selected, 1U);
    EXPECT_EQ(ReportOf(*selected).share_sum, 1.0);
  }
  EXPECT_GE(n_tried, is_host() ? 3U : 1U);
}

// Keys and values of the first layer follow from the tokens alone: wherever they lay in the tile, what is
// stored of the question is the same. What later layers make of a part of the text differs, but not much.
TEST_F(LaterPrompts, APartOfTheTextIsNearlyAsGood) {
  for (const char* options :
       {"kvswap --kv-select 160 --kv-static 0", "kvswap --kv-select 160 --kv-static 0.25",
        "arkv-flash --kv-select 160", "infinigen* --kv-select 160"}) {
    SCOPED_TRACE(options);
    if (!is_host() && std::string_view(options).substr(0, 6) != "kvswap") continue;
    const auto exact = NewPass("exact", options);
    const std::vector<float> expected = ReadAndAsk(*exact);
    const auto selected = NewPass("selected", options);
    const std::vector<float> found = ReadAndAsk(*selected);
    EXPECT_EQ(ReportOf(*selected).n_selected, 1U);
    EXPECT_LT(ReportOf(*selected).share_sum, 0.9) << "else nothing is left out";
    EXPECT_GT(ReportOf(*selected).share_sum, 0.2);
    EXPECT_NE(expected, found);
    // Its static set is in two precisions, and is chosen again by what is there.
    const double bound = std::string_view(options).substr(0, 4) == "arkv" ? 0.2 : 0.08;
    EXPECT_LE(CompareLogits(expected, found, n_vocab()).mean_kl, bound);
    // A further prompt stores the groups that were not whole.
    for (ForwardPass* pass : {exact.get(), selected.get()})
      Feed(*pass, Ids(), kTextEntries + kQuestionTokens, 560, 60);
    const uint32_t first = kTextEntries / plan_.record.group_tokens;
    const uint32_t n = kQuestionTokens / plan_.record.group_tokens;
    std::vector<std::byte> stored[2];
    for (size_t i = 0; i < 2; ++i) {
      stored[i].resize(n * plan_.record.size_bytes());
      RunOrDie((i == 0 ? exact : selected)->record_cache()->prompts().ReadGroups(0, 0, first, n, stored[i]));
    }
    if (is_host()) {
      EXPECT_EQ(stored[0], stored[1]);
    }
  }
}

TEST_F(LaterPrompts, OthersDoNotMatter) {
  const std::string options = "kvswap --kv-select 96 --kv-static 0.25";
  const auto alone = NewPass("selected", options);
  const std::vector<float> expected = ReadAndAsk(*alone);
  // The same adapters: the first prompt's.
  const auto several = NewPass("selected", options, 3);
  Feed(*several, Ids(), 0, kTextEntries, kTextEntries, 1);
  Feed(*several, Ids(8), 0, 300, 300, 0);
  Feed(*several, Ids(9), 0, 400, 400, 2);
  Feed(*several, Ids(9), 400, 420, 20, 2);
  ExpectSame(expected, Ask(*several, Ids(), 1));
}

TEST_F(LaterPrompts, WhatIsAskedAnewAfterATruncationIsTheSame) {
  const auto pass = NewPass("selected", "kvswap --kv-select 96 --kv-static 0");
  const std::vector<float> expected = ReadAndAsk(*pass);
  ExpectSame(expected, Ask(*pass, Ids()));
  // Given up in its midst.
  uint64_t asked = 0;
  pass->SetProgress([&](uint64_t, uint64_t) { return ++asked > 1; });
  ForwardStep rows;
  for (uint32_t i = kTextEntries; i < kTextEntries + 9; ++i) rows.Add(SpanKind::kPrompt, {Ids(7)[i], i, 0});
  EXPECT_EQ(pass->Run(rows, {}, {}).code(), StatusCode::kCancelled);
  pass->SetProgress({});
  ExpectSame(expected, Ask(*pass, Ids()));
}

TEST_F(LaterPrompts, StaysWithinThePlan) {
  for (const char* budget : {"1/2", "1/4", "1/6"}) {
    SCOPED_TRACE(budget);
    const uint64_t before = KvBytesInUse(loaded_);
    const auto pass = NewPass("selected", fmt::format("kvswap --kv-budget {}", budget));
    Feed(*pass, Ids(), 0, kTextEntries, kTextEntries);
    uint64_t most = 0;
    pass->SetProgress([&](uint64_t, uint64_t) {
      most = std::max(most, KvBytesInUse(loaded_) - before);
      return false;
    });
    Feed(*pass, Ids(), kTextEntries, kTextEntries + kQuestionTokens, kQuestionTokens);
    EXPECT_LE(most, plan_.prefill_bytes());
    EXPECT_GT(most, 0U);
  }
}

TEST_F(LaterPrompts, AutoSelectsWhereThatIsClearlyLess) {
  const auto little = NewPass("auto", "kvswap --kv-select 48 --kv-static 0");
  ReadAndAsk(*little);
  EXPECT_EQ(ReportOf(*little).n_selected, 1U);
  const auto much = NewPass("auto", "kvswap --kv-select 160 --kv-static 0");
  ReadAndAsk(*much);
  EXPECT_EQ(ReportOf(*much).n_exact, 1U);
  // Nearly as long as the text: it pays to read that.
  Feed(*little, Ids(), kTextEntries, kTextEntries + 2, 2);
  little->ResetKvReport();
  Feed(*little, Ids(), 20, 320, 300);
  EXPECT_EQ(ReportOf(*little).n_selected, 0U);
}

TEST_F(LaterPrompts, MethodsWithListsOfEachHeadRefuseIt) {
  KvSettings settings;
  RunOrDie(ParseKvOptions("--kv-method prkv --kv-later-prompts selected", &settings));
  const auto refused = OffloadedOptionsOf(settings);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("--kv-later-prompts selected"), std::string::npos);
}

}  // namespace
}  // namespace kvrun::testing
