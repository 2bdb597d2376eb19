// DynaKV: whatever clusters have become, with everything selected the model says what it says with all KV in
// memory, after thousands of tokens that were generated, after truncations and further prompts, in batches.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "platform/base/random.h"
#include "runtime/engine/session/session_kv.h"
#include "runtime/kv/serve/record_cache.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"

namespace kvrun::testing {
namespace {

constexpr const char* kEverything =
    "--kv-method dynakv --kv-select 100000 --kv-window 6 --kv-sinks 2 --kv-type f32 ";

class DynaKv : public ::testing::TestWithParam<SmallModel> {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    loaded_ = LoadSmallModel(GetParam(), folder_);
  }

  std::unique_ptr<ForwardPass> NewPass(const std::string& options, uint32_t n_ctx, uint32_t n_sequences = 1) {
    return loaded_.NewPass(
        {.n_sequences = n_sequences,
         .n_ctx = n_ctx,
         .offloaded = OffloadedOptionsOrDie(loaded_, folder_, options, n_ctx, n_sequences)});
  }
  std::unique_ptr<ForwardPass> NewFull(uint32_t n_ctx, uint32_t n_sequences = 1) const {
    return loaded_.NewPass(
        {.n_sequences = n_sequences, .n_ctx = n_ctx, .kv_type = KvType::kF32, .offloaded = nullptr});
  }
  size_t n_vocab() const { return loaded_.model->config.n_vocab; }

  void ExpectSame(const std::string& name, std::span<const float> expected,
                  std::span<const float> found) const {
    const LogitsDifference difference = CompareLogits(expected, found, n_vocab());
    EXPECT_LE(difference.max_absolute, 0.02) << name;
    EXPECT_EQ(difference.wrong_top1, 0U) << name;
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
};

// An odd head size, biases or norms of Q and K.
std::vector<SmallModel> Models() {
  std::vector<SmallModel> models = SmallModels();
  std::erase_if(models, [](const SmallModel& model) {
    return model.name != "SelfMade" && model.name != "llama_odd_Q4_1" && model.name != "qwen3_qknorm_Q4_K_M";
  });
  return models;
}

INSTANTIATE_TEST_SUITE_P(All, DynaKv, ::testing::ValuesIn(Models()),
                         [](const ::testing::TestParamInfo<SmallModel>& source) {
                           return source.param.name;
                         });

// Most entries are generated. Where the index has hardly any room, and where a cluster holds two.
TEST_P(DynaKv, EverythingSelectedIsFullAttentionThroughALongDecode) {
  constexpr uint32_t kContext = 640;
  constexpr size_t kPrompt = 40;
  const std::vector<int> ids = SomeIds(kContext, 3, n_vocab());
  const auto say = [&](ForwardPass& pass) {
    std::vector<float> said = Feed(pass, ids, 0, kPrompt, kPrompt);
    for (size_t i = kPrompt; i < ids.size(); ++i) {
      const std::vector<float> logits = Feed(pass, ids, i, i + 1, 1);
      if (i % 37 == 0) said.insert(said.end(), logits.begin(), logits.end());
    }
    return said;
  };
  const std::vector<float> expected = say(*NewFull(kContext));
  for (const char* options :
       {"--kv-cluster 16 --kv-pending 4", "--kv-cluster 4 --kv-split 0.5 --kv-pending 16 --kv-group 3",
        "--kv-cluster 2 --kv-cluster-max 2 --kv-pending 1 --kv-group 1", "--kv-cluster 8 --kv-update static",
        "--kv-cluster 8 --kv-update local --kv-pending 24", "--kv-cluster 8 --kv-upkeep 1",
        "--kv-cluster 16 --kv-pending 2 --kv-reuse 5 --kv-layout cluster",
        "--kv-cluster 8 --kv-pending 12 --kv-reuse 5 --kv-layout sequence"}) {
    const auto pass = NewPass(std::string(kEverything) + options, kContext);
    ExpectSame(options, expected, say(*pass));
    // Each entry is in one place.
    const KvReport report = *pass->kv_report();
    ASSERT_TRUE(report.clusters.has_value());
    const uint64_t n_streams = uint64_t{report.plan.n_streams} * loaded_.model->config.n_layers;
    EXPECT_EQ(report.clusters->entries + report.clusters->pending + n_streams * (2 + 6),
              n_streams * kContext);
    EXPECT_GT(report.clusters->divisions, 0U);
    EXPECT_GT(report.clusters->moves.new_entries, n_streams * (kContext - kPrompt) / 2);
  }
}

// What a token may not change waits for the next one, until its list has no place for more.
TEST_P(DynaKv, UpkeepThatIsTooMuchIsPutOff) {
  constexpr uint32_t kContext = 300;
  const std::vector<int> ids = SomeIds(kContext, 3, n_vocab());
  const auto report_of = [&](const std::string& options) {
    const auto pass = NewPass(std::string(kEverything) + "--kv-cluster 8 --kv-upkeep " + options, kContext);
    Feed(*pass, ids, 0, 40, 40);
    for (size_t i = 40; i < ids.size(); ++i) Feed(*pass, ids, i, i + 1, 1);
    return *pass->kv_report()->clusters;
  };
  const ClusterReport little = report_of("1");
  const ClusterReport enough = report_of("100000");
  EXPECT_EQ(enough.put_off, 0U);
  EXPECT_GT(little.put_off, 0U);
  EXPECT_GT(little.pending, enough.pending);
  EXPECT_GT(little.forced_loads, enough.forced_loads);
  EXPECT_EQ(little.entries + little.pending, enough.entries + enough.pending);
}

// A conversation: prompts of many and of few tokens, answers, and tokens that are taken back, from anywhere.
TEST_P(DynaKv, TruncatedAndContinuedItIsFullAttention) {
  constexpr uint32_t kContext = 300;
  const std::vector<int> ids = SomeIds(kContext + 64, 5, n_vocab());
  for (const uint64_t seed : {1U, 2U, 3U}) {
    const auto full = NewFull(kContext);
    const auto pass = NewPass(fmt::format("{} --kv-cluster {} --kv-pending 3 {}", kEverything, 4 + 4 * seed,
                                          seed == 2 ? "--kv-reuse 7" : ""),
                              kContext);
    Random random(seed);
    uint32_t length = 0;
    for (uint32_t turn = 0; turn < 24; ++turn) {
      if (length > 0 && random.Below(3) == 0) length -= random.Below(std::min(length, 80U) + 1);
      const uint32_t n = std::min(kContext - length, 1 + random.Below(random.Below(2) == 0 ? 6 : 70));
      if (n == 0) {
        length = random.Below(40);
        continue;
      }
      // Other words than those that were there before.
      std::vector<int> said(ids.begin() + static_cast<ptrdiff_t>(turn),
                            ids.begin() + static_cast<ptrdiff_t>(turn + length + n));
      const size_t chunk = random.Below(2) == 0 ? 1 : n;
      ExpectSame(
          fmt::format("seed {}, turn {}, {} entries after {}, {} at once", seed, turn, n, length, chunk),
          Feed(*full, said, length, length + n, chunk), Feed(*pass, said, length, length + n, chunk));
      if (HasFailure()) return;
      length += n;
    }
  }
}

// Sequences of different lengths, whose clusters have nothing to do with each other.
TEST_P(DynaKv, ABatchIsFullAttention) {
  constexpr uint32_t kContext = 200;
  const auto say = [&](ForwardPass& pass) {
    std::vector<float> said;
    uint32_t positions[] = {100, 3, 57, 131};
    for (uint32_t s = 0; s < 4; ++s) {
      Feed(pass, SomeIds(kContext, s, n_vocab()), 0, positions[s], positions[s], s);
    }
    for (uint32_t step = 0; step < 60; ++step) {
      ForwardStep rows;
      std::vector<uint32_t> outputs;
      for (uint32_t s = 0; s < 4; ++s) {
        if ((step + s) % 5 == 0) continue;  // not in every step
        const uint32_t at = positions[s]++;
        rows.Add(SpanKind::kDecode, {SomeIds(kContext, s, n_vocab())[at], at, s});
        outputs.push_back(static_cast<uint32_t>(rows.size() - 1));
      }
      std::vector<float> logits(rows.size() * n_vocab());
      RunOrDie(pass.Run(rows, outputs, logits));
      said.insert(said.end(), logits.begin(), logits.end());
    }
    return said;
  };
  ExpectSame("batch", say(*NewFull(kContext, 4)),
             say(*NewPass(std::string(kEverything) + "--kv-cluster 8 --kv-pending 4", kContext, 4)));
}

// A prompt that is given up, or cannot be finished, leaves what was there before.
TEST_P(DynaKv, APromptThatIsGivenUpLeavesWhatWasThere) {
  constexpr uint32_t kContext = 300;
  const std::vector<int> ids = SomeIds(kContext, 9, n_vocab());
  const auto full = NewFull(kContext);
  const auto pass = NewPass(std::string(kEverything) + "--kv-cluster 8", kContext);
  Feed(*full, ids, 0, 90, 90);
  Feed(*pass, ids, 0, 90, 90);
  pass->SetProgress([](uint64_t done, uint64_t /*total*/) { return done < 300; });
  ForwardStep rows;
  for (uint32_t i = 90; i < 200; ++i) rows.Add(SpanKind::kPrompt, {ids[i], i, 0});
  EXPECT_FALSE(pass->Run(rows, {}, {}).ok());
  pass->SetProgress(nullptr);
  ExpectSame("one token", Feed(*full, ids, 90, 91, 1), Feed(*pass, ids, 90, 91, 1));
  ExpectSame("the prompt again", Feed(*full, ids, 91, 200, 109), Feed(*pass, ids, 91, 200, 109));
}

}  // namespace
}  // namespace kvrun::testing
