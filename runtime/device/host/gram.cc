// Sums of v v^T and of v, for adapters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/host/gram.cc"
#include <hwy/foreach_target.h>
// What is compiled for each target may use these.
#include <hwy/highway.h>

#include <algorithm>

#include "runtime/device/host/operations.h"
#include "runtime/device/host/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {
namespace {

constexpr size_t kTileRows = 4;
constexpr size_t kMaxLanes = HWY_MAX_BYTES / sizeof(float);

// sums[i, j] and sums[j, i], of i <= j < dim: the tile's i from first_i on, j from first_j on.
void AddTile(const float* tile, size_t tile_columns, size_t first_i, size_t first_j, size_t dim,
             float* sums) {
  for (size_t i = first_i; i < std::min(first_i + kTileRows, dim); ++i, tile += tile_columns) {
    for (size_t j = std::max(i, first_j); j < std::min(first_j + tile_columns, dim); ++j) {
      sums[i * dim + j] += tile[j - first_j];
      if (i < j) sums[j * dim + i] += tile[j - first_j];
    }
  }
}

// Rows first_i .. first_i + 3 of the sums, from the diagonal on, and what mirrors them.
void AddProducts(const GramArgs& args, const float* rows, size_t first_i, float* sums) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const size_t dim = args.dim;
  const size_t last = dim - 1;
  const size_t ia = first_i;
  const size_t ib = std::min(first_i + 1, last);
  const size_t ic = std::min(first_i + 2, last);
  const size_t ie = std::min(first_i + 3, last);
  for (size_t j = first_i; j < dim; j += 2 * lanes) {
    const size_t n0 = dim - j;
    const size_t n1 = n0 > lanes ? n0 - lanes : 0;
    auto a0 = hn::Zero(d), b0 = hn::Zero(d), c0 = hn::Zero(d), e0 = hn::Zero(d);
    auto a1 = hn::Zero(d), b1 = hn::Zero(d), c1 = hn::Zero(d), e1 = hn::Zero(d);
    for (size_t row = args.skip_rows; row < args.n_rows; ++row) {
      const float* v = rows + row * args.row_stride + args.first_column;
      for (size_t block = 0; block < args.n_blocks; ++block, v += dim) {
        const auto v0 = LoadFirst(d, v + j, n0);
        const auto v1 = n1 == 0 ? hn::Zero(d) : LoadFirst(d, v + j + lanes, n1);
        const auto a = hn::Set(d, v[ia]);
        const auto b = hn::Set(d, v[ib]);
        const auto c = hn::Set(d, v[ic]);
        const auto e = hn::Set(d, v[ie]);
        a0 = hn::MulAdd(a, v0, a0);
        a1 = hn::MulAdd(a, v1, a1);
        b0 = hn::MulAdd(b, v0, b0);
        b1 = hn::MulAdd(b, v1, b1);
        c0 = hn::MulAdd(c, v0, c0);
        c1 = hn::MulAdd(c, v1, c1);
        e0 = hn::MulAdd(e, v0, e0);
        e1 = hn::MulAdd(e, v1, e1);
      }
    }
    HWY_ALIGN float tile[kTileRows * 2 * kMaxLanes];
    hn::Store(a0, d, tile);
    hn::Store(a1, d, tile + lanes);
    hn::Store(b0, d, tile + 2 * lanes);
    hn::Store(b1, d, tile + 3 * lanes);
    hn::Store(c0, d, tile + 4 * lanes);
    hn::Store(c1, d, tile + 5 * lanes);
    hn::Store(e0, d, tile + 6 * lanes);
    hn::Store(e1, d, tile + 7 * lanes);
    AddTile(tile, 2 * lanes, first_i, j, dim, sums);
  }
}

// totals[j] += the sum of v[j].
void AddVectors(const GramArgs& args, const float* rows, float* totals) {
  const hn::ScalableTag<float> d;
  for (size_t j = 0; j < args.dim; j += hn::Lanes(d)) {
    const size_t n = args.dim - j;
    auto sum = hn::Zero(d);
    for (size_t row = args.skip_rows; row < args.n_rows; ++row) {
      const float* v = rows + row * args.row_stride + args.first_column + j;
      for (size_t block = 0; block < args.n_blocks; ++block, v += args.dim) {
        sum = hn::Add(sum, LoadFirst(d, v, n));
      }
    }
    StoreFirst(d, hn::Add(LoadFirst(d, totals + j, n), sum), totals + j, n);
  }
}

// Tiles, which become shorter, and as the last the sums of the vectors.
void AddAll(ThreadPool& pool, const GramArgs& args, const float* rows, float* sums) {
  const size_t n_tiles = (args.dim + kTileRows - 1) / kTileRows;
  pool.ParallelFor(n_tiles + 1, 1, [&](size_t begin, size_t end, uint32_t) {
    for (size_t tile = begin; tile < end; ++tile) {
      if (tile < n_tiles)
        AddProducts(args, rows, tile * kTileRows, sums);
      else
        AddVectors(args, rows, sums + size_t{args.dim} * args.dim);
    }
  });
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
