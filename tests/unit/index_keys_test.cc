// Index rows of entries that steps add: made of the keys of whole groups.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "runtime/device/open_device.h"
#include "runtime/device/self_test_data.h"
#include "runtime/kv/index/low_rank_index.h"
#include "runtime/kv/memory/host_buffer.h"
#include "tests/support/index_reference.h"
#include "tests/support/or_die.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kGroups = 5;
constexpr uint32_t kKeyDim = 32;
constexpr uint32_t kLayers = 2;
constexpr uint32_t kUntouched = 0xa5a5a5a5U;

class IndexKeys : public ::testing::Test {
 protected:
  std::unique_ptr<LowRankIndex> NewIndex(KvType type, uint32_t rank, uint32_t group_tokens) {
    plan_ = KvPlan();
    plan_.method = OrDie(FindKvMethod("kvswap"));
    plan_.n_sequences = 2;
    plan_.n_streams = 2;
    plan_.n_ctx = kGroups * group_tokens;
    plan_.record = {KvType::kF16, KvType::kF16, 2, kKeyDim / 2, group_tokens};
    plan_.index = {type, rank, group_tokens, kGroups, 2};
    return OrDie(LowRankIndex::Create(*device_, plan_, kLayers));
  }

  // A mean of halves and a side, so that values are a few units.
  LayerAdapter NewAdapter(uint32_t rank) {
    return {.key_dim = kKeyDim,
            .rank = rank,
            .key_side = RoundedToHalf(kvrun::RandomFloats(size_t{kKeyDim} * rank, 61)),
            .query_side = std::vector<float>(size_t{kKeyDim} * rank),
            .mean = std::vector<float>(kKeyDim, 0.5F),
            .energy = {}};
  }

  // (key - mean) . side, as the index stores it where scales are ones.
  static double Expected(const LayerAdapter& adapter, std::span<const float> key, uint32_t column,
                         KvType type) {
    double sum = 0.0;
    for (uint32_t i = 0; i < kKeyDim; ++i) {
      sum += (double{key[i]} - adapter.mean[i]) * adapter.key_side[size_t{i} * adapter.rank + column];
    }
    if (type == KvType::kF16) return sum;
    const double most = (1U << (KvElementBits(type) - 1)) - 1;
    return std::clamp(sum, -most, most);
  }

  void CheckGroup(KvType type, uint32_t rank, uint32_t group_tokens) {
    const auto index = NewIndex(type, rank, group_tokens);
    const LayerAdapter adapter = NewAdapter(rank);
    RunOrDie(index->SetCommonAdapter(adapter));
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      for (uint32_t& word : Words(*index->rows(layer))) word = kUntouched;
    }
    const std::vector<float> keys = kvrun::RandomFloats(size_t{group_tokens} * kKeyDim, 62);
    constexpr uint32_t kGroup = 3;
    RunOrDie(index->NoteKeys(1, 1, kGroup, keys));
    const std::span<const uint32_t> words = Words(*index->rows(1));
    for (uint32_t i = 0; i < group_tokens; ++i) {
      for (uint32_t c = 0; c < rank; ++c) {
        const std::span<const float> key = std::span(keys).subspan(size_t{i} * kKeyDim, kKeyDim);
        const double expected = Expected(adapter, key, c, type);
        const double tolerance = type == KvType::kF16 ? std::abs(expected) * 0x1p-10 + 1e-4 : 0.5001;
        EXPECT_NEAR(IndexValue(words, plan_.index, 1, kGroup * group_tokens + i, c), expected, tolerance);
      }
    }
    const size_t first = (size_t{kGroups} + kGroup) * plan_.index.group_words();
    for (size_t i = 0; i < words.size(); ++i) {
      if (i < first || i >= first + plan_.index.group_words()) {
        ASSERT_EQ(words[i], kUntouched) << "a word of another group changed";
      }
    }
    for (const uint32_t word : Words(*index->rows(0))) ASSERT_EQ(word, kUntouched) << "another layer changed";
  }

  std::unique_ptr<Device> device_ = OrDie(OpenDevice({.device = "host", .n_threads = 1}));
  KvPlan plan_;
};

TEST_F(IndexKeys, RowsAreProjectedKeysLessTheirMean) {
  for (const KvType type : {KvType::kF16, KvType::kInt8, KvType::kInt4}) {
    for (const uint32_t rank : {1U, 7U, 24U}) {
      for (const uint32_t group : {1U, 3U, 4U}) {
        SCOPED_TRACE(fmt::format("{} bits, rank {}, groups of {}", KvElementBits(type), rank, group));
        CheckGroup(type, rank, group);
      }
    }
  }
}

// Keys of a step that computed no numbers: the codes are some.
TEST_F(IndexKeys, WhatIsNoNumberBecomesOne) {
  const auto index = NewIndex(KvType::kInt4, 4, 2);
  RunOrDie(index->SetAdapter(0, NewAdapter(4)));
  std::vector<float> keys(2 * kKeyDim, std::numeric_limits<float>::quiet_NaN());
  keys[kKeyDim] = std::numeric_limits<float>::infinity();
  RunOrDie(index->NoteKeys(0, 0, 0, keys));
  for (uint32_t row = 0; row < 2; ++row) {
    EXPECT_LE(std::abs(IndexValue(Words(*index->rows(0)), plan_.index, 0, row, 1)), 7.0F);
  }
}

class NoKeys final : public PromptKeys, public StoredKeys {
 public:
  Status Project(uint32_t begin, const IndexSides&, uint32_t, const ProjectedFn&) override {
    begins_.push_back(begin);
    return Status::Ok();
  }
  uint32_t n_sequences() const override { return 2; }
  uint32_t length(uint32_t) const override { return 0; }
  Status Visit(uint32_t, uint32_t, uint32_t, const KeysFn&) override { return Status::Ok(); }

  const std::vector<uint32_t>& begins() const { return begins_; }

 private:
  std::vector<uint32_t> begins_;
};

// Steps have left no rows of the group that they had begun.
TEST_F(IndexKeys, APromptThatGoesOnInsideOfAGroupMakesAllOfItsRows) {
  const auto index = NewIndex(KvType::kF16, 4, 4);
  RunOrDie(index->SetAdapter(0, NewAdapter(4)));
  NoKeys keys;
  RunOrDie(index->IndexPrompt(0, {.sequence = 0, .begin = 6, .end = 15}, keys, keys));
  RunOrDie(index->IndexPrompt(0, {.sequence = 0, .begin = 8, .end = 15}, keys, keys));
  EXPECT_EQ(keys.begins(), (std::vector<uint32_t>{4, 8}));
}

// Projects keys by an adapter, as a device does.
class KnownKeys final : public PromptKeys {
 public:
  KnownKeys(const LayerAdapter& adapter, std::span<const float> keys) : adapter_(adapter), keys_(keys) {}
  Status Project(uint32_t begin, const IndexSides&, uint32_t rank, const ProjectedFn& visit) override {
    begins_.push_back(begin);
    const std::span<const float> from = keys_.subspan(size_t{begin} * kKeyDim);
    std::vector<float> projected(from.size() / kKeyDim * rank);
    ProjectKeys(adapter_, from, projected);
    return visit(begin, projected);
  }
  const std::vector<uint32_t>& begins() const { return begins_; }

 private:
  const LayerAdapter& adapter_;
  std::span<const float> keys_;
  std::vector<uint32_t> begins_;
};

class IndexLearns : public IndexKeys {
 protected:
  static constexpr uint32_t kRank = 6;
  static constexpr uint32_t kEntries = kGroups * 4;
  static constexpr uint32_t kHeadDim = kKeyDim / 2;

  IndexLearns() : keys_(kvrun::RandomFloats(size_t{kEntries} * kKeyDim, 63)) {
    for (size_t i = 0; i < keys_.size(); ++i) keys_[i] *= 1.0F + static_cast<float>(i % 5);
    AddKeys(keys_, kKeyDim, key_sums_);
    // Queries of which each element counts by itself, some more than others.
    for (uint32_t i = 0; i < 2 * kHeadDim; ++i) {
      query_sums_[size_t{i / kHeadDim} * kHeadDim * kHeadDim + i % kHeadDim * (kHeadDim + 1)] =
          1.0F + static_cast<float>(i % 3);
    }
  }
  LayerSums sums() const {
    return {.n_kv_heads = 2,
            .head_dim = kHeadDim,
            .n_keys = kEntries,
            .keys = key_sums_,
            .n_queries = 1,
            .queries = query_sums_};
  }
  std::vector<float> ScalesOf(const LowRankIndex& index) {
    ScoreArgs args;
    index.FillScore(0, &args);
    std::vector<float> scales(kRank);  // of the first sequence
    RunOrDie(device_->Download(*args.sides.scales, std::as_writable_bytes(std::span(scales))));
    return scales;
  }

  std::vector<float> keys_;
  std::vector<float> key_sums_ = std::vector<float>((kKeyDim + 1) * kKeyDim);
  std::vector<float> query_sums_ = std::vector<float>(size_t{2} * kHeadDim * kHeadDim);
};

// Sums say what int4 scales are, with no other look at the keys; int8's are of the largest.
TEST_F(IndexLearns, ScalesAreThoseOfProjectedKeys) {
  for (const KvType type : {KvType::kInt4, KvType::kInt8}) {
    const auto index = NewIndex(type, kRank, 4);
    LayerAdapter adapter = OrDie(ComputeAdapter(plan_.adapter.kind, sums(), kRank));
    RoundToHalves(adapter);
    RunOrDie(index->Learn(0, sums()));
    KnownKeys keys(adapter, keys_);
    NoKeys none;
    RunOrDie(index->IndexPrompt(0, {.sequence = 0, .begin = 0, .end = kEntries}, keys, none));
    EXPECT_EQ(keys.begins().size(), type == KvType::kInt4 ? 1U : 2U);
    std::vector<float> projected(size_t{kEntries} * kRank);
    ProjectKeys(adapter, keys_, projected);
    ColumnScales expected(kRank);
    expected.Add(projected);
    const std::vector<float> scales = ScalesOf(*index);
    for (uint32_t c = 0; c < kRank; ++c) {
      EXPECT_NEAR(scales[c], expected.Scales(type)[c], 1e-4 * scales[c]) << KvElementBits(type) << ", " << c;
    }
  }
}

// A prompt that failed has left its sums' adapter: the next one is indexed as it comes.
TEST_F(IndexLearns, WhatIsForgottenIsNotOfTheNextPrompt) {
  const auto index = NewIndex(KvType::kInt4, kRank, 4);
  const LayerAdapter adapter = OrDie(ComputeAdapter(plan_.adapter.kind, sums(), kRank));
  RunOrDie(index->Learn(0, sums()));
  index->ForgetLearned();
  KnownKeys keys(adapter, keys_);
  NoKeys none;
  RunOrDie(index->IndexPrompt(0, {.sequence = 0, .begin = 8, .end = kEntries}, keys, none));
  EXPECT_EQ(keys.begins(), std::vector<uint32_t>{8});
}

}  // namespace
}  // namespace kvrun::testing
