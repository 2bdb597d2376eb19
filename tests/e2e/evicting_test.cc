// Methods that evict: with everything kept the model says what it says with all KV in memory; with less, as
// much is kept as there is room for, whatever else is computed meanwhile.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
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

constexpr uint32_t kContext = 320;
constexpr uint32_t kWindow = 6;
constexpr size_t kPrompts[] = {100, 33, 121, 60};

class Evicting : public ::testing::TestWithParam<KvMethod> {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
  }

  // Where it is there: all but the self-made one are of ../shared.
  bool TryToLoad(const std::string& name) {
    const std::vector<SmallModel> models = SmallModels();
    const auto model =
        std::find_if(models.begin(), models.end(), [&](const SmallModel& m) { return m.name == name; });
    if (model == models.end()) return false;
    loaded_ = LoadSmallModel(*model, folder_);
    return true;
  }
  void Load(const std::string& name) { ASSERT_TRUE(TryToLoad(name)); }

  // Records of f32, so that nothing is rounded but what has 8 bits.
  std::unique_ptr<ForwardPass> NewPass(const std::string& options, uint32_t n_sequences = 1,
                                       uint32_t tile_tokens = 0) {
    auto offloaded = OffloadedOptionsOrDie(
        loaded_, folder_,
        fmt::format("--kv-method {} --kv-type f32 --kv-window {} {}", GetParam().name, kWindow, options),
        kContext, n_sequences);
    plan_ = offloaded->plan;
    if (tile_tokens > 0) {
      offloaded->plan.prefill.tile_tokens = tile_tokens;
      offloaded->plan.prefill.spills_hidden = true;
    }
    return loaded_.NewPass(
        {.n_sequences = n_sequences, .n_ctx = kContext, .offloaded = std::move(offloaded)});
  }
  std::unique_ptr<ForwardPass> NewFull(uint32_t n_sequences = 1) {
    return loaded_.NewPass(
        {.n_sequences = n_sequences, .n_ctx = kContext, .kv_type = KvType::kF32, .offloaded = nullptr});
  }
  size_t n_vocab() const { return loaded_.model->config.n_vocab; }
  std::vector<int> Ids(size_t seed = 3) const { return SomeIds(kContext, seed, n_vocab()); }

  // Positions [begin, end) one by one; the logits of every fifth.
  std::vector<float> Decode(ForwardPass& pass, std::span<const int> ids, size_t begin, size_t end,
                            uint32_t sequence = 0) {
    std::vector<float> said;
    for (size_t i = begin; i < end; ++i) {
      const std::vector<float> logits = Feed(pass, ids, i, i + 1, 1, sequence);
      if (i % 5 == 0) said.insert(said.end(), logits.begin(), logits.end());
    }
    return said;
  }
  void ExpectSame(const std::string& name, std::span<const float> expected,
                  std::span<const float> found) const {
    const LogitsDifference difference = CompareLogits(expected, found, n_vocab());
    EXPECT_LE(difference.max_absolute, 0.02) << name;
    EXPECT_EQ(difference.wrong_top1, 0U) << name;
  }
  Status RunOne(ForwardPass& pass, std::span<const int> ids, uint32_t position) {
    const ForwardStep row(SpanKind::kDecode, {ids[position], position, 0});
    return pass.Run(row, {}, {});
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
  KvPlan plan_;
};

std::vector<KvMethod> MethodsThatEvict() {
  std::vector<KvMethod> methods;
  for (const KvMethod& method : KvMethods()) {
    if (method.evicts()) methods.push_back(method);
  }
  return methods;
}

INSTANTIATE_TEST_SUITE_P(All, Evicting, ::testing::ValuesIn(MethodsThatEvict()),
                         [](const ::testing::TestParamInfo<KvMethod>& source) {
                           return std::string(source.param.name);
                         });

// A prompt, many tokens, some of them taken back, a further prompt, and tokens again.
TEST_P(Evicting, EverythingKeptIsFullAttention) {
  int n_models = 0;
  for (const char* model : {"SelfMade", "llama_odd_Q4_1", "qwen3_qknorm_Q4_K_M"}) {
    if (!TryToLoad(model)) continue;
    ++n_models;
    const std::vector<int> ids = Ids();
    const auto say = [&](ForwardPass& pass) {
      std::vector<float> said = Feed(pass, ids, 0, 100, 100);
      const auto add = [&said](const std::vector<float>& more) {
        said.insert(said.end(), more.begin(), more.end());
      };
      add(Decode(pass, ids, 100, 180));
      add(Decode(pass, ids, 150, 170));    // what left the window comes back
      add(Feed(pass, ids, 160, 230, 40));  // more outputs than one call hands out
      add(Decode(pass, ids, 230, kContext));
      return said;
    };
    const std::vector<float> expected = say(*NewFull());
    for (const char* options : {"", "--kv-shares heads", "--kv-shares layers"}) {
      const auto pass = NewPass(options);
      ExpectSame(fmt::format("{} {}", model, options), expected, say(*pass));
      const KvReport report = *pass->kv_report();
      ASSERT_TRUE(report.kept.has_value());
      EXPECT_EQ(report.kept->evicted, 0U);
      EXPECT_EQ(report.kept->low, 0U);
      EXPECT_EQ(report.kept->original,
                uint64_t{plan_.n_streams} * loaded_.model->config.n_layers * (kContext - kWindow));
    }
  }
  ASSERT_GT(n_models, 0);
  if (n_models < 3)
    GTEST_SKIP() << "models of ../shared are not there; the self-made one is as full attention";
}

// Four sequences, whose prompts come one after another: what the others have is put aside meanwhile.
TEST_P(Evicting, EverythingKeptIsFullAttentionInABatch) {
  ASSERT_NO_FATAL_FAILURE(Load("SelfMade"));
  const auto say = [&](ForwardPass& pass) {
    std::vector<float> said;
    for (const size_t round : {0U, 1U}) {
      for (uint32_t s = 0; s < 4; ++s) {
        if (round == 1 && s % 2 == 0) continue;  // two of them begin anew
        Feed(pass, Ids(s + 9 * round), 0, kPrompts[s], kPrompts[s], s);
      }
      for (size_t step = 0; step < 10; ++step) {
        ForwardStep rows;
        std::vector<uint32_t> outputs;
        for (uint32_t s = 0; s < 4; ++s) {
          const size_t at = kPrompts[s] + step + (round == 1 && s % 2 == 0 ? 10 : 0);
          rows.Add(SpanKind::kDecode, {Ids(s)[at], static_cast<uint32_t>(at), s});
          outputs.push_back(s);
        }
        std::vector<float> logits(4 * n_vocab());
        RunOrDie(pass.Run(rows, outputs, logits));
        said.insert(said.end(), logits.begin(), logits.end());
      }
    }
    return said;
  };
  ExpectSame("four sequences", say(*NewFull(4)), say(*NewPass("", 4)));
}

std::vector<std::string> OptionsOf(const KvMethod& method) {
  std::vector<std::string> options = {"", "--kv-shares heads", "--kv-shares layers"};
  if (method.precision != KvPrecisionKind::kByScore) return options;
  for (const char* more : {"--kv-precisions entries", "--kv-precisions original", "--kv-precisions quantised",
                           "--kv-moments rows", "--kv-shares layers --kv-precisions entries"}) {
    options.emplace_back(more);
  }
  return options;
}

// As much is kept as there is room for, and what is kept is attended to; the same run says the same.
TEST_P(Evicting, AsMuchIsKeptAsThereIsRoomFor) {
  ASSERT_NO_FATAL_FAILURE(Load("SelfMade"));
  const std::vector<int> ids = Ids();
  const uint64_t n_layers = loaded_.model->config.n_layers;
  const std::vector<float> full = Decode(
      *[&] {
        static std::unique_ptr<ForwardPass> pass;
        pass = NewFull();
        Feed(*pass, ids, 0, 200, 200);
        return pass.get();
      }(),
      ids, 200, 290);
  for (const std::string& options : OptionsOf(GetParam())) {
    SCOPED_TRACE(options);
    const auto say = [&](uint32_t tile_tokens) {
      const auto pass = NewPass("--kv-select 40 " + options, 1, tile_tokens);
      Feed(*pass, ids, 0, 200, 200);
      std::vector<float> said = Decode(*pass, ids, 200, 290);
      const KvReport report = *pass->kv_report();
      const uint64_t places = n_layers * plan_.n_streams * 40;
      const uint64_t original_bytes = plan_.record.size_bytes();
      const bool quantised = options.find("quantised") != options.npos;
      const uint64_t low_bytes = quantised ? original_bytes : plan_.of_kept().low_record.size_bytes();
      EXPECT_LE(report.kept->original * original_bytes + report.kept->low * low_bytes,
                places * original_bytes);
      EXPECT_GE(report.kept->original + report.kept->low, places / 2);
      EXPECT_GT(report.kept->evicted, 0U);
      return said;
    };
    const std::vector<float> said = say(0);
    EXPECT_EQ(said, say(0)) << "a run is not repeatable";
    EXPECT_GT(CompareLogits(full, said, n_vocab()).mean_kl, 1e-6) << "nothing was evicted";
    // Tiles of a prompt round sums in other ways, and hidden states between layers to 16 bits: what is kept
    // may differ where scores are nearly equal.
    EXPECT_LT(CompareLogits(said, say(64), n_vocab()).mean_kl, 0.03);
  }
}

// What a sequence says does not depend on prompts of others, for which its KV is put aside.
TEST_P(Evicting, APromptOfAnotherSequenceChangesNothing) {
  ASSERT_NO_FATAL_FAILURE(Load("SelfMade"));
  const std::vector<int> ids = Ids();
  const auto say = [&](bool is_interrupted) {
    const auto pass = NewPass("--kv-select 30", 2);
    Feed(*pass, ids, 0, 150, 150);
    std::vector<float> said = Decode(*pass, ids, 150, 200);
    if (is_interrupted) Feed(*pass, Ids(8), 0, 90, 90, 1);
    const std::vector<float> more = Decode(*pass, ids, 200, 240);
    said.insert(said.end(), more.begin(), more.end());
    return said;
  };
  EXPECT_EQ(say(true), say(false));
}

TEST_P(Evicting, ItGoesBackWithinTheWindowOrToTheBeginning) {
  ASSERT_NO_FATAL_FAILURE(Load("SelfMade"));
  const std::vector<int> ids = Ids();
  const auto pass = NewPass("--kv-select 30");
  const std::vector<float> first = Feed(*pass, ids, 0, 150, 150);
  Decode(*pass, ids, 150, 200);
  RunOrDie(RunOne(*pass, ids, 200 - kWindow));
  const Status refused = RunOne(*pass, ids, 100);
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
  EXPECT_NE(refused.message().find("cannot go back to 100"), std::string::npos) << refused.message();
  RunOrDie(RunOne(*pass, ids, 200 - kWindow + 1));  // nothing was lost
  // Now and then a few tokens are taken back.
  for (uint32_t position = 200 - kWindow; position < 300; ++position) {
    RunOrDie(RunOne(*pass, ids, position));
    if (position % 10 == 9) {
      for (uint32_t again = position - 3; again < position; ++again) RunOrDie(RunOne(*pass, ids, again));
      RunOrDie(RunOne(*pass, ids, position));
    }
  }
  EXPECT_EQ(Feed(*pass, ids, 0, 150, 150), first);
}

// A long context and a short prompt; lists that have room for more than it has; a prompt that was given up,
// and then one token: nothing of it is left.
TEST_P(Evicting, ShortPromptsInLongContexts) {
  ASSERT_NO_FATAL_FAILURE(Load("SelfMade"));
  constexpr uint32_t kLong = 4096;
  const std::vector<int> ids = Ids();
  const auto full = [&](size_t prompt) {
    const auto pass = NewFull();
    Feed(*pass, ids, 0, prompt, prompt);
    return Decode(*pass, ids, prompt, 100);
  };
  for (const char* options : {"", "--kv-shares heads", "--kv-shares layers"}) {
    for (const size_t prompt : {2U, 9U, 40U}) {
      auto offloaded =
          OffloadedOptionsOrDie(loaded_, folder_,
                                fmt::format("--kv-method {} --kv-type f32 --kv-window {} --kv-select 200 {}",
                                            GetParam().name, kWindow, options),
                                kLong, 1);
      offloaded->plan.of_kept().precisions = KeptPrecisions::kOriginal;
      const auto pass =
          loaded_.NewPass({.n_sequences = 1, .n_ctx = kLong, .offloaded = std::move(offloaded)});
      Feed(*pass, ids, 0, prompt, prompt);
      ExpectSame(fmt::format("{} {}", options, prompt), full(prompt), Decode(*pass, ids, prompt, 100));
      EXPECT_EQ(pass->kv_report()->kept->evicted, 0U);
    }
  }
  const auto pass = NewPass("--kv-select 30", 1, 64);
  uint64_t asked = 0;
  pass->SetProgress([&](uint64_t done, uint64_t total) { return ++asked > 3 && done > total * 3 / 4; });
  ForwardStep rows;
  for (uint32_t i = 0; i < 200; ++i) rows.Add(SpanKind::kPrompt, {Ids(7)[i], i, 0});
  EXPECT_EQ(pass->Run(rows, {}, {}).code(), StatusCode::kCancelled);
  pass->SetProgress({});
  const std::vector<float> said = Decode(*pass, ids, 0, 20);
  EXPECT_EQ(said, Decode(*NewPass("--kv-select 30", 1, 64), ids, 0, 20));
}

// A prompt that is given up: the others are as they were, and it can begin anew.
TEST_P(Evicting, APromptThatIsCancelledLosesNothing) {
  ASSERT_NO_FATAL_FAILURE(Load("SelfMade"));
  const std::vector<int> ids = Ids();
  const auto say = [&](bool is_cancelled) {
    const auto pass = NewPass("--kv-select 30", 2, 64);
    Feed(*pass, ids, 0, 150, 150);
    if (is_cancelled) {
      uint64_t asked = 0;
      pass->SetProgress([&](uint64_t, uint64_t) { return ++asked > 3; });
      ForwardStep rows;
      for (uint32_t i = 0; i < 200; ++i) rows.Add(SpanKind::kPrompt, {ids[i], i, 1});
      EXPECT_EQ(pass->Run(rows, {}, {}).code(), StatusCode::kCancelled);
      pass->SetProgress({});
    }
    std::vector<float> said = Decode(*pass, ids, 150, 180);
    const std::vector<float> other = Feed(*pass, Ids(5), 0, 120, 120, 1);
    said.insert(said.end(), other.begin(), other.end());
    return said;
  };
  EXPECT_EQ(say(true), say(false));
}

}  // namespace
}  // namespace kvrun::testing
