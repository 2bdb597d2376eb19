#include "runtime/device/entry_space.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "platform/base/check.h"
#include "runtime/device/record_codec.h"
#include "shaders/shared/entry_space.h"

namespace kvrun {
namespace {

static_assert(KVRUN_MOST_ELEMENTS == kMaxCodecHeadDim);

// 1 or -1, of each element of a row.
constexpr std::array<float, kMaxCodecHeadDim> kSigns = [] {
  constexpr std::array<uint32_t, kMaxCodecHeadDim / 32> words = {KVRUN_SIGN_WORDS};
  std::array<float, kMaxCodecHeadDim> signs{};
  for (size_t i = 0; i < signs.size(); ++i) signs[i] = (words[i / 32] >> (i % 32) & 1) != 0 ? -1.0F : 1.0F;
  return signs;
}();

// The first three steps at once: compilers keep eight elements in registers.
void AddEight(float* x) {
  const float a0 = x[0] + x[1];
  const float a1 = x[0] - x[1];
  const float a2 = x[2] + x[3];
  const float a3 = x[2] - x[3];
  const float a4 = x[4] + x[5];
  const float a5 = x[4] - x[5];
  const float a6 = x[6] + x[7];
  const float a7 = x[6] - x[7];
  const float b0 = a0 + a2;
  const float b1 = a1 + a3;
  const float b2 = a0 - a2;
  const float b3 = a1 - a3;
  const float b4 = a4 + a6;
  const float b5 = a5 + a7;
  const float b6 = a4 - a6;
  const float b7 = a5 - a7;
  x[0] = b0 + b4;
  x[1] = b1 + b5;
  x[2] = b2 + b6;
  x[3] = b3 + b7;
  x[4] = b0 - b4;
  x[5] = b1 - b5;
  x[6] = b2 - b6;
  x[7] = b3 - b7;
}

// Sums and differences of neighbours `length` apart, of twice that length, and so on up to the block.
void Hadamard(std::span<float> row) {
  const size_t block = size_t{1} << std::countr_zero(row.size());
  size_t length = 1;
  if (block >= 8) {
    for (size_t i = 0; i < row.size(); i += 8) AddEight(row.data() + i);
    length = 8;
  }
  for (; length < block; length *= 2) {
    for (size_t begin = 0; begin < row.size(); begin += 2 * length) {
      float* const first = row.data() + begin;
      float* const second = first + length;
      for (size_t i = 0; i < length; ++i) {
        const float sum = first[i] + second[i];
        second[i] = first[i] - second[i];
        first[i] = sum;
      }
    }
  }
  const float factor = 1.0F / std::sqrt(static_cast<float>(block));
  for (float& x : row) x *= factor;
}

void ChangeSigns(std::span<float> row) {
  for (size_t i = 0; i < row.size(); ++i) row[i] *= kSigns[i];
}

}  // namespace

void RotateRow(std::span<float> row) {
  KVRUN_CHECK(!row.empty() && row.size() <= kMaxCodecHeadDim);
  ChangeSigns(row);
  Hadamard(row);
}

void RotateRowBack(std::span<float> row) {
  KVRUN_CHECK(!row.empty() && row.size() <= kMaxCodecHeadDim);
  Hadamard(row);
  ChangeSigns(row);
}

void IntoSpace(std::span<const float> mean, std::span<float> row) {
  for (size_t i = 0; i < row.size(); ++i) row[i] -= mean[i];
  RotateRow(row);
}

void OutOfSpace(std::span<const float> mean, std::span<float> row) {
  RotateRowBack(row);
  for (size_t i = 0; i < row.size(); ++i) row[i] += mean[i];
}

}  // namespace kvrun
