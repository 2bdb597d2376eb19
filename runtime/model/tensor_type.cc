#include "runtime/model/tensor_type.h"

#include <array>
#include <bit>

#include "platform/base/check.h"
#include "runtime/model/block_bits.h"

namespace kvrun {
namespace {

constexpr uint32_t kSmallBlock = 32;   // elements of a block of the Qn_0 and Qn_1 types
constexpr uint32_t kSuperBlock = 256;  // elements of a superblock of the Qn_K types

uint32_t Byte(const std::byte* bytes, size_t index) { return std::to_integer<uint32_t>(bytes[index]); }

int32_t SignedByte(const std::byte* bytes, size_t index) {
  return static_cast<int8_t>(std::to_integer<uint8_t>(bytes[index]));
}

uint16_t ReadU16(const std::byte* bytes) {
  return static_cast<uint16_t>(Byte(bytes, 0) | Byte(bytes, 1) << 8);
}

uint32_t ReadU32(const std::byte* bytes) {
  return uint32_t{ReadU16(bytes)} | uint32_t{ReadU16(bytes + 2)} << 16;
}

float ReadHalf(const std::byte* bytes) { return HalfToFloat(ReadU16(bytes)); }

void DecodeF32(const std::byte* block, float* out) { *out = std::bit_cast<float>(ReadU32(block)); }
void DecodeF64(const std::byte* block, float* out) {
  *out = static_cast<float>(
      std::bit_cast<double>(uint64_t{ReadU32(block)} | uint64_t{ReadU32(block + 4)} << 32));
}
void DecodeF16(const std::byte* block, float* out) { *out = ReadHalf(block); }
void DecodeBF16(const std::byte* block, float* out) { *out = BFloat16ToFloat(ReadU16(block)); }

// In all 4- and 5-bit small blocks byte j holds element j in its low and element j + 16 in its high nibble.
void DecodeNibbles(const std::byte* nibbles, uint32_t high_bits, float scale, float offset, float* out) {
  constexpr uint32_t kHalf = kSmallBlock / 2;
  for (uint32_t j = 0; j < kHalf; ++j) {
    const uint32_t low = (Byte(nibbles, j) & 15U) | (high_bits >> j & 1U) << 4;
    const uint32_t high = Byte(nibbles, j) >> 4 | (high_bits >> (j + kHalf) & 1U) << 4;
    out[j] = static_cast<float>(low) * scale + offset;
    out[j + kHalf] = static_cast<float>(high) * scale + offset;
  }
}

// {half scale; nibbles}: (q - 8) * scale
void DecodeQ4_0(const std::byte* block, float* out) {
  const float scale = ReadHalf(block);
  DecodeNibbles(block + 2, 0, scale, -8.0F * scale, out);
}

// {half scale; half minimum; nibbles}: q * scale + minimum
void DecodeQ4_1(const std::byte* block, float* out) {
  DecodeNibbles(block + 4, 0, ReadHalf(block), ReadHalf(block + 2), out);
}

// {half scale; uint32 fifth bits; nibbles}: (q - 16) * scale
void DecodeQ5_0(const std::byte* block, float* out) {
  const float scale = ReadHalf(block);
  DecodeNibbles(block + 6, ReadU32(block + 2), scale, -16.0F * scale, out);
}

// {half scale; half minimum; uint32 fifth bits; nibbles}: q * scale + minimum
void DecodeQ5_1(const std::byte* block, float* out) {
  DecodeNibbles(block + 8, ReadU32(block + 4), ReadHalf(block), ReadHalf(block + 2), out);
}

// {half scale; int8 q[32]}: q * scale
void DecodeQ8_0(const std::byte* block, float* out) {
  const float scale = ReadHalf(block);
  for (uint32_t j = 0; j < kSmallBlock; ++j) out[j] = static_cast<float>(SignedByte(block + 2, j)) * scale;
}

struct ScaleAndMinimum {
  uint32_t scale;
  uint32_t minimum;
};

// Q4_K and Q5_K pack eight 6-bit scales and eight 6-bit minima into 12 bytes: bytes 0-3 and 4-7 hold those
// of sub-blocks 0-3 in their low 6 bits; bytes 8-11 the low nibbles of those of sub-blocks 4-7 (scale, then
// minimum), whose upper two bits are the upper two bits of bytes 0-7.
ScaleAndMinimum UnpackScale(const std::byte* packed, uint32_t sub_block) {
  if (sub_block < 4) return {Byte(packed, sub_block) & 63U, Byte(packed, sub_block + 4) & 63U};
  const uint32_t i = sub_block - 4;
  return {(Byte(packed, i + 8) & 15U) | Byte(packed, i) >> 6 << 4,
          Byte(packed, i + 8) >> 4 | Byte(packed, i + 4) >> 6 << 4};
}

// Sub-blocks 2c and 2c + 1 of 32 elements are the low and the high nibbles of the 32 bytes at 32c. The
// fifth bit of element l of sub-block s is bit s of fifth_bits[l]; null for Q4_K.
void DecodeScaledNibbles(const std::byte* block, const std::byte* fifth_bits, const std::byte* nibbles,
                         float* out) {
  const float scale = ReadHalf(block);
  const float minimum = ReadHalf(block + 2);
  for (uint32_t s = 0; s < 8; ++s) {
    const ScaleAndMinimum sub = UnpackScale(block + 4, s);
    const float sub_scale = scale * static_cast<float>(sub.scale);
    const float sub_minimum = minimum * static_cast<float>(sub.minimum);
    const uint32_t shift = s % 2 * 4;
    for (uint32_t l = 0; l < 32; ++l) {
      uint32_t q = Byte(nibbles, s / 2 * 32 + l) >> shift & 15U;
      if (fifth_bits != nullptr) q |= (Byte(fifth_bits, l) >> s & 1U) << 4;
      out[s * 32 + l] = sub_scale * static_cast<float>(q) - sub_minimum;
    }
  }
}

// {half scale; half minimum; 12 bytes of sub-block scales; 128 bytes of nibbles}
void DecodeQ4_K(const std::byte* block, float* out) { DecodeScaledNibbles(block, nullptr, block + 16, out); }

// {half scale; half minimum; 12 bytes of sub-block scales; 32 bytes of fifth bits; 128 bytes of nibbles}
void DecodeQ5_K(const std::byte* block, float* out) {
  DecodeScaledNibbles(block, block + 16, block + 48, out);
}

// {128 bytes of low nibbles; 64 bytes of high bit pairs; int8 scale[16]; half scale}. Each half of 128
// elements is four quarters of 32: quarters 0 and 1 are the low nibbles of 64 bytes, 2 and 3 the high ones;
// the upper two bits of quarter p are the bit pair p of 32 bytes. A scale covers 16 elements.
void DecodeQ6_K(const std::byte* block, float* out) {
  const std::byte* scales = block + 192;
  const float scale = ReadHalf(block + 208);
  for (uint32_t i = 0; i < kSuperBlock; ++i) {
    const uint32_t half = i / 128;
    const uint32_t quarter = i / 32 % 4;
    const uint32_t low = Byte(block, half * 64 + i % 64) >> (quarter / 2 * 4) & 15U;
    const uint32_t high = Byte(block + 128, half * 32 + i % 32) >> (quarter * 2) & 3U;
    const auto q = static_cast<float>(static_cast<int32_t>(low | high << 4) - 32);
    out[i] = scale * static_cast<float>(SignedByte(scales, i / 16)) * q;
  }
}

// {16 bytes of scales; 64 bytes of bit pairs; half scale; half minimum}. A scale covers 16 elements; its low
// nibble is multiplied with the one half, its high nibble with the other.
void DecodeQ2_K(const std::byte* block, float* out) {
  const float scale = ReadHalf(block + kQ2Halves);
  const float minimum = ReadHalf(block + kQ2Halves + 2);
  for (uint32_t i = 0; i < kSuperBlock; ++i) {
    const uint32_t sub = Byte(block, i / 16);
    const auto q = static_cast<float>(BitPair(block + kQ2Quants, i));
    out[i] = scale * static_cast<float>(sub & 15U) * q - minimum * static_cast<float>(sub >> 4);
  }
}

// {32 bytes of third bits; 64 bytes of bit pairs; 12 bytes of scales; half scale}: (q - 4) * (s - 32) * scale
void DecodeQ3_K(const std::byte* block, float* out) {
  const float scale = ReadHalf(block + kQ3Halves);
  for (uint32_t i = 0; i < kSuperBlock; ++i) {
    const int32_t sub = static_cast<int32_t>(Q3Scale(block, i / 16)) - 32;
    const int32_t q = static_cast<int32_t>(Q3Quant(block, i)) - 4;
    out[i] = scale * static_cast<float>(sub) * static_cast<float>(q);
  }
}

// 32 codes in 16 bytes, placed as in all 4-bit small blocks.
void DecodeCodes(const std::byte* codes, float scale, float* out) {
  for (uint32_t j = 0; j < kSmallBlock / 2; ++j) {
    out[j] = scale * static_cast<float>(kIq4Values[Byte(codes, j) & 15U]);
    out[j + kSmallBlock / 2] = scale * static_cast<float>(kIq4Values[Byte(codes, j) >> 4]);
  }
}

// {half scale; codes}: value of the code * scale
void DecodeIQ4_NL(const std::byte* block, float* out) { DecodeCodes(block + 2, ReadHalf(block), out); }

// {half scale; 6 bytes of sub-block scales; 128 bytes of codes}: value of the code * (s - 32) * scale
void DecodeIQ4_XS(const std::byte* block, float* out) {
  const float scale = ReadHalf(block);
  for (uint32_t s = 0; s < kSuperBlock / kSmallBlock; ++s) {
    const float sub_scale = scale * static_cast<float>(static_cast<int32_t>(Iq4Scale(block, s)) - 32);
    DecodeCodes(block + kIq4Codes + size_t{16} * s, sub_scale, out + size_t{kSmallBlock} * s);
  }
}

constexpr std::array kTypes = {
    TensorTypeInfo{TensorType::kF32, "F32", 1, 4, DecodeF32},
    TensorTypeInfo{TensorType::kF16, "F16", 1, 2, DecodeF16},
    TensorTypeInfo{TensorType::kBF16, "BF16", 1, 2, DecodeBF16},
    TensorTypeInfo{TensorType::kQ8_0, "Q8_0", kSmallBlock, 34, DecodeQ8_0},
    TensorTypeInfo{TensorType::kQ4_0, "Q4_0", kSmallBlock, 18, DecodeQ4_0},
    TensorTypeInfo{TensorType::kQ4_1, "Q4_1", kSmallBlock, 20, DecodeQ4_1},
    TensorTypeInfo{TensorType::kQ5_0, "Q5_0", kSmallBlock, 22, DecodeQ5_0},
    TensorTypeInfo{TensorType::kQ5_1, "Q5_1", kSmallBlock, 24, DecodeQ5_1},
    TensorTypeInfo{TensorType::kQ2_K, "Q2_K", kSuperBlock, 84, DecodeQ2_K},
    TensorTypeInfo{TensorType::kQ3_K, "Q3_K", kSuperBlock, 110, DecodeQ3_K},
    TensorTypeInfo{TensorType::kQ4_K, "Q4_K", kSuperBlock, 144, DecodeQ4_K},
    TensorTypeInfo{TensorType::kQ5_K, "Q5_K", kSuperBlock, 176, DecodeQ5_K},
    TensorTypeInfo{TensorType::kQ6_K, "Q6_K", kSuperBlock, 210, DecodeQ6_K},
    TensorTypeInfo{TensorType::kIQ4_NL, "IQ4_NL", kSmallBlock, 18, DecodeIQ4_NL},
    TensorTypeInfo{TensorType::kIQ4_XS, "IQ4_XS", kSuperBlock, 136, DecodeIQ4_XS},
    TensorTypeInfo{TensorType::kF64, "F64", 1, 8, DecodeF64},
};

}  // namespace

const TensorTypeInfo* FindTensorType(uint32_t gguf_type) {
  for (const TensorTypeInfo& info : kTypes) {
    if (static_cast<uint32_t>(info.type) == gguf_type) return &info;
  }
  return nullptr;
}

const TensorTypeInfo& GetTensorType(TensorType type) {
  const TensorTypeInfo* info = FindTensorType(static_cast<uint32_t>(type));
  KVRUN_CHECK(info != nullptr);
  return *info;
}

std::string_view TensorTypeName(TensorType type) { return GetTensorType(type).name; }

std::string KnownTensorTypes() {
  std::string names;
  for (const TensorTypeInfo& info : kTypes) {
    if (!names.empty()) names += ", ";
    names += info.name;
  }
  return names;
}

void DecodeTensor(TensorType type, std::span<const std::byte> bytes, std::span<float> out) {
  const TensorTypeInfo& info = GetTensorType(type);
  const size_t blocks = out.size() / info.block_elements;
  KVRUN_CHECK(out.size() % info.block_elements == 0);
  KVRUN_CHECK(bytes.size() / info.block_bytes >= blocks);
  for (size_t i = 0; i < blocks; ++i) {
    info.decode_block(bytes.data() + i * info.block_bytes, out.data() + i * info.block_elements);
  }
}

}  // namespace kvrun
