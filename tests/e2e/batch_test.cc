// Sequences together and each alone, a prompt in one chunk and in many: the same logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "tests/support/engine_fixture.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"

namespace kvrun::testing {
namespace {

void ExpectEqualWithinBounds(std::span<const float> one, std::span<const float> other, size_t n_vocab) {
  const LogitsDifference difference = CompareLogits(one, other, n_vocab);
  EXPECT_LE(difference.max_absolute, 0.02);
  EXPECT_LE(difference.mean_kl, 1e-5);
  EXPECT_EQ(difference.wrong_top1, 0U);
}

class Batch : public ::testing::TestWithParam<SmallModel> {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    loaded_ = LoadSmallModel(GetParam(), folder_);
  }

  size_t n_vocab() const { return loaded_.model->config.n_vocab; }

  // Prompts of different lengths, then three tokens each, all sequences in one step.
  void CompareTogetherWithAlone(uint32_t n_sequences) {
    constexpr size_t kSteps = 3;
    constexpr uint32_t kContext = 96;
    std::vector<std::vector<int>> ids;
    std::vector<size_t> prompt_sizes;
    for (uint32_t s = 0; s < n_sequences; ++s) {
      prompt_sizes.push_back(1 + (s * 23) % 70);
      ids.push_back(SomeIds(prompt_sizes.back() + kSteps, s, n_vocab()));
    }
    const auto together = loaded_.NewPass({n_sequences, kContext, KvType::kF32});
    for (uint32_t s = 0; s < n_sequences; ++s) Feed(*together, ids[s], 0, prompt_sizes[s], 64, s);
    std::vector<std::vector<float>> steps;
    for (size_t step = 0; step < kSteps; ++step) {
      steps.push_back(Step(*together, ids, prompt_sizes, step));
    }
    const auto alone = loaded_.NewPass({1, kContext, KvType::kF32});
    for (uint32_t s = 0; s < n_sequences; ++s) {
      Feed(*alone, ids[s], 0, prompt_sizes[s], 64);
      for (size_t step = 0; step < kSteps; ++step) {
        const size_t at = prompt_sizes[s] + step;
        SCOPED_TRACE("sequence " + std::to_string(s) + ", step " + std::to_string(step));
        ExpectEqualWithinBounds(Feed(*alone, ids[s], at, at + 1, 1),
                                std::span(steps[step]).subspan(s * n_vocab(), n_vocab()), n_vocab());
      }
    }
  }

  // In an order that is not the sequences' own.
  std::vector<float> Step(ForwardPass& pass, const std::vector<std::vector<int>>& ids,
                          const std::vector<size_t>& prompt_sizes, size_t step) const {
    ForwardStep rows;
    std::vector<uint32_t> outputs;
    const auto n = static_cast<uint32_t>(ids.size());
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t s = n - 1 - i;
      const size_t at = prompt_sizes[s] + step;
      rows.Add(SpanKind::kDecode, {ids[s][at], static_cast<uint32_t>(at), s});
      outputs.push_back(s);  // so that row s of the logits is of sequence s
    }
    std::vector<float> logits(n * n_vocab());
    const Status status = pass.Run(rows, outputs, logits);
    if (!status.ok()) ADD_FAILURE() << status.message();
    return logits;
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
};

TEST_P(Batch, FourSequencesTogetherEqualEachAlone) { CompareTogetherWithAlone(4); }
TEST_P(Batch, SixteenSequencesTogetherEqualEachAlone) { CompareTogetherWithAlone(16); }

TEST_P(Batch, OneChunkEqualsMany) {
  const std::vector<int> ids = SomeIds(100, 5, n_vocab());
  const auto pass = loaded_.NewPass({1, 128, KvType::kF32});
  const std::vector<float> whole = Feed(*pass, ids, 0, ids.size(), ids.size());
  for (const size_t chunk : {1, 2, 7, 33, 64, 99}) {
    SCOPED_TRACE(chunk);
    ExpectEqualWithinBounds(whole, Feed(*pass, ids, 0, ids.size(), chunk), n_vocab());
  }
}

TEST_P(Batch, LengthsAroundAChunk) {
  const std::vector<int> ids = SomeIds(514, 9, n_vocab());
  const auto pass = loaded_.NewPass({1, 514, KvType::kF32});
  const auto small_steps = loaded_.NewPass({1, 514, KvType::kF32});
  size_t begin = 0;
  for (const size_t n : {255, 256, 257, 511, 512, 513}) {
    SCOPED_TRACE(n);
    const std::vector<float> expected = Feed(*small_steps, ids, begin, n, 17);
    begin = n;
    ExpectEqualWithinBounds(expected, Feed(*pass, ids, 0, n, pass->max_rows()), n_vocab());
  }
}

// What an earlier, longer text left in the cache must not be seen.
TEST_P(Batch, ACacheThatWasUsedBeforeDoesNotMatter) {
  const std::vector<int> first = SomeIds(90, 1, n_vocab());
  const std::vector<int> second = SomeIds(41, 2, n_vocab());
  const auto used = loaded_.NewPass({1, 96, KvType::kF32});
  Feed(*used, first, 0, first.size(), 64);
  const auto fresh = loaded_.NewPass({1, 96, KvType::kF32});
  ExpectEqualWithinBounds(Feed(*fresh, second, 0, second.size(), 64),
                          Feed(*used, second, 0, second.size(), 64), n_vocab());
}

INSTANTIATE_TEST_SUITE_P(Models, Batch, ::testing::ValuesIn(SmallModels()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace kvrun::testing
