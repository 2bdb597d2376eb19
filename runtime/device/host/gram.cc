// Sums of v v^T and of v, for adapters.

#include "runtime/device/instruction_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/host/gram.cc"
#include <hwy/foreach_target.h>
// What is compiled for each target may use these.
#include <hwy/highway.h>

#include <algorithm>

#include "platform/base/units.h"
#include "runtime/device/host/operations.h"
#include "runtime/device/host/thread_pool.h"
#include "runtime/device/host/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {
namespace {

// A tile's products stay in registers: of two vectors a row, half of what there is of them.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
constexpr size_t kTileRows = 8;
#else
constexpr size_t kTileRows = 4;
#endif
// So many vectors to be multiplied lie in the nearest cache, in pages whose addresses are known: tile after
// tile goes through them before the next ones come.
constexpr size_t kVectorsAtOnce = 32;
constexpr size_t kMaxGroupBytes = 65536;  // of products, in the next cache

// Rows [first, first + n_tiles * kTileRows) of the sums, from the diagonal on.
struct Group {
  size_t first;
  size_t n_tiles;
  float* products;  // [n_tiles, kTileRows, row_stride]; columns from the first one's vector on
  size_t row_stride;
};

size_t RowStride(size_t dim) { return RoundUp(dim, hn::Lanes(hn::ScalableTag<float>())); }

// products[i, j] += v[first_i + i] v[first_j + j] of rows [begin, end), of kVectors vectors of columns.
template <size_t kVectors>
void AddProductsTile(const GramArgs& args, const float* rows, size_t begin, size_t end, size_t first_i,
                     size_t first_j, size_t row_stride, float* products) {
  const hn::ScalableTag<float> d;
  using Vec = hn::Vec<decltype(d)>;
  const size_t lanes = hn::Lanes(d);
  const size_t n_columns = args.dim - first_j;
  size_t row_of[kTileRows];
  Vec sums[kTileRows][kVectors];
  for (size_t i = 0; i < kTileRows; ++i) {
    row_of[i] = std::min<size_t>(first_i + i, args.dim - 1);
    for (size_t k = 0; k < kVectors; ++k) sums[i][k] = hn::Load(d, products + i * row_stride + k * lanes);
  }
  for (size_t row = begin; row < end; ++row) {
    const float* v = rows + row * args.row_stride + args.first_column;
    for (size_t block = 0; block < args.n_blocks; ++block, v += args.dim) {
      Vec columns[kVectors];
      for (size_t k = 0; k < kVectors; ++k) {
        columns[k] = LoadFirst(d, v + first_j + k * lanes, n_columns - k * lanes);
      }
      for (size_t i = 0; i < kTileRows; ++i) {
        const Vec factor = hn::Set(d, v[row_of[i]]);
        for (size_t k = 0; k < kVectors; ++k) sums[i][k] = hn::MulAdd(factor, columns[k], sums[i][k]);
      }
    }
  }
  for (size_t i = 0; i < kTileRows; ++i) {
    for (size_t k = 0; k < kVectors; ++k) hn::Store(sums[i][k], d, products + i * row_stride + k * lanes);
  }
}

// A tile's columns begin with a whole vector, which lies in one line of the cache.
void AddProducts(const GramArgs& args, const float* rows, size_t begin, size_t end, const Group& group) {
  const size_t lanes = hn::Lanes(hn::ScalableTag<float>());
  for (size_t tile = 0; tile < group.n_tiles; ++tile) {
    const size_t first_i = group.first + tile * kTileRows;
    float* const products = group.products + tile * kTileRows * group.row_stride;
    for (size_t j = first_i / lanes * lanes; j < args.dim; j += 2 * lanes) {
      const auto add = args.dim - j > lanes ? AddProductsTile<2> : AddProductsTile<1>;
      add(args, rows, begin, end, first_i, j, group.row_stride, products + j);
    }
  }
}

// Products of all rows into the sums, and what mirrors them.
void AddGroup(const GramArgs& args, const float* rows, const Group& group, float* sums) {
  const size_t dim = args.dim;
  std::fill_n(group.products, group.n_tiles * kTileRows * group.row_stride, 0.0F);
  const size_t n_rows = std::max<size_t>(1, kVectorsAtOnce / args.n_blocks);
  for (size_t row = args.skip_rows; row < args.n_rows; row += n_rows) {
    AddProducts(args, rows, row, std::min<size_t>(row + n_rows, args.n_rows), group);
  }
  const auto product = [&](size_t i, size_t j) {
    return group.products[(i - group.first) * group.row_stride + j];
  };
  const size_t end_i = std::min(group.first + group.n_tiles * kTileRows, dim);
  for (size_t i = group.first; i < end_i; ++i) {
    for (size_t j = i; j < dim; ++j) sums[i * dim + j] += product(i, j);
  }
  for (size_t j = group.first + 1; j < dim; ++j) {
    for (size_t i = group.first; i < std::min(j, end_i); ++i) sums[j * dim + i] += product(i, j);
  }
}

// totals[j] += the sum of v[j]. `sum`: [dim], for the worker alone.
void AddVectors(const GramArgs& args, const float* rows, float* sum, float* totals) {
  std::fill_n(sum, args.dim, 0.0F);
  for (size_t row = args.skip_rows; row < args.n_rows; ++row) {
    const float* v = rows + row * args.row_stride + args.first_column;
    for (size_t block = 0; block < args.n_blocks; ++block, v += args.dim) {
      for (size_t j = 0; j < args.dim; ++j) sum[j] += v[j];
    }
  }
  for (size_t j = 0; j < args.dim; ++j) totals[j] += sum[j];
}

// Groups of rows, which become shorter, and as the last the sums of the vectors.
void AddAll(ThreadPool& pool, const GramArgs& args, const float* rows, float* sums) {
  const size_t row_stride = RowStride(args.dim);
  const size_t n_tiles = CeilDiv<size_t>(args.dim, kTileRows);
  const size_t tile_bytes = kTileRows * row_stride * sizeof(float);
  const size_t group_tiles =
      std::clamp<size_t>(n_tiles / (2 * pool.size()), 1, std::max<size_t>(1, kMaxGroupBytes / tile_bytes));
  const size_t n_groups = CeilDiv(n_tiles, group_tiles);
  pool.ReserveScratch(group_tiles * tile_bytes);
  pool.ParallelFor(
      n_groups + 1, 1,
      [&](size_t begin, size_t end, uint32_t worker) {
        auto* const products = reinterpret_cast<float*>(pool.Scratch(worker, group_tiles * tile_bytes));
        for (size_t i = begin; i < end; ++i) {
          const size_t first = i * group_tiles;
          if (i < n_groups)
            AddGroup(args, rows,
                     {first * kTileRows, std::min(group_tiles, n_tiles - first), products, row_stride}, sums);
          else
            AddVectors(args, rows, products, sums + size_t{args.dim} * args.dim);
        }
      },
      Pieces::kOneByOne);
}

}  // namespace
}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvrun::host {
namespace {

HWY_EXPORT(AddAll);

}  // namespace

void AccumulateGram(ThreadPool& pool, const GramArgs& args) {
  if (args.skip_rows >= args.n_rows) return;
  const auto* rows = Data<float>(args.rows);
  float* const sums = Data<float>(args.sums) + args.sums_offset;
  HWY_DYNAMIC_DISPATCH(AddAll)(pool, args, rows, sums);
}

}  // namespace kvrun::host
#endif  // HWY_ONCE
