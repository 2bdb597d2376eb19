// Not grouped (cmake/KvrunCompile.cmake): its names are others', too.
#include "runtime/kv/math/leading_axes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <Eigen/QR>
#include <Eigen/SVD>

namespace kvrun {
namespace {

using Rows = VectorRows;
using Vector = Eigen::VectorXd;
using Eigen::Index;

// A symmetric matrix whose eigenvalues are known and whose eigenvectors are those of reflections: its
// products take no square matrix, however large it is.
class KnownMatrix {
 public:
  KnownMatrix(Vector eigenvalues, uint32_t seed) : eigenvalues_(std::move(eigenvalues)) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    for (Vector& mirror : mirrors_) {
      mirror = Vector::NullaryExpr(dim(), [&] { return normal(random); });
      mirror.normalize();
    }
  }

  Index dim() const { return eigenvalues_.size(); }
  const Vector& eigenvalues() const { return eigenvalues_; }
  // Rows in the coordinates of eigenvectors, the first coordinate that of the first eigenvalue.
  Rows InEigenvectors(Rows rows) const {
    for (const Vector& mirror : mirrors_) Reflect(mirror, rows);
    return rows;
  }
  void Multiply(const Rows& vectors, Rows& products) const {
    products = InEigenvectors(vectors) * eigenvalues_.asDiagonal();
    for (int i = kMirrors - 1; i >= 0; --i) Reflect(mirrors_[i], products);
  }
  AxesProblem Problem(uint32_t rank, bool is_exact = false) const {
    AxesProblem problem;
    problem.dim = static_cast<uint32_t>(dim());
    problem.rank = rank;
    problem.trace = eigenvalues_.sum();
    problem.multiply = [this](const Rows& vectors, Rows& products) {
      n_multiplied += vectors.rows();
      Multiply(vectors, products);
    };
    problem.is_exact = is_exact;
    return problem;
  }

  mutable Index n_multiplied = 0;  // vectors

 private:
  static constexpr int kMirrors = 3;
  // Plain loops: where sanitizers are, tests are not optimised.
  static void Reflect(const Vector& mirror, Rows& rows) {
    const Index dim = rows.cols();
    for (Index row = 0; row < rows.rows(); ++row) {
      double* const values = rows.data() + row * dim;
      double along = 0;
      for (Index i = 0; i < dim; ++i) along += values[i] * mirror.data()[i];
      for (Index i = 0; i < dim; ++i) values[i] -= 2 * along * mirror.data()[i];
    }
  }

  Vector eigenvalues_;
  Vector mirrors_[kMirrors];
};

struct Spectrum {
  const char* name;
  std::function<double(double i, double dim)> at;  // falling in i
};

const Spectrum kSpectra[] = {
    {"slowly", [](double i, double) { return 1 / (1 + i); }},
    {"quickly", [](double i, double) { return std::pow(0.8, i); }},
    {"far down", [](double i, double) { return std::pow(0.3, i); }},
    {"on a line", [](double i, double dim) { return 1 - i / dim; }},
    {"nearly flat", [](double i, double dim) { return 1 + 0.1 * std::cos(M_PI * i / dim); }},
    {"all equal", [](double, double) { return 1.0; }},
    {"an eighth equal, nothing else", [](double i, double dim) { return 8 * i < dim ? 1.0 : 0.0; }},
    {"half of an eighth, nothing else", [](double i, double dim) { return 16 * i < dim ? 1.0 : 0.0; }},
    {"a mean above a plain", [](double i, double) { return i < 1 ? 1e5 : 1 / std::sqrt(i); }},
    {"one alone", [](double i, double) { return i < 1 ? 1.0 : 0.0; }},
    {"in pairs", [](double i, double) { return 1 / (1 + std::floor(i / 2)); }},
    {"steps", [](double i, double) { return std::pow(0.25, std::floor(i / 20)); }},
    {"noise below", [](double i, double) { return i < 5 ? 10 - i : 1e-9; }},
};

Vector Eigenvalues(const Spectrum& spectrum, uint32_t dim, double scale) {
  Vector values(dim);
  for (uint32_t i = 0; i < dim; ++i) values[i] = scale * spectrum.at(i, dim);
  return values;
}

void ExpectLeading(const KnownMatrix& matrix, const LeadingAxes& found, uint32_t rank,
                   double missing_energy = kMissingEnergy) {
  ASSERT_EQ(found.axes.rows(), rank);
  ASSERT_EQ(found.axes.cols(), matrix.dim());
  ASSERT_TRUE(found.axes.allFinite());
  const Rows gram = found.axes * found.axes.transpose();
  EXPECT_LT((gram - Rows::Identity(rank, rank)).cwiseAbs().maxCoeff(), 1e-12);
  // What is kept of the trace, at every rank.
  const Rows parts = matrix.InEigenvectors(found.axes);
  const Vector& values = matrix.eigenvalues();
  const double total = values.sum();
  EXPECT_NEAR(found.total, total, 1e-9 * total);
  const double beside_mean = std::max(total - values[0], 1e-6 * total);
  double kept = 0;
  double most = 0;
  for (uint32_t i = 0; i < rank; ++i) {
    const double of_axis = parts.row(i).cwiseAbs2().dot(values);
    kept += of_axis;
    most += values[i];
    ASSERT_GE(kept, most - 1.5 * missing_energy * beside_mean - 1e-12 * total) << i;
    ASSERT_NEAR(found.energies[i], of_axis, 1e-9 * values[0]) << i;
  }
}

// Of the first directions where eigenvalues lie apart.
void ExpectAngles(const KnownMatrix& matrix, const LeadingAxes& found, uint32_t rank) {
  const Rows parts = matrix.InEigenvectors(found.axes);
  const Vector& values = matrix.eigenvalues();
  for (Index n = 1; n <= rank; ++n) {
    const double next = n < values.size() ? values[n] : 0.0;
    if (values[n - 1] - next <= kApart * values[0]) continue;
    const double sine = parts.topRightCorner(n, matrix.dim() - n).norm();
    ASSERT_LT(sine, 2 * kLargestTurn) << n;
  }
}

struct Size {
  uint32_t dim;
  uint32_t rank;
};
constexpr Size kSizes[] = {{24, 4},    {64, 8},   {192, 24},  {192, 1},
                           {192, 190}, {512, 64}, {1024, 32}, {1024, 128}};

std::string SizeName(const ::testing::TestParamInfo<Size>& test) {
  return std::to_string(test.param.dim) + "_" + std::to_string(test.param.rank);
}

class LeadingAxesOf : public ::testing::TestWithParam<Size> {};

TEST_P(LeadingAxesOf, KeepWhatTheBestDo) {
  const auto [dim, rank] = GetParam();
  for (const Spectrum& spectrum : kSpectra) {
    for (const double scale : {1.0, 1e-30, 1e30}) {
      if (scale != 1.0 && dim > 512) continue;  // takes long, and says no more
      SCOPED_TRACE(::testing::Message() << spectrum.name << ", " << scale);
      const KnownMatrix matrix(Eigenvalues(spectrum, dim, scale), 3);
      ExpectLeading(matrix, FindLeadingAxes(matrix.Problem(rank)), rank);
      // It must not have fallen back on a decomposition, nor come near its cost.
      if (rank <= dim / 8 && dim > 64) {
        EXPECT_LE(matrix.n_multiplied, 32 * (rank + rank / 4 + 24));
      }
    }
  }
}

TEST_P(LeadingAxesOf, PointWhereTheBestDo) {
  const auto [dim, rank] = GetParam();
  for (const Spectrum& spectrum : kSpectra) {
    SCOPED_TRACE(spectrum.name);
    const KnownMatrix matrix(Eigenvalues(spectrum, dim, 1.0), 4);
    const LeadingAxes found = FindLeadingAxes(matrix.Problem(rank, /*is_exact=*/true));
    ExpectLeading(matrix, found, rank, kMissingEnergyIfExact);
    ExpectAngles(matrix, found, rank);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, LeadingAxesOf, ::testing::ValuesIn(kSizes), SizeName);

TEST(LeadingAxes, AreThoseOfTheFullDecomposition) {
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  constexpr uint32_t kDim = 120;
  constexpr uint32_t kRank = 10;
  // Rows of falling weight, as many as columns, or fewer.
  for (const Index n_rows : {400, 70, 8}) {
    SCOPED_TRACE(n_rows);
    Rows rows = Rows::NullaryExpr(n_rows, kDim, [&] { return normal(random); });
    for (Index i = 0; i < n_rows; ++i) rows.row(i) *= std::pow(0.9, static_cast<double>(i));
    const Rows matrix = rows.transpose() * rows;
    AxesProblem problem;
    problem.dim = kDim;
    problem.rank = kRank;
    problem.trace = matrix.trace();
    problem.multiply = [&](const Rows& vectors, Rows& products) { products = vectors * matrix; };
    problem.is_exact = true;
    const LeadingAxes iterated = FindLeadingAxes(problem);
    const LeadingAxes full = DecomposeFully(problem);
    const auto distinct = std::min<Index>(n_rows, kRank);
    for (Index i = 0; i < kRank; ++i) {
      EXPECT_NEAR(iterated.energies[i], full.energies[i], 1e-6 * problem.trace) << i;
    }
    const Rows cross = iterated.axes.topRows(distinct) * full.axes.topRows(distinct).transpose();
    const Eigen::JacobiSVD<Eigen::MatrixXd> angles(cross);
    EXPECT_GT(angles.singularValues().minCoeff(), 1 - 1e-7);
    EXPECT_NEAR(iterated.total, full.total, 1e-9 * full.total);
  }
}

TEST(LeadingAxes, AreAlwaysTheSame) {
  const KnownMatrix matrix(Eigenvalues(kSpectra[0], 192, 1.0), 8);
  const LeadingAxes first = FindLeadingAxes(matrix.Problem(24));
  const LeadingAxes second = FindLeadingAxes(matrix.Problem(24));
  EXPECT_EQ(first.axes, second.axes);
  EXPECT_EQ(first.energies, second.energies);
}

TEST(LeadingAxes, OfNothingAreAnyDirections) {
  for (const uint32_t dim : {24, 1024}) {
    const KnownMatrix matrix(Vector::Zero(dim), 9);
    const LeadingAxes found = FindLeadingAxes(matrix.Problem(8));
    ExpectLeading(matrix, found, 8);
    EXPECT_EQ(found.energies, Vector::Zero(8));
  }
}

// Sums in single precision leave rounding of either sign.
TEST(LeadingAxes, SmallNegativeEigenvaluesAreNothing) {
  Vector values = Eigenvalues(kSpectra[6], 192, 1.0);
  for (Index i = 24; i < 192; ++i) values[i] = i % 2 == 0 ? 1e-7 : -1e-7;
  const KnownMatrix matrix(values, 10);
  const LeadingAxes found = FindLeadingAxes(matrix.Problem(24));
  const Rows parts = matrix.InEigenvectors(found.axes);
  EXPECT_GT(parts.leftCols(24).squaredNorm(), 24 - 1e-6);
  EXPECT_LE(matrix.n_multiplied, 1000);
}

// Nothing but rounding, half of it below zero: whatever comes of it, directions are orthonormal.
TEST(LeadingAxes, OfRoundingAloneAreOrthonormal) {
  for (const double trace : {-1e-7, 0.0, 1e-9}) {
    Vector values = Vector::LinSpaced(192, 1e-7, -1e-7);
    const KnownMatrix matrix(values, 11);
    AxesProblem problem = matrix.Problem(24);
    problem.trace = trace;
    const LeadingAxes found = FindLeadingAxes(problem);
    ASSERT_EQ(found.axes.rows(), 24);
    const Rows gram = found.axes * found.axes.transpose();
    EXPECT_LT((gram - Rows::Identity(24, 24)).cwiseAbs().maxCoeff(), 1e-12);
  }
}

TEST(LeadingAxes, AnIterationThatFailsIsFollowedByADecomposition) {
  const KnownMatrix matrix(Eigenvalues(kSpectra[0], 192, 1.0), 12);
  AxesProblem problem = matrix.Problem(24, true);
  int n_products = 0;
  problem.multiply = [&](const Rows& vectors, Rows& products) {
    matrix.Multiply(vectors, products);
    if (++n_products == 2) products(3, 5) = std::numeric_limits<double>::quiet_NaN();
  };
  const LeadingAxes found = FindLeadingAxes(problem);
  ExpectLeading(matrix, found, 24, kMissingEnergyIfExact);
  ExpectAngles(matrix, found, 24);
  EXPECT_EQ(n_products, 3);
}

TEST(LeadingAxes, WhatIsMissingFollowsFromResiduals) {
  // Far above the last value the square counts, near it the length.
  const std::vector<double> values = {10, 2, 1.001, 1};
  EXPECT_DOUBLE_EQ(MissingEnergy(values, std::vector<double>{0.09, 0.04, 0.0001}), 0.01 + 0.04 + 0.01);
  EXPECT_EQ(MissingEnergy(values, std::vector<double>{0, 0, 0}), 0.0);
  EXPECT_DOUBLE_EQ(MissingEnergy(std::vector<double>{1, 1}, std::vector<double>{0.25}), 0.5);
}

TEST(LeadingAxes, TurnsCountWhereEigenvaluesLieApart) {
  const std::vector<double> values = {10, 9, 8.9999, 1};
  EXPECT_NEAR(LargestTurn(values, std::vector<double>{0.81, 0, 0}), 0.1, 1e-12);
  EXPECT_NEAR(LargestTurn(values, std::vector<double>{0, 0.64, 0}), 0.1, 1e-5);
  // The second and the third together, as nothing parts them.
  EXPECT_NEAR(LargestTurn(values, std::vector<double>{0, 0.64, 0.64}), std::sqrt(0.02), 1e-5);
  EXPECT_EQ(LargestTurn(std::vector<double>{1, 1, 1}, std::vector<double>{1, 1}), 0.0);
}

}  // namespace
}  // namespace kvrun
