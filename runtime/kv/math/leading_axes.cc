#include "runtime/kv/math/leading_axes.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <Eigen/Eigenvalues>

#include "platform/base/check.h"
#include "platform/base/random.h"
#include "platform/base/units.h"
#include "runtime/kv/math/dense_products.h"

namespace kvrun {
namespace {

using Eigen::Index;
using Rows = VectorRows;
using Vector = Eigen::VectorXd;

// Directions beyond those that are wanted, which part them from the others.
constexpr uint32_t kFewestGuards = 16;
constexpr uint32_t kMostCycles = 16;
constexpr uint32_t kMostDegree = 8;
// A filter may lift the largest eigenvalue so far above the wanted ones: what it then leaves of the largest
// in all others is taken off again, but its rounding stays.
constexpr double kMostGain = 1e20;
// Vectors that are made orthogonal at once.
constexpr Index kPanelRows = 16;
// What is left of a vector without its part along others, when it is nothing but rounding.
constexpr double kNothing = 1e-13;

uint32_t BlockRows(uint32_t dim, uint32_t rank) {
  return std::min(dim, RoundUp(rank + std::max(kFewestGuards, rank / 4), 8U));
}

bool Iterates(uint32_t dim, uint32_t rank) { return 2 * BlockRows(dim, rank) <= dim; }

DenseView View(const Rows& rows, Index first = 0) {
  return {rows.data() + first * rows.cols(), static_cast<size_t>(rows.cols())};
}

// to = a b
void Multiply(const DenseView& a, const DenseView& b, Index inner, Rows& to, uint32_t most_threads = 1) {
  MultiplyDense(a, b, static_cast<size_t>(to.rows()), static_cast<size_t>(inner),
                static_cast<size_t>(to.cols()), {to.data(), static_cast<size_t>(to.cols())}, most_threads);
}

void FillAtRandom(Random& random, Rows& rows) {
  for (Index i = 0; i < rows.size(); ++i) rows.data()[i] = random.Symmetric();
}

// Takes off of rows [first, end) what lies along the rows before them.
void TakeOff(Rows& rows, Index first, Index end, Rows& factors) {
  if (first == 0) return;
  const Index dim = rows.cols();
  factors.resize(end - first, first);
  Multiply(View(rows, first), View(rows).Transposed(), dim, factors);
  factors = -factors;
  MultiplyDense(View(factors), View(rows), static_cast<size_t>(end - first), static_cast<size_t>(first),
                static_cast<size_t>(dim), {rows.data() + first * dim, static_cast<size_t>(dim), true});
}

// The same for one row, of those from `from` on.
void TakeOffOne(Rows& rows, Index row, Index from) {
  for (Index other = from; other < row; ++other) {
    rows.row(row) -= rows.row(other).dot(rows.row(row)) * rows.row(other);
  }
}

// Rows become orthonormal, each of what the rows before it leave of it (Gram and Schmidt, twice). One of
// which they leave nothing becomes another direction.
void Orthonormalise(Rows& rows) {
  Random random(1);
  Rows factors;
  for (Index i = 0; i < rows.rows(); ++i) {
    const double length = rows.row(i).norm();
    if (length > 0) rows.row(i) /= length;
  }
  for (Index first = 0; first < rows.rows(); first += kPanelRows) {
    const Index end = std::min(first + kPanelRows, rows.rows());
    for (int pass = 0; pass < 2; ++pass) {
      TakeOff(rows, first, end, factors);
      for (Index row = first; row < end; ++row) {
        const double before = pass == 0 ? 1.0 : rows.row(row).norm();
        TakeOffOne(rows, row, first);
        double length = rows.row(row).norm();
        while (!(length > kNothing * before)) {
          for (Index i = 0; i < rows.cols(); ++i) rows(row, i) = random.Symmetric();
          rows.row(row).normalize();
          for (int again = 0; again < 2; ++again) TakeOffOne(rows, row, 0);
          length = rows.row(row).norm();
        }
        rows.row(row) /= length;
      }
    }
  }
}

// One block of vectors, its products, and room for another one.
class Iteration {
 public:
  explicit Iteration(const AxesProblem& problem)
      : problem_(problem),
        vectors_(BlockRows(problem.dim, problem.rank), problem.dim),
        products_(vectors_.rows(), problem.dim),
        spare_(vectors_.rows(), problem.dim) {}

  // Whether it has come to an end.
  bool Run() {
    Random random(0);
    FillAtRandom(random, products_);
    problem_.multiply(products_, vectors_);
    Orthonormalise(vectors_);
    for (uint32_t cycle = 0; cycle < kMostCycles; ++cycle) {
      if (!Rotate()) return false;
      if (IsSettled()) return true;
      Filter(Degree());
      Orthonormalise(vectors_);
    }
    return false;
  }

  LeadingAxes Answer() const {
    return {vectors_.topRows(problem_.rank), values_.head(problem_.rank), problem_.trace};
  }

 private:
  Index n() const { return vectors_.rows(); }
  Index dim() const { return vectors_.cols(); }
  // Below it the filter leaves eigenvalues where they are. The first block's last values are far too small.
  double bound() const {
    const Index last = n() - 1;
    const Index at = n_rotated_ == 1 ? (problem_.rank + last) / 2 : last;
    return std::max(values_[at], kNothing * values_[0]);
  }
  double missing_energy() const { return problem_.is_exact ? kMissingEnergyIfExact : kMissingEnergy; }
  // What is not the largest direction's: often that of a mean.
  double total() const { return std::max(problem_.trace - values_[0], 1e-6 * problem_.trace); }

  // The block's best approximations of eigenvectors, and what they miss (Rayleigh and Ritz).
  bool Rotate() {
    problem_.multiply(vectors_, products_);
    Rows small(n(), n());
    Multiply(View(vectors_), View(products_).Transposed(), dim(), small, problem_.most_threads);
    const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(small);
    if (solver.info() != Eigen::Success) return false;
    values_ = solver.eigenvalues().reverse();
    ++n_rotated_;
    small = solver.eigenvectors().rowwise().reverse().transpose();
    Multiply(View(small), View(vectors_), n(), spare_, problem_.most_threads);
    std::swap(vectors_, spare_);
    Multiply(View(small), View(products_), n(), spare_, problem_.most_threads);
    std::swap(products_, spare_);
    residuals_.resize(problem_.rank);
    for (Index i = 0; i < residuals_.size(); ++i) {
      residuals_[i] = (products_.row(i) - values_[i] * vectors_.row(i)).squaredNorm();
    }
    return residuals_.allFinite() && values_.allFinite();
  }

  std::span<const double> values() const { return {values_.data(), static_cast<size_t>(n())}; }
  std::span<const double> residuals() const {
    return {residuals_.data(), static_cast<size_t>(residuals_.size())};
  }

  bool IsSettled() const {
    if (MissingEnergy(values(), residuals()) > missing_energy() * total()) return false;
    return !problem_.is_exact || LargestTurn(values(), residuals()) <= kLargestTurn;
  }

  // Of the filter: as much as is needed, if what it does is reckoned well.
  uint32_t Degree() const {
    const double end = bound();
    uint32_t degree = 2;
    for (; degree < kMostDegree; ++degree) {
      if (std::pow(4 * values_[0] / end, degree + 1) > kMostGain) break;
      Vector left = residuals_;
      for (Index i = 0; i < left.size(); ++i) {
        const double lift = std::cosh(degree * std::acosh(std::max(1.0, 2 * values_[i] / end - 1)));
        left[i] /= lift * lift;
      }
      const std::span<const double> rest(left.data(), static_cast<size_t>(left.size()));
      if (MissingEnergy(values(), rest) > 0.5 * missing_energy() * total()) continue;
      if (!problem_.is_exact || LargestTurn(values(), rest) <= 0.5 * kLargestTurn) break;
    }
    return degree;
  }

  // Chebyshev's polynomial of this degree, which lifts eigenvalues above the bound over those below it.
  // products_ are the vectors'.
  void Filter(uint32_t degree) {
    const double half = bound() / 2;
    products_ = products_ / half - vectors_;
    std::swap(vectors_, products_);  // products_: of the degree before
    for (uint32_t i = 1; i < degree; ++i) {
      problem_.multiply(vectors_, spare_);
      products_ = 2 * (spare_ / half - vectors_) - products_;
      std::swap(vectors_, products_);
    }
  }

  const AxesProblem& problem_;
  Rows vectors_;
  Rows products_;
  Rows spare_;
  uint32_t n_rotated_ = 0;
  Vector values_;     // of the block, falling
  Vector residuals_;  // of those that are wanted
};

double Missing(std::span<const double> values, std::span<const double> residuals, size_t i) {
  const double above = values[i] - values.back();
  const double length = std::sqrt(residuals[i]);
  return length < above ? residuals[i] / above : length;
}

}  // namespace

double MissingEnergy(std::span<const double> values, std::span<const double> residuals) {
  double missing = 0;
  for (size_t i = 0; i < residuals.size(); ++i) missing += Missing(values, residuals, i);
  return missing;
}

double LargestTurn(std::span<const double> values, std::span<const double> residuals) {
  double turn = 0;
  double largest = 0;
  for (size_t i = 0; i < residuals.size(); ++i) {
    const double above = values[i] - values.back();
    if (residuals[i] > 0) turn += residuals[i] < above * above ? residuals[i] / (above * above) : 1.0;
    const double next = i + 1 < values.size() ? values[i + 1] : 0.0;
    if (values[i] - next > kApart * values[0]) largest = turn;
  }
  return std::sqrt(largest);
}

LeadingAxes DecomposeFully(const AxesProblem& problem) {
  Rows full(problem.dim, problem.dim);
  problem.multiply(Rows::Identity(problem.dim, problem.dim), full);
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(full);
  if (solver.info() != Eigen::Success) return {};
  const Index rank = problem.rank;
  return {solver.eigenvectors().rightCols(rank).rowwise().reverse().transpose(),
          solver.eigenvalues().reverse().head(rank), solver.eigenvalues().cwiseMax(0.0).sum()};
}

LeadingAxes FindLeadingAxes(const AxesProblem& problem) {
  KVRUN_CHECK(problem.rank > 0 && problem.rank <= problem.dim);
  if (!Iterates(problem.dim, problem.rank)) return DecomposeFully(problem);
  // Nothing is to be kept, and every direction is as good.
  if (problem.trace <= 0) {
    return {Rows::Identity(problem.rank, problem.dim), Vector::Zero(problem.rank), 0.0};
  }
  {
    Iteration iteration(problem);
    if (iteration.Run()) return iteration.Answer();
  }
  return DecomposeFully(problem);
}

uint32_t VectorsOfAxes(uint32_t dim, uint32_t rank) {
  return Iterates(dim, rank) ? BlockRows(dim, rank) : dim;
}

uint64_t LeadingAxesWorkBytes(uint32_t dim, uint32_t rank, uint32_t most_threads, uint64_t multiply_bytes) {
  const uint64_t n = VectorsOfAxes(dim, rank);
  const uint64_t axes = uint64_t{rank} * dim * sizeof(double);
  const uint64_t products = DenseThreads(n, dim, dim, most_threads) * DenseWorkBytes(n, dim);
  // The matrix and its eigenvectors, or the unit matrix that it is the product of.
  if (!Iterates(dim, rank)) return 2 * n * n * sizeof(double) + std::max(axes, products + multiply_bytes);
  return 3 * n * dim * sizeof(double) +
         std::max(axes, products + std::max(3 * n * n * sizeof(double), multiply_bytes));
}

}  // namespace kvrun
