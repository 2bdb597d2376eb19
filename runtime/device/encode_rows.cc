#include "runtime/device/instruction_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/encode_rows.cc"
#include <hwy/foreach_target.h>
// What is compiled for each target may use these.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/device/encode_rows.h"
#include "runtime/device/kv_record.h"
#include "runtime/device/record_codec.h"

HWY_BEFORE_NAMESPACE();
namespace kvrun::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Sums and maxima are those of eight lanes on any target: a vector has them all, or a part of them.
constexpr size_t kLanes = 8;

// Multiples of kLanes; zeros beyond the row.
struct PaddedRow {
  HWY_ALIGN float values[kMaxCodecHeadDim];
  size_t n = 0;

  explicit PaddedRow(std::span<const float> row) : n(RoundUp(row.size(), kLanes)) {
    std::fill(std::copy(row.begin(), row.end(), values), values + n, 0.0F);
  }
};

float LargestMagnitude(const float* values, size_t n) {
  const hn::CappedTag<float, kLanes> d;
  float largest = 0.0F;
  for (size_t part = 0; part < kLanes; part += hn::Lanes(d)) {
    auto most = hn::Zero(d);
    for (size_t i = part; i < n; i += kLanes) most = hn::Max(most, hn::Abs(hn::LoadU(d, values + i)));
    largest = std::max(largest, hn::GetLane(hn::MaxOfLanes(d, most)));
  }
  return largest;
}

// values * inverse as the nearest whole numbers within least .. most.
void Round(const float* values, size_t n, float inverse, float least, float most, int8_t* to) {
  const hn::CappedTag<float, kLanes> d;
  const hn::Rebind<int16_t, decltype(d)> d16;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const auto scale = hn::Set(d, inverse);
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto x = hn::Mul(hn::LoadU(d, values + i), scale);
    const auto whole = hn::NearestInt(hn::Min(hn::Max(x, hn::Set(d, least)), hn::Set(d, most)));
    hn::StoreU(hn::DemoteTo(d8, hn::DemoteTo(d16, whole)), d8, to + i);
  }
}

// The squares of what rounding takes from int4 elements with this scale.
float Int4Error(const float* values, size_t n, float scale) {
  const hn::CappedTag<float, kLanes> d;
  const auto inverse = hn::Set(d, InverseOf(scale));
  HWY_ALIGN float sums[kLanes];
  for (size_t part = 0; part < kLanes; part += hn::Lanes(d)) {
    auto sum = hn::Zero(d);
    for (size_t i = part; i < n; i += kLanes) {
      const auto x = hn::Mul(hn::LoadU(d, values + i), inverse);
      const auto lost = hn::Sub(hn::Round(hn::Min(hn::Max(x, hn::Set(d, -8.0F)), hn::Set(d, 7.0F))), x);
      sum = hn::Add(sum, hn::Mul(lost, lost));
    }
    hn::StoreU(sum, d, sums + part);
  }
  float error = 0.0F;
  for (const float sum : sums) error += sum;
  return error * scale * scale;
}

// With the sign of the first of the largest magnitude. Of equal errors, the first.
uint16_t Int4Scale(const float* values, size_t n) {
  const float most = LargestMagnitude(values, n);
  const float* const first =
      std::find_if(values, values + n, [most](float value) { return std::abs(value) == most; });
  const float largest = first != values + n ? *first : values[0];
  uint16_t best = ToFiniteHalf(largest * (-0.125F * kInt4Factors[0]));
  float least = Int4Error(values, n, HalfToFloat(best));
  for (size_t f = 1; f < std::size(kInt4Factors); ++f) {
    const uint16_t half = ToFiniteHalf(largest * (-0.125F * kInt4Factors[f]));
    const float error = Int4Error(values, n, HalfToFloat(half));
    if (!(error < least)) continue;
    best = half;
    least = error;
  }
  return best;
}

// The lower halves of eight bytes.
uint32_t PackNibbles(const int8_t* nibbles) {
  uint64_t bits;
  std::memcpy(&bits, nibbles, sizeof(bits));
  bits &= 0x0f0f0f0f0f0f0f0f;
  bits = (bits | bits >> 4) & 0x00ff00ff00ff00ff;
  bits = (bits | bits >> 8) & 0x0000ffff0000ffff;
  return static_cast<uint32_t>(bits | bits >> 16);
}

void Int8Row(std::span<const float> row, uint32_t* words, uint16_t* scale) {
  const PaddedRow padded(row);
  HWY_ALIGN int8_t rounded[kMaxCodecHeadDim];
  *scale = ToFiniteHalf(LargestMagnitude(padded.values, padded.n) / 127.0F);
  Round(padded.values, padded.n, InverseOf(HalfToFloat(*scale)), -127.0F, 127.0F, rounded);
  std::memcpy(words, rounded, RoundUp<size_t>(row.size(), sizeof(uint32_t)));
}

void Int4Row(std::span<const float> row, uint32_t* words, uint16_t* scales) {
  const PaddedRow padded(row);
  HWY_ALIGN int8_t rounded[kMaxCodecHeadDim];
  for (size_t begin = 0; begin < padded.n; begin += kInt4BlockElements) {
    const float* const values = padded.values + begin;
    const size_t n = std::min<size_t>(kInt4BlockElements, padded.n - begin);
    const uint16_t scale = scales[begin / kInt4BlockElements] = Int4Scale(values, n);
    Round(values, n, InverseOf(HalfToFloat(scale)), -8.0F, 7.0F, rounded + begin);
  }
  for (size_t i = 0; i < padded.n; i += 8) words[i / 8] = PackNibbles(rounded + i);
}

void LoadHalvesHere(const void* halves, std::span<float> floats) {
  size_t i = 0;
  // Where the processor cannot convert halves by itself, Highway makes large numbers of infinity.
#if HWY_TARGET <= HWY_AVX2 || HWY_ARCH_ARM_A64
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> d16;
  for (; i + hn::Lanes(d) <= floats.size(); i += hn::Lanes(d)) {
    const auto* const from = static_cast<const hwy::float16_t*>(halves) + i;
    hn::StoreU(hn::PromoteTo(d, hn::LoadU(d16, from)), d, floats.data() + i);
  }
#endif
  for (; i < floats.size(); ++i) {
    uint16_t half;
    std::memcpy(&half, static_cast<const std::byte*>(halves) + i * sizeof(half), sizeof(half));
    floats[i] = HalfToFloat(half);
  }
}

}  // namespace
}  // namespace kvrun::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvrun {
namespace {

HWY_EXPORT(Int8Row);
HWY_EXPORT(Int4Row);
HWY_EXPORT(LoadHalvesHere);

}  // namespace

std::vector<uint16_t> ToFiniteHalves(std::span<const float> values) {
  std::vector<uint16_t> halves(RoundUp(values.size(), size_t{2}));
  std::transform(values.begin(), values.end(), halves.begin(), ToFiniteHalf);
  return halves;
}

void EncodeInt8Row(std::span<const float> row, uint32_t* words, uint16_t* scale) {
  KVRUN_CHECK(row.size() <= kMaxCodecHeadDim);
  HWY_DYNAMIC_DISPATCH(Int8Row)(row, words, scale);
}

void EncodeInt4Row(std::span<const float> row, uint32_t* words, uint16_t* scales) {
  KVRUN_CHECK(row.size() <= kMaxCodecHeadDim);
  HWY_DYNAMIC_DISPATCH(Int4Row)(row, words, scales);
}

void LoadHalves(const void* halves, std::span<float> floats) {
  HWY_DYNAMIC_DISPATCH(LoadHalvesHere)(halves, floats);
}

}  // namespace kvrun
#endif  // HWY_ONCE
