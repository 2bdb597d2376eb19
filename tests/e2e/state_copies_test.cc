// Models whose layers cannot go back, cut anywhere: what that costs, what it gives, and the memory of copies.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "platform/io/block_file.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/forward/create_forward_pass.h"
#include "runtime/engine/forward/resuming_pass.h"
#include "runtime/engine/session/session_kv.h"
#include "runtime/kv/serve/kv_stores.h"
#include "runtime/kv/serve/record_cache.h"
#include "tests/support/architecture_fixture.h"
#include "tests/support/failing_device.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"

namespace kvrun::testing {
namespace {

constexpr size_t kCopiedTokens = 480;
constexpr size_t kPartTokens = 24;
constexpr uint32_t kCopies = 8;

class StateCopies : public ArchitectureFixture {
 protected:
  void SetUp() override {
    ArchitectureFixture::SetUp();
    if (IsSkipped()) return;
    ASSERT_FALSE(loaded_.model->config.is_uniform());
    ids_ = SomeIds(kCopiedTokens + 1, 5, n_vocab_);
    sequence_bytes_ = ShapeOf(loaded_.model->config).state_bytes;
  }

  std::unique_ptr<ForwardPass> NewCopyingPass(uint32_t n_sequences = 1, Device* device = nullptr) const {
    const ForwardPassOptions options{
        .n_sequences = n_sequences, .n_ctx = kRoom, .kv_type = KvType::kF16, .n_state_copies = kCopies};
    return OrDie(CreateForwardPass(*loaded_.model, loaded_.weights,
                                   device != nullptr ? *device : *loaded_.device, options));
  }
  // Prompts whose tiles are so small that one has many borders; all KV is attended to.
  std::shared_ptr<OffloadedPassOptions> TiledOptions(const std::string& text) const {
    constexpr uint32_t kTileTokens = 32;
    auto options = OffloadedOptionsOrDie(loaded_, folder_, text, kRoom);
    const auto new_file = [this] {
      return OrDie(CreateBlockFile({.folder = folder_.Path("kv"), .allow_tmpfs = true}));
    };
    options->plan.prefill.tile_tokens = kTileTokens;
    options->plan.prefill.spills_hidden = true;
    options->plan.states.n_copies = kCopies;
    options->stores =
        OrDie(MakeKvStores(options->plan, loaded_.model->config.n_kv_layers(), new_file(), nullptr));
    options->spill = new_file();
    return options;
  }

  // In parts, as messages come.
  void Read(ForwardPass& pass, size_t begin, size_t end, uint32_t sequence = 0) const {
    for (size_t at = begin; at < end; at += kPartTokens) {
      RunSpan(pass, SpanKind::kPrompt, at, std::min(end, at + kPartTokens), sequence);
    }
  }
  std::vector<float> TokenAt(ForwardPass& pass, size_t position, uint32_t sequence = 0) const {
    return RunSpan(pass, SpanKind::kDecode, position, position + 1, sequence);
  }
  // The token's logits, where all before it was read at once.
  std::vector<float> ExpectedAt(size_t position) const {
    const auto fresh = NewPass(KvType::kF16);
    if (position > 0) RunSpan(*fresh, SpanKind::kPrompt, 0, position);
    return TokenAt(*fresh, position);
  }
  static std::span<const CopyPlaces::Place> CopiesOf(ForwardPass& pass, uint32_t sequence = 0) {
    return dynamic_cast<ResumingPass&>(pass).copies(sequence);
  }
  static uint32_t LastCopyBefore(ForwardPass& pass, size_t position) {
    uint32_t last = 0;
    for (const CopyPlaces::Place& place : CopiesOf(pass)) {
      if (place.position <= position) last = place.position;
    }
    return last;
  }
  // A cut, and a token after it: computes again what follows the last copy, and no more.
  void ExpectCut(ForwardPass& pass, size_t position, size_t most_tokens, double tolerance) const {
    SCOPED_TRACE(::testing::Message() << "cut to " << position);
    const uint32_t last = LastCopyBefore(pass, position);
    const uint64_t before = pass.recomputed_tokens();
    const std::vector<float> found = TokenAt(pass, position);
    EXPECT_EQ(pass.recomputed_tokens() - before, position - last);
    EXPECT_LE(position - last, most_tokens);
    EXPECT_LE(Difference(ExpectedAt(position), found), tolerance);
  }

  TemporaryFolder folder_;
  uint64_t sequence_bytes_ = 0;
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StateCopies);

TEST_P(StateCopies, ACutCostsTheSpacingAtMost) {
  constexpr size_t kMostTokens = 5 * (kCopiedTokens / kCopies) / 2 + kPartTokens;
  const auto pass = NewCopyingPass();
  Read(*pass, 0, kCopiedTokens);
  std::mt19937 random(17);
  for (int i = 0; i < 6; ++i) {
    const auto position = std::uniform_int_distribution<size_t>(0, kCopiedTokens - 1)(random);
    ExpectCut(*pass, position, kMostTokens, 0.03);
    // A second edit in the same place finds what the first has left.
    const uint64_t before = pass->recomputed_tokens();
    TokenAt(*pass, position);
    EXPECT_EQ(pass->recomputed_tokens(), before);
    Read(*pass, position + 1, kCopiedTokens);
    EXPECT_EQ(CopiesOf(*pass).back().position, kCopiedTokens);
  }
}

// A prompt that is computed layer by layer, as a whole.
TEST_P(StateCopies, CopiesWithinAPrompt) {
  const auto pass =
      loaded_.NewPass({.n_ctx = kRoom, .offloaded = TiledOptions("--kv-method flexgen --kv-type f16")});
  RunSpan(*pass, SpanKind::kPrompt, 0, kCopiedTokens);
  ASSERT_EQ(CopiesOf(*pass).size(), kCopies);
  for (const CopyPlaces::Place& place : CopiesOf(*pass)) EXPECT_EQ(place.position % 32, 0U);
  for (const size_t position : {size_t{470}, size_t{300}, size_t{299}, size_t{150}, size_t{20}}) {
    ExpectCut(*pass, position, 5 * (kCopiedTokens / kCopies) / 2 + 32, 0.03);
    RunSpan(*pass, SpanKind::kPrompt, position + 1, kCopiedTokens);
  }
}

// What is computed once more is told as a part of what was given.
TEST_P(StateCopies, ProgressIsOfWhatWasGiven) {
  const auto pass =
      loaded_.NewPass({.n_ctx = kRoom, .offloaded = TiledOptions("--kv-method flexgen --kv-type f16")});
  RunSpan(*pass, SpanKind::kPrompt, 0, kCopiedTokens);
  const uint32_t length = LastCopyBefore(*pass, 300) + 30;
  std::vector<std::pair<uint64_t, uint64_t>> told;
  pass->SetProgress([&](uint64_t done, uint64_t total) {
    told.emplace_back(done, total);
    return false;
  });
  RunSpan(*pass, SpanKind::kPrompt, length, length + 10);
  EXPECT_EQ(pass->recomputed_tokens(), 30U);
  ASSERT_FALSE(told.empty());
  EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
  EXPECT_GT(told.back().first, 0U);
  for (const auto& [done, total] : told) {
    EXPECT_EQ(total, 10U);
    EXPECT_LE(done, total);
  }
}

TEST_P(StateCopies, MemoryIsAsPlanned) {
  const uint64_t without = KvBytesInUse(loaded_);
  const auto resident = NewCopyingPass(2);
  const uint64_t begin = KvBytesInUse(loaded_);
  for (const uint32_t sequence : {0U, 1U}) Read(*resident, 0, kCopiedTokens, sequence);
  // A device may round the size of a buffer up: a layer has two at most.
  const uint64_t rounded_bytes = uint64_t{2} * loaded_.model->config.n_layers * 256;
  EXPECT_LE(KvBytesInUse(loaded_) - begin, 2 * kCopies * (sequence_bytes_ + rounded_bytes));
  EXPECT_GT(KvBytesInUse(loaded_), begin);
  const auto options = OffloadedOptionsOrDie(loaded_, folder_, "--kv-method kvswap --kv-budget 1/2", kRoom);
  const KvPlan plan = options->plan;
  const uint64_t others = KvBytesInUse(loaded_);
  const auto on_flash = loaded_.NewPass({.n_ctx = kRoom, .offloaded = options});
  RunSpan(*on_flash, SpanKind::kPrompt, 0, kCopiedTokens);
  TokenAt(*on_flash, kCopiedTokens);
  const uint64_t states_rounded = (1 + plan.states.n_copies) * rounded_bytes;
  EXPECT_LE(KvBytesInUse(loaded_) - others, plan.budget.bytes + states_rounded);
  EXPECT_EQ(CopiesOf(*on_flash).back().position, kCopiedTokens);
  EXPECT_GT(begin, without);
}

// The sequence goes on with those copies that there are.
TEST_P(StateCopies, WithoutMemoryForThemThereAreFewer) {
  for (const size_t n_before : {size_t{0}, size_t{1}, size_t{3}}) {
    FailingDevice device(*loaded_.device);
    const auto pass = NewCopyingPass(1, &device);
    const auto warm = [&] { RunSpan(*pass, SpanKind::kPrompt, 0, kPartTokens); };
    warm();  // its commands are there from now on
    size_t end = kPartTokens;
    for (size_t i = 1; i < std::max<size_t>(n_before, 1); ++i, end += kPartTokens) {
      Read(*pass, end, end + kPartTokens);
    }
    device.FailAt(0);
    Read(*pass, end, end + kPartTokens);  // without an error
    EXPECT_TRUE(device.has_failed());
    device.FailNever();
    Read(*pass, end + kPartTokens, kCopiedTokens);
    EXPECT_EQ(CopiesOf(*pass).size(), std::max<size_t>(n_before, 1));
    ExpectCut(*pass, 250, kCopiedTokens, 0.03);
  }
}

TEST_P(StateCopies, WithoutAnyItIsComputedFromTheBeginning) {
  const ForwardPassOptions options{.n_ctx = kRoom, .kv_type = KvType::kF16, .n_state_copies = 0};
  const auto pass = OrDie(CreateForwardPass(*loaded_.model, loaded_.weights, *loaded_.device, options));
  Read(*pass, 0, 200);
  ExpectCut(*pass, 100, 100, 0.03);
  EXPECT_EQ(pass->recomputed_tokens(), 100U);
}

// One alone has all copies; others get theirs; those of one that is forgotten are free.
TEST_P(StateCopies, ABatchSharesThem) {
  const auto pass = NewCopyingPass(2);
  Read(*pass, 0, kCopiedTokens);
  EXPECT_EQ(CopiesOf(*pass).size(), 2 * kCopies);
  Read(*pass, 0, kCopiedTokens, 1);
  EXPECT_EQ(CopiesOf(*pass, 0).size(), kCopies);
  EXPECT_EQ(CopiesOf(*pass, 1).size(), kCopies);
  const uint64_t before = KvBytesInUse(loaded_);
  EXPECT_LE(Difference(ExpectedAt(200), TokenAt(*pass, 200, 1)), 0.03);
  EXPECT_LE(Difference(ExpectedAt(333), TokenAt(*pass, 333, 0)), 0.03);
  pass->Cut(0, 0);
  EXPECT_TRUE(CopiesOf(*pass, 0).empty());
  Read(*pass, 201, kCopiedTokens, 1);
  EXPECT_EQ(CopiesOf(*pass, 1).size(), 2 * kCopies);
  EXPECT_EQ(KvBytesInUse(loaded_), before) << "memory of its own";
}

// From a budget to what an edit costs; all KV in memory, and on flash.
TEST_P(StateCopies, ASessionHasWhatItsBudgetPays) {
  constexpr uint32_t kContext = 2048;
  const std::vector<int> ids = SomeIds(1900, 11, n_vocab_);
  EngineOptions engine_options;
  engine_options.device = DeviceOptionsHere();
  const auto engine = OrDie(Engine::Create(*loaded_.model, engine_options));
  for (const char* budget : {"4MiB", "60%"}) {
    SCOPED_TRACE(budget);
    SessionOptions options;
    options.n_ctx = kContext;
    options.kv.storage.folder = folder_.Path("kv");
    options.kv.storage.allow_tmpfs = true;
    RunOrDie(ParseKvOptions(std::string("--kv-budget ") + budget, &options.kv));
    const KvPlan plan = OrDie(engine->PlanSession(options.kv, kContext, 1));
    const auto session = OrDie(engine->CreateSession(options));
    RunOrDie(session->Feed(0, ids));
    EXPECT_EQ(session->stats().recomputed_tokens, 0U);
    RunOrDie(session->Truncate(0, 1700));
    RunOrDie(session->Feed(0, std::span(ids).first(5)));
    const uint64_t n_again = session->stats().recomputed_tokens;
    const uint32_t n_copies = plan.states.n_copies;
    const uint32_t most_halves = n_copies < 8 ? 7 : 5;  // of the mean
    EXPECT_LE(n_again, most_halves * plan.states.tokens_per_copy(kContext) / 2 + kStateCopyTokens);
    EXPECT_LT(n_again, 1700U);
    // Where it was cut before, there is a copy now, if there are some more than the last.
    RunOrDie(session->Truncate(0, 1700));
    RunOrDie(session->Feed(0, std::span(ids).first(9)));
    EXPECT_LE(session->stats().recomputed_tokens, (n_copies < 8 ? 2 : 1) * n_again);
    RunOrDie(session->Truncate(0, 100));
    const uint64_t before = session->stats().recomputed_tokens;
    RunOrDie(session->Feed(0, std::span(ids).first(5)));
    EXPECT_EQ(session->stats().recomputed_tokens - before, 100U);
  }
}

INSTANTIATE_TEST_SUITE_P(Shared, StateCopies, ::testing::ValuesIn(ArchitecturesWithStates()),
                         ArchitectureName);

}  // namespace
}  // namespace kvrun::testing
