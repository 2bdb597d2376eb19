// Packed matrices, read back by a reader written from the description of the format: rows in groups of 32
// side by side, columns padded to chunks of 64, a plane each for quants, high bits, scales and super-block
// scales.
#include "runtime/device/vulkan/packed_matrix.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "runtime/device/self_test_data.h"

namespace kvrun {
namespace {

constexpr TensorType kTypes[] = {
    TensorType::kF32,  TensorType::kF16,  TensorType::kBF16, TensorType::kQ8_0,   TensorType::kQ4_0,
    TensorType::kQ4_1, TensorType::kQ5_0, TensorType::kQ5_1, TensorType::kQ2_K,   TensorType::kQ3_K,
    TensorType::kQ4_K, TensorType::kQ5_K, TensorType::kQ6_K, TensorType::kIQ4_NL, TensorType::kIQ4_XS};

class PackedReader {
 public:
  PackedReader(const PackedLayout& layout, const std::vector<uint32_t>& words)
      : layout_(layout), words_(words) {}

  float At(uint32_t row, uint32_t column) const {
    const uint32_t block = column / 32;
    const uint32_t i = column % 32;
    switch (layout_.type) {
      case TensorType::kF32: {
        const uint32_t word = Quant(row, 64, column);
        float value = 0.0F;
        std::memcpy(&value, &word, sizeof(value));
        return value;
      }
      case TensorType::kF16: return HalfToFloat(HalfOf(Quant(row, 32, column / 2), column % 2));
      case TensorType::kBF16: return BFloat16ToFloat(HalfOf(Quant(row, 32, column / 2), column % 2));
      case TensorType::kQ8_0: {
        const auto q = static_cast<int8_t>(Quant(row, 16, column / 4) >> (8 * (column % 4)));
        return Scale(row, block) * static_cast<float>(q);
      }
      case TensorType::kQ4_0: return Scale(row, block) * static_cast<float>(Nibble(row, column) - 8);
      case TensorType::kQ5_0:
        return Scale(row, block) * static_cast<float>(Nibble(row, column) + 16 * HighBit(row, block, i) - 16);
      case TensorType::kQ4_1: return Affine(row, block, Nibble(row, column));
      case TensorType::kQ5_1: return Affine(row, block, Nibble(row, column) + 16 * HighBit(row, block, i));
      case TensorType::kQ4_K: return SuperAffine(row, block, Nibble(row, column));
      case TensorType::kQ5_K:
        return SuperAffine(row, block, Nibble(row, column) + 16 * HighBit(row, block, i));
      case TensorType::kQ6_K: return SignedSuper(row, column);
      case TensorType::kQ2_K: return PairedAffine(row, column);
      case TensorType::kQ3_K:
        return PairedSigned(row, column, Pair(row, column) + 4 * HighBit(row, block, i) - 4);
      case TensorType::kIQ4_NL: return Scale(row, block) * kValues[Nibble(row, column)];
      case TensorType::kIQ4_XS: return SuperScale(row, block) * kValues[Nibble(row, column)];
      case TensorType::kF64: break;  // of no weights
    }
    return 0.0F;
  }

 private:
  static constexpr float kValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                        1,    13,   25,  38,  53,  69,  89,  113};

  static uint16_t HalfOf(uint32_t word, uint32_t half) { return static_cast<uint16_t>(word >> (16 * half)); }

  // Word i of a row's unit in a plane with `unit_words` words a unit and `units` units a row.
  uint32_t Word(uint32_t plane, uint32_t units, uint32_t unit_words, uint32_t row, uint32_t unit,
                uint32_t i) const {
    const size_t group = size_t{row / 32} * units * 32;
    return words_.at(size_t{plane} * 4 + (group + size_t{unit} * 32 + row % 32) * unit_words + i);
  }
  // Quants come in vectors of four words; `chunk_words` for 64 columns.
  uint32_t Quant(uint32_t row, uint32_t chunk_words, uint32_t i) const {
    return Word(0, layout_.planes.n_chunks * chunk_words / 4, 4, row, i / 4, i % 4);
  }
  int Nibble(uint32_t row, uint32_t column) const {
    return static_cast<int>((Quant(row, 8, column / 8) >> (4 * (column % 8))) & 15U);
  }
  int HighBit(uint32_t row, uint32_t block, uint32_t i) const {
    const uint32_t word = Word(layout_.planes.high, layout_.planes.n_chunks, 2, row, block / 2, block % 2);
    return static_cast<int>((word >> i) & 1U);
  }
  float Scale(uint32_t row, uint32_t block) const {
    return HalfToFloat(
        HalfOf(Word(layout_.planes.scales, layout_.planes.n_chunks, 1, row, block / 2, 0), block % 2));
  }
  float Affine(uint32_t row, uint32_t block, int q) const {
    const uint32_t word = Word(layout_.planes.scales, layout_.planes.n_chunks, 2, row, block / 2, block % 2);
    return HalfToFloat(HalfOf(word, 0)) * static_cast<float>(q) + HalfToFloat(HalfOf(word, 1));
  }
  uint32_t SuperWord(uint32_t row, uint32_t super_block, uint32_t i) const {
    return Word(layout_.planes.scales, layout_.planes.n_chunks / 4, 4, row, super_block, i);
  }
  // Number i of 16 of six bits each, which follow a super-block's first word, least significant bit first.
  uint32_t SixBits(uint32_t row, uint32_t super_block, uint32_t i) const {
    uint32_t bits = 0;
    for (uint32_t bit = 0; bit < 6; ++bit) {
      const uint32_t at = 6 * i + bit;
      bits |= ((SuperWord(row, super_block, 1 + at / 32) >> (at % 32)) & 1U) << bit;
    }
    return bits;
  }
  // Two of these for each block: scale, then minimum.
  float SuperAffine(uint32_t row, uint32_t block, int q) const {
    const uint32_t halves = SuperWord(row, block / 8, 0);
    const float d =
        HalfToFloat(HalfOf(halves, 0)) * static_cast<float>(SixBits(row, block / 8, block % 8 * 2));
    const float m =
        HalfToFloat(HalfOf(halves, 1)) * static_cast<float>(SixBits(row, block / 8, block % 8 * 2 + 1));
    return d * static_cast<float>(q) - m;
  }
  // Two bits a column.
  int Pair(uint32_t row, uint32_t column) const {
    return static_cast<int>((Quant(row, 4, column / 16) >> (2 * (column % 16))) & 3U);
  }
  float PairedSigned(uint32_t row, uint32_t column, int q) const {
    const auto scale = static_cast<float>(SixBits(row, column / 256, column % 256 / 16)) - 32.0F;
    return HalfToFloat(HalfOf(SuperWord(row, column / 256, 0), 0)) * scale * static_cast<float>(q);
  }
  // A byte for 16 columns: scale in its low, minimum in its high nibble.
  float PairedAffine(uint32_t row, uint32_t column) const {
    const uint32_t part = column % 256 / 16;
    const uint32_t byte = SuperWord(row, column / 256, part / 4) >> (8 * (part % 4)) & 255U;
    const uint32_t halves = Word(layout_.planes.extra, layout_.planes.n_chunks / 4, 1, row, column / 256, 0);
    const float d = HalfToFloat(HalfOf(halves, 0)) * static_cast<float>(byte & 15U);
    const float m = HalfToFloat(HalfOf(halves, 1)) * static_cast<float>(byte >> 4);
    return d * static_cast<float>(Pair(row, column)) - m;
  }
  // Two words: half, eight times two upper bits; eight times four lower bits.
  float SuperScale(uint32_t row, uint32_t block) const {
    const auto word = [&](uint32_t i) {
      return Word(layout_.planes.scales, layout_.planes.n_chunks / 4, 2, row, block / 8, i);
    };
    const uint32_t part = block % 8;
    const uint32_t bits = (word(1) >> (4 * part) & 15U) | (HalfOf(word(0), 1) >> (2 * part) & 3U) << 4;
    return HalfToFloat(HalfOf(word(0), 0)) * (static_cast<float>(bits) - 32.0F);
  }
  float SignedSuper(uint32_t row, uint32_t column) const {
    const uint32_t chunks = layout_.planes.n_chunks;
    const uint32_t high = Word(layout_.planes.high, chunks, 4, row, column / 64, column % 64 / 16);
    const int q = Nibble(row, column) + 16 * static_cast<int>((high >> (2 * (column % 16))) & 3U) - 32;
    const uint32_t part = column % 256 / 16;
    const uint32_t scales = Word(layout_.planes.scales, chunks / 4, 4, row, column / 256, part / 4);
    const auto scale = static_cast<int8_t>(scales >> (8 * (part % 4)));
    const float d = HalfToFloat(HalfOf(Word(layout_.planes.extra, chunks / 4, 1, row, column / 256, 0), 0));
    return d * static_cast<float>(scale) * static_cast<float>(q);
  }

  const PackedLayout& layout_;
  const std::vector<uint32_t>& words_;
};

struct PackedCase {
  TensorType type;
  uint32_t n_rows;
  uint32_t n_cols;
};

std::vector<PackedCase> Cases() {
  std::vector<PackedCase> cases;
  for (const TensorType type : kTypes) {
    const uint32_t unit = GetTensorType(type).block_elements;
    for (const uint32_t n_rows : {1U, 32U, 33U, 70U}) {
      for (const uint32_t n_blocks : {1U, 2U, 3U, 5U}) cases.push_back({type, n_rows, unit * n_blocks});
    }
    if (unit == 1) cases.push_back({type, 40, 131});
  }
  return cases;
}

TEST(PackedMatrix, ReadsBackAsDecoded) {
  for (const PackedCase& c : Cases()) {
    const PackedLayout layout = MakePackedLayout(c.type, c.n_rows, c.n_cols);
    const std::vector<std::byte> rows = RandomTensor(c.type, size_t{c.n_rows} * c.n_cols, c.n_rows);
    std::vector<float> expected(size_t{c.n_rows} * c.n_cols);
    DecodeTensor(c.type, rows, expected);
    std::vector<uint32_t> packed(layout.size_bytes / 4);
    const size_t row_bytes = rows.size() / c.n_rows;
    for (uint32_t r = c.n_rows; r-- > 0;) {  // in any order
      PackRow(layout, r, std::span(rows).subspan(r * row_bytes, row_bytes), packed);
    }
    const PackedReader reader(layout, packed);
    for (uint32_t r = 0; r < c.n_rows; ++r) {
      for (uint32_t i = 0; i < c.n_cols; ++i) {
        ASSERT_EQ(reader.At(r, i), expected[size_t{r} * c.n_cols + i])
            << TensorTypeName(c.type) << " " << c.n_rows << " x " << c.n_cols << ", row " << r << ", column "
            << i;
      }
    }
  }
}

TEST(PackedMatrix, PaddingMultipliesToNothing) {
  for (const PackedCase& c : Cases()) {
    const PackedLayout layout = MakePackedLayout(c.type, c.n_rows, c.n_cols);
    const std::vector<std::byte> rows = RandomTensor(c.type, size_t{c.n_rows} * c.n_cols, 1);
    std::vector<uint32_t> packed(layout.size_bytes / 4);
    const size_t row_bytes = rows.size() / c.n_rows;
    for (uint32_t r = 0; r < c.n_rows; ++r) {
      PackRow(layout, r, std::span(rows).subspan(r * row_bytes, row_bytes), packed);
    }
    const PackedReader reader(layout, packed);
    for (uint32_t i = c.n_cols; i < layout.planes.n_chunks * 64; ++i) {
      ASSERT_EQ(reader.At(0, i), 0.0F) << TensorTypeName(c.type) << ", " << c.n_cols << ", column " << i;
    }
  }
}

TEST(PackedMatrix, NoLargerThanItsRowsNeed) {
  // 32 rows of 256 columns are whole groups and chunks, so nothing is added to what the tensor holds, but for
  // the 6-bit scales of Q4_K and Q5_K: the same 16 bytes. Q3_K, Q6_K: the half-precision scale takes a word.
  for (const TensorType type : kTypes) {
    const TensorTypeInfo& info = GetTensorType(type);
    const uint64_t plain = uint64_t{32} * 256 / info.block_elements * info.block_bytes;
    const uint64_t extra = type == TensorType::kQ6_K || type == TensorType::kQ3_K ? 32 * 2 : 0;
    EXPECT_EQ(MakePackedLayout(type, 32, 256).size_bytes, plain + extra) << info.name;
  }
}

TEST(PackedMatrix, RowsThatFit) {
  for (const PackedCase& c : Cases()) {
    const uint64_t group_bytes = MakePackedLayout(c.type, 32, c.n_cols).size_bytes;
    EXPECT_EQ(PackedRowsThatFit(c.type, c.n_cols, group_bytes - 1), 0U);
    for (const uint64_t max_bytes : {group_bytes, group_bytes * 2 - 1, uint64_t{128} << 20}) {
      const uint32_t rows = PackedRowsThatFit(c.type, c.n_cols, max_bytes);
      EXPECT_EQ(rows % 32, 0U);
      EXPECT_LE(MakePackedLayout(c.type, rows, c.n_cols).size_bytes, max_bytes);
      EXPECT_GT(MakePackedLayout(c.type, rows + 32, c.n_cols).size_bytes, max_bytes);
    }
  }
}

}  // namespace
}  // namespace kvrun
