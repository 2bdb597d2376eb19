// The columns of adapters, whatever their kind: against singular values of the stacked rows themselves, and
// what they keep of scores.
// Not grouped (cmake/KvrunCompile.cmake): its names are others', too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <Eigen/QR>
#include <Eigen/SVD>

#include "runtime/kv/math/adapter.h"
#include "tests/support/adapter_cases.h"

namespace kvrun::testing::adapters {
namespace {

constexpr AdapterKind kKinds[] = {AdapterKind::kPlain, AdapterKind::kCentred, AdapterKind::kQuery,
                                  AdapterKind::kQueryCentred};

// The same by other means: singular values of the stacked rows themselves, in double.
struct Reference {
  Matrix root;  // S, and its inverse
  Matrix inverse;
  Matrix axes;                  // right singular vectors of (K - mean) S
  Eigen::VectorXd eigenvalues;  // descending
};

Reference Decompose(AdapterKind kind, const Sample& sample) {
  const Eigen::Index dim = sample.head_dim;
  Reference reference;
  reference.root = reference.inverse = Matrix::Identity(sample.key_dim(), sample.key_dim());
  for (uint32_t head = 0; SidesDiffer(kind) && head < sample.n_kv_heads; ++head) {
    const Matrix& queries = sample.queries[head];
    const Eigen::JacobiSVD<Matrix> svd(queries / std::sqrt(static_cast<double>(queries.rows())),
                                       Eigen::ComputeFullV);
    Eigen::VectorXd scales = Eigen::VectorXd::Zero(dim);
    scales.head(svd.singularValues().size()) = svd.singularValues();
    scales = scales.cwiseMax(0.01 * scales[0]);  // 1e-4 of the largest eigenvalue
    const Matrix& v = svd.matrixV();
    reference.root.block(head * dim, head * dim, dim, dim) = v * scales.asDiagonal() * v.transpose();
    reference.inverse.block(head * dim, head * dim, dim, dim) =
        v * scales.cwiseInverse().asDiagonal() * v.transpose();
  }
  Matrix rows = sample.keys;
  if (TakesMeanOff(kind)) rows.rowwise() -= sample.keys.colwise().mean();
  const Eigen::JacobiSVD<Matrix> svd(rows * reference.root, Eigen::ComputeThinV);
  reference.axes = svd.matrixV();
  reference.eigenvalues = svd.singularValues().cwiseAbs2();
  return reference;
}

class AdapterOfKind : public ::testing::TestWithParam<AdapterKind> {};
// Of the kinds whose columns are of all heads' keys together.
class AdapterOfLayer : public ::testing::TestWithParam<AdapterKind> {};

// How far the space of the first `rank` directions may turn (its sine; Davis and Kahan): sums in f32 are off
// by 2^-24 of the largest, over key_dim columns, and the gap to the next eigenvalue resists. Roots of the
// queries' moment magnify their error by up to half their condition, of at most 100, and stand on both sides.
double AngleBound(AdapterKind kind, const Reference& reference, uint32_t rank) {
  const double largest = reference.eigenvalues[0];
  const double gap = reference.eigenvalues[rank - 1] - reference.eigenvalues[rank];
  const double error = 0x1p-24 * static_cast<double>(reference.root.rows()) * (SidesDiffer(kind) ? 100 : 1);
  return error * largest / gap;
}

TEST_P(AdapterOfLayer, AgreesWithTheSingularValuesOfTheStackedKeys) {
  for (const auto& [n_kv_heads, head_dim] : {std::pair{3U, 8U}, {1U, 13U}, {5U, 3U}}) {
    SCOPED_TRACE(n_kv_heads);
    constexpr uint32_t kRank = 8;
    const Sample sample = MakeSample(n_kv_heads, head_dim, 7 + head_dim);
    const auto adapter = Compute(GetParam(), sample, kRank);
    ASSERT_TRUE(adapter.ok()) << adapter.status().message();
    const Reference reference = Decompose(GetParam(), sample);
    for (uint32_t i = 0; i < kRank; ++i) {
      const double expected = reference.eigenvalues.head(i + 1).sum() / reference.eigenvalues.sum();
      EXPECT_NEAR(adapter->energy[i], expected, 1e-4) << i;
    }
    const Matrix key_side = Side(adapter->key_side, *adapter);
    const Matrix query_side = Side(adapter->query_side, *adapter);
    const Matrix axes = reference.inverse * key_side;
    uint32_t n_compared = 0;
    for (uint32_t rank = 1; rank <= kRank; ++rank) {
      const double bound = AngleBound(GetParam(), reference, rank);
      if (bound > 0.05) continue;  // two eigenvalues side by side: their directions may be mixed
      ++n_compared;
      // Cosines of the principal angles between the two spaces of that rank.
      const Eigen::JacobiSVD<Matrix> angles(axes.leftCols(rank).transpose() * reference.axes.leftCols(rank));
      EXPECT_GT(angles.singularValues().minCoeff(), std::sqrt(1 - bound * bound) - 1e-6) << rank;
      EXPECT_LT(angles.singularValues().maxCoeff(), 1 + 1e-4) << rank;
      // The query side goes with the key side: S V V^T S^-1, whatever the signs.
      const Matrix product = key_side.leftCols(rank) * query_side.leftCols(rank).transpose();
      const Matrix expected = reference.root * reference.axes.leftCols(rank) *
                              reference.axes.leftCols(rank).transpose() * reference.inverse;
      EXPECT_LT((product - expected).norm(),
                (1e-5 + 2 * bound) * reference.root.norm() * reference.inverse.norm());
    }
    EXPECT_GE(n_compared, 2U);
  }
}

// The squares of what scores of a sample's queries and keys lose by the first `rank` columns.
double LostOfScores(const LayerAdapter& adapter, Eigen::Index rank, const Sample& sample) {
  Eigen::RowVectorXd mean(sample.key_dim());
  for (Eigen::Index i = 0; i < mean.size(); ++i) mean[i] = adapter.mean[static_cast<size_t>(i)];
  const Matrix keys = sample.keys.rowwise() - mean;
  const Matrix projected = keys * Side(adapter.key_side, adapter).leftCols(rank);
  const Matrix query_side = Side(adapter.query_side, adapter).leftCols(rank);
  double lost = 0;
  for (Eigen::Index head = 0; head < sample.n_kv_heads; ++head) {
    const Matrix& queries = sample.queries[static_cast<size_t>(head)];
    const Eigen::Index dim = sample.head_dim;
    const Matrix scores = queries * keys.middleCols(head * dim, dim).transpose();
    lost += (scores - queries * query_side.middleRows(head * dim, dim) * projected.transpose()).squaredNorm();
  }
  return lost;
}

// Large enough that only the wanted columns are looked for: as good as the first ones of all.
TEST_P(AdapterOfKind, FewColumnsAreAsGoodAsTheFirstOfAll) {
  std::mt19937 random(12);
  constexpr uint32_t kHeads = 3;
  constexpr uint32_t kHeadDim = 64;
  constexpr Eigen::Index kDim = Eigen::Index{kHeads} * kHeadDim;
  const auto falling_rows = [&](Eigen::Index rows, Eigen::Index columns, double power) {
    Matrix values = RandomMatrix(random, rows, columns);
    for (Eigen::Index i = 0; i < columns; ++i)
      values.col(i) *= std::pow(1.0 + static_cast<double>(i), -power);
    const Eigen::HouseholderQR<Matrix> rotation(RandomMatrix(random, columns, columns));
    return Matrix((values * Matrix(rotation.householderQ())).rowwise() +
                  RandomMatrix(random, 1, columns).row(0));
  };
  // Queries that are alike in all directions, and such that leave some out: their moments have no root of the
  // simple kind.
  for (const bool leaves_out : {false, true}) {
    Sample sample = {kHeads, kHeadDim, falling_rows(600, kDim, 0.5), {}};
    for (uint32_t head = 0; head < kHeads; ++head) {
      sample.queries.push_back(falling_rows(150, kHeadDim, 0.7));
      if (leaves_out) sample.queries.back().col(5).setZero();
    }
    constexpr uint32_t kRank = 24;
    const auto few = Compute(GetParam(), sample, kRank);
    const auto all = Compute(GetParam(), sample, static_cast<uint32_t>(kDim));
    ASSERT_TRUE(few.ok() && all.ok());
    for (size_t i = 0; i < kRank; ++i) EXPECT_NEAR(few->energy[i], all->energy[i], 2e-4) << i;
    const double lost = LostOfScores(*few, kRank, sample);
    const double expected = LostOfScores(*all, kRank, sample);
    EXPECT_NEAR(lost, expected, 0.01 * expected);
    // Each further column counts, but where heads keep their means.
    if (!IsOfHeads(GetParam())) {
      EXPECT_GT(LostOfScores(*all, kRank - 3, sample), 1.02 * expected);
    }
    const Matrix product = Side(few->key_side, *few).transpose() * Side(few->query_side, *few);
    EXPECT_LT((product - Matrix::Identity(kRank, kRank)).cwiseAbs().maxCoeff(), 1e-4);
  }
}

TEST_P(AdapterOfKind, TheSidesAreInverse) {
  const Sample sample = MakeSample(3, 8, 3);
  const auto adapter = Compute(GetParam(), sample, 24);
  ASSERT_TRUE(adapter.ok()) << adapter.status().message();
  const Matrix product = Side(adapter->key_side, *adapter).transpose() * Side(adapter->query_side, *adapter);
  // Floats of at most a hundred times each other, 24 to a sum.
  EXPECT_LT((product - Matrix::Identity(24, 24)).cwiseAbs().maxCoeff(), 1e-4);
  const bool has_equal_sides = adapter->key_side == adapter->query_side;
  EXPECT_EQ(has_equal_sides, !SidesDiffer(GetParam()));
}

// At full rank nothing is left out: the score is q . (k - mean), for queries of any head.
TEST_P(AdapterOfKind, FullRankGivesTheExactScore) {
  const Sample sample = MakeSample(3, 8, 4);
  const auto adapter = Compute(GetParam(), sample, 24);
  ASSERT_TRUE(adapter.ok()) << adapter.status().message();
  const Matrix key_side = Side(adapter->key_side, *adapter);
  const Matrix query_side = Side(adapter->query_side, *adapter);
  Eigen::RowVectorXd mean(24);
  for (int i = 0; i < 24; ++i) mean[i] = adapter->mean[static_cast<size_t>(i)];
  const Eigen::RowVectorXd expected_mean = sample.keys.colwise().mean();
  EXPECT_LT((mean - (TakesMeanOff(GetParam()) ? expected_mean : 0 * expected_mean)).cwiseAbs().maxCoeff(),
            1e-5);
  for (Eigen::Index head = 0; head < 3; ++head) {
    const Eigen::RowVectorXd query = sample.queries[static_cast<size_t>(head)].row(5);
    const Eigen::RowVectorXd projected = query * query_side.middleRows(head * 8, 8);
    const Eigen::VectorXd scores = (sample.keys.rowwise() - mean) * key_side * projected.transpose();
    const Eigen::VectorXd expected =
        (sample.keys.rowwise() - mean).middleCols(head * 8, 8) * query.transpose();
    EXPECT_LT((scores - expected).cwiseAbs().maxCoeff(), 1e-4 * expected.cwiseAbs().maxCoeff()) << head;
  }
}

TEST_P(AdapterOfLayer, LowerRanksAreTheFirstColumns) {
  const Sample sample = MakeSample(2, 6, 5);
  const auto large = Compute(GetParam(), sample, 12);
  const auto small = Compute(GetParam(), sample, 5);
  ASSERT_TRUE(large.ok() && small.ok());
  EXPECT_EQ(Side(small->key_side, *small), Side(large->key_side, *large).leftCols(5));
  EXPECT_EQ(Side(small->query_side, *small), Side(large->query_side, *large).leftCols(5));
  EXPECT_TRUE(std::equal(small->energy.begin(), small->energy.end(), large->energy.begin()));
  EXPECT_TRUE(std::is_sorted(large->energy.begin(), large->energy.end()));
  EXPECT_NEAR(large->energy.back(), 1.0, 1e-6);
}

TEST_P(AdapterOfKind, SignsAreSettled) {
  Sample sample = MakeSample(1, 9, 6);
  const auto adapter = Compute(GetParam(), sample, 9);
  ASSERT_TRUE(adapter.ok());
  const Matrix side = Side(adapter->key_side, *adapter);
  for (Eigen::Index i = 0; i < 9; ++i) {
    Eigen::Index largest = 0;
    side.col(i).cwiseAbs().maxCoeff(&largest);
    EXPECT_GT(side(largest, i), 0) << i;
  }
}

// Fewer keys than directions, keys that are all the same, queries of one direction: still finite sides that
// are each other's inverse.
TEST_P(AdapterOfKind, DegenerateSumsAreFine) {
  std::mt19937 random(8);
  Sample few = {2, 6, RandomMatrix(random, 3, 12), {}};
  Sample equal = {2, 6, Matrix::Ones(50, 12), {}};
  for (Sample* sample : {&few, &equal}) {
    sample->queries.assign(2, RandomMatrix(random, 40, 1) * RandomMatrix(random, 1, 6));
    const auto adapter = Compute(GetParam(), *sample, 12);
    ASSERT_TRUE(adapter.ok()) << adapter.status().message();
    const Matrix product =
        Side(adapter->key_side, *adapter).transpose() * Side(adapter->query_side, *adapter);
    EXPECT_LT((product - Matrix::Identity(12, 12)).cwiseAbs().maxCoeff(), 1e-4);
    EXPECT_NEAR(adapter->energy.back(), 1.0, 1e-6);
  }
  few.queries[1].setZero();
  const auto adapter = Compute(GetParam(), few, 12);
  ASSERT_TRUE(adapter.ok());
  EXPECT_TRUE(Side(adapter->query_side, *adapter).allFinite());
}

std::string KindName(const ::testing::TestParamInfo<AdapterKind>& test) {
  std::string name(AdapterKindName(test.param));
  std::erase(name, '-');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Kinds, AdapterOfKind, ::testing::ValuesIn(kAllKinds), KindName);
INSTANTIATE_TEST_SUITE_P(Kinds, AdapterOfLayer, ::testing::ValuesIn(kKinds), KindName);

}  // namespace
}  // namespace kvrun::testing::adapters
