// Records that hold entries in a space of their own (--kv-rotate on): with f32, where nothing is rounded
// away, logits are those of records that hold them as they are. Whenever the means are set, and whatever is
// forgotten.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "runtime/kv/serve/record_cache.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kRotateContext = 640;
constexpr double kRotateTolerance = 2e-3;  // of the largest logit: of many layers' roundoff

class RotateTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    loaded_ = LoadSmallModel({"SelfMade", ""}, folder_);
    ids_ = SomeIds(kRotateContext, 3, loaded_.model->config.n_vocab);
  }

  std::unique_ptr<ForwardPass> NewPass(bool rotates, const std::string& options,
                                       uint32_t n_sequences = 1) const {
    const std::string all = fmt::format("{} --kv-type f32 --kv-rotate {}", options, rotates ? "on" : "off");
    return loaded_.NewPass(
        {.n_sequences = n_sequences,
         .n_ctx = kRotateContext,
         .offloaded = OffloadedOptionsOrDie(loaded_, folder_, all, kRotateContext, n_sequences)});
  }

  // Prompts and single tokens that both passes compute, and whose logits must be alike.
  struct Both {
    std::unique_ptr<ForwardPass> rotated;
    std::unique_ptr<ForwardPass> plain;
  };
  Both NewBoth(const std::string& options, uint32_t n_sequences = 1) const {
    return {NewPass(true, options, n_sequences), NewPass(false, options, n_sequences)};
  }
  void ExpectAlike(Both& both, size_t begin, size_t end, size_t chunk, uint32_t sequence = 0) const {
    const std::vector<float> found = Feed(*both.rotated, ids_, begin, end, chunk, sequence);
    const std::vector<float> expected = Feed(*both.plain, ids_, begin, end, chunk, sequence);
    ASSERT_EQ(found.size(), expected.size());
    float largest = 0.0F;
    float worst = 0.0F;
    for (size_t i = 0; i < found.size(); ++i) {
      largest = std::max(largest, std::abs(expected[i]));
      worst = std::max(worst, std::abs(found[i] - expected[i]));
    }
    EXPECT_LE(worst, kRotateTolerance * largest) << "entries " << begin << " to " << end;
  }

  static bool HasMeans(const Both& both, uint32_t sequence = 0) {
    return both.rotated->record_cache()->spaces().has_means(0, sequence);
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
  std::vector<int> ids_;
};

// Where nothing that is chosen depends on how records round.
INSTANTIATE_TEST_SUITE_P(
    Methods, RotateTest,
    ::testing::Values("kvswap --kv-select 64", "kvswap --kv-select 64 --kv-heads per-kv-head",
                      "kvswap --kv-select 64 --kv-reuse 8", "kvswap --kv-select 64 --kv-static 0.5",
                      "kvswap --kv-select 64 --kv-sinks 0", "flexgen", "streaming --kv-window 48",
                      "infinigen --kv-select 64", "prkv --kv-select 640", "dynakv --kv-select 640",
                      "snapkv --kv-select 640"),
    [](const auto& info) {
      std::string name;
      for (const char c : info.param) {
        if (std::isalnum(static_cast<unsigned char>(c)) != 0) name += c;
      }
      return name;
    });

TEST_P(RotateTest, SaysWhatItSaysWithoutIt) {
  Both both = NewBoth("--kv-method " + GetParam());
  const KvPlan& plan = both.rotated->record_cache()->plan();
  EXPECT_TRUE(plan.rotates);
  EXPECT_FALSE(both.plain->record_cache()->plan().rotates);
  ExpectAlike(both, 0, 300, 300);
  EXPECT_TRUE(HasMeans(both));
  ExpectAlike(both, 300, 312, 1);
  ExpectAlike(both, 312, 400, 88);
  ExpectAlike(both, 400, 404, 1);
}

// Of a sequence that began with less than means are taken of: what is there is shifted.
TEST_P(RotateTest, SaysTheSameWhereMeansComeLate) {
  Both both = NewBoth("--kv-method " + GetParam());
  ExpectAlike(both, 0, 40, 40);
  ExpectAlike(both, 40, 53, 1);
  EXPECT_FALSE(HasMeans(both));
  ExpectAlike(both, 53, 400, 347);
  const KvMethod& method = both.rotated->record_cache()->plan().method;
  EXPECT_EQ(HasMeans(both), !method.has_clusters() && !method.evicts()) << method.name;
  ExpectAlike(both, 400, 410, 1);
}

// Back into the sinks, into what the window held, and to the beginning: means stay, and go.
TEST_P(RotateTest, SaysTheSameAfterForgetting) {
  if (GetParam().starts_with("snapkv") || GetParam().starts_with("streaming"))
    GTEST_SKIP() << "it cannot forget";
  Both both = NewBoth("--kv-method " + GetParam());
  ExpectAlike(both, 0, 300, 300);
  ExpectAlike(both, 300, 305, 1);
  for (const size_t length : {290U, 130U, 3U}) {
    ExpectAlike(both, length, length + 6, 1);
    EXPECT_TRUE(HasMeans(both)) << length;
  }
  ExpectAlike(both, 2, 90, 88);
  EXPECT_TRUE(HasMeans(both));
  ExpectAlike(both, 0, 30, 30);
  EXPECT_FALSE(HasMeans(both));
  ExpectAlike(both, 30, 36, 1);
}

// Of sequences whose prompts are too short to say any: from the first entry on, until there are others.
class RotateFileMeansTest : public RotateTest {
 protected:
  std::unique_ptr<ForwardPass> NewPassOfFile(bool rotates) const {
    const std::string all =
        fmt::format("--kv-method {} --kv-type f32 --kv-rotate {}", GetParam(), rotates ? "on" : "off");
    const auto options = OffloadedOptionsOrDie(loaded_, folder_, all, kRotateContext, 1);
    const ModelConfig& config = loaded_.model->config;
    Adapter adapter;
    adapter.entry_means = RandomFloats(size_t{config.n_layers} * config.kv_dim() * 2, 0.5F, 7);
    adapter.cluster_thresholds.assign(size_t{config.n_layers} * config.n_kv_heads, 1.5F);
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
      const std::vector<float> keys = RandomFloats(size_t{200} * config.kv_dim(), 1.0F, layer);
      std::vector<float> sums(size_t{config.kv_dim() + 1} * config.kv_dim());
      AddKeys(keys, config.kv_dim(), sums);
      const LayerSums of_keys{config.n_kv_heads, config.head_dim, 200, sums, 0, {}};
      adapter.layers.push_back(
          OrDie(ComputeAdapter(AdapterKind::kPlain, of_keys, std::max(options->plan.index.rank, 1U))));
    }
    options->plan.adapter.kind = AdapterKind::kPlain;
    options->plan.adapter.is_from_file = true;
    options->adapter = std::make_shared<const Adapter>(std::move(adapter));
    return loaded_.NewPass({.n_sequences = 1, .n_ctx = kRotateContext, .offloaded = options});
  }
};

INSTANTIATE_TEST_SUITE_P(Methods, RotateFileMeansTest,
                         ::testing::Values("kvswap --kv-select 64", "flexgen", "dynakv --kv-select 640",
                                           "snapkv --kv-select 640"),
                         [](const auto& info) { return info.param.substr(0, info.param.find(' ')); });

TEST_P(RotateFileMeansTest, SaysTheSameFromTheFirstEntryOn) {
  Both both{NewPassOfFile(true), NewPassOfFile(false)};
  const EntrySpaces& spaces = both.rotated->record_cache()->spaces();
  const auto first_mean = [&] { return spaces.MeanKey(0, 0)[0]; };
  const float of_file = first_mean();
  EXPECT_NE(of_file, 0.0F);
  ExpectAlike(both, 0, 40, 40);
  ExpectAlike(both, 40, 53, 1);
  EXPECT_EQ(first_mean(), of_file);
  ExpectAlike(both, 53, 400, 347);
  const KvMethod& method = both.rotated->record_cache()->plan().method;
  EXPECT_EQ(first_mean() == of_file, method.has_clusters() || method.evicts()) << "a long prompt says others";
  ExpectAlike(both, 400, 410, 1);
}

class RotateKvswapTest : public RotateTest {};

// No prompt says the means: they are taken of what is stored when the index has to learn.
TEST_F(RotateKvswapTest, MeansOfWhatWasDecoded) {
  Both both = NewBoth("--kv-method kvswap --kv-select 320 --kv-window 8");
  ExpectAlike(both, 0, 320, 1);
  EXPECT_FALSE(HasMeans(both));
  ExpectAlike(both, 320, 350, 1);
  EXPECT_TRUE(HasMeans(both));
  ExpectAlike(both, 350, 356, 1);
}

// Each has its own, and rows of a step are of both.
TEST_F(RotateKvswapTest, SequencesHaveMeansOfTheirOwn) {
  Both both = NewBoth("--kv-method kvswap --kv-select 64", 2);
  ExpectAlike(both, 0, 300, 300, 0);
  ExpectAlike(both, 0, 100, 100, 1);
  EXPECT_TRUE(HasMeans(both, 0));
  EXPECT_FALSE(HasMeans(both, 1));
  for (uint32_t at = 0; at < 8; ++at) {
    ForwardStep rows;
    rows.Add(SpanKind::kDecode, {ids_[at + 300], 300 + at, 0});
    rows.Add(SpanKind::kDecode, {ids_[at + 100], 100 + at, 1});
    const std::vector<uint32_t> outputs = {0, 1};
    std::vector<float> found(2 * both.rotated->n_vocab());
    std::vector<float> expected(found.size());
    RunOrDie(both.rotated->Run(rows, outputs, found));
    RunOrDie(both.plain->Run(rows, outputs, expected));
    const float largest = *std::max_element(expected.begin(), expected.end());
    for (size_t i = 0; i < found.size(); ++i)
      ASSERT_NEAR(found[i], expected[i], kRotateTolerance * largest) << i;
  }
  ExpectAlike(both, 108, 400, 292, 1);
  EXPECT_TRUE(HasMeans(both, 1));
  ExpectAlike(both, 400, 406, 1, 1);
  ExpectAlike(both, 308, 314, 1, 0);
}

}  // namespace
}  // namespace kvrun::testing
