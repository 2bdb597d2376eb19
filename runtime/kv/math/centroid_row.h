// A row of an index of clusters: int8, the centroid's columns and four more, each times the scale of its
// column in its list (ScoreArgs). With an affine query side (QueryForm::kAffine) one row serves two
// questions:
//
//   which clusters would a query attend to:   q . centroid / sqrt(dim) + log size
//   which cluster is a key nearest to:        k . centroid - |centroid|^2 / 2
//
//   column    0 .. dim - 1   dim        dim + 1             dim + 2, dim + 3
//   holds     centroid       log size   0; -127: no row     half the squared norm, high and low digit
//
// Half norms are those of centroids as the row holds them, so that the nearest row is found exactly, and two
// digits hold any of them: their scales follow from the largest centroid that the row can hold.
#pragma once

#include <cstdint>
#include <span>

namespace kvrun {

inline constexpr uint32_t kCentroidExtraColumns = 4;
constexpr uint32_t CentroidRank(uint32_t dim) { return dim + kCentroidExtraColumns; }

// Column scales, float [CentroidRank(dim)], for centroids of about the size of these: float [n, dim]. What
// is larger by more than a quarter is clipped.
void FindCentroidScales(std::span<const float> centroids, uint32_t dim, std::span<float> scales);

// A cluster of n_entries stored entries. Without any, it can be nearest, but is not attended to.
void PackCentroid(std::span<const float> centroid, uint32_t n_entries, std::span<const float> scales,
                  std::span<int8_t> row);
// The same centroid, of another number of entries.
void PackCentroidSize(uint32_t n_entries, std::span<const float> scales, std::span<int8_t> row);
// No cluster.
void PackNoCentroid(std::span<int8_t> row);
bool IsCentroid(std::span<const int8_t> row);
// As the row holds it.
void UnpackCentroid(std::span<const int8_t> row, std::span<const float> scales, std::span<float> centroid);

// Query sides: float [dim + 1, CentroidRank(dim)].
void FillAttentionSide(uint32_t dim, std::span<float> side);
void FillNearestSide(uint32_t dim, std::span<float> side);

}  // namespace kvrun
