#include "runtime/kv/math/dense_products.h"

#include "runtime/device/instruction_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kv/math/dense_products.cc"
#include <hwy/foreach_target.h>
// What is compiled for each target may use these.
#include <hwy/aligned_allocator.h>
#include <hwy/highway.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "platform/base/units.h"

// Once for all targets.
#ifndef KVRUN_KV_DENSE_PRODUCTS_SIZES
#define KVRUN_KV_DENSE_PRODUCTS_SIZES
namespace kvrun {
namespace {

constexpr size_t kMostLanes = 8;      // of a vector
constexpr size_t kMostTileRows = 24;  // a multiple of every tile's rows
// Of the inner dimension and of rows, what is multiplied at once: it stays in the second cache.
constexpr size_t kInnerAtOnce = 256;
constexpr size_t kRowsAtOnce = 96;

inline size_t PackedRows(size_t rows) { return std::min(RoundUp(rows, kMostTileRows), kRowsAtOnce); }

}  // namespace
}  // namespace kvrun
#endif

HWY_BEFORE_NAMESPACE();
namespace kvrun::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Two vectors of each row of a tile stay in registers: half of what there is of them, or more.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
constexpr size_t kDenseTileRows = 8;
#else
constexpr size_t kDenseTileRows = 6;
#endif
using DoubleTag = hn::CappedTag<double, kMostLanes>;
static_assert(kRowsAtOnce % kDenseTileRows == 0 && kMostTileRows % kDenseTileRows == 0);

size_t TileColumns() { return 2 * hn::Lanes(DoubleTag()); }

double At(const DenseView& view, size_t row, size_t column) {
  const size_t at = row * view.row_stride() + column * view.column_stride();
  return view.floats() != nullptr ? double{view.floats()[at]} : view.doubles()[at];
}

// [n_tiles, inner, kDenseTileRows]; zeros beyond `rows`.
void PackRows(const DenseView& a, size_t first_row, size_t rows, size_t first_inner, size_t inner,
              double* to) {
  for (size_t tile = 0; tile < rows; tile += kDenseTileRows, to += inner * kDenseTileRows) {
    for (size_t row = 0; row < kDenseTileRows; ++row) {
      if (tile + row >= rows) {
        for (size_t i = 0; i < inner; ++i) to[i * kDenseTileRows + row] = 0.0;
        continue;
      }
      for (size_t i = 0; i < inner; ++i) {
        to[i * kDenseTileRows + row] = At(a, first_row + tile + row, first_inner + i);
      }
    }
  }
}

// [inner, TileColumns()]; zeros beyond `columns`.
void PackColumns(const DenseView& b, size_t first_inner, size_t inner, size_t first_column, size_t columns,
                 double* to) {
  const size_t n = TileColumns();
  if (b.column_stride() == 1 && columns == n) {
    const DoubleTag d;
    const hn::Rebind<float, DoubleTag> of_floats;
    const size_t lanes = hn::Lanes(d);
    for (size_t i = 0; i < inner; ++i, to += n) {
      const size_t at = (first_inner + i) * b.row_stride() + first_column;
      for (size_t j = 0; j < n; j += lanes) {
        if (b.floats() != nullptr) {
          hn::Store(hn::PromoteTo(d, hn::LoadU(of_floats, b.floats() + at + j)), d, to + j);
        } else {
          hn::Store(hn::LoadU(d, b.doubles() + at + j), d, to + j);
        }
      }
    }
    return;
  }
  for (size_t j = 0; j < n; ++j) {
    for (size_t i = 0; i < inner; ++i) {
      to[i * n + j] = j < columns ? At(b, first_inner + i, first_column + j) : 0.0;
    }
  }
}

// Adds a tile's products to `to`, or sets it to them.
void MultiplyTile(const double* HWY_RESTRICT a, const double* HWY_RESTRICT b, size_t inner, size_t rows,
                  size_t columns, bool adds, double* HWY_RESTRICT to, size_t row_stride) {
  const DoubleTag d;
  using Vec = hn::Vec<DoubleTag>;
  const size_t lanes = hn::Lanes(d);
  Vec sums[kDenseTileRows][2];
  for (auto& of_row : sums) of_row[0] = of_row[1] = hn::Zero(d);
  for (size_t i = 0; i < inner; ++i, a += kDenseTileRows, b += 2 * lanes) {
    const Vec b0 = hn::Load(d, b);
    const Vec b1 = hn::Load(d, b + lanes);
    for (size_t row = 0; row < kDenseTileRows; ++row) {
      const Vec factor = hn::Set(d, a[row]);
      sums[row][0] = hn::MulAdd(factor, b0, sums[row][0]);
      sums[row][1] = hn::MulAdd(factor, b1, sums[row][1]);
    }
  }
  if (columns == 2 * lanes) {
    for (size_t row = 0; row < rows; ++row) {
      double* const of_row = to + row * row_stride;
      for (size_t k = 0; k < 2; ++k) {
        Vec sum = sums[row][k];
        if (adds) sum = hn::Add(sum, hn::LoadU(d, of_row + k * lanes));
        hn::StoreU(sum, d, of_row + k * lanes);
      }
    }
    return;
  }
  HWY_ALIGN double values[2 * kMostLanes];
  for (size_t row = 0; row < rows; ++row) {
    hn::Store(sums[row][0], d, values);
    hn::Store(sums[row][1], d, values + lanes);
    for (size_t j = 0; j < columns; ++j) {
      double& element = to[row * row_stride + j];
      element = adds ? element + values[j] : values[j];
    }
  }
}

void Multiply(const DenseView& a, const DenseView& b, size_t rows, size_t inner, size_t columns,
              const DenseTarget& target) {
  const auto work = hwy::AllocateAligned<double>(DenseWorkBytes(rows, inner) / sizeof(double));
  double* const packed_a = work.get();
  double* const packed_b = work.get() + PackedRows(rows) * std::min(inner, kInnerAtOnce);
  const size_t tile_columns = TileColumns();
  for (size_t first_row = 0; first_row < rows; first_row += kRowsAtOnce) {
    const size_t n_rows = std::min(kRowsAtOnce, rows - first_row);
    for (size_t first = 0; first < inner; first += kInnerAtOnce) {
      const size_t n_inner = std::min(kInnerAtOnce, inner - first);
      const bool adds = target.adds || first > 0;
      PackRows(a, first_row, n_rows, first, n_inner, packed_a);
      for (size_t column = 0; column < columns; column += tile_columns) {
        const size_t n_columns = std::min(tile_columns, columns - column);
        PackColumns(b, first, n_inner, column, n_columns, packed_b);
        for (size_t row = 0; row < n_rows; row += kDenseTileRows) {
          MultiplyTile(packed_a + row * n_inner, packed_b, n_inner, std::min(kDenseTileRows, n_rows - row),
                       n_columns, adds, target.values + (first_row + row) * target.row_stride + column,
                       target.row_stride);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvrun::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvrun {
namespace {

HWY_EXPORT(Multiply);

}  // namespace

uint64_t DenseWorkBytes(size_t rows, size_t inner) {
  return (PackedRows(rows) + 2 * kMostLanes) * std::min(inner, kInnerAtOnce) * sizeof(double);
}

uint32_t DenseThreads(size_t rows, size_t inner, size_t columns, uint32_t most_threads) {
  constexpr uint64_t kProductsOfAThread = uint64_t{8} << 20;
  const uint64_t worth = uint64_t{rows} * inner * columns / kProductsOfAThread;
  return static_cast<uint32_t>(std::clamp<uint64_t>(worth, 1, std::max(most_threads, 1U)));
}

void MultiplyDense(const DenseView& a, const DenseView& b, size_t rows, size_t inner, size_t columns,
                   const DenseTarget& target, uint32_t most_threads) {
  if (rows == 0 || columns == 0) return;
  const size_t n_threads = DenseThreads(rows, inner, columns, most_threads);
  const size_t part = RoundUp(CeilDiv(columns, n_threads), 2 * kMostLanes);
  const auto multiply = [&](size_t first) {
    DenseTarget of_part = target;
    of_part.values += first;
    HWY_DYNAMIC_DISPATCH(Multiply)
    (a, b.FromColumn(first), rows, inner, std::min(part, columns - first), of_part);
  };
  std::vector<std::thread> threads;
  for (size_t first = part; first < columns; first += part) {
    threads.emplace_back([&multiply, first] { multiply(first); });
  }
  multiply(0);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace kvrun
#endif  // HWY_ONCE
