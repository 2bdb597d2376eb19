// Not grouped (cmake/KvrunCompile.cmake): its names are others', too.
#include "runtime/kv/math/adapter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <Eigen/QR>
#include <Eigen/SVD>

#include "runtime/device/self_test_data.h"
#include "runtime/model/half_float.h"

namespace kvrun {
namespace {

using Matrix = Eigen::MatrixXd;

constexpr AdapterKind kKinds[] = {AdapterKind::kPlain, AdapterKind::kCentred, AdapterKind::kQuery,
                                  AdapterKind::kQueryCentred};

constexpr AdapterKind kAllKinds[] = {AdapterKind::kPlain,        AdapterKind::kCentred, AdapterKind::kQuery,
                                     AdapterKind::kQueryCentred, AdapterKind::kHeads,   AdapterKind::kSkewed};

// Keys [n_keys, key_dim] and, per KV head, queries [n_queries, head_dim].
struct Sample {
  uint32_t n_kv_heads = 0;
  uint32_t head_dim = 0;
  Matrix keys;
  std::vector<Matrix> queries;

  Eigen::Index key_dim() const { return keys.cols(); }
};

Matrix RandomMatrix(std::mt19937& random, Eigen::Index rows, Eigen::Index columns) {
  std::normal_distribution<double> normal;
  return Matrix::NullaryExpr(rows, columns, [&] { return normal(random); });
}

// Directions of falling weight, rotated, and a mean as large as they are: so that eigenvalues lie well apart,
// and leaving the mean in shows.
Matrix FallingRows(std::mt19937& random, Eigen::Index rows, Eigen::Index columns) {
  Matrix values = RandomMatrix(random, rows, columns);
  for (Eigen::Index i = 0; i < columns; ++i) values.col(i) *= std::pow(0.75, static_cast<double>(i));
  const Eigen::JacobiSVD<Matrix> rotation(RandomMatrix(random, columns, columns), Eigen::ComputeFullU);
  return (values * rotation.matrixU()).rowwise() + RandomMatrix(random, 1, columns).row(0);
}

Sample MakeSample(uint32_t n_kv_heads, uint32_t head_dim, uint32_t seed) {
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

void AppendRows(const Matrix& matrix, std::vector<float>& to) {
  for (Eigen::Index i = 0; i < matrix.rows(); ++i) {
    for (Eigen::Index j = 0; j < matrix.cols(); ++j) to.push_back(static_cast<float>(matrix(i, j)));
  }
}

Sums SumUp(const Sample& sample) {
  Sums sums;
  AppendRows(sample.keys.transpose() * sample.keys, sums.keys);
  AppendRows(sample.keys.colwise().sum(), sums.keys);
  for (const Matrix& queries : sample.queries) AppendRows(queries.transpose() * queries, sums.queries);
  sums.view = {sample.n_kv_heads, sample.head_dim, static_cast<uint64_t>(sample.keys.rows()), {}, 0, {}};
  if (!sample.queries.empty()) sums.view.n_queries = static_cast<uint64_t>(sample.queries[0].rows());
  return sums;
}

Result<LayerAdapter> Compute(AdapterKind kind, const Sample& sample, uint32_t rank) {
  Sums sums = SumUp(sample);
  sums.view.keys = sums.keys;
  sums.view.queries = sums.queries;
  return ComputeAdapter(kind, sums.view, rank);
}

Matrix Side(const std::vector<float>& values, const LayerAdapter& adapter) {
  Matrix side(adapter.key_dim, adapter.rank);
  for (uint32_t i = 0; i < adapter.key_dim; ++i) {
    for (uint32_t j = 0; j < adapter.rank; ++j) side(i, j) = values[size_t{i} * adapter.rank + j];
  }
  return side;
}

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

std::vector<float> Scaled(std::vector<float> values, float factor) {
  for (float& value : values) value *= factor;
  return values;
}

// Sides of very different sizes: what they give together stays as it was, and both are near 1.
TEST(Adapter, HalvesOfSidesThatDifferALot) {
  constexpr uint32_t kDim = 12;
  constexpr uint32_t kRank = 3;
  LayerAdapter adapter{.key_dim = kDim,
                       .rank = kRank,
                       .key_side = Scaled(RandomFloats(kDim * kRank, 5), 1e6F),
                       .query_side = Scaled(RandomFloats(kDim * kRank, 6), 1e-6F),
                       .mean = std::vector<float>(kDim),
                       .energy = {}};
  for (size_t i = 0; i < kDim; ++i)
    adapter.key_side[i * kRank + 2] = adapter.query_side[i * kRank + 2] = 0.0F;
  const LayerAdapter before = adapter;
  RoundToHalves(adapter);
  for (size_t c = 0; c < kRank; ++c) {
    for (size_t i = 0; i < kDim; ++i) {
      const float key = adapter.key_side[i * kRank + c];
      const float query = adapter.query_side[i * kRank + c];
      EXPECT_EQ(key, HalfToFloat(FloatToHalf(key)));
      EXPECT_EQ(query, HalfToFloat(FloatToHalf(query)));
      EXPECT_LE(std::abs(key), 4.0F);
      EXPECT_LE(std::abs(query), 4.0F);
      const float product = before.key_side[i * kRank + c] * before.query_side[i * kRank + c];
      EXPECT_NEAR(key * query, product, 1e-3F * std::abs(product) + 1e-7F) << c << ", " << i;
    }
  }
}

// Sides that are alike stay alike, and halves stay what they are.
TEST(Adapter, HalvesAreRoundedOnce) {
  LayerAdapter adapter{.key_dim = 2,
                       .rank = 1,
                       .key_side = {0.333F, 70000.0F},
                       .query_side = {0.333F, 70000.0F},
                       .mean = {0.0F, 0.0F},
                       .energy = {}};
  RoundToHalves(adapter);
  EXPECT_EQ(adapter.key_side, (std::vector<float>{HalfToFloat(FloatToHalf(0.333F)), 65504.0F}));
  EXPECT_EQ(adapter.query_side, adapter.key_side);
  const std::vector<float> once = adapter.key_side;
  RoundToHalves(adapter);
  EXPECT_EQ(adapter.key_side, once);
}

constexpr AdapterKind kHeadKinds[] = {AdapterKind::kHeads, AdapterKind::kSkewed};

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

std::string KindName(const ::testing::TestParamInfo<AdapterKind>& test) {
  std::string name(AdapterKindName(test.param));
  std::erase(name, '-');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Kinds, AdapterOfKind, ::testing::ValuesIn(kAllKinds), KindName);
INSTANTIATE_TEST_SUITE_P(Kinds, AdapterOfLayer, ::testing::ValuesIn(kKinds), KindName);

TEST(Adapter, WhatCannotBeComputedIsRefused) {
  const Sample sample = MakeSample(2, 4, 9);
  const auto expect_refused = [](const Result<LayerAdapter>& result, std::string_view part) {
    ASSERT_EQ(result.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(result.status().message().find(part), std::string::npos) << result.status().message();
  };
  expect_refused(Compute(AdapterKind::kPlain, sample, 9), "ranks from 1 to 8");
  expect_refused(Compute(AdapterKind::kPlain, sample, 0), "ranks from 1 to 8");
  Sums sums = SumUp(sample);
  sums.view.queries = sums.queries;
  sums.view.keys = sums.keys;
  LayerSums no_keys = sums.view;
  no_keys.n_keys = 0;
  expect_refused(ComputeAdapter(AdapterKind::kPlain, no_keys, 2), "no keys");
  LayerSums no_queries = sums.view;
  no_queries.n_queries = 0;
  expect_refused(ComputeAdapter(AdapterKind::kQuery, no_queries, 2), "no queries");
  sums.queries[3] = std::nanf("");
  expect_refused(ComputeAdapter(AdapterKind::kQueryCentred, sums.view, 2), "queries are not finite");
  sums.keys[3] = INFINITY;
  expect_refused(ComputeAdapter(AdapterKind::kPlain, sums.view, 2), "keys are not finite");
}

TEST(Adapter, KindsHaveNames) {
  for (const AdapterKind kind : kAllKinds) {
    const auto found = FindAdapterKind(AdapterKindName(kind));
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(*found, kind);
  }
  EXPECT_EQ(FindAdapterKind("svd").status().message(),
            "unknown kind of adapter 'svd'; known: plain, centred, query, query-centred, heads, skewed");
}

TEST(Adapter, SumsOfKeysOnTheHost) {
  Sample sample = MakeSample(2, 6, 5);
  const Sums expected = SumUp(sample);
  std::vector<float> keys;
  AppendRows(sample.keys, keys);
  std::vector<float> sums(expected.keys.size());
  const size_t part = size_t{100} * 12;
  AddKeys(std::span(keys).first(part), 12, sums);
  AddKeys(std::span(keys).subspan(part), 12, sums);
  for (size_t i = 0; i < sums.size(); ++i) EXPECT_NEAR(sums[i], expected.keys[i], 0.01) << i;
}

TEST(Adapter, KeysAreProjectedAsSidesAndMeanSay) {
  const Sample sample = MakeSample(2, 6, 6);
  std::vector<float> keys;
  AppendRows(sample.keys, keys);
  for (const AdapterKind kind : kAllKinds) {
    const uint32_t rank = IsOfHeads(kind) ? 4 : 5;
    const Result<LayerAdapter> adapter = Compute(kind, sample, rank);
    ASSERT_TRUE(adapter.ok());
    std::vector<float> projected(size_t{300} * rank);
    ProjectKeys(*adapter, keys, projected);
    for (size_t entry : {0, 7, 299}) {
      for (size_t c = 0; c < rank; ++c) {
        double sum = 0.0;
        for (size_t i = 0; i < 12; ++i) {
          sum += (double{keys[entry * 12 + i]} - adapter->mean[i]) * adapter->key_side[i * rank + c];
        }
        EXPECT_NEAR(projected[entry * rank + c], sum, 1e-4) << AdapterKindName(kind);
      }
    }
  }
}

// Of a mean that is the keys', and of another one.
TEST(Adapter, MeanSquaresAreThoseOfProjectedKeys) {
  constexpr uint32_t kKeyDim = 12;
  constexpr uint32_t kRank = 5;
  std::vector<float> keys;
  AppendRows(MakeSample(3, 4, 7).keys, keys);
  const size_t n_keys = keys.size() / kKeyDim;
  std::vector<float> sums((kKeyDim + 1) * kKeyDim);
  AddKeys(keys, kKeyDim, sums);
  const LayerSums of_keys{
      .n_kv_heads = 3, .head_dim = 4, .n_keys = n_keys, .keys = sums, .n_queries = 0, .queries = {}};
  for (const AdapterKind kind : {AdapterKind::kPlain, AdapterKind::kCentred}) {
    Result<LayerAdapter> adapter = ComputeAdapter(kind, of_keys, kRank);
    ASSERT_TRUE(adapter.ok()) << adapter.status().message();
    for (const float moved : {0.0F, 0.25F}) {
      for (float& mean : adapter->mean) mean += moved;
      std::vector<float> projected(n_keys * kRank);
      ProjectKeys(*adapter, keys, projected);
      const std::vector<double> squares = MeanSquaresOfColumns(*adapter, of_keys);
      ASSERT_EQ(squares.size(), kRank);
      for (uint32_t c = 0; c < kRank; ++c) {
        double expected = 0.0;
        for (size_t i = 0; i < n_keys; ++i)
          expected += double{projected[i * kRank + c]} * projected[i * kRank + c];
        expected /= static_cast<double>(n_keys);
        EXPECT_NEAR(squares[c], expected, 1e-4 * (1 + expected)) << AdapterKindName(kind) << " column " << c;
      }
    }
  }
}

TEST(Adapter, KindsWithoutQueriesKeepTheirMean) {
  for (const AdapterKind kind : kAllKinds) {
    EXPECT_EQ(IsOfHeads(WithoutQueries(kind)), IsOfHeads(kind));
    EXPECT_EQ(TakesMeanOff(WithoutQueries(kind)), TakesMeanOff(kind));
    EXPECT_FALSE(WeighsByQueries(WithoutQueries(kind)));
  }
}

}  // namespace
}  // namespace kvrun
