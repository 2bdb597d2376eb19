#include "runtime/model/tensor_type.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/gguf_builder.h"
#include "tests/support/quantised_model.h"
#include "tests/support/reference_files.h"

namespace kvrun {
namespace {

using testing::Bytes;
using testing::ByteWriter;

constexpr std::array kAllTypes = {
    TensorType::kF32,  TensorType::kF16,  TensorType::kBF16, TensorType::kQ8_0,   TensorType::kQ4_0,
    TensorType::kQ4_1, TensorType::kQ5_0, TensorType::kQ5_1, TensorType::kQ2_K,   TensorType::kQ3_K,
    TensorType::kQ4_K, TensorType::kQ5_K, TensorType::kQ6_K, TensorType::kIQ4_NL, TensorType::kIQ4_XS};

constexpr uint16_t kHalfOne = 0x3C00;      // 1.0
constexpr uint16_t kHalfTwo = 0x4000;      // 2.0
constexpr uint16_t kHalfQuarter = 0x3400;  // 0.25

std::vector<float> Decode(TensorType type, const Bytes& bytes) {
  const TensorTypeInfo& info = GetTensorType(type);
  EXPECT_EQ(bytes.size() % info.block_bytes, 0U);
  std::vector<float> out(bytes.size() / info.block_bytes * info.block_elements, -12345.0F);
  DecodeTensor(type, bytes, out);
  return out;
}

TEST(TensorType, TableIsThatOfTheFormat) {
  struct Row {
    TensorType type;
    const char* name;
    uint32_t elements;
    uint32_t bytes;
  };
  const std::array rows = {
      Row{TensorType::kF32, "F32", 1, 4},           Row{TensorType::kF16, "F16", 1, 2},
      Row{TensorType::kBF16, "BF16", 1, 2},         Row{TensorType::kQ8_0, "Q8_0", 32, 34},
      Row{TensorType::kQ4_0, "Q4_0", 32, 18},       Row{TensorType::kQ4_1, "Q4_1", 32, 20},
      Row{TensorType::kQ5_0, "Q5_0", 32, 22},       Row{TensorType::kQ5_1, "Q5_1", 32, 24},
      Row{TensorType::kQ4_K, "Q4_K", 256, 144},     Row{TensorType::kQ5_K, "Q5_K", 256, 176},
      Row{TensorType::kQ6_K, "Q6_K", 256, 210},     Row{TensorType::kQ2_K, "Q2_K", 256, 84},
      Row{TensorType::kQ3_K, "Q3_K", 256, 110},     Row{TensorType::kIQ4_NL, "IQ4_NL", 32, 18},
      Row{TensorType::kIQ4_XS, "IQ4_XS", 256, 136}, Row{TensorType::kF64, "F64", 1, 8}};
  for (const Row& row : rows) {
    const TensorTypeInfo* info = FindTensorType(static_cast<uint32_t>(row.type));
    ASSERT_NE(info, nullptr) << row.name;
    EXPECT_EQ(info->name, row.name);
    EXPECT_EQ(TensorTypeName(row.type), row.name);
    EXPECT_EQ(info->block_elements, row.elements) << row.name;
    EXPECT_EQ(info->block_bytes, row.bytes) << row.name;
    EXPECT_NE(KnownTensorTypes().find(row.name), std::string::npos);
  }
  for (const uint32_t unknown : {4U, 5U, 9U, 15U, 16U, 19U, 21U, 22U, 24U, 29U, 31U, 1000U, ~0U}) {
    EXPECT_EQ(FindTensorType(unknown), nullptr) << unknown;
  }
}

TEST(TensorType, HalfKnownValues) {
  EXPECT_EQ(HalfToFloat(0x0000), 0.0F);
  EXPECT_TRUE(std::signbit(HalfToFloat(0x8000)));
  EXPECT_EQ(HalfToFloat(0x3C00), 1.0F);
  EXPECT_EQ(HalfToFloat(0xC000), -2.0F);
  EXPECT_EQ(HalfToFloat(0x7BFF), 65504.0F);
  EXPECT_EQ(HalfToFloat(0x0001), 0x1p-24F);
  EXPECT_EQ(HalfToFloat(0x83FF), -1023.0F * 0x1p-24F);
  EXPECT_EQ(HalfToFloat(0x0400), 0x1p-14F);
  EXPECT_EQ(HalfToFloat(0x3555), 0.333251953125F);
  EXPECT_EQ(HalfToFloat(0x7C00), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(HalfToFloat(0x7E01)));
}

TEST(TensorType, EveryHalfSurvivesTheRoundTrip) {
  for (uint32_t half = 0; half < 65536; ++half) {
    const float value = HalfToFloat(static_cast<uint16_t>(half));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(value))));
    } else {
      ASSERT_EQ(FloatToHalf(value), half);
    }
  }
}

TEST(TensorType, FloatToHalfRoundsToNearestEven) {
  for (uint32_t half = 0; half < 0x7BFF; ++half) {
    const float low = HalfToFloat(static_cast<uint16_t>(half));
    const float high = HalfToFloat(static_cast<uint16_t>(half + 1));
    const float middle = (low + high) / 2;  // exact: one more bit than a half
    const uint32_t even = half % 2 == 0 ? half : half + 1;
    ASSERT_EQ(FloatToHalf(middle), even);
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, 0.0F)), half);
    ASSERT_EQ(FloatToHalf(-std::nextafter(middle, 1e9F)), (half + 1) | 0x8000U);
  }
  EXPECT_EQ(FloatToHalf(65519.9F), 0x7BFF);
  EXPECT_EQ(FloatToHalf(65520.0F), 0x7C00);
  EXPECT_EQ(FloatToHalf(-1e30F), 0xFC00);
  EXPECT_EQ(FloatToHalf(0x1p-26F), 0x0000);
  EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(std::nanf("")))));
}

TEST(TensorType, PlainFloats) {
  EXPECT_EQ(Decode(TensorType::kF32, ByteWriter().Put(1.25F).Put(-3e-20F).Take()),
            (std::vector{1.25F, -3e-20F}));
  EXPECT_EQ(Decode(TensorType::kF16, ByteWriter().Put(kHalfTwo).Put(kHalfQuarter).Take()),
            (std::vector{2.0F, 0.25F}));
  EXPECT_EQ(Decode(TensorType::kF64, ByteWriter().Put(uint64_t{0xC004000000000000}).Take()),
            (std::vector<float>{-2.5F}));
  EXPECT_EQ(Decode(TensorType::kBF16, ByteWriter().Put(uint16_t{0x3FC0}).Put(uint16_t{0xC2C8}).Take()),
            (std::vector{1.5F, -100.0F}));
}

// Blocks are encoded below from quantised numbers q and their scales by the format's rules, written from the
// encoder's side: set every element's bits where they belong.
uint32_t RandomBelow(uint64_t& state, uint32_t n) {
  state = state * 6364136223846793005U + 1442695040888963407U;
  return static_cast<uint32_t>((state >> 33) % n);
}

std::vector<uint32_t> RandomNumbers(size_t count, uint32_t n, uint64_t seed) {
  std::vector<uint32_t> numbers(count);
  for (uint32_t& number : numbers) number = RandomBelow(seed, n);
  return numbers;
}

void OrBits(Bytes& bytes, size_t at, uint32_t bits) { bytes.at(at) |= static_cast<std::byte>(bits); }

// Elements 0-15 in the low, 16-31 in the high nibbles.
Bytes PackNibbles(const std::vector<uint32_t>& q) {
  Bytes bytes(16);
  for (size_t i = 0; i < 32; ++i) OrBits(bytes, i % 16, (q[i] & 15U) << (i < 16 ? 0 : 4));
  return bytes;
}

uint32_t PackFifthBits(const std::vector<uint32_t>& q) {
  uint32_t bits = 0;
  for (size_t i = 0; i < 32; ++i) bits |= (q[i] >> 4) << i;
  return bits;
}

void ExpectDecoded(TensorType type, const Bytes& bytes, const std::function<double(size_t)>& expected) {
  const std::vector<float> decoded = Decode(type, bytes);
  for (size_t i = 0; i < decoded.size(); ++i) {
    const double want = expected(i);
    ASSERT_NEAR(decoded[i], want, std::abs(want) * 1e-6 + 1e-6) << TensorTypeName(type) << " element " << i;
  }
}

TEST(TensorType, SmallBlocks) {
  const std::vector<uint32_t> q4 = RandomNumbers(32, 16, 1);
  const std::vector<uint32_t> q5 = RandomNumbers(32, 32, 2);
  const std::vector<uint32_t> q8 = RandomNumbers(32, 256, 3);
  const Bytes q4_bytes = PackNibbles(q4);
  const Bytes q5_bytes = PackNibbles(q5);
  ExpectDecoded(TensorType::kQ4_0, ByteWriter().Put(kHalfQuarter).PutBytes(q4_bytes).Take(),
                [&](size_t i) { return 0.25 * (double(q4[i]) - 8.0); });
  ExpectDecoded(TensorType::kQ4_1, ByteWriter().Put(kHalfQuarter).Put(kHalfTwo).PutBytes(q4_bytes).Take(),
                [&](size_t i) { return 0.25 * q4[i] + 2.0; });
  ExpectDecoded(TensorType::kQ5_0,
                ByteWriter().Put(kHalfQuarter).Put(PackFifthBits(q5)).PutBytes(q5_bytes).Take(),
                [&](size_t i) { return 0.25 * (double(q5[i]) - 16.0); });
  ExpectDecoded(TensorType::kQ5_1,
                ByteWriter().Put(kHalfQuarter).Put(kHalfTwo).Put(PackFifthBits(q5)).PutBytes(q5_bytes).Take(),
                [&](size_t i) { return 0.25 * q5[i] + 2.0; });
  ByteWriter q8_block;
  q8_block.Put(kHalfTwo);
  for (const uint32_t q : q8) q8_block.Put(static_cast<uint8_t>(q));
  ExpectDecoded(TensorType::kQ8_0, q8_block.Take(),
                [&](size_t i) { return 2.0 * (q8[i] < 128 ? double(q8[i]) : double(q8[i]) - 256.0); });
}

// The 12 bytes of eight 6-bit scales and eight 6-bit minima.
Bytes PackScales(const std::vector<uint32_t>& scales, const std::vector<uint32_t>& minima) {
  Bytes bytes(12);
  for (size_t s = 0; s < 4; ++s) {
    OrBits(bytes, s, scales[s]);
    OrBits(bytes, s + 4, minima[s]);
    OrBits(bytes, s + 8, (scales[s + 4] & 15U) | (minima[s + 4] & 15U) << 4);
    OrBits(bytes, s, (scales[s + 4] >> 4) << 6);
    OrBits(bytes, s + 4, (minima[s + 4] >> 4) << 6);
  }
  return bytes;
}

// Each 64 elements take 32 bytes: the first 32 elements in the low, the others in the high nibbles.
Bytes PackSuperNibbles(const std::vector<uint32_t>& q) {
  Bytes bytes(128);
  for (size_t i = 0; i < 256; ++i) {
    OrBits(bytes, i / 64 * 32 + i % 32, (q[i] & 15U) << (i % 64 < 32 ? 0 : 4));
  }
  return bytes;
}

TEST(TensorType, SuperBlocksWithMinima) {
  const std::vector<uint32_t> scales = RandomNumbers(8, 64, 4);
  const std::vector<uint32_t> minima = RandomNumbers(8, 64, 5);
  const std::vector<uint32_t> q4 = RandomNumbers(256, 16, 6);
  const std::vector<uint32_t> q5 = RandomNumbers(256, 32, 7);
  const Bytes packed = PackScales(scales, minima);
  ExpectDecoded(
      TensorType::kQ4_K,
      ByteWriter().Put(kHalfQuarter).Put(kHalfTwo).PutBytes(packed).PutBytes(PackSuperNibbles(q4)).Take(),
      [&](size_t i) { return 0.25 * scales[i / 32] * q4[i] - 2.0 * minima[i / 32]; });
  Bytes fifth_bits(32);
  for (size_t i = 0; i < 256; ++i) OrBits(fifth_bits, i % 32, (q5[i] >> 4) << (i / 32));
  ByteWriter q5_block;
  q5_block.Put(kHalfQuarter)
      .Put(kHalfTwo)
      .PutBytes(packed)
      .PutBytes(fifth_bits)
      .PutBytes(PackSuperNibbles(q5));
  ExpectDecoded(TensorType::kQ5_K, q5_block.Take(),
                [&](size_t i) { return 0.25 * scales[i / 32] * q5[i] - 2.0 * minima[i / 32]; });
}

TEST(TensorType, SixBitSuperBlock) {
  const std::vector<uint32_t> scales = RandomNumbers(16, 256, 8);  // as unsigned bytes
  const std::vector<uint32_t> q = RandomNumbers(256, 64, 9);
  Bytes low(128);
  Bytes high(64);
  for (size_t half = 0; half < 2; ++half) {
    for (size_t l = 0; l < 32; ++l) {
      const auto element = [&](size_t quarter) { return q[half * 128 + quarter * 32 + l]; };
      low[half * 64 + l] = static_cast<std::byte>((element(0) & 15U) | (element(2) & 15U) << 4);
      low[half * 64 + 32 + l] = static_cast<std::byte>((element(1) & 15U) | (element(3) & 15U) << 4);
      high[half * 32 + l] = static_cast<std::byte>(element(0) >> 4 | (element(1) >> 4) << 2 |
                                                   (element(2) >> 4) << 4 | (element(3) >> 4) << 6);
    }
  }
  ByteWriter block;
  block.PutBytes(low).PutBytes(high);
  for (const uint32_t scale : scales) block.Put(static_cast<uint8_t>(scale));
  block.Put(kHalfQuarter);
  ExpectDecoded(TensorType::kQ6_K, block.Take(), [&](size_t i) {
    const double scale = scales[i / 16] < 128 ? double(scales[i / 16]) : double(scales[i / 16]) - 256.0;
    return 0.25 * scale * (double(q[i]) - 32.0);
  });
}

// tests/data/quantised/make.py computed them.
TEST(TensorType, ValuesOfAnotherRuntime) {
  for (const TensorType type : testing::kKeptTypes) {
    const std::vector<float> expected = testing::ReadFloats(testing::KeptPath(type, "values"));
    const std::vector<float> decoded = Decode(type, testing::EdgeBlocks(type));
    ASSERT_EQ(decoded.size(), expected.size()) << TensorTypeName(type);
    for (size_t i = 0; i < decoded.size(); ++i) {
      ASSERT_EQ(decoded[i], expected[i]) << TensorTypeName(type) << " element " << i;
    }
  }
}

// A block of bytes 0x11 with all scales 1: every field decodes to a number that is easily worked out by hand.
TEST(TensorType, HandComputedBlocks) {
  const auto ones = [](size_t n) { return Bytes(n, std::byte{0x11}); };
  EXPECT_EQ(Decode(TensorType::kQ4_0, ByteWriter().Put(kHalfOne).PutBytes(ones(16)).Take()),
            std::vector<float>(32, -7.0F));
  EXPECT_EQ(Decode(TensorType::kQ8_0, ByteWriter().Put(kHalfTwo).PutBytes(ones(32)).Take()),
            std::vector<float>(32, 34.0F));
  // Scales and minima: bytes 0x11 give 17 for sub-blocks 0-3 and 1 for 4-7.
  std::vector<float> q4_k(256, 17.0F * 1.0F - 2.0F * 17.0F);
  std::fill(q4_k.begin() + 128, q4_k.end(), 1.0F - 2.0F);
  EXPECT_EQ(Decode(TensorType::kQ4_K, ByteWriter().Put(kHalfOne).Put(kHalfTwo).PutBytes(ones(140)).Take()),
            q4_k);
  // Fifth bits 0x11: of sub-blocks 0 and 4.
  std::vector<float> q5_k = q4_k;
  std::fill_n(q5_k.begin(), 32, 17.0F * 17.0F - 2.0F * 17.0F);
  std::fill_n(q5_k.begin() + 128, 32, 17.0F - 2.0F);
  EXPECT_EQ(Decode(TensorType::kQ5_K, ByteWriter().Put(kHalfOne).Put(kHalfTwo).PutBytes(ones(172)).Take()),
            q5_k);
  // High bit pairs 0x11: 1, 0, 1, 0 in the quarters: q = 17 or 1, minus 32.
  std::vector<float> q6_k(256);
  for (size_t i = 0; i < 256; ++i) q6_k[i] = 17.0F * (i / 32 % 2 == 0 ? -15.0F : -31.0F);
  EXPECT_EQ(Decode(TensorType::kQ6_K, ByteWriter().PutBytes(ones(208)).Put(kHalfOne).Take()), q6_k);
  // Scales 1, minima 1; bit pairs 0x11: 1, 0, 1, 0 in the quarters.
  std::vector<float> q2_k(256);
  for (size_t i = 0; i < 256; ++i) q2_k[i] = i / 32 % 2 == 0 ? -1.0F : -2.0F;
  EXPECT_EQ(Decode(TensorType::kQ2_K, ByteWriter().PutBytes(ones(80)).Put(kHalfOne).Put(kHalfTwo).Take()),
            q2_k);
  // Third bits 0x11: of eighths 0 and 4. Scales: low nibbles 1, upper two bits 1, 0, 1, 0 for four each.
  std::vector<float> q3_k(256);
  for (size_t i = 0; i < 256; ++i) {
    const float q = (i / 32 % 2 == 0 ? 1.0F : 0.0F) + (i / 32 % 4 == 0 ? 4.0F : 0.0F) - 4.0F;
    q3_k[i] = q * (i / 64 % 2 == 0 ? 17.0F - 32.0F : 1.0F - 32.0F);
  }
  EXPECT_EQ(Decode(TensorType::kQ3_K, ByteWriter().PutBytes(ones(108)).Put(kHalfOne).Take()), q3_k);
  EXPECT_EQ(Decode(TensorType::kIQ4_NL, ByteWriter().Put(kHalfTwo).PutBytes(ones(16)).Take()),
            std::vector<float>(32, -208.0F));
  // Upper two bits 0x1111: 1, 0 in turn; lower four 1.
  std::vector<float> iq4_xs(256);
  for (size_t i = 0; i < 256; ++i) iq4_xs[i] = -104.0F * (i / 32 % 2 == 0 ? 17.0F - 32.0F : 1.0F - 32.0F);
  EXPECT_EQ(Decode(TensorType::kIQ4_XS, ByteWriter().Put(kHalfOne).PutBytes(ones(134)).Take()), iq4_xs);
}

TEST(TensorType, DecodesPartsAndSeveralBlocks) {
  for (const TensorType type : kAllTypes) {
    const TensorTypeInfo& info = GetTensorType(type);
    Bytes bytes(3 * info.block_bytes);
    uint64_t seed = 10;
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(RandomBelow(seed, 0x3C));  // no infinities
    std::vector<float> all(3 * info.block_elements);
    DecodeTensor(type, bytes, all);
    std::vector<float> last(info.block_elements);
    DecodeTensor(type, std::span(bytes).subspan(2 * info.block_bytes), last);
    EXPECT_TRUE(std::equal(last.begin(), last.end(), all.end() - info.block_elements)) << info.name;
  }
}

TEST(TensorTypeDeathTest, TooFewBytesIsAProgrammersError) {
  std::vector<float> out(64);
  const Bytes bytes(18);
  EXPECT_DEATH(DecodeTensor(TensorType::kQ4_0, bytes, out), "bytes.size");
}

}  // namespace
}  // namespace kvrun
