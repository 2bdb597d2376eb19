// The gated delta rule (DeltaRuleArgs) of one head: a row at a time, and in chunks. Compiled once for each
// instruction set, hence the guard.
//
// Of a chunk, with alpha the decays, E[t, s] the product of those of rows s + 1 .. t, and e[t] that of all up
// to t, what row s writes is k[s] u[s]^T, where
//   u[t] = beta[t] (v[t] - e[t] S^T k[t] - sum over s < t of E[t, s] (k[s] . k[t]) u[s]),
// a triangular system. Then out[t] = e[t] S^T q[t] + sum over s <= t of E[t, s] (k[s] . q[t]) u[s], and the
// state becomes e[last] S + sum over s of E[last, s] k[s] u[s]^T. All but E are products of matrices.
#if defined(KVRUN_HOST_DELTA_RULE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_HOST_DELTA_RULE_INL_H_
#undef KVRUN_HOST_DELTA_RULE_INL_H_
#else
#define KVRUN_HOST_DELTA_RULE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "runtime/device/host/delta_rule_layout.h"

// Loops over arrays of vectors must be unrolled, or the arrays lie in memory.
#undef KVRUN_UNROLL_DELTA
#if defined(__clang__)
#define KVRUN_UNROLL_DELTA _Pragma("clang loop unroll(full)")
#else
#define KVRUN_UNROLL_DELTA _Pragma("GCC unroll 4")
#endif

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DeltaTag = hn::CappedTag<float, kDeltaPad>;
using DeltaVec = hn::Vec<DeltaTag>;
inline constexpr size_t kDeltaLanes = hn::MaxLanes(DeltaTag());
// Vectors of a tile of kDeltaTileRows rows. AVX-512 and NEON have 32 registers.
#if HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON
inline constexpr size_t kDeltaTileVectors = 4;
#else
inline constexpr size_t kDeltaTileVectors = 2;
#endif

// Columns of a head's state and what a row does with them: they are read, then, from the cache, changed.
template <class D, size_t kVectors>
HWY_INLINE void StepVectors(D d, const DeltaRow& row, size_t dims, const float* value, float* state,
                            float* out) {
  using V = hn::Vec<D>;
  const size_t lanes = hn::Lanes(d);
  V of_key[kVectors];
  V of_query[kVectors];
  KVRUN_UNROLL_DELTA
  for (size_t v = 0; v < kVectors; ++v) of_key[v] = of_query[v] = hn::Zero(d);
  for (size_t i = 0; i < dims; ++i) {
    const V key = hn::Set(d, row.key[i]);
    const V query = hn::Set(d, row.query[i]);
    KVRUN_UNROLL_DELTA
    for (size_t v = 0; v < kVectors; ++v) {
      const V s = hn::LoadU(d, state + i * dims + v * lanes);
      of_key[v] = hn::MulAdd(s, key, of_key[v]);
      of_query[v] = hn::MulAdd(s, query, of_query[v]);
    }
  }
  const V decay = hn::Set(d, row.decay);
  V change[kVectors];
  KVRUN_UNROLL_DELTA
  for (size_t v = 0; v < kVectors; ++v) {
    change[v] =
        hn::Mul(hn::Set(d, row.beta), hn::NegMulAdd(decay, of_key[v], hn::LoadU(d, value + v * lanes)));
    hn::StoreU(hn::MulAdd(hn::Set(d, row.key_query), change[v], hn::Mul(decay, of_query[v])), d,
               out + v * lanes);
  }
  for (size_t i = 0; i < dims; ++i) {
    const V key = hn::Set(d, row.key[i]);
    KVRUN_UNROLL_DELTA
    for (size_t v = 0; v < kVectors; ++v) {
      float* const s = state + i * dims + v * lanes;
      hn::StoreU(hn::MulAdd(key, change[v], hn::Mul(decay, hn::LoadU(d, s))), d, s);
    }
  }
}

// Columns [begin, end), multiples of 4; value and out: the head's.
void StepColumns(const DeltaRow& row, size_t dims, size_t begin, size_t end, const float* value, float* state,
                 float* out) {
  const DeltaTag d;
  size_t j = begin;
  for (; j + 4 * kDeltaLanes <= end; j += 4 * kDeltaLanes)
    StepVectors<DeltaTag, 4>(d, row, dims, value + j, state + j, out + j);
  for (; j + kDeltaLanes <= end; j += kDeltaLanes)
    StepVectors<DeltaTag, 1>(d, row, dims, value + j, state + j, out + j);
  const hn::CappedTag<float, 4> four;
  for (; j < end; j += hn::Lanes(four))
    StepVectors<decltype(four), 1>(four, row, dims, value + j, state + j, out + j);
}

// Four rows of out = (scales[row] * out, where there are scales, else nothing) + left * right: `left` has
// n_inner columns, of `right` these are kVectors vectors.
template <size_t kVectors>
HWY_INLINE void MultiplyFour(const float* HWY_RESTRICT left, size_t left_stride,
                             const float* HWY_RESTRICT right, size_t right_stride, size_t n_inner,
                             const float* scales, float* HWY_RESTRICT out, size_t out_stride) {
  const DeltaTag d;
  DeltaVec sums[kDeltaTileRows][kVectors];
  KVRUN_UNROLL_DELTA
  for (size_t r = 0; r < kDeltaTileRows; ++r) {
    KVRUN_UNROLL_DELTA
    for (size_t v = 0; v < kVectors; ++v) {
      sums[r][v] = scales == nullptr
                       ? hn::Zero(d)
                       : hn::Mul(hn::Set(d, scales[r]), hn::Load(d, out + r * out_stride + v * kDeltaLanes));
    }
  }
  for (size_t i = 0; i < n_inner; ++i) {
    DeltaVec vectors[kVectors];
    KVRUN_UNROLL_DELTA
    for (size_t v = 0; v < kVectors; ++v)
      vectors[v] = hn::Load(d, right + i * right_stride + v * kDeltaLanes);
    KVRUN_UNROLL_DELTA
    for (size_t r = 0; r < kDeltaTileRows; ++r) {
      const DeltaVec number = hn::Set(d, left[r * left_stride + i]);
      KVRUN_UNROLL_DELTA
      for (size_t v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(number, vectors[v], sums[r][v]);
    }
  }
  KVRUN_UNROLL_DELTA
  for (size_t r = 0; r < kDeltaTileRows; ++r) {
    KVRUN_UNROLL_DELTA
    for (size_t v = 0; v < kVectors; ++v) hn::Store(sums[r][v], d, out + r * out_stride + v * kDeltaLanes);
  }
}

// Which part of `left`, [n_rows, n_inner], counts: all of it, or what is below the first row of each four, or
// up to the last one's.
enum class DeltaInner { kAll, kBelow, kUpTo };

// A product's operands, as MultiplyFour takes them. n_rows are a multiple of kDeltaTileRows, n_cols of
// kDeltaPad.
struct DeltaProduct {
  const float* left;
  size_t left_stride;
  const float* right;
  size_t right_stride;
  size_t n_rows;
  size_t n_inner;
  size_t n_cols;
  const float* scales;  // of rows, or null
  float* out;
  size_t out_stride;
};

template <class F>
HWY_INLINE void ForVectors(size_t n_cols, const F& function) {
  size_t j = 0;
  for (; j + kDeltaTileVectors * kDeltaLanes <= n_cols; j += kDeltaTileVectors * kDeltaLanes)
    function.template operator()<kDeltaTileVectors>(j);
  for (; j + 2 * kDeltaLanes <= n_cols; j += 2 * kDeltaLanes) function.template operator()<2>(j);
  for (; j < n_cols; j += kDeltaLanes) function.template operator()<1>(j);
}

HWY_NOINLINE void Multiply(const DeltaProduct& p, DeltaInner inner) {
  ForVectors(p.n_cols, [&]<size_t kVectors>(size_t j) HWY_ATTR {
    for (size_t r = 0; r < p.n_rows; r += kDeltaTileRows) {
      const size_t n_inner = inner == DeltaInner::kAll ? p.n_inner : r + kDeltaTileRows;
      MultiplyFour<kVectors>(p.left + r * p.left_stride, p.left_stride, p.right + j, p.right_stride, n_inner,
                             p.scales == nullptr ? nullptr : p.scales + r, p.out + r * p.out_stride + j,
                             p.out_stride);
    }
  });
}

// u[t] += sum over s < t of left[t, s] u[s], row after row; left is zero from the diagonal on.
HWY_NOINLINE void Solve(const float* left, size_t n_rows, size_t n_cols, float* u) {
  constexpr float kOnes[kDeltaTileRows] = {1.0F, 1.0F, 1.0F, 1.0F};
  const DeltaTag d;
  ForVectors(n_cols, [&]<size_t kVectors>(size_t j) HWY_ATTR {
    for (size_t first = 0; first < n_rows; first += kDeltaTileRows) {
      float* const rows = u + first * n_cols + j;
      const float* const of_rows = left + first * kDeltaChunk;
      if (first > 0) MultiplyFour<kVectors>(of_rows, kDeltaChunk, u + j, n_cols, first, kOnes, rows, n_cols);
      for (size_t r = 1; r < kDeltaTileRows; ++r) {
        for (size_t v = 0; v < kVectors; ++v) {
          float* const to = rows + r * n_cols + v * kDeltaLanes;
          DeltaVec sum = hn::Load(d, to);
          for (size_t s = 0; s < r; ++s) {
            const DeltaVec row = hn::Load(d, rows + s * n_cols + v * kDeltaLanes);
            sum = hn::MulAdd(hn::Set(d, of_rows[r * kDeltaChunk + first + s]), row, sum);
          }
          hn::Store(sum, d, to);
        }
      }
    }
  });
}

// [n_rows, kDeltaChunk] each: E where s <= t, else zeros, times products of keys and -beta (below the
// diagonal alone), and times products with queries. `decayed`: E's last row.
HWY_NOINLINE void WeighProducts(const DeltaChunk& at, size_t n_rows) {
  const DeltaTag d;
  const DeltaVec nothing = hn::Set(d, kDeltaNothing);
  float* const decayed = at.decayed();
  std::fill_n(decayed, kDeltaChunk, 0.0F);
  for (size_t t = 0; t < n_rows; ++t) {
    const DeltaVec decay = hn::Set(d, at.decays()[t]);
    const DeltaVec minus_beta = hn::Set(d, -at.betas()[t]);
    const size_t width = (t / kDeltaTileRows + 1) * kDeltaTileRows;  // what products read
    for (size_t s = 0; s < width; s += kDeltaLanes) {
      const DeltaVec product = hn::Mul(hn::Load(d, decayed + s), decay);
      const DeltaVec left = hn::IfThenZeroElse(hn::Lt(product, nothing), product);
      hn::Store(left, d, decayed + s);
      const size_t place = t * kDeltaChunk + s;
      hn::Store(hn::Mul(hn::Mul(left, hn::Load(d, at.key_products() + place)), minus_beta), d,
                at.system() + place);
    }
    decayed[t] = 1.0F;
    for (size_t s = 0; s < width; s += kDeltaLanes) {
      const size_t place = t * kDeltaChunk + s;
      hn::Store(hn::Mul(hn::Load(d, decayed + s), hn::Load(d, at.query_products() + place)), d,
                at.weights() + place);
    }
  }
}

// Of keys and queries alone.
void MultiplyKeys(const DeltaChunk& at, size_t n_rows) {
  const size_t dims = at.dims;
  for (size_t r = 0; r < n_rows; r += kDeltaTileRows) {
    const size_t n_cols = (r / kDeltaPad + 1) * kDeltaPad;
    for (const bool is_query : {false, true}) {
      Multiply({(is_query ? at.queries() : at.keys()) + r * dims, dims, at.turned_keys(), kDeltaChunk,
                kDeltaTileRows, at.head_dim, n_cols, nullptr,
                (is_query ? at.query_products() : at.key_products()) + r * kDeltaChunk, kDeltaChunk},
               DeltaInner::kAll);
    }
  }
}

// `writes` holds the values; the outputs are in `outputs`, and the state is changed.
void AttendChunk(const DeltaChunk& at, size_t n_rows) {
  const DeltaTag d;
  const size_t dims = at.dims;
  Multiply({at.keys(), dims, at.state, dims, n_rows, at.head_dim, dims, nullptr, at.outputs(), dims},
           DeltaInner::kAll);
  for (size_t t = 0; t < n_rows; ++t) {
    const DeltaVec left = hn::Set(d, at.left()[t]);
    const DeltaVec beta = hn::Set(d, at.betas()[t]);
    for (size_t j = 0; j < dims; j += kDeltaLanes) {
      float* const to = at.writes() + t * dims + j;
      const DeltaVec found = hn::Load(d, at.outputs() + t * dims + j);
      hn::Store(hn::Mul(beta, hn::NegMulAdd(left, found, hn::Load(d, to))), d, to);
    }
  }
  WeighProducts(at, n_rows);
  Solve(at.system(), n_rows, dims, at.writes());
  Multiply({at.queries(), dims, at.state, dims, n_rows, at.head_dim, dims, nullptr, at.outputs(), dims},
           DeltaInner::kAll);
  Multiply(
      {at.weights(), kDeltaChunk, at.writes(), dims, n_rows, n_rows, dims, at.left(), at.outputs(), dims},
      DeltaInner::kUpTo);
  for (size_t t = 0; t < n_rows; ++t) {
    const DeltaVec decayed = hn::Set(d, at.decayed()[t]);
    for (size_t j = 0; j < dims; j += kDeltaLanes) {
      float* const to = at.writes() + t * dims + j;
      hn::Store(hn::Mul(decayed, hn::Load(d, to)), d, to);
    }
  }
  std::fill_n(at.state_scales(), at.head_dim, at.left()[n_rows - 1]);
  Multiply({at.turned_keys(), kDeltaChunk, at.writes(), dims, at.head_dim, n_rows, dims, at.state_scales(),
            at.state, dims},
           DeltaInner::kAll);
}

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_HOST_DELTA_RULE_INL_H_
