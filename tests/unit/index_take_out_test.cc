// Entries that are taken out of an index, and come back.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "runtime/device/open_device.h"
#include "runtime/device/record_codec.h"
#include "runtime/kv/index/low_rank_index.h"
#include "runtime/kv/index/page_index.h"
#include "runtime/kv/math/page_bounds.h"
#include "runtime/kv/memory/host_buffer.h"
#include "runtime/model/tensor_type.h"
#include "tests/support/index_reference.h"
#include "tests/support/or_die.h"

namespace kvrun::testing {
namespace {

using Entries = std::vector<uint32_t>;

class IndexTakeOut : public ::testing::Test {
 protected:
  std::unique_ptr<Device> device_ = OrDie(OpenDevice({.device = "host", .n_threads = 1}));
  KvPlan plan_;
};

// --- Rows of entries.

class LowRankTakeOut : public IndexTakeOut {
 protected:
  static constexpr uint32_t kGroups = 6;

  std::unique_ptr<LowRankIndex> NewIndex(KvType type, uint32_t rank, uint32_t group_tokens) {
    plan_ = KvPlan();
    plan_.method = OrDie(FindKvMethod("kvswap"));
    plan_.n_sequences = 2;
    plan_.n_streams = 2;
    plan_.n_ctx = kGroups * group_tokens;
    plan_.record = {KvType::kF16, KvType::kF16, 1, 16, group_tokens};
    plan_.index = {type, rank, group_tokens, kGroups, 2};
    auto index = OrDie(LowRankIndex::Create(*device_, plan_, 1));
    std::mt19937 random(rank * 10 + group_tokens);
    for (uint32_t& word : Words(*index->rows(0))) word = static_cast<uint32_t>(random());
    return index;
  }
  static std::vector<uint32_t> WordsOf(const LowRankIndex& index) {
    const std::span<uint32_t> words = Words(*index.rows(0));
    return {words.begin(), words.end()};
  }
  // The rows of these positions of a sequence are those of zeros, and all others as `before`.
  void ExpectWithout(const LowRankIndex& index, std::span<const uint32_t> before, uint32_t sequence,
                     const Entries& positions) const {
    const std::vector<uint32_t> words = WordsOf(index);
    for (uint32_t s = 0; s < 2; ++s) {
      for (uint32_t row = 0; row < plan_.n_ctx; ++row) {
        const bool is_out = s == sequence && std::count(positions.begin(), positions.end(), row) > 0;
        for (uint32_t c = 0; c < plan_.index.rank; ++c) {
          const float was = IndexValue(before, plan_.index, s, row, c);
          const float is = IndexValue(words, plan_.index, s, row, c);
          if (is_out) {
            ASSERT_EQ(is, 0.0F) << row;
          } else {
            ASSERT_EQ(std::memcmp(&is, &was, sizeof(is)), 0) << "sequence " << s << ", row " << row;
          }
        }
      }
    }
  }
};

TEST_F(LowRankTakeOut, RowsAreZeroAndComeBackBitForBit) {
  for (const KvType type : {KvType::kF16, KvType::kInt8, KvType::kInt4}) {
    for (const uint32_t rank : {1U, 4U, 7U}) {  // rows that share words, too
      for (const uint32_t group : {1U, 3U, 4U}) {
        SCOPED_TRACE(fmt::format("{} bits, rank {}, groups of {}", KvElementBits(type), rank, group));
        const auto index = NewIndex(type, rank, group);
        const std::vector<uint32_t> before = WordsOf(*index);
        const uint32_t last = group - 1;
        RunOrDie(index->TakeOut(0, 1, 2, {}, Entries{last}));
        ExpectWithout(*index, before, 1, {2 * group + last});
        RunOrDie(index->TakeOut(0, 1, 4, {}, Entries{0}));
        ExpectWithout(*index, before, 1, {2 * group + last, 4 * group});
        // Other ones of the same group; then all of it; then none.
        RunOrDie(index->TakeOut(0, 1, 2, {}, Entries{0}));
        ExpectWithout(*index, before, 1, {2 * group, 4 * group});
        Entries all(group);
        Entries positions = {4 * group};
        for (uint32_t i = 0; i < group; ++i) positions.push_back(2 * group + (all[i] = i));
        RunOrDie(index->TakeOut(0, 1, 2, {}, all));
        ExpectWithout(*index, before, 1, positions);
        RunOrDie(index->TakeOut(0, 1, 2, {}, {}));
        RunOrDie(index->TakeOut(0, 1, 4, {}, {}));
        RunOrDie(index->TakeOut(0, 1, 5, {}, {}));  // of which nothing was out
        EXPECT_EQ(WordsOf(*index), before);
      }
    }
  }
}

// Any choices one after another are as if the last had been the only one.
TEST_F(LowRankTakeOut, OnlyTheLastChoiceOfAGroupCounts) {
  const auto index = NewIndex(KvType::kInt4, 5, 7);
  const std::vector<uint32_t> before = WordsOf(*index);
  std::mt19937 random(5);
  std::vector<Entries> out(kGroups);
  for (int i = 0; i < 200; ++i) {
    const auto group = static_cast<uint32_t>(random() % kGroups);
    out[group].clear();
    for (uint32_t entry = 0; entry < 7; ++entry) {
      if (random() % 3 == 0) out[group].push_back(entry);
    }
    RunOrDie(index->TakeOut(0, 0, group, {}, out[group]));
    Entries positions;
    for (uint32_t g = 0; g < kGroups; ++g) {
      for (const uint32_t entry : out[g]) positions.push_back(g * 7 + entry);
    }
    ASSERT_NO_FATAL_FAILURE(ExpectWithout(*index, before, 0, positions));
  }
}

TEST_F(LowRankTakeOut, ARowOfHeadsThatSelectByThemselvesStays) {
  const auto index = NewIndex(KvType::kInt8, 4, 4);
  plan_.n_streams = 4;  // the index reads it from the plan
  const std::vector<uint32_t> before = WordsOf(*index);
  RunOrDie(index->TakeOut(0, 3, 2, {}, Entries{1, 2}));
  EXPECT_EQ(WordsOf(*index), before);
}

// --- Bounds of pages.

// Pages of 5; two heads, each in a record by itself or both in one.
class PageTakeOut : public IndexTakeOut {
 protected:
  static constexpr uint32_t kTokens = 5;
  static constexpr uint32_t kDim = 8;
  static constexpr uint32_t kPages = 3;

  void Make(KvType type, bool per_head) {
    plan_ = KvPlan();
    plan_.n_sequences = 1;
    plan_.n_streams = per_head ? 2 : 1;
    plan_.n_ctx = kPages * kTokens;
    plan_.record = {type, type, per_head ? 1U : 2U, kDim, kTokens};
    plan_.index = {KvType::kF16, 4 * kDim, kTokens, kPages, 1, 1};
    index_ = OrDie(PageIndex::Create(*device_, plan_, 1, MinMaxBounds));
    index_->FillScore(0, &args_);
    std::mt19937 random(9);
    for (uint32_t stream = 0; stream < plan_.n_streams; ++stream) {
      records_.resize(stream + 1);
      records_[stream].clear();
      KvRecordShape exact = plan_.record;
      exact.k_type = exact.v_type = KvType::kF32;
      for (uint32_t page = 0; page < kPages; ++page) {
        std::vector<float> values(exact.size_bytes() / sizeof(float));
        for (float& value : values) value = std::normal_distribution<float>()(random);
        std::vector<std::byte> record(plan_.record.size_bytes());
        TranscodeRecord(exact, std::as_bytes(std::span(values)), plan_.record, record);
        records_[stream].insert(records_[stream].end(), record.begin(), record.end());
      }
      RunOrDie(index_->NoteStored(0, stream, 0, records_[stream]));
    }
  }
  std::span<const std::byte> Record(uint32_t stream, uint32_t page) const {
    const uint64_t bytes = plan_.record.size_bytes();
    return std::span(records_[stream]).subspan(page * bytes, bytes);
  }
  Status TakeOut(uint32_t stream, uint32_t page, const Entries& entries) {
    return index_->TakeOut(0, stream, page, Record(stream, page), entries);
  }
  std::vector<uint32_t> RowWords() const {
    const std::span<uint32_t> words = Words(const_cast<Buffer&>(*args_.index));
    return {words.begin(), words.end()};
  }
  uint32_t columns() const { return plan_.record.n_heads * kDim; }
  // Of a stream's column.
  float Bound(uint32_t stream, uint32_t page, uint32_t column, bool is_upper) const {
    return IndexValue(RowWords(), plan_.index, 0, page,
                      (is_upper ? 0 : 2 * kDim) + stream * columns() + column);
  }
  std::vector<float> Keys(uint32_t stream, uint32_t page) const {
    std::vector<float> keys(size_t{kTokens} * columns());
    DecodeKeys(plan_.record, Record(stream, page), columns(), keys);
    return keys;
  }
  // They are the nearest halves that bound the entries that are left.
  void ExpectBounds(uint32_t stream, uint32_t page, const Entries& out) const {
    const std::vector<float> keys = Keys(stream, page);
    for (uint32_t c = 0; c < columns(); ++c) {
      float upper = -1e30F;
      float lower = 1e30F;
      for (uint32_t i = 0; i < kTokens; ++i) {
        if (std::count(out.begin(), out.end(), i) > 0) continue;
        upper = std::max(upper, keys[i * columns() + c]);
        lower = std::min(lower, keys[i * columns() + c]);
      }
      ASSERT_GE(Bound(stream, page, c, true), upper);
      ASSERT_LE(Bound(stream, page, c, false), lower);
      const float step = 0x1p-10F;
      ASSERT_LE(Bound(stream, page, c, true), upper + std::abs(upper) * step + 0x1p-24F);
      ASSERT_GE(Bound(stream, page, c, false), lower - std::abs(lower) * step - 0x1p-24F);
    }
  }

  std::unique_ptr<PageIndex> index_;
  ScoreArgs args_;
  std::vector<std::vector<std::byte>> records_;  // [n_streams], of all pages
};

TEST_F(PageTakeOut, BoundsAreThoseOfTheEntriesThatAreLeft) {
  for (const KvType type : {KvType::kF16, KvType::kFp8, KvType::kInt8, KvType::kInt4}) {
    for (const bool per_head : {false, true}) {
      SCOPED_TRACE(fmt::format("type {}, per head {}", static_cast<int>(type), per_head));
      Make(type, per_head);
      const std::vector<uint32_t> before = RowWords();
      for (uint32_t stream = 0; stream < plan_.n_streams; ++stream) {
        for (uint32_t mask = 0; mask + 1 < 1U << kTokens; ++mask) {
          Entries out;
          for (uint32_t i = 0; i < kTokens; ++i) {
            if ((mask >> i & 1U) != 0) out.push_back(i);
          }
          RunOrDie(TakeOut(stream, 1, out));
          ASSERT_NO_FATAL_FAILURE(ExpectBounds(stream, 1, out));
          for (uint32_t other = 0; other < plan_.n_streams; ++other) {
            ASSERT_NO_FATAL_FAILURE(ExpectBounds(other, 0, {}));
            ASSERT_NO_FATAL_FAILURE(ExpectBounds(other, 2, {}));
            if (other == stream) continue;
            ASSERT_NO_FATAL_FAILURE(ExpectBounds(other, 1, {}));
          }
        }
        RunOrDie(TakeOut(stream, 1, {}));
        EXPECT_EQ(RowWords(), before);
      }
    }
  }
}

// No query is near to a page without entries, and one that is not whole has no row yet.
TEST_F(PageTakeOut, APageWithoutEntriesIsFarFromAnyQuery) {
  Make(KvType::kF16, true);
  const std::vector<uint32_t> before = RowWords();
  RunOrDie(TakeOut(1, 1, {0, 1, 2, 3, 4}));
  std::mt19937 random(4);
  for (int i = 0; i < 100; ++i) {
    double scores[kPages] = {};
    for (uint32_t c = 0; c < kDim; ++c) {
      const double q = std::normal_distribution<double>()(random);
      for (uint32_t page = 0; page < kPages; ++page) scores[page] += q * Bound(1, page, c, q > 0);
    }
    EXPECT_LT(scores[1], -1000.0);
    EXPECT_GT(scores[0], scores[1]);
    EXPECT_GT(scores[2], scores[1]);
  }
  ASSERT_NO_FATAL_FAILURE(ExpectBounds(0, 1, {}));
  RunOrDie(TakeOut(1, 1, {}));
  EXPECT_EQ(RowWords(), before);
  RunOrDie(index_->TakeOut(0, 1, 1, {}, {}));
  EXPECT_EQ(RowWords(), before);
}

}  // namespace
}  // namespace kvrun::testing
