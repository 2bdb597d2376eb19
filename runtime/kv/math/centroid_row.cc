#include "runtime/kv/math/centroid_row.h"

#include <algorithm>
#include <cmath>

#include "platform/base/check.h"

namespace kvrun {
namespace {

constexpr float kLargestCode = 127.0F;
constexpr float kRoom = 1.25F;
constexpr float kLogSizeScale = 8.0F / kLargestCode;  // of sizes up to e^8
constexpr float kLeastScale = 1e-20F;                 // of a column of zeros
// Beyond any product of keys, and small enough that a product with it is a number.
constexpr float kNeverNearest = 1e15F;

uint32_t SizeColumn(uint32_t dim) { return dim; }
uint32_t AbsentColumn(uint32_t dim) { return dim + 1; }
uint32_t HighColumn(uint32_t dim) { return dim + 2; }
uint32_t LowColumn(uint32_t dim) { return dim + 3; }

int8_t Code(float value, float scale) {
  const float code = std::nearbyint(value / scale);
  // NaNs become a number too: a key that is none comes of a read that failed.
  return static_cast<int8_t>(std::min(kLargestCode, std::max(-kLargestCode, code)));
}

void FillSide(uint32_t dim, float size, float absent, float half_norm, std::span<float> side) {
  const size_t rank = CentroidRank(dim);
  KVRUN_CHECK(side.size() == (dim + 1) * rank);
  std::fill(side.begin(), side.end(), 0.0F);
  for (size_t i = 0; i < dim; ++i) side[i * rank + i] = 1.0F;
  float* const constants = side.data() + dim * rank;
  constants[SizeColumn(dim)] = size;
  constants[AbsentColumn(dim)] = absent;
  constants[HighColumn(dim)] = half_norm;
  constants[LowColumn(dim)] = half_norm;
}

}  // namespace

void FindCentroidScales(std::span<const float> centroids, uint32_t dim, std::span<float> scales) {
  KVRUN_CHECK(scales.size() == CentroidRank(dim) && centroids.size() % dim == 0);
  float largest_half_norm = 0.0F;
  for (uint32_t c = 0; c < dim; ++c) {
    float largest = 0.0F;
    for (size_t i = c; i < centroids.size(); i += dim) {
      if (std::isfinite(centroids[i])) largest = std::max(largest, std::abs(centroids[i]));
    }
    scales[c] = std::max(kLeastScale, kRoom * largest / kLargestCode);
    largest_half_norm += scales[c] * scales[c] * kLargestCode * kLargestCode / 2;
  }
  scales[SizeColumn(dim)] = kLogSizeScale;
  scales[AbsentColumn(dim)] = 1.0F;
  scales[HighColumn(dim)] = std::max(kLeastScale, largest_half_norm / kLargestCode);
  scales[LowColumn(dim)] = scales[HighColumn(dim)] / (2 * kLargestCode);
}

void PackCentroid(std::span<const float> centroid, uint32_t n_entries, std::span<const float> scales,
                  std::span<int8_t> row) {
  const auto dim = static_cast<uint32_t>(centroid.size());
  float half_norm = 0.0F;
  for (uint32_t c = 0; c < dim; ++c) {
    row[c] = Code(centroid[c], scales[c]);
    const float held = static_cast<float>(row[c]) * scales[c];
    half_norm += held * held / 2;
  }
  PackCentroidSize(n_entries, scales, row);
  row[AbsentColumn(dim)] = 0;
  row[HighColumn(dim)] = Code(half_norm, scales[HighColumn(dim)]);
  const float rest = half_norm - static_cast<float>(row[HighColumn(dim)]) * scales[HighColumn(dim)];
  row[LowColumn(dim)] = Code(rest, scales[LowColumn(dim)]);
}

// The log of no entries is that of so few that none is attended to.
void PackCentroidSize(uint32_t n_entries, std::span<const float> scales, std::span<int8_t> row) {
  const size_t column = row.size() - kCentroidExtraColumns;
  row[column] = n_entries == 0 ? static_cast<int8_t>(-kLargestCode)
                               : Code(std::log(static_cast<float>(n_entries)), scales[column]);
}

void PackNoCentroid(std::span<int8_t> row) {
  std::fill(row.begin(), row.end(), int8_t{0});
  row[AbsentColumn(static_cast<uint32_t>(row.size()) - kCentroidExtraColumns)] =
      static_cast<int8_t>(-kLargestCode);
}

bool IsCentroid(std::span<const int8_t> row) {
  return row[AbsentColumn(static_cast<uint32_t>(row.size()) - kCentroidExtraColumns)] == 0;
}

void UnpackCentroid(std::span<const int8_t> row, std::span<const float> scales, std::span<float> centroid) {
  for (size_t c = 0; c < centroid.size(); ++c) centroid[c] = static_cast<float>(row[c]) * scales[c];
}

void FillAttentionSide(uint32_t dim, std::span<float> side) {
  const float one = std::sqrt(static_cast<float>(dim));  // scores are divided by it
  FillSide(dim, one, one, 0.0F, side);
}

void FillNearestSide(uint32_t dim, std::span<float> side) { FillSide(dim, 0.0F, kNeverNearest, -1.0F, side); }

}  // namespace kvrun
