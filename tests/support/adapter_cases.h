// Keys and queries to compute adapters from, and what is read of those that were computed.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include <Eigen/SVD>

#include "runtime/kv/math/adapter.h"

namespace kvrun::testing::adapters {

using Matrix = Eigen::MatrixXd;

inline constexpr AdapterKind kAllKinds[] = {AdapterKind::kPlain, AdapterKind::kCentred,
                                            AdapterKind::kQuery, AdapterKind::kQueryCentred,
                                            AdapterKind::kHeads, AdapterKind::kSkewed};

// Keys [n_keys, key_dim] and, per KV head, queries [n_queries, head_dim].
struct Sample {
  uint32_t n_kv_heads = 0;
  uint32_t head_dim = 0;
  Matrix keys;
  std::vector<Matrix> queries;

  Eigen::Index key_dim() const { return keys.cols(); }
};

inline Matrix RandomMatrix(std::mt19937& random, Eigen::Index rows, Eigen::Index columns) {
  std::normal_distribution<double> normal;
  return Matrix::NullaryExpr(rows, columns, [&] { return normal(random); });
}

// Directions of falling weight, rotated, and a mean as large as they are: so that eigenvalues lie well apart,
// and leaving the mean in shows.
inline Matrix FallingRows(std::mt19937& random, Eigen::Index rows, Eigen::Index columns) {
  Matrix values = RandomMatrix(random, rows, columns);
  for (Eigen::Index i = 0; i < columns; ++i) values.col(i) *= std::pow(0.75, static_cast<double>(i));
  const Eigen::JacobiSVD<Matrix> rotation(RandomMatrix(random, columns, columns), Eigen::ComputeFullU);
  return (values * rotation.matrixU()).rowwise() + RandomMatrix(random, 1, columns).row(0);
}

inline Sample MakeSample(uint32_t n_kv_heads, uint32_t head_dim, uint32_t seed) {
  std::mt19937 random(seed);
  Sample sample = {n_kv_heads, head_dim, FallingRows(random, 300, n_kv_heads * head_dim), {}};
  for (uint32_t head = 0; head < n_kv_heads; ++head) {
    sample.queries.push_back(FallingRows(random, 200, head_dim));
  }
  return sample;
}

// What a device adds up: sums in f32, rows one after another.
struct Sums {
  std::vector<float> keys;
  std::vector<float> queries;
  LayerSums view;
};

inline void AppendRows(const Matrix& matrix, std::vector<float>& to) {
  for (Eigen::Index i = 0; i < matrix.rows(); ++i) {
    for (Eigen::Index j = 0; j < matrix.cols(); ++j) to.push_back(static_cast<float>(matrix(i, j)));
  }
}

inline Sums SumUp(const Sample& sample) {
  Sums sums;
  AppendRows(sample.keys.transpose() * sample.keys, sums.keys);
  AppendRows(sample.keys.colwise().sum(), sums.keys);
  for (const Matrix& queries : sample.queries) AppendRows(queries.transpose() * queries, sums.queries);
  sums.view = {sample.n_kv_heads, sample.head_dim, static_cast<uint64_t>(sample.keys.rows()), {}, 0, {}};
  if (!sample.queries.empty()) sums.view.n_queries = static_cast<uint64_t>(sample.queries[0].rows());
  return sums;
}

inline Result<LayerAdapter> Compute(AdapterKind kind, const Sample& sample, uint32_t rank) {
  Sums sums = SumUp(sample);
  sums.view.keys = sums.keys;
  sums.view.queries = sums.queries;
  return ComputeAdapter(kind, sums.view, rank);
}

inline Matrix Side(const std::vector<float>& values, const LayerAdapter& adapter) {
  Matrix side(adapter.key_dim, adapter.rank);
  for (uint32_t i = 0; i < adapter.key_dim; ++i) {
    for (uint32_t j = 0; j < adapter.rank; ++j) side(i, j) = values[size_t{i} * adapter.rank + j];
  }
  return side;
}

}  // namespace kvrun::testing::adapters
