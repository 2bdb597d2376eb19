// A static set beside groups that are selected: with everything selected the model says what it says with all
// KV in memory, wherever a sequence is truncated or goes on; with less, a run says the same whatever else is
// computed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/session/session_kv.h"
#include "runtime/kv/plan/kv_method.h"
#include "runtime/kv/planner/describe_plan.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kShortContext = 320;
constexpr size_t kPrompts[] = {100, 33, 121, 60};

class StaticSetRun : public ::testing::Test {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    loaded_ = LoadSmallModel({"SelfMade", ""}, folder_);
  }

  std::unique_ptr<ForwardPass> NewPass(const std::string& options, uint32_t n_sequences = 1,
                                       uint32_t tile_tokens = 0, uint32_t n_ctx = kShortContext) {
    auto offloaded = OffloadedOptionsOrDie(
        loaded_, folder_, fmt::format("--kv-window 6 --kv-method {}", options), n_ctx, n_sequences);
    plan_ = offloaded->plan;
    if (tile_tokens > 0) {
      offloaded->plan.prefill.tile_tokens = tile_tokens;
      offloaded->plan.prefill.spills_hidden = true;
    }
    return loaded_.NewPass({.n_sequences = n_sequences, .n_ctx = n_ctx, .offloaded = std::move(offloaded)});
  }
  std::unique_ptr<ForwardPass> NewFull(uint32_t n_sequences = 1, KvType type = KvType::kF32) const {
    return loaded_.NewPass(
        {.n_sequences = n_sequences, .n_ctx = kShortContext, .kv_type = type, .offloaded = nullptr});
  }
  size_t n_vocab() const { return loaded_.model->config.n_vocab; }
  std::vector<int> Ids(size_t seed = 3) const { return SomeIds(kShortContext, seed, n_vocab()); }
  bool is_host() const { return loaded_.device->info().driver == "kvrun host"; }

  // On a driver for the CPU, which takes long, the two that the set was made for.
  std::vector<std::string> SomeMethods() const {
    std::vector<std::string> methods;
    for (const KvMethod& method : KvMethods()) {
      const bool is_needed = is_host() || method.name == "kvswap" || method.name == "prkv";
      const bool is_exact = method.precision == KvPrecisionKind::kUniform;
      if (method.may_have_statics() && is_needed && is_exact) methods.emplace_back(method.name);
    }
    return methods;
  }

  // Positions [begin, end) one by one; the logits of every fifth.
  std::vector<float> Decode(ForwardPass& pass, std::span<const int> ids, size_t begin, size_t end,
                            uint32_t sequence = 0) const {
    std::vector<float> said;
    for (size_t i = begin; i < end; ++i) {
      const std::vector<float> logits = Feed(pass, ids, i, i + 1, 1, sequence);
      if (i % 5 == 0) said.insert(said.end(), logits.begin(), logits.end());
    }
    return said;
  }
  void ExpectFull(std::span<const float> expected, std::span<const float> found) const {
    const LogitsDifference difference = CompareLogits(expected, found, n_vocab());
    EXPECT_LE(difference.max_absolute, 0.02);
    EXPECT_EQ(difference.wrong_top1, 0U);
  }
  // Bit by bit on the CPU, which computes a row the same whatever is computed with it.
  void ExpectSame(std::span<const float> expected, std::span<const float> found) const {
    if (is_host()) {
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), found.begin(), found.end()));
    }
    EXPECT_LE(CompareLogits(expected, found, n_vocab()).mean_kl, 0.01);
  }
  // A prompt of positions from `begin` on, which is given up when it asks for the n-th time.
  void Cancel(ForwardPass& pass, uint32_t sequence, uint32_t begin, uint64_t n) const {
    uint64_t asked = 0;
    pass.SetProgress([&](uint64_t, uint64_t) { return ++asked > n; });
    ForwardStep rows;
    for (uint32_t i = begin; i < 300; ++i) rows.Add(SpanKind::kPrompt, {Ids(7)[i], i, sequence});
    EXPECT_EQ(pass.Run(rows, {}, {}).code(), StatusCode::kCancelled);
    pass.SetProgress({});
  }
  // All sequences go on from their prompts together, `n` tokens each.
  std::vector<float> DecodeTogether(ForwardPass& pass, std::span<const uint32_t> sequences, size_t n) const {
    std::vector<float> said;
    for (size_t step = 0; step < n; ++step) {
      ForwardStep rows;
      std::vector<uint32_t> outputs;
      for (const uint32_t s : sequences) {
        const size_t at = kPrompts[s] + step;
        outputs.push_back(static_cast<uint32_t>(rows.size()));
        rows.Add(SpanKind::kDecode, {Ids(s)[at], static_cast<uint32_t>(at), s});
      }
      std::vector<float> logits(rows.size() * n_vocab());
      RunOrDie(pass.Run(rows, outputs, logits));
      said.insert(said.end(), logits.begin(), logits.end());
    }
    return said;
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
  KvPlan plan_;
};

// A prompt, tokens, some taken back into the set and to before it, further prompts, and tokens again.
TEST_F(StaticSetRun, EverythingSelectedIsFullAttention) {
  const std::vector<int> ids = Ids();
  const auto say = [&](ForwardPass& pass) {
    std::vector<float> said = Feed(pass, ids, 0, 150, 150);
    const auto add = [&said](const std::vector<float>& more) {
      said.insert(said.end(), more.begin(), more.end());
    };
    add(Decode(pass, ids, 150, 185));
    add(Decode(pass, ids, 100, 131));  // into the set
    add(Feed(pass, ids, 131, 200, 40));
    add(Decode(pass, ids, 200, 221));
    add(Feed(pass, ids, 60, 110, 50));  // by a prompt
    add(Decode(pass, ids, 110, 121));
    add(Decode(pass, ids, 3, 21));  // before all of it
    add(Feed(pass, ids, 21, 230, 230));
    add(Feed(pass, ids, 230, 232, 2));
    add(Decode(pass, ids, 232, 251));
    return said;
  };
  const std::vector<float> expected = say(*NewFull());
  const std::vector<float> halves = say(*NewFull(1, KvType::kF16));
  for (const std::string& method : SomeMethods()) {
    for (const char* options : {"--kv-group 4 --kv-type f32", "--kv-group 16 --kv-type f32 --kv-reuse 3",
                                "--kv-group 1 --kv-type f32", "--kv-group 7 --kv-type f16"}) {
      SCOPED_TRACE(method + " " + options);
      const auto pass = NewPass(fmt::format(
          "{} {} --kv-select 4096 --kv-static 0.25 --kv-static-steps 8 --kv-sinks 2", method, options));
      ASSERT_EQ(plan_.n_statics(), kShortContext / 4);
      ExpectFull(plan_.record.k_type == KvType::kF16 ? halves : expected, say(*pass));
      EXPECT_EQ(pass->kv_report()->statics->n_chosen_again, 0U) << "all are attended to anyway";
    }
  }
  // Pages laid anew hold all that is not in the set, wherever the sequence is truncated.
  for (const std::string options :
       {"prkv --kv-group 4 --kv-type f32", "prkv --kv-group 16 --kv-type f32 --kv-reuse 3",
        "quest --kv-group 7 --kv-type f16 --kv-sinks 2", "meanstd --kv-group 1 --kv-type f32"}) {
    if (!is_host() && !options.starts_with("prkv --kv-group 4")) continue;
    SCOPED_TRACE(options);
    const auto pass = NewPass(fmt::format("{} --kv-select 4096 --kv-static 0.25 --kv-repage on", options));
    ExpectFull(plan_.record.k_type == KvType::kF16 ? halves : expected, say(*pass));
    EXPECT_GT(pass->kv_report()->statics->repaged_bytes, 0U);
  }
}

// Two precisions: all of the set as it is stored, or some of it in fewer bits.
TEST_F(StaticSetRun, SourcesOfTwoPrecisions) {
  const std::vector<int> ids = Ids();
  const auto say = [&](ForwardPass& pass) {
    Feed(pass, ids, 0, 200, 200);
    return Decode(pass, ids, 200, 240);
  };
  const std::vector<float> expected = say(*NewFull());
  for (const char* precisions : {"original", "bytes", "entries", "quantised"}) {
    SCOPED_TRACE(precisions);
    const auto pass = NewPass(fmt::format(
        "arkv-flash --kv-rank 4 --kv-type f32 --kv-select 4096 --kv-static 0.5 --kv-precisions {}",
        precisions));
    const std::vector<float> said = say(*pass);
    if (std::string_view(precisions) == "original") {
      ExpectFull(expected, said);
    } else {
      EXPECT_NE(said, expected);
      EXPECT_LT(CompareLogits(expected, said, n_vocab()).mean_kl, 0.02);
    }
  }
}

TEST_F(StaticSetRun, EverythingSelectedIsFullAttentionInABatch) {
  const std::vector<uint32_t> all = {0, 1, 2, 3};
  const auto say = [&](ForwardPass& pass) {
    for (const uint32_t s : all) Feed(pass, Ids(s), 0, kPrompts[s], kPrompts[s], s);
    return DecodeTogether(pass, all, 8);
  };
  const std::vector<float> expected = say(*NewFull(4));
  for (const std::string& method : SomeMethods()) {
    SCOPED_TRACE(method);
    for (const char* options : {"", "--kv-reuse 2"}) {
      ExpectFull(expected, say(*NewPass(fmt::format("{} --kv-select 4096 --kv-static 0.4 --kv-group 4 "
                                                    "--kv-type f32 {}",
                                                    method, options),
                                        4)));
    }
  }
}

// With less selected: a sequence says the same alone as among others, and in tiles of its prompt; a run is
// repeatable; and the set is chosen again as often as it should be.
TEST_F(StaticSetRun, ASequenceSaysTheSameAmongOthers) {
  for (const std::string options :
       {"prkv --kv-select 64 --kv-group 8 --kv-static-steps 8",
        "prkv --kv-select 64 --kv-group 8 --kv-reuse 2",
        "prkv --kv-select 64 --kv-group 8 --kv-static 0.5 --kv-static-steps 8 --kv-repage on",
        "quest --kv-select 40 --kv-group 4 --kv-static 0.5 --kv-static-steps 8 --kv-type int8"}) {
    SCOPED_TRACE(options);
    const auto say = [&](std::span<const uint32_t> sequences) {
      const auto pass = NewPass(options, 4);
      for (const uint32_t s : sequences) Feed(*pass, Ids(s), 0, kPrompts[s], kPrompts[s], s);
      std::vector<float> said = DecodeTogether(*pass, sequences, 20);
      if (plan_.of_groups().statics.steps == 8) {
        EXPECT_EQ(pass->kv_report()->statics->n_chosen_again, 2 * sequences.size());
      }
      return said;
    };
    const std::vector<uint32_t> all = {0, 1, 2, 3};
    const std::vector<float> together = say(all);
    ExpectSame(together, say(all));
    for (const uint32_t s : all) {
      std::vector<float> of_one;
      for (size_t step = 0; step < 20; ++step) {
        const auto row = std::span(together).subspan((step * 4 + s) * n_vocab(), n_vocab());
        of_one.insert(of_one.end(), row.begin(), row.end());
      }
      ExpectSame(of_one, say({&s, 1}));
    }
  }
}

// Each time the set is chosen, and not otherwise, what is not in it is written again, about as much as the
// prompt wrote.
TEST_F(StaticSetRun, PagesAreLaidAnewWithEachSet) {
  const std::vector<int> ids = Ids();
  const auto options = [](const char* repage) {
    return fmt::format("prkv --kv-select 64 --kv-group 8 --kv-static 0.5 --kv-static-steps 20 --kv-repage {}",
                       repage);
  };
  const auto pass = NewPass(options("on"));
  const auto stays = NewPass(options("off"));
  const auto repaged = [](const ForwardPass& of) { return of.kv_report()->statics->repaged_bytes; };
  Feed(*pass, ids, 0, 200, 200);
  Feed(*stays, ids, 0, 200, 200);
  EXPECT_EQ(repaged(*pass), 0U);
  const uint64_t prompt_bytes = stays->kv_report()->store.written_bytes;
  std::vector<float> said = Decode(*pass, ids, 200, 215);
  EXPECT_NE(said, Decode(*stays, ids, 200, 215)) << "other pages";
  const uint64_t once = repaged(*pass);
  EXPECT_GT(once, prompt_bytes / 2);
  EXPECT_LT(once, prompt_bytes);
  Decode(*pass, ids, 215, 225);
  EXPECT_EQ(pass->kv_report()->statics->n_chosen_again, 1U);
  EXPECT_GT(repaged(*pass), once);
  EXPECT_LT(repaged(*pass), 5 * once / 2);
  EXPECT_EQ(repaged(*stays), 0U);
  // Taken back: groups are read as they are, until the set is chosen again.
  const uint64_t before = repaged(*pass);
  Decode(*pass, ids, 190, 200);
  EXPECT_EQ(repaged(*pass), before);
}

TEST_F(StaticSetRun, TheSetIsChosenAgain) {
  const std::vector<int> ids = Ids();
  for (const std::string method : {"kvswap --kv-rank 4", "prkv", "oracle"}) {
    SCOPED_TRACE(method);
    const auto say = [&](uint32_t steps, uint64_t times) {
      const auto pass = NewPass(
          fmt::format("{} --kv-select 64 --kv-group 8 --kv-static 0.5 --kv-static-steps {}", method, steps));
      Feed(*pass, ids, 0, 120, 120);
      EXPECT_EQ(pass->kv_report()->statics->n_chosen_again, 0U);
      std::vector<float> said = Decode(*pass, ids, 120, 180);
      const StaticReport report = *pass->kv_report()->statics;
      EXPECT_EQ(report.n_chosen_again, times);
      EXPECT_EQ(report.milliseconds > 0.0, times > 0);
      EXPECT_EQ(pass->kv_report()->plan.n_statics(), 32U);
      EXPECT_EQ(pass->kv_report()->stats.most_groups, 4U) << "beside what is pinned";
      pass->ResetKvReport();
      EXPECT_EQ(pass->kv_report()->statics->n_chosen_again, 0U);
      // Taken back: counted from where it was chosen last, or from where it goes on.
      Decode(*pass, ids, 150, 150 + steps);
      return said;
    };
    const std::vector<float> never = say(0, 0);
    const std::vector<float> often = say(8, 7);
    EXPECT_NE(never, often);
    ExpectSame(often, say(8, 7));
    say(59, 1);
    say(60, 0);
  }
}

// Decoding from the first token on, without a prompt: the set is empty until it is chosen.
TEST_F(StaticSetRun, WithoutAPrompt) {
  const std::vector<int> ids = Ids();
  const auto full = NewFull();
  const std::vector<float> expected = Decode(*full, ids, 0, 60);
  for (const std::string method : {"kvswap --kv-rank 4", "prkv"}) {
    for (const char* share : {"0.5", "prompt"}) {
      SCOPED_TRACE(method + " " + share);
      const std::string options = fmt::format("{} --kv-group 4 --kv-static {} --kv-type f32", method, share);
      const auto all = NewPass(options + " --kv-select 4096");
      ExpectFull(expected, Decode(*all, ids, 0, 60));
      const auto some = NewPass(options + " --kv-select 32 --kv-static-steps 10");
      Decode(*some, ids, 0, 100);
      // Not before an index has learned.
      EXPECT_EQ(some->kv_report()->statics->n_chosen_again, method == "prkv" ? 9U : 7U);
    }
  }
}

// A further prompt after decoding chooses anew, in tiles or in one.
TEST_F(StaticSetRun, ALaterPromptChoosesAnew) {
  const std::vector<int> ids = Ids();
  for (const std::string method : {"kvswap --kv-rank 4", "prkv"}) {
    SCOPED_TRACE(method);
    const auto say = [&](uint32_t tile_tokens) {
      const auto pass = NewPass(method + " --kv-select 64 --kv-group 8 --kv-static 0.5", 1, tile_tokens);
      Feed(*pass, ids, 0, 150, 150);
      std::vector<float> said = Decode(*pass, ids, 150, 170);
      for (const auto& more : {Feed(*pass, ids, 170, 260, 90), Decode(*pass, ids, 260, 280),
                               Feed(*pass, ids, 265, 290, 25), Decode(*pass, ids, 290, 310)}) {
        said.insert(said.end(), more.begin(), more.end());
      }
      return said;
    };
    const std::vector<float> said = say(0);
    ExpectSame(said, say(0));
    EXPECT_LT(CompareLogits(said, say(64), n_vocab()).mean_kl, 0.02);
  }
}

// The first prompt says how much of a selection is static; as much is attended to.
TEST_F(StaticSetRun, TheFirstPromptSaysTheShare) {
  const std::vector<int> ids = Ids();
  bool had_none = false;
  for (const std::string method : {"kvswap --kv-rank 4", "prkv", "quest"}) {
    for (const auto& sizes : {std::pair{4U, 16U}, {4U, 5U}, {16U, 4U}, {8U, 8U}}) {
      const uint32_t group = sizes.first;
      const uint32_t n_total = sizes.second;
      SCOPED_TRACE(fmt::format("{}, {} groups of {}", method, n_total, group));
      const auto say = [&](bool is_short) {
        const auto pass =
            NewPass(fmt::format("{} --kv-group {} --kv-select {} --kv-sinks 0 --kv-static prompt "
                                "--kv-type f32",
                                method, group, group * n_total));
        EXPECT_EQ(pass->kv_report()->plan.n_statics(), n_total / 4 * group);
        if (is_short) {
          Feed(*pass, ids, 0, 3, 3);  // says nothing
          Decode(*pass, ids, 3, 5);
        }
        Feed(*pass, ids, 0, 280, 280);
        std::vector<float> said = Decode(*pass, ids, 280, 300);
        const KvPlan plan = pass->kv_report()->plan;
        EXPECT_EQ(plan.choice.n_chosen * group + plan.n_statics(), n_total * group);
        EXPECT_NEAR(plan.static_share().share * n_total * group, plan.n_statics(),
                    plan.choice.n_chosen == 1 ? group : 1e-6);
        had_none |= plan.n_statics() == 0;
        // Later prompts change nothing of it.
        Feed(*pass, ids, 20, 60, 40);
        Decode(*pass, ids, 60, 65);
        EXPECT_EQ(pass->kv_report()->plan.n_statics(), plan.n_statics());
        return said;
      };
      const std::vector<float> said = say(false);
      ExpectSame(said, say(false));
      if (method != "kvswap --kv-rank 4") ExpectSame(said, say(true));
    }
  }
  EXPECT_TRUE(had_none) << "a share of 0 was not tried";
}

// What the device holds while a prompt is computed, and while decoding, is at most what the plan says.
TEST_F(StaticSetRun, MemoryStaysWithinThePlan) {
  const auto kv_bytes = [&] { return KvBytesInUse(loaded_); };
  constexpr uint32_t kLong = 2048;  // a budget is less than prompts of a short context take
  const std::vector<int> ids = SomeIds(kLong, 3, n_vocab());
  for (const std::string options :
       {"kvswap --kv-static 0.5 --kv-budget 530KiB", "kvswap --kv-static prompt --kv-budget 530KiB",
        "prkv --kv-group 8 --kv-budget 530KiB", "prkv --kv-group 8 --kv-static prompt --kv-budget 530KiB",
        "prkv --kv-static 0.5 --kv-select 64", "kvswap --kv-static 1 --kv-select 64 --kv-type int4",
        "kvswap --kv-static prompt --kv-select 40 --kv-type int8", "arkv-flash --kv-select 80 --kv-type f16",
        "arkv-flash --kv-type f16 --kv-budget 760KiB --kv-moments rows",
        "arkv-flash --kv-select 80 --kv-type int8 --kv-precisions entries",
        "arkv-flash --kv-select 80 --kv-type int4 --kv-precisions quantised"}) {
    SCOPED_TRACE(options);
    const uint64_t before = kv_bytes();
    const auto pass = NewPass(options + " --kv-static-steps 8", 2, 0, kLong);
    EXPECT_TRUE(plan_.has_statics()) << DescribePlan(plan_);
    EXPECT_LE(std::max(plan_.decode_bytes(), plan_.prefill_bytes()), plan_.budget.bytes);
    uint64_t in_prefill = 0;
    pass->SetProgress([&](uint64_t, uint64_t) {
      in_prefill = std::max(in_prefill, kv_bytes() - before);
      return false;
    });
    for (const uint32_t s : {0U, 1U}) {
      Feed(*pass, ids, 0, 300, 300, s);
      Feed(*pass, ids, 300, 330, 30, s);
    }
    EXPECT_GT(in_prefill, 0U);
    EXPECT_LE(in_prefill, plan_.prefill_bytes());
    for (const uint32_t s : {0U, 1U}) {
      for (size_t i = 330; i < 350; ++i) {
        Feed(*pass, ids, i, i + 1, 1, s);
        ASSERT_LE(kv_bytes() - before, plan_.decode_bytes());
      }
    }
  }
}

// A prompt of another sequence that is given up at any time changes nothing.
TEST_F(StaticSetRun, APromptOfAnotherSequenceMayBeCancelled) {
  const std::vector<int> ids = Ids();
  for (const std::string method : {"kvswap --kv-rank 4", "prkv"}) {
    SCOPED_TRACE(method);
    const auto say = [&](uint64_t cancelled_at) {
      const auto pass =
          NewPass(method + " --kv-select 64 --kv-group 8 --kv-static 0.5 --kv-static-steps 8", 2, 64);
      Feed(*pass, ids, 0, 150, 150);
      std::vector<float> said = Decode(*pass, ids, 150, 160);
      if (cancelled_at > 0) Cancel(*pass, 1, 0, cancelled_at);
      for (const auto& more : {Decode(*pass, ids, 160, 180), Feed(*pass, Ids(5), 0, 120, 120, 1),
                               Decode(*pass, ids, 180, 190), Decode(*pass, Ids(5), 120, 130, 1)}) {
        said.insert(said.end(), more.begin(), more.end());
      }
      return said;
    };
    const std::vector<float> expected = say(0);
    for (const uint64_t at : {1U, 4U, 6U}) ExpectSame(expected, say(at));
  }
}

// One of the sequence itself: what was there is there. (Which entries are static may be others.)
TEST_F(StaticSetRun, APromptThatIsCancelledLosesNothing) {
  const std::vector<int> ids = Ids();
  const auto say = [&](ForwardPass& pass, uint64_t cancelled_at) {
    Feed(pass, ids, 0, 150, 150);
    std::vector<float> said = Decode(pass, ids, 150, 160);
    if (cancelled_at > 0) Cancel(pass, 0, 160, cancelled_at);
    for (const auto& more : {Decode(pass, ids, 160, 200), Feed(pass, ids, 200, 250, 50)}) {
      said.insert(said.end(), more.begin(), more.end());
    }
    if (cancelled_at > 0) Cancel(pass, 0, 170, cancelled_at);
    const std::vector<float> more = Decode(pass, ids, 170, 210);
    said.insert(said.end(), more.begin(), more.end());
    return said;
  };
  const std::vector<float> full = say(*NewFull(), 0);
  for (const std::string method : {"kvswap --kv-rank 4", "prkv"}) {
    for (const uint64_t at : {1U, 3U, 4U, 5U}) {
      SCOPED_TRACE(fmt::format("{} {}", method, at));
      const std::string options = method + " --kv-group 8 --kv-static 0.5 --kv-static-steps 8 --kv-type f32";
      ExpectFull(full, say(*NewPass(options + " --kv-select 4096", 1, 64), at));
      const std::vector<float> some = say(*NewPass(options + " --kv-select 64", 1, 64), at);
      ExpectSame(some, say(*NewPass(options + " --kv-select 64", 1, 64), at));
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
