#include "runtime/device/record_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "runtime/device/encode_rows.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/host_targets.h"
#include "tests/support/slot_reference.h"

namespace kvrun {
namespace {

using testing::CheckRow;
using testing::DecodeRow;
using testing::kAllKvTypes;
using testing::KvTypeText;
using testing::RecordRow;

KvRecordShape Shape(KvType k_type, KvType v_type) { return {k_type, v_type, 2, 72, 3}; }

std::vector<RecordRow> Rows(const KvRecordShape& shape) {
  std::vector<RecordRow> rows;
  for (uint32_t plane = 0; plane < 2; ++plane) {
    for (uint32_t head = 0; head < shape.n_heads; ++head) {
      for (uint32_t entry = 0; entry < shape.group_tokens; ++entry) rows.push_back({plane, head, entry});
    }
  }
  return rows;
}

// Values of very different sizes, some rows all zeros.
std::vector<float> RowValues(const KvRecordShape& shape, uint32_t seed) {
  std::vector<float> values = testing::RandomFloats(shape.head_dim, 1.0F, seed);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = seed % 7 == 0 ? 0.0F : std::ldexp(values[i], static_cast<int>(i % 9) - 6);
  }
  return values;
}

std::vector<uint32_t> Encoded(const KvRecordShape& shape) {
  std::vector<uint32_t> words(shape.size_words());
  uint32_t seed = 1;
  for (const RecordRow& row : Rows(shape)) EncodeRow(shape, row, RowValues(shape, seed++), words);
  return words;
}

TEST(RecordCodec, EveryTypeFromHalvesAndFloats) {
  for (const KvType from_type : {KvType::kF16, KvType::kF32}) {
    const KvRecordShape from = Shape(from_type, from_type);
    const std::vector<uint32_t> words = Encoded(from);
    for (const KvType k_type : kAllKvTypes) {
      for (const KvType v_type : kAllKvTypes) {
        const KvRecordShape to = Shape(k_type, v_type);
        std::vector<uint32_t> found(to.size_words(), 0xffffffffU);
        TranscodeRecord(from, std::as_bytes(std::span(words)), to, std::as_writable_bytes(std::span(found)));
        for (const RecordRow& row : Rows(to)) {
          const std::vector<double> values = DecodeRow(from, words, row);
          EXPECT_EQ(CheckRow(to, row, values, 0.0, found), "") << KvTypeText(k_type) << KvTypeText(v_type);
        }
      }
    }
  }
}

// Where both records have them; rows are the same with and without.
// A run repeats on any machine.
TEST(RecordCodec, TheSameOnEveryInstructionSet) {
  for (const uint32_t head_dim : {8U, 66U, 64U, 256U}) {
    for (const KvType type : {KvType::kFp8, KvType::kInt8, KvType::kInt4}) {
      const KvRecordShape floats{KvType::kF32, KvType::kF32, 2, head_dim, 3};
      const KvRecordShape shape{type, type, 2, head_dim, 3};
      const std::vector<uint32_t> from = Encoded(floats);
      std::vector<std::vector<std::byte>> found;
      testing::ForEachHostTarget([&](int64_t) {
        found.emplace_back(shape.size_bytes());
        TranscodeRecord(floats, std::as_bytes(std::span(from)), shape, found.back());
      });
      for (const auto& record : found) EXPECT_EQ(record, found[0]) << KvTypeText(type) << ", " << head_dim;
    }
  }
}

// Infinities and what is below the normal numbers, too.
TEST(RecordCodec, AllHalvesOnEveryInstructionSet) {
  std::vector<uint16_t> halves(65536 + 3);  // no whole number of vectors
  std::iota(halves.begin(), halves.end(), uint16_t{0});
  testing::ForEachHostTarget([&](int64_t target) {
    std::vector<float> floats(halves.size());
    LoadHalves(halves.data(), floats);
    for (size_t i = 0; i < halves.size(); ++i) {
      const float expected = HalfToFloat(halves[i]);
      const bool is_same = std::isnan(expected)
                               ? std::isnan(floats[i])
                               : std::bit_cast<uint32_t>(expected) == std::bit_cast<uint32_t>(floats[i]);
      ASSERT_TRUE(is_same) << "half " << halves[i] << " is " << floats[i] << ", target " << target;
    }
  });
}

TEST(RecordCodec, PositionsGoAlong) {
  constexpr uint32_t kPositions[] = {7, 0xfffffff0U, 123456};
  for (const KvType type : kAllKvTypes) {
    for (const bool from_has : {false, true}) {
      for (const bool to_has : {false, true}) {
        KvRecordShape from = Shape(KvType::kF16, KvType::kF16);
        KvRecordShape to = Shape(type, KvType::kF16);
        from.has_positions = from_has;
        to.has_positions = to_has;
        std::vector<uint32_t> words = Encoded(from);
        if (from_has) std::copy_n(kPositions, 3, words.begin() + from.positions_begin_words());
        std::vector<uint32_t> found(to.size_words(), 0xffffffffU);
        TranscodeRecord(from, std::as_bytes(std::span(words)), to, std::as_writable_bytes(std::span(found)));
        for (const RecordRow& row : Rows(to)) {
          EXPECT_EQ(CheckRow(to, row, DecodeRow(from, words, row), 0.0, found), "") << KvTypeText(type);
        }
        for (uint32_t i = to.positions_begin_words(); i < to.size_words(); ++i) {
          const uint32_t entry = i - to.positions_begin_words();
          EXPECT_EQ(found[i], from_has && to_has && entry < 3 ? kPositions[entry] : 0)
              << KvTypeText(type) << " word " << i;
        }
      }
    }
  }
}

// What is written into a record with positions, or read of it, leaves them alone.
TEST(RecordCodec, PositionsStay) {
  KvRecordShape shape = Shape(KvType::kF16, KvType::kF16);
  shape.has_positions = true;
  EXPECT_EQ(shape.size_words(), (shape.positions_begin_words() + 3 + 3) / 4 * 4);
  std::vector<uint32_t> words = Encoded(shape);
  const auto positions = std::span(words).subspan(shape.positions_begin_words(), 3);
  std::fill(positions.begin(), positions.end(), 0x9e3779b9U);
  RoundEntry(shape, Shape(KvType::kInt4, KvType::kFp8), 2, std::as_writable_bytes(std::span(words)));
  for (const uint32_t position : positions) EXPECT_EQ(position, 0x9e3779b9U);
  std::vector<float> keys(size_t{shape.n_heads} * shape.head_dim * shape.group_tokens);
  DecodeKeys(shape, std::as_bytes(std::span(words)), shape.n_heads * shape.head_dim, keys);
  for (const RecordRow& row : Rows(shape)) {
    if (row.plane != 0) continue;
    const size_t at = (size_t{row.entry} * shape.n_heads + row.head) * shape.head_dim;
    EXPECT_FLOAT_EQ(keys[at], static_cast<float>(DecodeRow(shape, words, row)[0]));
  }
}

// Those of fp8 follow an odd number of scales from the next word on.
TEST(RecordCodec, PositionsBeginWithAWord) {
  constexpr KvRecordShape kOdd{KvType::kFp8, KvType::kF16, 1, 8, 3, true};
  static_assert(kOdd.positions_begin_words() == kOdd.scales_begin_words() + 2);
  static_assert(kOdd.size_words() == 6 + 12 + 5 + 1);
}

TEST(RecordCodec, BackToHalves) {
  const KvRecordShape halves = Shape(KvType::kF16, KvType::kF16);
  for (const KvType type : kAllKvTypes) {
    const KvRecordShape stored = Shape(type, type);
    const std::vector<uint32_t> words = Encoded(stored);
    std::vector<uint32_t> found(halves.size_words());
    TranscodeRecord(stored, std::as_bytes(std::span(words)), halves,
                    std::as_writable_bytes(std::span(found)));
    for (const RecordRow& row : Rows(halves)) {
      EXPECT_EQ(CheckRow(halves, row, DecodeRow(stored, words, row), 0.0, found), "") << KvTypeText(type);
    }
  }
}

TEST(RecordCodec, RoundingAnEntryIsStoringItAndBack) {
  const KvRecordShape halves = Shape(KvType::kF16, KvType::kF16);
  const std::vector<uint32_t> words = Encoded(halves);
  for (const KvType type : kAllKvTypes) {
    const KvRecordShape stored = Shape(type, KvType::kInt4);
    std::vector<uint32_t> there(stored.size_words());
    std::vector<uint32_t> back(halves.size_words());
    TranscodeRecord(halves, std::as_bytes(std::span(words)), stored,
                    std::as_writable_bytes(std::span(there)));
    TranscodeRecord(stored, std::as_bytes(std::span(there)), halves, std::as_writable_bytes(std::span(back)));
    std::vector<uint32_t> found = words;
    RoundEntry(halves, stored, 1, std::as_writable_bytes(std::span(found)));
    for (const RecordRow& row : Rows(halves)) {
      EXPECT_EQ(DecodeRow(halves, found, row), DecodeRow(halves, row.entry == 1 ? back : words, row))
          << KvTypeText(type) << " entry " << row.entry;
    }
  }
}

TEST(RecordCodec, KeysAsFloats) {
  constexpr uint32_t kPadding = 5;
  for (const KvType type : kAllKvTypes) {
    const KvRecordShape shape = Shape(type, KvType::kInt4);
    const std::vector<uint32_t> words = Encoded(shape);
    const uint32_t columns = shape.n_heads * shape.head_dim;
    const uint32_t stride = columns + kPadding;
    std::vector<float> keys(size_t{stride} * shape.group_tokens, -1234.0F);
    DecodeKeys(shape, std::as_bytes(std::span(words)), stride, keys);
    for (const RecordRow& row : Rows(shape)) {
      if (row.plane != 0) continue;
      const std::vector<double> expected = DecodeRow(shape, words, row);
      for (uint32_t i = 0; i < shape.head_dim; ++i) {
        EXPECT_FLOAT_EQ(keys[row.entry * stride + row.head * shape.head_dim + i],
                        static_cast<float>(expected[i]))
            << KvTypeText(type) << " head " << row.head << " entry " << row.entry << " element " << i;
      }
    }
    for (uint32_t entry = 0; entry < shape.group_tokens; ++entry) {
      for (uint32_t i = columns; i < stride; ++i) EXPECT_EQ(keys[entry * stride + i], -1234.0F);
    }
  }
}

}  // namespace
}  // namespace kvrun
