// Models whose layers cannot go back choose their static sets again while decoding, as others do: that is the
// same as if the last tokens were given once more as a prompt.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/engine/forward/create_forward_pass.h"
#include "runtime/kv/serve/record_cache.h"
#include "tests/support/architecture_fixture.h"
#include "tests/support/failing_device.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kPromptEnd = 200;
constexpr uint32_t kSteps = 8;  // between choices; as many tokens are computed again
constexpr uint32_t kTurns = 3;
constexpr const char* kOptions[] = {
    "--kv-method prkv --kv-type f16 --kv-select 64 --kv-group 8 --kv-window 16",
    "--kv-method kvswap --kv-type f16 --kv-select 40 --kv-window 16 --kv-sinks 4 --kv-static 0.5"};

class StateRefresh : public ArchitectureFixture {
 protected:
  void SetUp() override {
    ArchitectureFixture::SetUp();
    if (IsSkipped()) return;
    ids_ = SomeIds(kRoom, 7, n_vocab_);
  }

  // After the prompt.
  std::unique_ptr<ForwardPass> Begin(const char* options, uint32_t steps, Device* device = nullptr) const {
    const std::string text = std::string(options) + " --kv-static-steps " + std::to_string(steps);
    auto pass = OrDie(CreateForwardPass(
        *loaded_.model, loaded_.weights, device != nullptr ? *device : *loaded_.device,
        {.n_ctx = kRoom, .offloaded = OffloadedOptionsOrDie(loaded_, folder_, text, kRoom)}));
    RunSpan(*pass, SpanKind::kPrompt, 0, kPromptEnd);
    return pass;
  }
  std::vector<float> TokenAt(ForwardPass& pass, size_t position) const {
    return RunSpan(pass, SpanKind::kDecode, position, position + 1);
  }
  static uint64_t TimesChosen(const ForwardPass& pass) { return pass.kv_report()->statics->n_chosen_again; }
  // Until it works. Answers how often it did not.
  int TryTokenAt(ForwardPass& pass, uint32_t position, std::vector<float>* logits) const {
    const ForwardStep step(SpanKind::kDecode, {ids_[position], position, 0});
    const uint32_t output = 0;
    logits->resize(n_vocab_);
    int n_failed = 0;
    while (n_failed < 3) {
      const Status status = pass.Run(step, {&output, 1}, *logits);
      if (status.ok()) return n_failed;
      EXPECT_EQ(status.code(), StatusCode::kOutOfMemory) << status.message();
      ++n_failed;
    }
    ADD_FAILURE() << "it fails for ever";
    return n_failed;
  }

  TemporaryFolder folder_;
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StateRefresh);

TEST_P(StateRefresh, IsAsIfTokensWereGivenOnceMore) {
  for (const char* options : kOptions) {
    SCOPED_TRACE(options);
    const auto pass = Begin(options, kSteps);
    const auto given = Begin(options, 0);
    EXPECT_TRUE(pass->record_cache()->plan().states.has_aside);
    EXPECT_FALSE(given->record_cache()->plan().states.has_aside);
    for (uint32_t position = kPromptEnd; position < kPromptEnd + kTurns * kSteps + 3; ++position) {
      if (position > kPromptEnd && (position - kPromptEnd) % kSteps == 0) {
        RunSpan(*given, SpanKind::kPrompt, position - kSteps, position);
      }
      EXPECT_LE(Difference(TokenAt(*given, position), TokenAt(*pass, position)), 1e-4) << position;
    }
    EXPECT_EQ(TimesChosen(*pass), kTurns);
    EXPECT_EQ(pass->recomputed_tokens(), 0U);
  }
}

// After a cut there are turns again, and what is aside of another text is not used.
TEST_P(StateRefresh, GoesOnAfterACut) {
  const char* const options = kOptions[1];
  const auto pass = Begin(options, kSteps);
  for (uint32_t position = kPromptEnd; position < kPromptEnd + kSteps + 5; ++position) {
    TokenAt(*pass, position);
  }
  EXPECT_EQ(TimesChosen(*pass), 1U);
  const uint32_t length = kPromptEnd + kSteps + 2;
  for (size_t i = length; i < ids_.size(); ++i) ids_[i] = (ids_[i] + 1) % static_cast<int>(n_vocab_);
  for (uint32_t position = length; position < length + 3 * kSteps; ++position) {
    const std::vector<float> logits = TokenAt(*pass, position);
    EXPECT_TRUE(std::all_of(logits.begin(), logits.end(), [](float value) { return std::isfinite(value); }));
  }
  EXPECT_GE(TimesChosen(*pass), 3U);
}

// Memory that lacks while the set is chosen: the step fails, and works when it is given again.
TEST_P(StateRefresh, NothingIsLostWhereItFails) {
  const char* const options = kOptions[1];
  const uint32_t turn = kPromptEnd + kSteps;
  const auto given = Begin(options, 0);
  for (uint32_t position = kPromptEnd; position < turn; ++position) TokenAt(*given, position);
  RunSpan(*given, SpanKind::kPrompt, kPromptEnd, turn);
  const std::vector<float> expected = TokenAt(*given, turn);
  int n_failed = 0;
  for (const uint64_t n : {0U, 1U, 4U, 10U, 25U}) {
    FailingDevice device(*loaded_.device);
    const auto pass = Begin(options, kSteps, &device);
    for (uint32_t position = kPromptEnd; position < turn; ++position) TokenAt(*pass, position);
    device.FailAt(n);
    std::vector<float> logits;
    n_failed += TryTokenAt(*pass, turn, &logits);
    EXPECT_LE(Difference(expected, logits), 1e-4) << n;
  }
  EXPECT_GT(n_failed, 0);
}

// The same where the last copy of the states is within the tokens that were to be computed again: those
// before it are computed by themselves.
TEST_P(StateRefresh, CatchesUpToACopy) {
  const char* const options = kOptions[1];
  const uint32_t turn = kPromptEnd + kSteps;
  const uint32_t copied = kPromptEnd + 5;
  const auto begin = [&](ForwardPass& pass) {
    for (uint32_t position = kPromptEnd; position < turn; ++position) {
      // A prompt of one row leaves a copy, and chooses nothing.
      const auto kind = position + 1 == copied ? SpanKind::kPrompt : SpanKind::kDecode;
      RunSpan(pass, kind, position, position + 1);
    }
  };
  const auto given = Begin(options, 0);
  begin(*given);
  RunSpan(*given, SpanKind::kPrompt, kPromptEnd, copied);
  RunSpan(*given, SpanKind::kPrompt, copied, turn);
  const std::vector<float> expected = TokenAt(*given, turn);
  int n_failed = 0;
  for (const uint64_t n : {2U, 8U}) {
    FailingDevice device(*loaded_.device);
    const auto pass = Begin(options, kSteps, &device);
    begin(*pass);
    device.FailAt(n);
    std::vector<float> logits;
    n_failed += TryTokenAt(*pass, turn, &logits);
    EXPECT_LE(Difference(expected, logits), 1e-4) << n;
    EXPECT_EQ(pass->recomputed_tokens(), turn - copied);
  }
  EXPECT_GT(n_failed, 0);
}

INSTANTIATE_TEST_SUITE_P(Shared, StateRefresh, ::testing::ValuesIn(ArchitecturesWithStates()),
                         ArchitectureName);

}  // namespace
}  // namespace kvrun::testing
