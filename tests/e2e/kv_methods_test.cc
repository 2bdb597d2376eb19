// Every method of the table: with everything selected, what the model says is what it says with all KV in
// memory, however groups or pages are cut.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/session/session_kv.h"
#include "runtime/kv/plan/kv_method.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kContext = 160;
constexpr size_t kTokens = 6;
constexpr size_t kPrompts[] = {100, 33, 121, 60};

class KvMethodsTest : public ::testing::TestWithParam<KvMethod> {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    loaded_ = LoadSmallModel(SmallModels().front(), folder_);  // the self-made one, which is always there
  }

  KvPlan plan_;
  std::unique_ptr<ForwardPass> NewPass(const std::string& options, uint32_t n_sequences) {
    auto offloaded = OffloadedOptionsOrDie(loaded_, folder_, options, kContext, n_sequences);
    plan_ = offloaded->plan;
    return loaded_.NewPass(
        {.n_sequences = n_sequences, .n_ctx = kContext, .offloaded = std::move(offloaded)});
  }
  std::unique_ptr<ForwardPass> NewFull(uint32_t n_sequences) {
    return loaded_.NewPass(
        {.n_sequences = n_sequences, .n_ctx = kContext, .kv_type = KvType::kF32, .offloaded = nullptr});
  }

  // Logits of tokens that all sequences say together after prompts of different lengths.
  std::vector<float> Say(ForwardPass& pass, uint32_t n_sequences) {
    const size_t n_vocab = loaded_.model->config.n_vocab;
    std::vector<std::vector<int>> ids;
    for (uint32_t s = 0; s < n_sequences; ++s) {
      ids.push_back(SomeIds(kPrompts[s] + kTokens, s, n_vocab));
      Feed(pass, ids[s], 0, kPrompts[s], kPrompts[s], s);
    }
    std::vector<float> said;
    for (size_t step = 0; step < kTokens; ++step) {
      ForwardStep rows;
      std::vector<uint32_t> outputs;
      for (uint32_t s = 0; s < n_sequences; ++s) {
        const size_t at = kPrompts[s] + step;
        rows.Add(SpanKind::kDecode, {ids[s][at], static_cast<uint32_t>(at), s});
        outputs.push_back(s);
      }
      std::vector<float> logits(n_sequences * n_vocab);
      RunOrDie(pass.Run(rows, outputs, logits));
      said.insert(said.end(), logits.begin(), logits.end());
    }
    return said;
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
};

std::vector<KvMethod> MethodsThatSelect() {
  std::vector<KvMethod> methods;
  for (const KvMethod& method : KvMethods()) {
    // What has two precisions is not exact, and has no pool: StaticSetRun tests it.
    const bool is_exact = method.precision == KvPrecisionKind::kUniform;
    if (method.selects() && is_exact) methods.push_back(method);
  }
  return methods;
}

INSTANTIATE_TEST_SUITE_P(All, KvMethodsTest, ::testing::ValuesIn(MethodsThatSelect()), MethodTestName);

TEST_P(KvMethodsTest, EverythingSelectedIsFullAttention) {
  const KvMethod& method = GetParam();
  const std::string all = method.counts_groups() ? "--kv-select 4096 --kv-window 6" : "--kv-window 4096";
  for (const uint32_t n_sequences : {1U, 4U}) {
    const std::vector<float> expected = Say(*NewFull(n_sequences), n_sequences);
    for (const uint32_t group : {1U, 4U, 16U}) {
      SCOPED_TRACE(fmt::format("{} sequences, groups of {}", n_sequences, group));
      const std::string reuse =
          method.counts_groups() && n_sequences == 4 ? "--kv-reuse 2" : "";  // and a pool
      const auto pass = NewPass(fmt::format("--kv-method {} {} --kv-sinks 2 --kv-type f32 --kv-group {} {}",
                                            method.name, all, group, reuse),
                                n_sequences);
      const LogitsDifference difference =
          CompareLogits(expected, Say(*pass, n_sequences), loaded_.model->config.n_vocab);
      EXPECT_LE(difference.max_absolute, 0.02);
      EXPECT_EQ(difference.wrong_top1, 0U);
    }
  }
}

// Where what was chosen lies changes nothing: in a layer's own slots, partly in the pool, or all of it there.
TEST_P(KvMethodsTest, SlotsAndPoolHoldTheSame) {
  const KvMethod& method = GetParam();
  if (!method.counts_groups()) GTEST_SKIP() << "selects pinned groups alone";
  for (const uint32_t n_sequences : {1U, 4U}) {
    const auto say = [&](const std::string& reuse) {
      const auto pass =
          NewPass(fmt::format("--kv-method {} --kv-select 32 --kv-window 6 --kv-sinks 2 --kv-type f32 "
                              "--kv-group 4 {}",
                              method.name, reuse),
                  n_sequences);
      std::vector<float> said = Say(*pass, n_sequences);
      const KvStats stats = pass->kv_report()->stats;
      EXPECT_GT(stats.chosen_groups, 0U);
      EXPECT_EQ(stats.pool_groups > 0, plan_.slots.n_pool_slots > 0) << reuse;
      if (plan_.slots.n_cache_slots == 0) {
        EXPECT_EQ(stats.pool_groups, stats.chosen_groups);
      }
      return said;
    };
    const std::vector<float> expected = say("");
    EXPECT_EQ(plan_.slots.n_pool_slots, 0U);
    for (const char* reuse :
         {"--kv-reuse 6", "--kv-reuse 3", "--kv-reuse 3 --kv-policy lfu", "--kv-reuse 1", "--kv-reuse 0"}) {
      SCOPED_TRACE(fmt::format("{} sequences, {}", n_sequences, reuse));
      const LogitsDifference difference = CompareLogits(expected, say(reuse), loaded_.model->config.n_vocab);
      EXPECT_GT(plan_.slots.n_pool_slots, 0U);
      EXPECT_LE(difference.max_absolute, 2e-3);
      EXPECT_EQ(difference.wrong_top1, 0U);
    }
  }
}

// A part selected is not full attention: the test above would see it.
TEST_P(KvMethodsTest, APartSelectedIsNot) {
  const KvMethod& method = GetParam();
  const auto pass =
      NewPass(fmt::format("--kv-method {} {} --kv-window 6 --kv-sinks 2 --kv-type f32 --kv-group 4",
                          method.name, method.counts_groups() ? "--kv-select 8" : ""),
              1);
  EXPECT_GT(CompareLogits(Say(*NewFull(1), 1), Say(*pass, 1), loaded_.model->config.n_vocab).max_absolute,
            0.02);
}

}  // namespace
}  // namespace kvrun::testing
