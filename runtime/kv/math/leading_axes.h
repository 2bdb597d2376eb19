// The leading eigenvectors of a symmetric matrix without negative eigenvalues, from its products with blocks
// of vectors: a small part of a full decomposition's time and memory where few of many are wanted.
// Sources: Zhou and Saad, "Block Chebyshev-Davidson" (2008), for the filter; Halko, Martinsson and Tropp
// (2011) for starting anywhere.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include <Eigen/Core>

namespace kvrun {

// A vector in each row.
using VectorRows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

struct AxesProblem {
  uint32_t dim = 0;
  uint32_t rank = 0;  // how many are wanted
  double trace = 0;   // the sum of all eigenvalues
  // products = vectors * matrix, of as many rows; neither is the other.
  std::function<void(const VectorRows& vectors, VectorRows& products)> multiply;
  // For a file: directions matter, too, where eigenvalues lie apart. Else only what they keep of the trace,
  // and that less exactly.
  bool is_exact = false;
  uint32_t most_threads = 1;  // of products; `multiply` has its own
};

struct LeadingAxes {
  VectorRows axes;           // [rank, dim], orthonormal, by falling eigenvalue
  Eigen::VectorXd energies;  // [rank], the eigenvalues
  double total = 0;          // of all eigenvalues
};

// Of the trace less the largest eigenvalue, what may be missing of the sum of the first eigenvalues.
inline constexpr double kMissingEnergy = 1e-4;
inline constexpr double kMissingEnergyIfExact = 3e-5;
// The angle (rad) by which the first so many may be turned, where eigenvalues lie apart by kApart of the
// largest.
inline constexpr double kLargestTurn = 1e-4;
inline constexpr double kApart = 1e-3;

// An iteration where it is cheaper than a full decomposition, and that decomposition where the iteration does
// not end. Always the same for the same problem.
LeadingAxes FindLeadingAxes(const AxesProblem& problem);
// The latter alone.
LeadingAxes DecomposeFully(const AxesProblem& problem);
// How many vectors are multiplied at once, at most.
uint32_t VectorsOfAxes(uint32_t dim, uint32_t rank);
// What they hold, the answer's among it, where `multiply` holds so much beside its products.
uint64_t LeadingAxesWorkBytes(uint32_t dim, uint32_t rank, uint32_t most_threads, uint64_t multiply_bytes);

// Of approximate eigenpairs: how much of the sum of the first residuals.size() eigenvalues they may miss.
// values: falling; residuals: the squared lengths of (matrix v - value v). What the last value bounds is
// not among them.
double MissingEnergy(std::span<const double> values, std::span<const double> residuals);
// By how much (rad) the first so many directions may be turned together, of those whose values lie apart.
double LargestTurn(std::span<const double> values, std::span<const double> residuals);

}  // namespace kvrun
