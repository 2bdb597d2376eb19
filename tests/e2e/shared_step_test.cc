// Rows of several passes as one step, of every architecture, with KV in memory and in records: each gets the
// logits of its pass alone, and a row that fails costs the others nothing.
#include "runtime/engine/forward/shared_step.h"

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/pass/step_member.h"
#include "tests/support/architecture_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kMembers = 3;
constexpr uint32_t kSteps = 5;
constexpr const char* kKvSwap = "--kv-method kvswap --kv-type f16 --kv-select 60 --kv-window 16";

class SharedSteps : public ArchitectureFixture {
 protected:
  std::vector<std::unique_ptr<ForwardPass>> Passes(const std::string& options, uint32_t n) const {
    std::vector<std::unique_ptr<ForwardPass>> passes;
    for (uint32_t i = 0; i < n; ++i) {
      passes.push_back(options.empty() ? NewPass(KvType::kF16)
                                       : loaded_.NewPass({.n_ctx = kRoom,
                                                          .offloaded = OffloadedOptionsOrDie(
                                                              loaded_, folder_, options, kRoom, 1)}));
      RunSpan(*passes.back(), SpanKind::kPrompt, 0, Begin(i));
    }
    return passes;
  }
  // Where a pass's tokens begin.
  static size_t Begin(uint32_t nth) { return kFirstPart - 19 * nth; }
  SharedStep::Row RowOf(ForwardPass& pass, size_t at, std::vector<float>* logits) const {
    logits->resize(n_vocab_);
    return {.member = pass.step_member(),
            .row = {.id = ids_[at], .position = static_cast<uint32_t>(at)},
            .logits = *logits};
  }
  static bool IsHost() { return SharedDevice()->info().driver == "kvrun host"; }
  // In Vulkan products of several rows are other kernels'.
  void ExpectSame(const std::vector<float>& expected, const std::vector<float>& found) const {
    if (IsHost()) {
      EXPECT_EQ(expected, found);
    } else {
      EXPECT_LE(Difference(expected, found), 0.05);
    }
  }
  // All in each step, but for the last of them, whose answer ends before.
  void CompareWithAlone(const std::string& options) const {
    SCOPED_TRACE(options);
    const auto together = Passes(options, kMembers);
    const auto alone = Passes(options, kMembers);
    SharedStep shared;
    for (uint32_t step = 0; step < kSteps; ++step) {
      const uint32_t n = step + 2 < kSteps ? kMembers : kMembers - 1;
      std::vector<std::vector<float>> logits(n);
      std::vector<SharedStep::Row> rows;
      for (uint32_t i = 0; i < n; ++i) rows.push_back(RowOf(*together[i], Begin(i) + step, &logits[i]));
      RunOrDie(shared.Run(rows));
      for (uint32_t i = 0; i < n; ++i) {
        SCOPED_TRACE(i);
        EXPECT_TRUE(rows[i].status.ok()) << rows[i].status.message();
        ExpectSame(RunSpan(*alone[i], SpanKind::kDecode, Begin(i) + step, Begin(i) + step + 1), logits[i]);
      }
    }
    shared.Drop();
    // Alone they go on from what they have computed together.
    for (uint32_t i = 0; i < kMembers - 1; ++i) {
      const size_t at = Begin(i) + kSteps;
      ExpectSame(RunSpan(*alone[i], SpanKind::kDecode, at, at + 1),
                 RunSpan(*together[i], SpanKind::kDecode, at, at + 1));
      ExpectSame(RunSpan(*alone[i], SpanKind::kPrompt, at + 1, at + 12),
                 RunSpan(*together[i], SpanKind::kPrompt, at + 1, at + 12));
    }
  }

  TemporaryFolder folder_;
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SharedSteps);

TEST_P(SharedSteps, AreThoseOfEachAlone) {
  CompareWithAlone("");
  CompareWithAlone(kKvSwap);
  if (!IsHost()) return;  // which commands there are does not depend on the device
  for (const char* options :
       {"--kv-method dynakv --kv-type f16 --kv-select 60 --kv-window 16",
        "--kv-method h2o --kv-type f16 --kv-budget 1/3", "--kv-method flexgen --kv-type int8"}) {
    CompareWithAlone(options);
  }
}

TEST_P(SharedSteps, ARowThatFailsIsLeftOut) {
  const auto passes = Passes(kKvSwap, 3);
  const auto alone = Passes(kKvSwap, 3);
  std::vector<std::vector<float>> logits(3);
  std::vector<SharedStep::Row> rows;
  for (uint32_t i = 0; i < 3; ++i) rows.push_back(RowOf(*passes[i], Begin(i), &logits[i]));
  rows[0].row.id = static_cast<TokenId>(n_vocab_);
  SharedStep shared;
  RunOrDie(shared.Run(rows));
  EXPECT_EQ(rows[0].status.code(), StatusCode::kInvalidArgument);
  for (uint32_t i = 1; i < 3; ++i) {
    EXPECT_TRUE(rows[i].status.ok()) << rows[i].status.message();
    ExpectSame(RunSpan(*alone[i], SpanKind::kDecode, Begin(i), Begin(i) + 1), logits[i]);
  }
  ExpectSame(RunSpan(*alone[0], SpanKind::kDecode, Begin(0), Begin(0) + 1),
             RunSpan(*passes[0], SpanKind::kDecode, Begin(0), Begin(0) + 1));
}

// Such as a pass of several sequences.
TEST_P(SharedSteps, SomePassesHaveNoPart) {
  EXPECT_NE(NewPass()->step_member(), nullptr);
  EXPECT_EQ(NewPass(KvType::kF16, 2)->step_member(), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Shared, SharedSteps, ::testing::ValuesIn(ArchitectureCases()), ArchitectureName);

}  // namespace
}  // namespace kvrun::testing
