#include "runtime/kv/math/adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <type_traits>
#include <utility>

#include <Eigen/Cholesky>
#include <Eigen/Eigenvalues>

#include "platform/base/check.h"
#include "runtime/device/encode_rows.h"
#include "runtime/kv/math/dense_products.h"
#include "runtime/kv/math/leading_axes.h"
#include "runtime/model/half_float.h"

namespace kvrun {
namespace {

using Matrix = VectorRows;
using Vector = Eigen::VectorXd;
using RowMajorFloats = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using RowsView = Eigen::Map<const RowMajorFloats>;
template <typename Number>
using SquareView = Eigen::Map<const Eigen::Matrix<Number, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
template <typename Number>
using StridedSquareView =
    Eigen::Map<const Eigen::Matrix<Number, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0,
               Eigen::OuterStride<>>;

struct KindName {
  AdapterKind kind;
  std::string_view name;
};
constexpr std::array kKindNames = {
    KindName{AdapterKind::kPlain, "plain"}, KindName{AdapterKind::kCentred, "centred"},
    KindName{AdapterKind::kQuery, "query"}, KindName{AdapterKind::kQueryCentred, "query-centred"},
    KindName{AdapterKind::kHeads, "heads"}, KindName{AdapterKind::kSkewed, "skewed"},
};

// Directions that no query uses are not divided by zero: the smallest eigenvalue of the queries' second
// moment, as a share of the largest (what was measured was measured with it).
constexpr double kSmallestEigenvalue = 1e-4;

// Vectors whose products are computed at once, where something follows of them.
constexpr Eigen::Index kVectorsAtOnce = 96;

template <typename Number>
bool AllFinite(std::span<const Number> values) {
  return std::all_of(values.begin(), values.end(), [](Number value) { return std::isfinite(value); });
}

template <typename Number>
Status CheckSums(AdapterKind kind, const SumsOf<Number>& sums, uint32_t rank) {
  const uint64_t key_dim = uint64_t{sums.n_kv_heads} * sums.head_dim;
  KVRUN_CHECK(sums.keys.size() == (key_dim + 1) * key_dim);
  if (rank == 0 || rank > key_dim) {
    return {StatusCode::kInvalidArgument,
            fmt::format("an adapter of rank {} was asked for; keys of {} elements have ranks from 1 to {}",
                        rank, key_dim, key_dim)};
  }
  if (IsOfHeads(kind) && rank % sums.n_kv_heads != 0) {
    return {StatusCode::kInvalidArgument,
            fmt::format(
                "an adapter of kind {} and rank {} was asked for; it has as many columns for each of {} KV "
                "heads: ask for a multiple of {}",
                AdapterKindName(kind), rank, sums.n_kv_heads, sums.n_kv_heads)};
  }
  if (sums.n_keys == 0) return {StatusCode::kInvalidArgument, "an adapter cannot be computed from no keys"};
  if (!AllFinite(sums.keys)) return {StatusCode::kInvalidArgument, "the sums of keys are not finite"};
  if (!WeighsByQueries(kind)) return Status::Ok();
  KVRUN_CHECK(sums.queries.size() == key_dim * sums.head_dim);
  if (sums.n_queries == 0) {
    return {StatusCode::kInvalidArgument,
            fmt::format("an adapter of kind {} cannot be computed from no queries", AdapterKindName(kind))};
  }
  if (!AllFinite(sums.queries)) return {StatusCode::kInvalidArgument, "the sums of queries are not finite"};
  return Status::Ok();
}

// Of a KV head: a factor W of the queries' second moment, W W^T, and its inverse. (Any factor gives the same
// adapter: another one is this times a rotation, which the directions undo.)
struct HeadWeight {
  Matrix factor;
  Matrix inverse;
};

HeadWeight WeightOf(const Matrix& moment) {
  const Eigen::Index dim = moment.rows();
  // Where no eigenvalue is too small: the norm is no less than the largest.
  const double least = kSmallestEigenvalue * moment.norm();
  const Eigen::LLT<Eigen::MatrixXd> raised(moment - least * Matrix::Identity(dim, dim));
  const Eigen::LLT<Eigen::MatrixXd> whole(moment);
  if (least > 0 && raised.info() == Eigen::Success && whole.info() == Eigen::Success) {
    return {whole.matrixL(), whole.matrixL().solve(Matrix::Identity(dim, dim))};
  }
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(moment);
  const Eigen::MatrixXd& axes = solver.eigenvectors();
  const double largest = solver.eigenvalues()[dim - 1];
  // A head that no query looks at is not weighed.
  const double floor = largest > 0 ? largest * kSmallestEigenvalue : 1.0;
  const Vector scales = solver.eigenvalues().cwiseMax(floor).cwiseSqrt();
  return {axes * scales.asDiagonal(), scales.cwiseInverse().asDiagonal() * axes.transpose()};
}

template <typename Number>
Matrix QueryMoment(const SumsOf<Number>& sums, uint32_t head) {
  const Eigen::Index dim = sums.head_dim;
  const SquareView<Number> sum(sums.queries.data() + head * dim * dim, dim, dim);
  return sum.template cast<double>() / static_cast<double>(sums.n_queries);
}

template <typename Number>
std::vector<HeadWeight> WeighHeads(const SumsOf<Number>& sums) {
  std::vector<HeadWeight> weights;
  for (uint32_t head = 0; head < sums.n_kv_heads; ++head)
    weights.push_back(WeightOf(QueryMoment(sums, head)));
  return weights;
}

// Rows of vectors, a part of each of which belongs to a KV head.
struct RowsOfHeads {
  const double* values;
  size_t n;
  size_t dim;
};

// to = each head's part of the rows times the head's matrix, or its transposed.
enum class Side : uint8_t { kAsIs, kTransposed };
void MultiplyHeads(const RowsOfHeads& rows, const std::vector<HeadWeight>& weights,
                   Matrix HeadWeight::*matrix, Side side, double* to) {
  for (size_t head = 0; head < weights.size(); ++head) {
    const Matrix& of_head = weights[head].*matrix;
    const auto dim = static_cast<size_t>(of_head.rows());
    const DenseView view(of_head.data(), dim);
    MultiplyDense({rows.values + head * dim, rows.dim}, side == Side::kAsIs ? view : view.Transposed(),
                  rows.n, dim, dim, {to + head * dim, rows.dim});
  }
}

// The mean of k k^T of the keys from `first` on, of `dim` elements, less that of the mean key.
template <typename Number>
struct Moment {
  const SumsOf<Number>& sums;
  Eigen::Index first;
  Eigen::Index dim;
  Vector mean;  // zeros: nothing is taken off

  size_t key_dim() const { return size_t{sums.n_kv_heads} * sums.head_dim; }
  const Number* at(size_t row, size_t column) const {
    return sums.keys.data() + (first + row) * key_dim() + first + column;
  }
  // products = vectors * this
  void Multiply(const Matrix& vectors, double* products, uint32_t most_threads) const {
    const auto size = static_cast<size_t>(dim);
    MultiplyDense({vectors.data(), size}, {at(0, 0), key_dim()}, static_cast<size_t>(vectors.rows()), size,
                  size, {products, size}, most_threads);
    Eigen::Map<Matrix> rows(products, vectors.rows(), dim);
    rows /= static_cast<double>(sums.n_keys);
    rows.noalias() -= (vectors * mean) * mean.transpose();
  }
  double Trace() const {
    double sum = 0;
    for (Eigen::Index i = 0; i < dim; ++i) sum += *at(i, i);
    return sum / static_cast<double>(sums.n_keys) - mean.squaredNorm();
  }
  Matrix Block(Eigen::Index begin, Eigen::Index n) const {
    const StridedSquareView<Number> sum(at(begin, begin), n, n,
                                        Eigen::OuterStride<>(static_cast<Eigen::Index>(key_dim())));
    const auto part = mean.segment(begin, n);
    return sum.template cast<double>() / static_cast<double>(sums.n_keys) - part * part.transpose();
  }
};

// The mean key, from `first` on.
template <typename Number>
Vector MeanKey(const SumsOf<Number>& sums, Eigen::Index first, Eigen::Index dim) {
  const size_t key_dim = size_t{sums.n_kv_heads} * sums.head_dim;
  const Eigen::Map<const Eigen::Matrix<Number, Eigen::Dynamic, 1>> sum(
      sums.keys.data() + key_dim * key_dim + first, dim);
  return sum.template cast<double>() / static_cast<double>(sums.n_keys);
}

// What of sums in double precision is computed goes to a file, whose directions are checked.
template <typename Number>
constexpr bool kIsPrecise = std::is_same_v<Number, double>;

template <typename Number>
AxesProblem ProblemOf(const Moment<Number>& moment, uint32_t rank, uint32_t most_threads) {
  AxesProblem problem;
  problem.dim = static_cast<uint32_t>(moment.dim);
  problem.rank = rank;
  problem.is_exact = kIsPrecise<Number>;
  problem.trace = moment.Trace();
  problem.most_threads = most_threads;
  problem.multiply = [&moment, most_threads](const Matrix& vectors, Matrix& products) {
    moment.Multiply(vectors, products.data(), most_threads);
  };
  return problem;
}

// W^T moment W, of the factors of all heads.
template <typename Number>
AxesProblem WeightedProblemOf(const Moment<Number>& moment, const std::vector<HeadWeight>& weights,
                              uint32_t rank, uint32_t most_threads) {
  AxesProblem problem;
  problem.dim = static_cast<uint32_t>(moment.dim);
  problem.rank = rank;
  problem.is_exact = kIsPrecise<Number>;
  const Eigen::Index dim = weights[0].factor.rows();
  for (size_t head = 0; head < weights.size(); ++head) {
    const Matrix& factor = weights[head].factor;
    const Matrix block = moment.Block(static_cast<Eigen::Index>(head) * dim, dim);
    problem.trace += (block * factor).cwiseProduct(factor).sum();
  }
  problem.most_threads = most_threads;
  problem.multiply = [&moment, &weights, most_threads](const Matrix& vectors, Matrix& products) {
    const auto size = static_cast<size_t>(moment.dim);
    Matrix weighted;
    Matrix of_keys;
    for (Eigen::Index first = 0; first < vectors.rows(); first += kVectorsAtOnce) {
      const Eigen::Index n = std::min(kVectorsAtOnce, vectors.rows() - first);
      weighted.resize(n, moment.dim);
      of_keys.resize(n, moment.dim);
      MultiplyHeads({vectors.data() + first * moment.dim, static_cast<size_t>(n), size}, weights,
                    &HeadWeight::factor, Side::kTransposed, weighted.data());
      moment.Multiply(weighted, of_keys.data(), most_threads);
      MultiplyHeads({of_keys.data(), static_cast<size_t>(n), size}, weights, &HeadWeight::factor, Side::kAsIs,
                    products.data() + first * moment.dim);
    }
  };
  return problem;
}

Status NotDecomposed(std::string_view what) {
  return {StatusCode::kInternal, fmt::format("the {} could not be decomposed", what)};
}

// Cumulative shares of the total. Those below zero are rounding of the sums.
std::vector<float> Energy(const Vector& of_columns, double total) {
  std::vector<float> energy(static_cast<size_t>(of_columns.size()), 1.0F);
  double kept = 0;
  for (size_t i = 0; i < energy.size() && total > 0; ++i) {
    kept += std::max(0.0, of_columns[static_cast<Eigen::Index>(i)]);
    energy[i] = static_cast<float>(std::min(1.0, kept / total));
  }
  return energy;
}

// The sign of each row that makes its largest component positive.
Vector Signs(const Matrix& rows) {
  Vector signs(rows.rows());
  for (Eigen::Index row = 0; row < rows.rows(); ++row) {
    Eigen::Index largest = 0;
    rows.row(row).cwiseAbs().maxCoeff(&largest);
    signs[row] = rows(row, largest) < 0 ? -1.0 : 1.0;
  }
  return signs;
}

// A side, [key_dim, rank], whose columns are these rows.
std::vector<float> SideOf(const Matrix& rows, const Vector& signs) {
  std::vector<float> values(static_cast<size_t>(rows.size()));
  Eigen::Map<RowMajorFloats>(values.data(), rows.cols(), rows.rows()) =
      (signs.asDiagonal() * rows).transpose().template cast<float>();
  return values;
}

// Of one KV head: directions, the more important first, one in each row, and the keys' energy along each.
struct HeadAxes {
  Matrix axes;
  Vector energies;
  double total = 0;  // of all directions
};

// Loki. Its principal components are those of the covariance: the authors' code (hpcgroup/loki, pca_analysis)
// fits them with a library that takes the mean off. That code does not take it off the keys
// that are scored, and so no mean is kept here: within a head it moves all scores of a query alike.
template <typename Number>
Result<HeadAxes> PrincipalAxes(const SumsOf<Number>& sums, uint32_t head, uint32_t n_axes) {
  const Eigen::Index first = Eigen::Index{head} * sums.head_dim;
  const Moment<Number> moment{sums, first, sums.head_dim, MeanKey(sums, first, sums.head_dim)};
  const LeadingAxes leading = FindLeadingAxes(ProblemOf(moment, n_axes, 1));
  if (leading.axes.size() == 0) return NotDecomposed("keys' covariance");
  return HeadAxes{leading.axes, leading.energies, leading.total};
}

// InfiniGen: queries and keys are turned by the right singular vectors of the queries (eigenvectors of the
// sum of q q^T), and those columns are kept for which the sum of magnitudes in queries and keys is largest.
// There are only sums of squares here: root mean squares stand for mean magnitudes. The paper's heads have a
// KV head each; here the heads of a KV head share its directions, and sums are of the calibration's texts,
// not of each prompt.
template <typename Number>
Result<HeadAxes> SkewedAxes(const SumsOf<Number>& sums, uint32_t head, uint32_t n_axes) {
  const Eigen::Index dim = sums.head_dim;
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(QueryMoment(sums, head));
  if (solver.info() != Eigen::Success) return NotDecomposed("queries' second moment");
  const Matrix axes = solver.eigenvectors().rowwise().reverse().transpose();
  const Moment<Number> moment{sums, head * dim, dim, Vector::Zero(dim)};
  const Vector energies = (axes * moment.Block(0, dim)).cwiseProduct(axes).rowwise().sum().cwiseMax(0.0);
  const Vector weights = solver.eigenvalues().reverse().cwiseMax(0.0).cwiseSqrt() + energies.cwiseSqrt();
  std::vector<Eigen::Index> order(static_cast<size_t>(dim));
  std::iota(order.begin(), order.end(), Eigen::Index{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](Eigen::Index a, Eigen::Index b) { return weights[a] > weights[b]; });
  order.resize(n_axes);
  return HeadAxes{axes(order, Eigen::all), energies(order), energies.sum()};
}

template <typename Number>
Result<LayerAdapter> ComputeOfHeads(AdapterKind kind, const SumsOf<Number>& sums, uint32_t rank) {
  const Eigen::Index dim = sums.head_dim;
  const Eigen::Index key_dim = dim * sums.n_kv_heads;
  const uint32_t of_each = rank / sums.n_kv_heads;
  Matrix rows = Matrix::Zero(rank, key_dim);
  Vector energies = Vector::Zero(rank);
  double total = 0;
  for (uint32_t head = 0; head < sums.n_kv_heads; ++head) {
    KVRUN_ASSIGN_OR_RETURN(const HeadAxes of_head, kind == AdapterKind::kHeads
                                                       ? PrincipalAxes(sums, head, of_each)
                                                       : SkewedAxes(sums, head, of_each));
    total += of_head.total;
    for (Eigen::Index nth = 0; nth < of_each; ++nth) {
      const Eigen::Index column = nth * sums.n_kv_heads + head;
      rows.row(column).segment(head * dim, dim) = of_head.axes.row(nth);
      energies[column] = of_head.energies[nth];
    }
  }
  LayerAdapter adapter;
  adapter.key_dim = static_cast<uint32_t>(key_dim);
  adapter.rank = rank;
  adapter.energy = Energy(energies, total);
  adapter.mean.assign(adapter.key_dim, 0.0F);
  adapter.key_side = adapter.query_side = SideOf(rows, Signs(rows));
  return adapter;
}

template <typename Number>
Result<LayerAdapter> Compute(AdapterKind kind, const SumsOf<Number>& sums, uint32_t rank,
                             uint32_t most_threads) {
  KVRUN_RETURN_IF_ERROR(CheckSums(kind, sums, rank));
  if (IsOfHeads(kind)) return ComputeOfHeads(kind, sums, rank);
  const auto key_dim = static_cast<Eigen::Index>(sums.n_kv_heads) * sums.head_dim;
  const Moment<Number> moment{sums, 0, key_dim,
                              TakesMeanOff(kind) ? MeanKey(sums, 0, key_dim) : Vector(Vector::Zero(key_dim))};
  std::vector<HeadWeight> weights;
  if (SidesDiffer(kind)) weights = WeighHeads(sums);
  const LeadingAxes leading =
      FindLeadingAxes(weights.empty() ? ProblemOf(moment, rank, most_threads)
                                      : WeightedProblemOf(moment, weights, rank, most_threads));
  if (leading.axes.size() == 0) return NotDecomposed("keys' covariance");
  LayerAdapter adapter;
  adapter.key_dim = static_cast<uint32_t>(key_dim);
  adapter.rank = rank;
  adapter.energy = Energy(leading.energies, leading.total);
  adapter.mean.resize(adapter.key_dim);
  std::transform(moment.mean.begin(), moment.mean.end(), adapter.mean.begin(),
                 [](double value) { return static_cast<float>(value); });
  if (weights.empty()) {
    adapter.key_side = adapter.query_side = SideOf(leading.axes, Signs(leading.axes));
    return adapter;
  }
  Matrix side(rank, key_dim);
  const RowsOfHeads axes{leading.axes.data(), rank, static_cast<size_t>(key_dim)};
  MultiplyHeads(axes, weights, &HeadWeight::factor, Side::kTransposed, side.data());
  const Vector signs = Signs(side);
  adapter.key_side = SideOf(side, signs);
  MultiplyHeads(axes, weights, &HeadWeight::inverse, Side::kAsIs, side.data());
  adapter.query_side = SideOf(side, signs);
  return adapter;
}

}  // namespace

std::string_view AdapterKindName(AdapterKind kind) {
  for (const KindName& known : kKindNames) {
    if (known.kind == kind) return known.name;
  }
  return "unknown";
}

Result<AdapterKind> FindAdapterKind(std::string_view name) {
  std::string names;
  for (const KindName& known : kKindNames) {
    if (known.name == name) return known.kind;
    if (!names.empty()) names += ", ";
    names += known.name;
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("unknown kind of adapter '{}'; known: {}", name, names));
}

Result<LayerAdapter> ComputeAdapter(AdapterKind kind, const LayerSums& sums, uint32_t rank,
                                    uint32_t most_threads) {
  return Compute(kind, sums, rank, most_threads);
}

Result<LayerAdapter> ComputeAdapter(AdapterKind kind, const PreciseLayerSums& sums, uint32_t rank,
                                    uint32_t most_threads) {
  return Compute(kind, sums, rank, most_threads);
}

void RoundToHalves(LayerAdapter& adapter) {
  const size_t rank = adapter.rank;
  const auto largest = [rank](const std::vector<float>& side, size_t column) {
    float most = 0.0F;
    for (size_t i = column; i < side.size(); i += rank) most = std::max(most, std::abs(side[i]));
    return most;
  };
  for (size_t column = 0; column < rank; ++column) {
    const float of_keys = largest(adapter.key_side, column);
    const float of_queries = largest(adapter.query_side, column);
    const bool has_both = of_keys > 0.0F && of_queries > 0.0F;
    const int power = has_both ? (std::ilogb(of_queries) - std::ilogb(of_keys)) / 2 : 0;
    for (size_t i = column; i < adapter.key_side.size(); i += rank) {
      adapter.key_side[i] = HalfToFloat(ToFiniteHalf(std::ldexp(adapter.key_side[i], power)));
      adapter.query_side[i] = HalfToFloat(ToFiniteHalf(std::ldexp(adapter.query_side[i], -power)));
    }
  }
}

void AddKeys(std::span<const float> keys, uint32_t key_dim, std::span<float> sums) {
  KVRUN_CHECK(keys.size() % key_dim == 0 && sums.size() == (size_t{key_dim} + 1) * key_dim);
  const auto dim = static_cast<Eigen::Index>(key_dim);
  const RowsView rows(keys.data(), static_cast<Eigen::Index>(keys.size() / key_dim), dim);
  Eigen::Map<RowMajorFloats>(sums.data(), dim, dim).noalias() += rows.transpose() * rows;
  Eigen::Map<Eigen::RowVectorXf>(sums.data() + dim * dim, dim) += rows.colwise().sum();
}

void ProjectKeys(const LayerAdapter& adapter, std::span<const float> keys, std::span<float> projected) {
  const auto dim = static_cast<Eigen::Index>(adapter.key_dim);
  const auto n = static_cast<Eigen::Index>(keys.size() / adapter.key_dim);
  const auto rank = static_cast<Eigen::Index>(adapter.rank);
  KVRUN_CHECK(keys.size() % adapter.key_dim == 0 && projected.size() == static_cast<size_t>(n * rank));
  const Eigen::Map<const Eigen::RowVectorXf> mean(adapter.mean.data(), dim);
  Eigen::Map<RowMajorFloats>(projected.data(), n, rank).noalias() =
      (RowsView(keys.data(), n, dim).rowwise() - mean) * RowsView(adapter.key_side.data(), dim, rank);
}

// The mean of ((k - m) . a)^2 is a^T (mean of k k^T) a - 2 (mean of k . a) (m . a) + (m . a)^2.
std::vector<double> MeanSquaresOfColumns(const LayerAdapter& adapter, const LayerSums& sums) {
  const size_t dim = adapter.key_dim;
  const size_t rank = adapter.rank;
  KVRUN_CHECK(sums.keys.size() == (dim + 1) * dim && sums.n_keys > 0);
  const auto n = static_cast<double>(sums.n_keys);
  const DenseView sides(adapter.key_side.data(), rank);
  std::vector<double> squares(rank);
  VectorRows of_rows(std::min<Eigen::Index>(kVectorsAtOnce, adapter.key_dim), adapter.rank);
  for (size_t first = 0; first < dim; first += static_cast<size_t>(kVectorsAtOnce)) {
    const size_t n_rows = std::min(static_cast<size_t>(kVectorsAtOnce), dim - first);
    MultiplyDense({sums.keys.data() + first * dim, dim}, sides, n_rows, dim, rank, {of_rows.data(), rank});
    for (size_t i = 0; i < n_rows; ++i) {
      const float* const side = adapter.key_side.data() + (first + i) * rank;
      for (size_t c = 0; c < rank; ++c) squares[c] += side[c] * of_rows.data()[i * rank + c] / n;
    }
  }
  std::vector<double> of_total(rank);
  std::vector<double> of_mean(rank);
  MultiplyDense({sums.keys.data() + dim * dim, dim}, sides, 1, dim, rank, {of_total.data(), rank});
  MultiplyDense({adapter.mean.data(), dim}, sides, 1, dim, rank, {of_mean.data(), rank});
  for (size_t c = 0; c < rank; ++c) {
    squares[c] = std::max(0.0, squares[c] - (2 * of_total[c] / n - of_mean[c]) * of_mean[c]);
  }
  return squares;
}

uint64_t AdapterWorkBytes(AdapterKind kind, uint32_t n_kv_heads, uint32_t head_dim, uint32_t rank) {
  const uint32_t key_dim = n_kv_heads * head_dim;
  // Of one head the moments, eigenvectors, products of them and what is sorted; a side.
  if (IsOfHeads(kind)) {
    return (uint64_t{8} * head_dim * head_dim + uint64_t{key_dim} * rank) * sizeof(double) +
           DenseWorkBytes(head_dim, head_dim);
  }
  if (!SidesDiffer(kind)) return LeadingAxesWorkBytes(key_dim, rank, kMostAdapterThreads, 0);
  // Vectors on their way through the weights; per head the factor and its inverse. Axes and a side of them
  // take the place of what is gone by then.
  const uint64_t n_vectors = std::min<uint64_t>(kVectorsAtOnce, VectorsOfAxes(key_dim, rank));
  return LeadingAxesWorkBytes(key_dim, rank, kMostAdapterThreads, 2 * n_vectors * key_dim * sizeof(double)) +
         2 * uint64_t{key_dim} * head_dim * sizeof(double);
}

}  // namespace kvrun
