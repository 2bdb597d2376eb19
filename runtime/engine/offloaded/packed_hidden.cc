#include "runtime/engine/offloaded/packed_hidden.h"

#include <algorithm>
#include <bit>

#include "platform/base/units.h"
#include "runtime/model/half_float.h"

namespace kvrun {
namespace {

// The scale of a row that has what is not finite.
constexpr float kAsItIs = 0.0F;

// So large that after division by it the largest of a row is below 2^15; a power of two.
float RowScale(std::span<const float> row) {
  uint32_t largest = 0;
  for (const float x : row) largest = std::max(largest, std::bit_cast<uint32_t>(x) & 0x7FFFFFFFU);
  const uint32_t exponent = largest >> 23;
  if (exponent == 255) return kAsItIs;
  return std::bit_cast<float>((std::max(exponent, 15U) - 14) << 23);
}

// As FloatToHalf and HalfToFloat have them, but for what is not finite or too large. Without branches: the
// compiler makes vectors of them.
uint16_t FiniteToHalf(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  const uint32_t normal = (magnitude - 0x38000000U + 0xFFFU + (magnitude >> 13 & 1U)) >> 13;
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000U;
  return static_cast<uint16_t>((bits >> 16 & 0x8000U) | (magnitude < 0x38800000U ? subnormal : normal));
}

float FiniteToFloat(uint16_t half) {
  const uint32_t magnitude = half & 0x7FFFU;
  const uint32_t normal = (magnitude << 13) + 0x38000000U;
  const auto subnormal = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int>(magnitude)) * 0x1p-24F);
  return std::bit_cast<float>((uint32_t{half} & 0x8000U) << 16 | (magnitude < 0x400U ? subnormal : normal));
}

void PackRow(std::span<const float> from, float scale, uint16_t* to) {
  if (scale == kAsItIs) {
    for (size_t i = 0; i < from.size(); ++i) to[i] = FloatToHalf(from[i]);
  } else {
    const float factor = 1.0F / scale;
    for (size_t i = 0; i < from.size(); ++i) to[i] = FiniteToHalf(from[i] * factor);
  }
}

void UnpackRow(const uint16_t* from, float scale, std::span<float> to) {
  if (scale == kAsItIs) {
    for (size_t i = 0; i < to.size(); ++i) to[i] = HalfToFloat(from[i]);
  } else {
    for (size_t i = 0; i < to.size(); ++i) to[i] = FiniteToFloat(from[i]) * scale;
  }
}

size_t RowElements(std::span<const std::byte> rows, size_t n_rows) {
  return rows.size() / (n_rows * sizeof(float));
}

}  // namespace

uint64_t PackedHiddenBytes(uint64_t n_rows, uint64_t n_embd) {
  constexpr uint64_t kPageBytes = 4096;
  return RoundUp(n_rows * (sizeof(float) + n_embd * sizeof(uint16_t)), kPageBytes);
}

void PackHidden(std::span<const std::byte> rows, size_t n_rows, std::span<std::byte> packed) {
  const size_t n_embd = RowElements(rows, n_rows);
  const auto* from = reinterpret_cast<const float*>(rows.data());
  auto* scales = reinterpret_cast<float*>(packed.data());
  auto* to = reinterpret_cast<uint16_t*>(scales + n_rows);
  for (size_t row = 0; row < n_rows; ++row, from += n_embd, to += n_embd) {
    scales[row] = RowScale({from, n_embd});
    PackRow({from, n_embd}, scales[row], to);
  }
}

void UnpackHidden(std::span<const std::byte> packed, size_t n_rows, std::span<std::byte> rows) {
  const size_t n_embd = RowElements(rows, n_rows);
  const auto* scales = reinterpret_cast<const float*>(packed.data());
  const auto* from = reinterpret_cast<const uint16_t*>(scales + n_rows);
  auto* to = reinterpret_cast<float*>(rows.data());
  for (size_t row = 0; row < n_rows; ++row, from += n_embd, to += n_embd) {
    UnpackRow(from, scales[row], {to, n_embd});
  }
}

}  // namespace kvrun
