// What every row of the table of methods keeps to, whatever it selects or forgets. A row that cannot is in a
// list, with the reason.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/kv/plan/kv_method.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/method_exclusions.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kConformanceContext = 160;
constexpr size_t kConformancePrompt = 100;
constexpr size_t kConformanceTokens = 8;

constexpr MethodExclusion kExclusions[] = {
    {"AllHeldIsFullAttention", "arkv-flash", "a part of its static set has 8 bits whatever the budget"},
    {"ABatchIsEachAlone", "kvswap", "adapters are learned from the first prompt, and are all sequences'"},
    {"ABatchIsEachAlone", "arkv-flash", "as kvswap"},
    {"ABatchIsEachAlone", "loki", "as kvswap"},
    {"ABatchIsEachAlone", "infinigen", "as kvswap"},
    {"ABatchIsEachAlone", "infinigen*", "as kvswap"},
    {"ABatchIsEachAlone", "dynakv",
     "a prompt's clusters begin with keys drawn by the sequence's number, too"},
};

class MethodConformance : public ::testing::TestWithParam<KvMethod> {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    loaded_ = LoadSmallModel(SmallModels().front(), folder_);  // the self-made one, which is always there
  }

  bool IsExcludedHere() const {
    const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    return IsExcluded(kExclusions, test.substr(0, test.find('/')), GetParam().name);
  }

  // A third of the KV, or what the method takes at the least: full takes all, in 8 bits.
  std::string Usual() const { return GetParam().needs_file() ? "--kv-budget 1/3" : "--kv-type int8"; }
  // As much as there is, and nothing rounded.
  std::string Everything() const {
    const KvMethod& method = GetParam();
    if (method.counts_groups()) return "--kv-type f32 --kv-select 4096 --kv-window 6";
    return method.selects() ? "--kv-type f32 --kv-window 4096" : "--kv-type f32";
  }

  std::unique_ptr<ForwardPass> NewPass(const std::string& options, uint32_t n_sequences = 1) {
    const bool is_resident = !GetParam().needs_file() && options == "--kv-type f32";
    if (is_resident) return NewFull(n_sequences);
    auto offloaded =
        OffloadedOptionsOrDie(loaded_, folder_, fmt::format("--kv-method {} {}", GetParam().name, options),
                              kConformanceContext, n_sequences);
    plan_ = offloaded->plan;
    return loaded_.NewPass(
        {.n_sequences = n_sequences, .n_ctx = kConformanceContext, .offloaded = std::move(offloaded)});
  }
  std::unique_ptr<ForwardPass> NewFull(uint32_t n_sequences = 1) {
    return loaded_.NewPass({.n_sequences = n_sequences,
                            .n_ctx = kConformanceContext,
                            .kv_type = KvType::kF32,
                            .offloaded = nullptr});
  }

  size_t n_vocab() const { return loaded_.model->config.n_vocab; }

  // The logits of a prompt's last token, and of tokens one by one.
  std::vector<float> Say(ForwardPass& pass, size_t seed, uint32_t sequence = 0) const {
    const std::vector<int> ids = SomeIds(kConformancePrompt + kConformanceTokens, seed, n_vocab());
    std::vector<float> said = Feed(pass, ids, 0, kConformancePrompt, kConformancePrompt, sequence);
    for (size_t at = kConformancePrompt; at < ids.size(); ++at) {
      const std::vector<float> logits = Feed(pass, ids, at, at + 1, 1, sequence);
      said.insert(said.end(), logits.begin(), logits.end());
    }
    return said;
  }

  void ExpectSameLogits(std::span<const float> expected, std::span<const float> found) const {
    const LogitsDifference difference = CompareLogits(expected, found, n_vocab());
    EXPECT_LE(difference.max_absolute, 2e-3);
    EXPECT_EQ(difference.wrong_top1, 0U);
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
  KvPlan plan_;
};

INSTANTIATE_TEST_SUITE_P(All, MethodConformance, ::testing::ValuesIn(KvMethods().begin(), KvMethods().end()),
                         MethodTestName);

TEST_P(MethodConformance, AllHeldIsFullAttention) {
  if (IsExcludedHere()) return;
  const LogitsDifference difference =
      CompareLogits(Say(*NewFull(), 3), Say(*NewPass(Everything()), 3), n_vocab());
  EXPECT_LE(difference.max_absolute, 0.02);
  EXPECT_EQ(difference.wrong_top1, 0U);
}

// What the device holds for KV after prompts and tokens, with what lies on the host (tables of slots, lists,
// checksums, staging) not counted, is at most what the plan says; nor is less planned than is held.
TEST_P(MethodConformance, MemoryStaysWithinThePlan) {
  std::vector<std::string> budgets = {Usual()};
  if (GetParam().needs_file()) budgets.emplace_back("--kv-budget 90%");
  for (const std::string& options : budgets) {
    SCOPED_TRACE(options);
    const uint64_t before = KvBytesInUse(loaded_);
    const auto pass = NewPass(options, 2);
    Say(*pass, 3);
    Say(*pass, 4, 1);
    const uint64_t planned = std::max(plan_.decode_bytes(), plan_.prefill_bytes());
    EXPECT_GT(KvBytesInUse(loaded_), before);
    EXPECT_LE(KvBytesInUse(loaded_) - before, planned);
    EXPECT_LE(planned, plan_.budget.bytes);
  }
}

TEST_P(MethodConformance, SaysTheSameAgain) {
  const std::vector<float> said = Say(*NewPass(Usual()), 3);
  EXPECT_EQ(said, Say(*NewPass(Usual()), 3));
}

// Other text was there before: nothing of it is left. What is learned from a session's first prompt is.
TEST_P(MethodConformance, FromTheBeginningItIsAsNew) {
  const auto pass = NewPass(Usual());
  const std::vector<float> expected = Say(*pass, 3);
  Say(*pass, 5);
  EXPECT_EQ(expected, Say(*pass, 3));
}

TEST_P(MethodConformance, ABatchIsEachAlone) {
  if (IsExcludedHere()) return;
  // As much for each as alone, whatever a share of two contexts would be rounded to.
  const std::string options = GetParam().counts_groups() ? "--kv-type f32 --kv-select 32 --kv-window 16"
                              : GetParam().evicts()      ? "--kv-type f32 --kv-select 48 --kv-window 16"
                                                         : "--kv-type f32 --kv-window 16";
  const std::string usual = GetParam().needs_file() ? options : "--kv-type int8";
  const auto both = NewPass(usual, 2);
  for (const uint32_t sequence : {0U, 1U}) {
    SCOPED_TRACE(sequence);
    const std::vector<float> alone = Say(*NewPass(usual), 3 + sequence);
    ExpectSameLogits(alone, Say(*both, 3 + sequence, sequence));
  }
}

// A draft, of which a part is taken back, says what its tokens say one by one.
TEST_P(MethodConformance, ADraftIsItsTokensOneByOne) {
  constexpr size_t kDraft = 5;
  const std::vector<int> ids = SomeIds(kConformancePrompt + kDraft, 3, n_vocab());
  const std::vector<int> others = SomeIds(kConformancePrompt + kDraft, 4, n_vocab());
  const auto one_by_one = NewPass(Usual());
  const auto drafted = NewPass(Usual());
  Feed(*one_by_one, ids, 0, kConformancePrompt, kConformancePrompt);
  Feed(*drafted, ids, 0, kConformancePrompt, kConformancePrompt);
  std::vector<float> expected;
  for (size_t at = kConformancePrompt; at < ids.size(); ++at) {
    const std::vector<float> logits = Feed(*one_by_one, ids, at, at + 1, 1);
    expected.insert(expected.end(), logits.begin(), logits.end());
  }
  ForwardStep draft;
  draft.Add(SpanKind::kVerify, std::span(ids).subspan(kConformancePrompt), kConformancePrompt, 0);
  std::vector<float> found(kDraft * n_vocab());
  RunOrDie(drafted->Run(draft, std::vector<uint32_t>{0, 1, 2, 3, 4}, found));
  ExpectSameLogits(expected, found);
  // Two of them are right, and others follow.
  const size_t right = kConformancePrompt + 2;
  ExpectSameLogits(Feed(*one_by_one, others, right, right + 3, 1),
                   Feed(*drafted, others, right, right + 3, 1));
}

// What a server has at once: a prompt, a token of an answer, and a draft.
TEST_P(MethodConformance, AStepOfSeveralKindsIsItsSpansOneAfterAnother) {
  const std::vector<int> ids = SomeIds(kConformancePrompt + kConformanceTokens, 3, n_vocab());
  const auto text = [&](uint32_t begin, uint32_t end) { return std::span(ids).subspan(begin, end - begin); };
  const auto begin = [&] {
    auto pass = NewPass(Usual(), 3);
    Feed(*pass, ids, 0, 70, 70, 0);
    Feed(*pass, ids, 0, 90, 90, 2);
    return pass;
  };
  const auto apart = begin();
  std::vector<float> expected = Feed(*apart, ids, 0, 60, 60, 1);
  for (const auto& [at, sequence] : {std::pair(70U, 0U), {90U, 2U}, {91U, 2U}, {92U, 2U}}) {
    const std::vector<float> logits = Feed(*apart, ids, at, at + 1, 1, sequence);
    expected.insert(expected.end(), logits.begin(), logits.end());
  }
  ForwardStep step;  // rows 0; 1 to 60; 61 to 63
  step.Add(SpanKind::kDecode, text(70, 71), 70, 0);
  step.Add(SpanKind::kPrompt, text(0, 60), 0, 1);
  step.Add(SpanKind::kVerify, text(90, 93), 90, 2);
  const auto together = begin();
  std::vector<float> found(expected.size());
  RunOrDie(together->Run(step, std::vector<uint32_t>{60, 0, 61, 62, 63}, found));
  ExpectSameLogits(expected, found);
}

TEST(MethodConformanceList, NamesRowsOfTheTable) { ExpectRowsOfTheTable(kExclusions); }

}  // namespace
}  // namespace kvrun::testing
