// Models of every architecture with their KV in records: layers that keep growing KV select, and the others
// are as ever.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "runtime/engine/pass/layer_states.h"
#include "runtime/engine/session/session_kv.h"
#include "runtime/kv/serve/record_cache.h"
#include "tests/support/architecture_fixture.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"

namespace kvrun::testing {
namespace {

class ArchitectureMethods : public ArchitectureFixture {
 protected:
  std::unique_ptr<ForwardPass> NewRecordPass(const std::string& options) const {
    return loaded_.NewPass(
        {.n_ctx = kRoom, .offloaded = OffloadedOptionsOrDie(loaded_, folder_, options, kRoom, 1)});
  }
  // A prompt, and the rest of the text token by token: the last one's logits.
  std::vector<float> PromptAndTokens(ForwardPass& pass) const {
    RunSpan(pass, SpanKind::kPrompt, 0, kFirstPart);
    std::vector<float> last;
    for (size_t i = kFirstPart; i < ids_.size(); ++i) last = RunSpan(pass, SpanKind::kDecode, i, i + 1);
    return last;
  }

  TemporaryFolder folder_;
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ArchitectureMethods);

TEST_P(ArchitectureMethods, EverythingSelectedIsFull) {
  const auto full = NewPass();
  const std::vector<float> expected = PromptAndTokens(*full);
  // Windows are f16 there, whatever the records are.
  const double tolerance = loaded_.model->config.architecture.starts_with("gemma") ? 0.03 : 1e-3;
  for (const char* options :
       {"--kv-method kvswap --kv-type f32 --kv-select 508", "--kv-method flexgen --kv-type f32"}) {
    const auto pass = NewRecordPass(options);
    EXPECT_LE(Difference(expected, PromptAndTokens(*pass)), tolerance) << options;
    EXPECT_EQ(pass->record_cache()->plan().layers.size(), loaded_.model->config.n_kv_layers());
  }
}

// A question after a text, whose rows choose together: where they choose everything it is the one that reads
// it all.
TEST_P(ArchitectureMethods, AQuestionThatSelectsEverythingIsExact) {
  std::vector<float> said[2];
  for (const bool selects : {false, true}) {
    const auto pass =
        NewRecordPass(fmt::format("--kv-method kvswap --kv-type f16 --kv-select 508 --kv-later-prompts {}",
                                  selects ? "selected" : "exact"));
    RunSpan(*pass, SpanKind::kPrompt, 0, kFirstPart);
    said[selects] = RunSpan(*pass, SpanKind::kPrompt, kFirstPart, kFirstPart + 11);
    for (size_t i = kFirstPart + 11; i < kFirstPart + 20; ++i) {
      const std::vector<float> more = RunSpan(*pass, SpanKind::kDecode, i, i + 1);
      said[selects].insert(said[selects].end(), more.begin(), more.end());
    }
    EXPECT_EQ(pass->kv_report()->later_prompts.n_selected, selects ? 1U : 0U);
  }
  EXPECT_LE(Difference(said[0], said[1]), 1e-3);
}

// Of a half that is selected nobody knows what it should be: it is finite, and after going back what the same
// prompts give a pass that has never gone on. Up to where the states' last copy was made, nothing is computed
// again.
TEST_P(ArchitectureMethods, HalfIsFiniteAndGoesBack) {
  constexpr const char* kOptions = "--kv-method kvswap --kv-type f16 --kv-select 60 --kv-window 16";
  const auto pass = NewRecordPass(kOptions);
  const std::vector<float> first = PromptAndTokens(*pass);
  EXPECT_TRUE(std::all_of(first.begin(), first.end(), [](float value) { return std::isfinite(value); }));
  if (loaded_.model->config.is_uniform()) GTEST_SKIP() << "layers go back by themselves";
  for (const size_t length : {size_t{200}, size_t{50}, size_t{0}}) {
    const size_t n_before = std::min<size_t>(length, kFirstPart);  // of the first prompt
    const size_t n_prompt = std::max<size_t>(length, kFirstPart);
    const auto tokens = [&](ForwardPass& of) {
      std::vector<float> last;
      for (size_t i = n_prompt; i < ids_.size(); ++i) last = RunSpan(of, SpanKind::kDecode, i, i + 1);
      return last;
    };
    if (length < kFirstPart) RunSpan(*pass, SpanKind::kPrompt, length, kFirstPart);
    const std::vector<float> found = tokens(*pass);
    const auto fresh = NewRecordPass(kOptions);
    // The first prompt teaches the index.
    if (n_before < kFirstPart) RunSpan(*fresh, SpanKind::kPrompt, 0, kFirstPart);
    if (n_before > 0) RunSpan(*fresh, SpanKind::kPrompt, 0, n_before);
    if (n_before < n_prompt) RunSpan(*fresh, SpanKind::kPrompt, n_before, n_prompt);
    EXPECT_LE(Difference(tokens(*fresh), found), 1e-3) << length;
  }
}

// States are in the plan, and do not grow with the context.
TEST_P(ArchitectureMethods, StatesAreInTheBudget) {
  const ModelConfig& config = loaded_.model->config;
  const KvModelShape shape = ShapeOf(config);
  EXPECT_EQ(shape.n_layers, config.n_kv_layers());
  EXPECT_EQ(shape.state_bytes > 0, !config.is_uniform());
  const auto pass = NewRecordPass("--kv-method kvswap --kv-budget 1/2");
  const KvPlan& plan = pass->record_cache()->plan();
  uint64_t states = 0;
  for (const KvPart& part : plan.parts) states += part.name == "states" ? part.bytes : 0;
  EXPECT_EQ(states, (1 + plan.states.n_copies) * shape.state_bytes);
  EXPECT_EQ(plan.states.n_copies >= kLeastStateCopies, !config.is_uniform());
  EXPECT_LE(plan.decode_bytes(), plan.budget.bytes);
  EXPECT_EQ(LayerStates::SizeBytes(config, KvType::kF16, 1, 1U << 17), shape.state_bytes);
}

INSTANTIATE_TEST_SUITE_P(Shared, ArchitectureMethods, ::testing::ValuesIn(ArchitectureCases()),
                         ArchitectureName);

}  // namespace
}  // namespace kvrun::testing
