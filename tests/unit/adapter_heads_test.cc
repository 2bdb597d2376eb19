// Adapters whose columns belong to one KV head each: against singular values of each head's own rows.
// Not grouped (cmake/KvrunCompile.cmake): its names are others', too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <Eigen/SVD>

#include "runtime/kv/math/adapter.h"
#include "tests/support/adapter_cases.h"

namespace kvrun::testing::adapters {
namespace {

constexpr AdapterKind kHeadKinds[] = {AdapterKind::kHeads, AdapterKind::kSkewed};

// Of the kinds whose columns belong to one KV head each.
class AdapterOfHeads : public ::testing::TestWithParam<AdapterKind> {};

// A head's columns by other means: singular values of its own rows, in double; [dim, dim], the more important
// first.
Matrix ColumnsOfHead(AdapterKind kind, const Sample& sample, Eigen::Index head) {
  const Matrix keys = sample.keys.middleCols(head * sample.head_dim, sample.head_dim);
  if (kind == AdapterKind::kHeads) {
    return Eigen::JacobiSVD<Matrix>(keys.rowwise() - keys.colwise().mean(), Eigen::ComputeFullV).matrixV();
  }
  const Matrix& queries = sample.queries[static_cast<size_t>(head)];
  const Matrix axes = Eigen::JacobiSVD<Matrix>(queries, Eigen::ComputeFullV).matrixV();
  std::vector<std::pair<double, Eigen::Index>> order;
  for (Eigen::Index i = 0; i < axes.cols(); ++i) {
    const double of_queries = (queries * axes.col(i)).norm() / std::sqrt(static_cast<double>(queries.rows()));
    const double of_keys = (keys * axes.col(i)).norm() / std::sqrt(static_cast<double>(keys.rows()));
    order.emplace_back(-of_queries - of_keys, i);
  }
  std::sort(order.begin(), order.end());
  Matrix columns(axes.rows(), axes.cols());
  for (Eigen::Index i = 0; i < axes.cols(); ++i)
    columns.col(i) = axes.col(order[static_cast<size_t>(i)].second);
  return columns;
}

TEST_P(AdapterOfHeads, ColumnsAreThoseOfEachHeadInTurn) {
  for (const auto& [n_kv_heads, head_dim] : {std::pair{3U, 8U}, {1U, 7U}, {5U, 4U}}) {
    SCOPED_TRACE(n_kv_heads);
    const Sample sample = MakeSample(n_kv_heads, head_dim, 20 + head_dim);
    const uint32_t rank = n_kv_heads * (head_dim - 1);
    const auto adapter = Compute(GetParam(), sample, rank);
    ASSERT_TRUE(adapter.ok()) << adapter.status().message();
    EXPECT_EQ(adapter->key_side, adapter->query_side);
    EXPECT_EQ(adapter->mean, std::vector<float>(size_t{n_kv_heads} * head_dim));
    const Matrix side = Side(adapter->key_side, *adapter);
    for (uint32_t column = 0; column < rank; ++column) {
      const Eigen::Index head = column % n_kv_heads;
      Eigen::VectorXd rest = side.col(column);
      const Eigen::VectorXd own = rest.segment(head * head_dim, head_dim);
      rest.segment(head * head_dim, head_dim).setZero();
      EXPECT_EQ(rest.norm(), 0.0) << column;
      const Matrix expected = ColumnsOfHead(GetParam(), sample, head);
      // Eigenvalues fall by about a half: sums in f32 turn directions by far less than this.
      EXPECT_NEAR(std::abs(own.dot(expected.col(column / n_kv_heads))), 1.0, 1e-3) << column;
      Eigen::Index largest = 0;
      own.cwiseAbs().maxCoeff(&largest);
      EXPECT_GT(own[largest], 0) << column;
    }
  }
}

// What the kept columns have of the keys' squares; of Loki's the means are left out, as they are of its axes.
TEST_P(AdapterOfHeads, EnergyIsTheKeysShare) {
  const Sample sample = MakeSample(2, 6, 31);
  const auto adapter = Compute(GetParam(), sample, 12);
  ASSERT_TRUE(adapter.ok()) << adapter.status().message();
  Matrix keys = sample.keys;
  if (GetParam() == AdapterKind::kHeads) keys.rowwise() -= sample.keys.colwise().mean();
  const Matrix projected = keys * Side(adapter->key_side, *adapter);
  for (int i = 0; i < 12; ++i) {
    const double expected = projected.leftCols(i + 1).squaredNorm() / keys.squaredNorm();
    EXPECT_NEAR(adapter->energy[static_cast<size_t>(i)], expected, 1e-4) << i;
  }
}

TEST_P(AdapterOfHeads, LowerRanksAreTheFirstColumns) {
  const Sample sample = MakeSample(3, 6, 32);
  const auto large = Compute(GetParam(), sample, 18);
  const auto small = Compute(GetParam(), sample, 6);
  ASSERT_TRUE(large.ok() && small.ok());
  EXPECT_EQ(Side(small->key_side, *small), Side(large->key_side, *large).leftCols(6));
  EXPECT_TRUE(std::equal(small->energy.begin(), small->energy.end(), large->energy.begin()));
}

TEST_P(AdapterOfHeads, HeadsGetAsManyColumns) {
  const Sample sample = MakeSample(3, 6, 33);
  for (const uint32_t rank : {1U, 2U, 4U, 17U}) {
    const auto refused = Compute(GetParam(), sample, rank);
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(refused.status().message(),
              "an adapter of kind " + std::string(AdapterKindName(GetParam())) + " and rank " +
                  std::to_string(rank) +
                  " was asked for; it has as many columns for each of 3 KV heads: ask for "
                  "a multiple of 3");
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, AdapterOfHeads, ::testing::ValuesIn(kHeadKinds),
                         [](const auto& test) { return std::string(AdapterKindName(test.param)); });

// Neither the queries' order (2, 0, 1) nor the keys' (1, 0, 2).
TEST(Adapter, SkewedColumnsAreWeighedByQueriesAndKeys) {
  Sample sample = {1, 3, Matrix::Zero(4, 3), {Matrix::Zero(4, 3)}};
  const Eigen::Vector4d a(1, 1, -1, -1);
  const Eigen::Vector4d b(1, -1, -1, 1);
  const Eigen::Vector4d c(1, -1, 1, -1);
  sample.queries[0] << 2 * a, 1 * b, 3.5 * c;
  sample.keys << 1 * a, 4 * b, 0 * c;
  const auto skewed = Compute(AdapterKind::kSkewed, sample, 3);
  ASSERT_TRUE(skewed.ok()) << skewed.status().message();
  Matrix expected = Matrix::Zero(3, 3);
  expected(1, 0) = expected(2, 1) = expected(0, 2) = 1;  // of weights 5, 3.5 and 3
  EXPECT_LT((Side(skewed->key_side, *skewed) - expected).norm(), 1e-6);
  EXPECT_NEAR(skewed->energy[0], 16.0 / 17, 1e-6);
  EXPECT_NEAR(skewed->energy[1], 16.0 / 17, 1e-6);
}

}  // namespace
}  // namespace kvrun::testing::adapters
