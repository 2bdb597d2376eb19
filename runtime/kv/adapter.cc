#include "runtime/kv/adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include <Eigen/Eigenvalues>

#include "platform/base/check.h"

namespace kvrun {
namespace {

using Matrix = Eigen::MatrixXd;
using Vector = Eigen::VectorXd;
using RowMajorFloats = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using RowsView = Eigen::Map<const RowMajorFloats>;
template <typename Number>
using SquareView = Eigen::Map<const Eigen::Matrix<Number, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

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
// moment, as a share of the largest (measured with it: methods.md, section 1).
constexpr double kSmallestEigenvalue = 1e-4;

// Per KV head, the square root of the queries' second moment and its inverse.
struct HeadWeights {
  std::vector<Matrix> roots;
  std::vector<Matrix> inverses;
};

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

// The mean of k k^T, less that of the mean key where the kind says so. [key_dim, key_dim]
template <typename Number>
Matrix KeyCovariance(const SumsOf<Number>& sums, const Vector& mean) {
  const Eigen::Index key_dim = mean.size();
  const SquareView<Number> gram(sums.keys.data(), key_dim, key_dim);
  Matrix covariance = gram.template cast<double>() / static_cast<double>(sums.n_keys);
  covariance.noalias() -= mean * mean.transpose();
  return covariance;
}

template <typename Number>
HeadWeights WeighHeads(const SumsOf<Number>& sums) {
  const Eigen::Index dim = sums.head_dim;
  HeadWeights weights;
  for (uint32_t head = 0; head < sums.n_kv_heads; ++head) {
    const SquareView<Number> moment(sums.queries.data() + uint64_t{head} * sums.head_dim * sums.head_dim, dim,
                                    dim);
    const Eigen::SelfAdjointEigenSolver<Matrix> solver(moment.template cast<double>() /
                                                       static_cast<double>(sums.n_queries));
    const Matrix& axes = solver.eigenvectors();
    const double largest = solver.eigenvalues()[dim - 1];
    // A head that no query looks at is not weighed.
    const double floor = largest > 0 ? largest * kSmallestEigenvalue : 1.0;
    const Vector scales = solver.eigenvalues().cwiseMax(floor).cwiseSqrt();
    weights.roots.push_back(axes * scales.asDiagonal() * axes.transpose());
    weights.inverses.push_back(axes * scales.cwiseInverse().asDiagonal() * axes.transpose());
  }
  return weights;
}

// rows = diag(blocks) * rows, in place.
void MultiplyHeads(const std::vector<Matrix>& blocks, Matrix& rows) {
  const Eigen::Index dim = blocks.front().rows();
  for (size_t head = 0; head < blocks.size(); ++head) {
    auto part = rows.middleRows(static_cast<Eigen::Index>(head) * dim, dim);
    for (Eigen::Index column = 0; column < rows.cols(); ++column) {
      const Vector product = blocks[head] * part.col(column);
      part.col(column) = product;
    }
  }
}

// The largest component of each column becomes positive.
void SettleSigns(Matrix& axes) {
  for (Eigen::Index column = 0; column < axes.cols(); ++column) {
    Eigen::Index largest = 0;
    axes.col(column).cwiseAbs().maxCoeff(&largest);
    if (axes(largest, column) < 0) axes.col(column) *= -1;
  }
}

// The first `rank` eigenvectors by descending eigenvalue.
Matrix LeadingAxes(const Eigen::SelfAdjointEigenSolver<Matrix>& solver, Eigen::Index rank) {
  Matrix axes = solver.eigenvectors().rightCols(rank).rowwise().reverse();
  SettleSigns(axes);
  return axes;
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

Status NotDecomposed(std::string_view what) {
  return {StatusCode::kInternal, fmt::format("the {} could not be decomposed", what)};
}

std::vector<float> RowMajor(const Matrix& matrix) {
  std::vector<float> values(static_cast<size_t>(matrix.size()));
  Eigen::Map<RowMajorFloats>(values.data(), matrix.rows(), matrix.cols()) = matrix.cast<float>();
  return values;
}

// Of one KV head: directions, the more important first, and the keys' energy along each.
struct HeadAxes {
  Matrix axes;
  Vector energies;
};

// The mean of k k^T of one KV head, and its mean key.
template <typename Number>
std::pair<Matrix, Vector> HeadMoments(const SumsOf<Number>& sums, uint32_t head) {
  const Eigen::Index dim = sums.head_dim;
  const Eigen::Index key_dim = dim * sums.n_kv_heads;
  const auto n = static_cast<double>(sums.n_keys);
  const SquareView<Number> gram(sums.keys.data(), key_dim, key_dim);
  const Eigen::Map<const Eigen::Matrix<Number, Eigen::Dynamic, 1>> sum(sums.keys.data() + key_dim * key_dim,
                                                                       key_dim);
  return {gram.block(head * dim, head * dim, dim, dim).template cast<double>() / n,
          sum.segment(head * dim, dim).template cast<double>() / n};
}

// Loki. Its principal components are those of the covariance: the authors' code (hpcgroup/loki, pca_analysis)
// fits them with a library that takes the mean off. That code does not take it off the keys
// that are scored, and so no mean is kept here: within a head it moves all scores of a query alike.
template <typename Number>
Result<HeadAxes> PrincipalAxes(const SumsOf<Number>& sums, uint32_t head) {
  const auto [moment, mean] = HeadMoments(sums, head);
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(moment - mean * mean.transpose());
  if (solver.info() != Eigen::Success) return NotDecomposed("keys' covariance");
  return HeadAxes{LeadingAxes(solver, sums.head_dim), solver.eigenvalues().reverse().cwiseMax(0.0)};
}

// InfiniGen: queries and keys are turned by the right singular vectors of the queries (eigenvectors of the
// sum of q q^T), and those columns are kept for which the sum of magnitudes in queries and keys is largest.
// There are only sums of squares here: root mean squares stand for mean magnitudes. The paper's heads have a
// KV head each; here the heads of a KV head share its directions, and sums are of the calibration's texts,
// not of each prompt.
template <typename Number>
Result<HeadAxes> SkewedAxes(const SumsOf<Number>& sums, uint32_t head) {
  const Eigen::Index dim = sums.head_dim;
  const SquareView<Number> queries(sums.queries.data() + uint64_t{head} * sums.head_dim * sums.head_dim, dim,
                                   dim);
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(queries.template cast<double>() /
                                                     static_cast<double>(sums.n_queries));
  if (solver.info() != Eigen::Success) return NotDecomposed("queries' second moment");
  const Matrix axes = LeadingAxes(solver, dim);
  const Matrix moment = HeadMoments(sums, head).first;
  const Vector energies = (axes.transpose() * moment * axes).diagonal().cwiseMax(0.0);
  const Vector weights = solver.eigenvalues().reverse().cwiseMax(0.0).cwiseSqrt() + energies.cwiseSqrt();
  std::vector<Eigen::Index> order(static_cast<size_t>(dim));
  std::iota(order.begin(), order.end(), Eigen::Index{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](Eigen::Index a, Eigen::Index b) { return weights[a] > weights[b]; });
  return HeadAxes{axes(Eigen::all, order), energies(order)};
}

template <typename Number>
Result<LayerAdapter> ComputeOfHeads(AdapterKind kind, const SumsOf<Number>& sums, uint32_t rank) {
  const Eigen::Index dim = sums.head_dim;
  const Eigen::Index key_dim = dim * sums.n_kv_heads;
  Matrix side = Matrix::Zero(key_dim, rank);
  Vector energies = Vector::Zero(rank);
  double total = 0;
  for (uint32_t head = 0; head < sums.n_kv_heads; ++head) {
    KVRUN_ASSIGN_OR_RETURN(const HeadAxes of_head,
                           kind == AdapterKind::kHeads ? PrincipalAxes(sums, head) : SkewedAxes(sums, head));
    total += of_head.energies.sum();
    for (Eigen::Index column = head; column < rank; column += sums.n_kv_heads) {
      const Eigen::Index nth = column / sums.n_kv_heads;
      side.col(column).segment(head * dim, dim) = of_head.axes.col(nth);
      energies[column] = of_head.energies[nth];
    }
  }
  LayerAdapter adapter;
  adapter.key_dim = static_cast<uint32_t>(key_dim);
  adapter.rank = rank;
  adapter.energy = Energy(energies, total);
  adapter.mean.assign(adapter.key_dim, 0.0F);
  adapter.key_side = adapter.query_side = RowMajor(side);
  return adapter;
}

template <typename Number>
Result<LayerAdapter> Compute(AdapterKind kind, const SumsOf<Number>& sums, uint32_t rank) {
  KVRUN_RETURN_IF_ERROR(CheckSums(kind, sums, rank));
  if (IsOfHeads(kind)) return ComputeOfHeads(kind, sums, rank);
  const auto key_dim = static_cast<Eigen::Index>(sums.n_kv_heads) * sums.head_dim;
  Vector mean = Vector::Zero(key_dim);
  if (TakesMeanOff(kind)) {
    const Eigen::Map<const Eigen::Matrix<Number, Eigen::Dynamic, 1>> sum(sums.keys.data() + key_dim * key_dim,
                                                                         key_dim);
    mean = sum.template cast<double>() / static_cast<double>(sums.n_keys);
  }
  Matrix covariance = KeyCovariance(sums, mean);
  HeadWeights weights;
  if (WeighsByQueries(kind)) {
    weights = WeighHeads(sums);
    MultiplyHeads(weights.roots, covariance);  // S C
    covariance.transposeInPlace();             // C S
    MultiplyHeads(weights.roots, covariance);  // S C S
  }
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(covariance);
  if (solver.info() != Eigen::Success) return NotDecomposed("keys' covariance");
  LayerAdapter adapter;
  adapter.key_dim = static_cast<uint32_t>(key_dim);
  adapter.rank = rank;
  adapter.energy =
      Energy(solver.eigenvalues().reverse().head(rank), solver.eigenvalues().cwiseMax(0.0).sum());
  adapter.mean = RowMajor(mean);
  Matrix axes = LeadingAxes(solver, rank);
  if (!SidesDiffer(kind)) {
    adapter.key_side = adapter.query_side = RowMajor(axes);
    return adapter;
  }
  Matrix query_side = axes;
  MultiplyHeads(weights.inverses, query_side);
  MultiplyHeads(weights.roots, axes);
  adapter.key_side = RowMajor(axes);
  adapter.query_side = RowMajor(query_side);
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

Result<LayerAdapter> ComputeAdapter(AdapterKind kind, const LayerSums& sums, uint32_t rank) {
  return Compute(kind, sums, rank);
}

Result<LayerAdapter> ComputeAdapter(AdapterKind kind, const PreciseLayerSums& sums, uint32_t rank) {
  return Compute(kind, sums, rank);
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
  const float* const total = sums.keys.data() + dim * dim;
  std::vector<double> squares(rank);
  std::vector<double> of_total(rank);
  std::vector<double> of_mean(rank);
  std::vector<double> of_row(rank);  // of the sum of k k^T
  for (size_t i = 0; i < dim; ++i) {
    const float* const gram = sums.keys.data() + i * dim;
    std::fill(of_row.begin(), of_row.end(), 0.0);
    for (size_t j = 0; j < dim; ++j) {
      for (size_t c = 0; c < rank; ++c) of_row[c] += double{gram[j]} * adapter.key_side[j * rank + c];
    }
    for (size_t c = 0; c < rank; ++c) {
      const double side = adapter.key_side[i * rank + c];
      squares[c] += side * of_row[c] / n;
      of_total[c] += side * total[i] / n;
      of_mean[c] += side * adapter.mean[i];
    }
  }
  for (size_t c = 0; c < rank; ++c) {
    squares[c] = std::max(0.0, squares[c] - (2 * of_total[c] - of_mean[c]) * of_mean[c]);
  }
  return squares;
}

uint64_t AdapterWorkBytes(AdapterKind kind, uint32_t n_kv_heads, uint32_t head_dim, uint32_t rank) {
  const uint64_t key_dim = uint64_t{n_kv_heads} * head_dim;
  // Of one head the moments, eigenvectors, products of them and what is sorted; a side.
  if (IsOfHeads(kind)) return (uint64_t{8} * head_dim * head_dim + key_dim * rank) * sizeof(double);
  // The covariance, its eigenvectors, both sides; per head the root and its inverse.
  const uint64_t heads = WeighsByQueries(kind) ? 2 * key_dim * head_dim : 0;
  return (2 * key_dim * key_dim + 2 * key_dim * rank + heads) * sizeof(double);
}

}  // namespace kvrun
