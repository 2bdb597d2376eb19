#include "runtime/device/record_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/device/encode_rows.h"
#include "runtime/model/tensor_type.h"

namespace kvrun {
namespace {

// K or V of one entry and head. Words are those of a record.
struct RowPlace {
  KvType type = KvType::kF16;
  uint32_t begin_words = 0;
  uint32_t scale_half = 0;  // the first, in halves from the record's begin
};

RowPlace PlaceOf(const KvRecordShape& shape, bool is_value, uint32_t row) {
  const KvType type = is_value ? shape.v_type : shape.k_type;
  return {.type = type,
          .begin_words = (is_value ? shape.v_begin_words() : 0) + row * shape.row_words(type),
          .scale_half = 2 * shape.scales_begin_words() + (is_value ? shape.v_scales_begin() : 0) +
                        row * shape.row_scales(type)};
}

uint16_t LoadHalf(std::span<const uint32_t> words, uint32_t at) {
  return static_cast<uint16_t>(words[at / 2] >> (16 * (at % 2)));
}

void StoreHalf(std::span<uint32_t> words, uint32_t at, uint16_t half) {
  const uint32_t shift = 16 * (at % 2);
  words[at / 2] = (words[at / 2] & ~(0xffffU << shift)) | uint32_t{half} << shift;
}

// E4M3 without infinities, by runtime/device/kv_record.h.
constexpr float Fp8ToFloat(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7f;
  const float value = magnitude < 8 ? static_cast<float>(magnitude) / 512.0F
                                    : std::bit_cast<float>((magnitude << 20) + (120U << 23));
  return (bits & 0x80) != 0 ? -value : value;
}

uint32_t FloatToFp8(float value) {
  constexpr float kLargest = 448.0F;
  constexpr float kSmallestNormal = 0x1p-6F;
  const uint32_t sign = std::signbit(value) ? 0x80 : 0;
  const float magnitude = std::min(std::abs(value), kLargest);
  if (magnitude < kSmallestNormal) return sign | static_cast<uint32_t>(std::nearbyint(magnitude * 512.0F));
  const auto bits = std::bit_cast<uint32_t>(magnitude);
  const uint32_t rounded = (bits + 0x7ffff + ((bits >> 20) & 1)) >> 20;
  return sign | std::min(rounded - (120U << 3), 0x7eU);
}

constexpr std::array<float, 256> kFp8Floats = [] {
  std::array<float, 256> floats{};
  for (uint32_t bits = 0; bits < floats.size(); ++bits) floats[bits] = Fp8ToFloat(bits);
  return floats;
}();

template <uint32_t kBits, typename Decode>
void LoadElements(std::span<const uint32_t> words, std::span<float> row, const Decode& decode) {
  constexpr uint32_t kOfWord = 32 / kBits;
  for (size_t i = 0; i < row.size(); ++i) row[i] = decode(words[i / kOfWord] >> (i % kOfWord * kBits));
}

void LoadRow(const RowPlace& place, std::span<const uint32_t> words, std::span<float> row) {
  const std::span<const uint32_t> elements = words.subspan(place.begin_words);
  const auto int4 = [](uint32_t bits) { return static_cast<float>(static_cast<int>((bits & 0xf) ^ 8) - 8); };
  switch (place.type) {
    case KvType::kF32: std::memcpy(row.data(), elements.data(), row.size_bytes()); return;
    case KvType::kF16: return LoadHalves(elements.data(), row);
    case KvType::kFp8:
      LoadElements<8>(elements, row, [](uint32_t bits) { return kFp8Floats[bits & 0xff]; });
      break;
    case KvType::kInt8:
      LoadElements<8>(elements, row, [](uint32_t bits) { return static_cast<int8_t>(bits & 0xff); });
      break;
    case KvType::kInt4: LoadElements<4>(elements, row, int4); break;
  }
  const size_t block = place.type == KvType::kInt4 ? kInt4BlockElements : row.size();
  for (size_t begin = 0; begin < row.size(); begin += block) {
    const float scale = HalfToFloat(LoadHalf(words, place.scale_half + static_cast<uint32_t>(begin / block)));
    for (float& value : row.subspan(begin, std::min(block, row.size() - begin))) value *= scale;
  }
}

template <uint32_t kBits, typename Encode>
void StoreElements(std::span<const float> values, float factor, std::span<uint32_t> words,
                   const Encode& encode) {
  constexpr uint32_t kOfWord = 32 / kBits;
  for (size_t i = 0; i < values.size(); i += kOfWord) {
    uint32_t word = 0;
    const auto n = static_cast<uint32_t>(std::min<size_t>(kOfWord, values.size() - i));
    for (uint32_t j = 0; j < n; ++j) word |= encode(values[i + j] * factor) << (j * kBits);
    words[i / kOfWord] = word;
  }
}

void StoreFp8Row(const RowPlace& place, std::span<const float> row, std::span<uint32_t> words) {
  float largest = 0.0F;
  for (const float value : row) largest = std::max(largest, std::abs(value));
  const uint16_t half = ToFiniteHalf(largest / 448.0F);
  StoreHalf(words, place.scale_half, half);
  StoreElements<8>(row, InverseOf(HalfToFloat(half)), words.subspan(place.begin_words), FloatToFp8);
}

void StoreRow(const RowPlace& place, std::span<const float> row, std::span<uint32_t> words) {
  const std::span<uint32_t> elements = words.subspan(place.begin_words);
  uint16_t scales[kMaxCodecHeadDim / kInt4BlockElements];
  uint32_t n_scales = 0;
  switch (place.type) {
    case KvType::kF32: std::memcpy(elements.data(), row.data(), row.size_bytes()); return;
    case KvType::kF16:
      StoreElements<16>(row, 1.0F, elements, [](float v) { return uint32_t{ToFiniteHalf(v)}; });
      return;
    case KvType::kFp8: return StoreFp8Row(place, row, words);
    case KvType::kInt8:
      EncodeInt8Row(row, elements.data(), scales);
      n_scales = 1;
      break;
    case KvType::kInt4:
      EncodeInt4Row(row, elements.data(), scales);
      n_scales = CeilDiv(static_cast<uint32_t>(row.size()), kInt4BlockElements);
      break;
  }
  for (uint32_t i = 0; i < n_scales; ++i) StoreHalf(words, place.scale_half + i, scales[i]);
}

std::span<uint32_t> AsWords(std::span<std::byte> bytes) {
  return {reinterpret_cast<uint32_t*>(bytes.data()), bytes.size() / sizeof(uint32_t)};
}

std::span<const uint32_t> AsWords(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const uint32_t*>(bytes.data()), bytes.size() / sizeof(uint32_t)};
}

// [group_tokens, n_heads * head_dim], rows `row_stride` elements apart.
void DecodePlane(const KvRecordShape& shape, bool is_value, std::span<const std::byte> record,
                 uint32_t row_stride, std::span<float> rows) {
  KVRUN_CHECK(row_stride >= shape.n_heads * shape.head_dim && record.size() >= shape.size_bytes());
  for (uint32_t head = 0; head < shape.n_heads; ++head) {
    for (uint32_t entry = 0; entry < shape.group_tokens; ++entry) {
      LoadRow(PlaceOf(shape, is_value, head * shape.group_tokens + entry), AsWords(record),
              rows.subspan(size_t{entry} * row_stride + size_t{head} * shape.head_dim, shape.head_dim));
    }
  }
}

}  // namespace

void TranscodeRecord(const KvRecordShape& from_shape, std::span<const std::byte> from,
                     const KvRecordShape& to_shape, std::span<std::byte> to) {
  KVRUN_CHECK(from_shape.n_rows() == to_shape.n_rows() && from_shape.head_dim == to_shape.head_dim);
  KVRUN_CHECK(from_shape.head_dim <= kMaxCodecHeadDim);
  KVRUN_CHECK(from.size() >= from_shape.size_bytes() && to.size() >= to_shape.size_bytes());
  if (from_shape == to_shape) {
    std::memcpy(to.data(), from.data(), from_shape.size_bytes());
    return;
  }
  std::memset(to.data(), 0, to_shape.size_bytes());
  float elements[kMaxCodecHeadDim];
  const std::span<float> values(elements, from_shape.head_dim);
  for (uint32_t row = 0; row < from_shape.n_rows(); ++row) {
    for (const bool is_value : {false, true}) {
      LoadRow(PlaceOf(from_shape, is_value, row), AsWords(from), values);
      StoreRow(PlaceOf(to_shape, is_value, row), values, AsWords(to));
    }
  }
  if (from_shape.has_positions && to_shape.has_positions) {
    const auto positions = AsWords(from).subspan(from_shape.positions_begin_words(), from_shape.group_tokens);
    std::copy(positions.begin(), positions.end(), AsWords(to).begin() + to_shape.positions_begin_words());
  }
}

void RoundEntry(const KvRecordShape& shape, const KvRecordShape& stored, uint32_t entry,
                std::span<std::byte> record) {
  KVRUN_CHECK(shape.head_dim <= kMaxCodecHeadDim && entry < shape.group_tokens);
  // One row alone: its words, then its scales.
  uint32_t words[kMaxCodecHeadDim + kMaxCodecHeadDim / kInt4BlockElements];
  float elements[kMaxCodecHeadDim];
  const std::span<float> values(elements, shape.head_dim);
  for (uint32_t head = 0; head < shape.n_heads; ++head) {
    for (const bool is_value : {false, true}) {
      const KvType type = is_value ? stored.v_type : stored.k_type;
      const RowPlace place = PlaceOf(shape, is_value, head * shape.group_tokens + entry);
      const RowPlace alone{type, 0, 2 * kMaxCodecHeadDim};
      LoadRow(place, AsWords(record), values);
      StoreRow(alone, values, words);
      LoadRow(alone, words, values);
      StoreRow(place, values, AsWords(record));
    }
  }
}

void ShiftRecord(const KvRecordShape& shape, std::span<const float> shifts, std::span<std::byte> record) {
  KVRUN_CHECK(shape.head_dim <= kMaxCodecHeadDim && record.size() >= shape.size_bytes());
  KVRUN_CHECK(shifts.size() == size_t{2} * shape.n_heads * shape.head_dim);
  float elements[kMaxCodecHeadDim];
  const std::span<float> values(elements, shape.head_dim);
  for (uint32_t row = 0; row < shape.n_rows(); ++row) {
    for (const bool is_value : {false, true}) {
      const RowPlace place = PlaceOf(shape, is_value, row);
      const size_t plane = size_t{row / shape.group_tokens} * 2 + (is_value ? 1 : 0);
      LoadRow(place, AsWords(record), values);
      for (uint32_t i = 0; i < shape.head_dim; ++i) values[i] -= shifts[plane * shape.head_dim + i];
      StoreRow(place, values, AsWords(record));
    }
  }
}

void DecodeKeys(const KvRecordShape& shape, std::span<const std::byte> record, uint32_t row_stride,
                std::span<float> keys) {
  DecodePlane(shape, false, record, row_stride, keys);
}

void DecodeValues(const KvRecordShape& shape, std::span<const std::byte> record, uint32_t row_stride,
                  std::span<float> values) {
  DecodePlane(shape, true, record, row_stride, values);
}

}  // namespace kvrun
