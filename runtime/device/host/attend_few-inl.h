// Attention of few rows: lanes lie along dimensions, and K and V are decoded in registers. Compiled once
// for each instruction set, hence the guard.
#if defined(KVRUN_HOST_ATTEND_FEW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_HOST_ATTEND_FEW_INL_H_
#undef KVRUN_HOST_ATTEND_FEW_INL_H_
#else
#define KVRUN_HOST_ATTEND_FEW_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "runtime/device/host/attend_elements-inl.h"
#include "runtime/device/host/attend_few_rounded-inl.h"
#include "runtime/device/host/prefetch.h"
#include "runtime/device/host/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

// Adds products of keys with queries, [kRows, dims]; sums: [kRows, kEntries]. All indices are constants: with
// others GCC 12 stores every sum after each product.
template <size_t kRows, size_t kEntries>
HWY_INLINE void AddKeyProducts(const float* HWY_RESTRICT queries, size_t dims, const Vector (&keys)[kEntries],
                               Vector (&sums)[kRows * kEntries]) {
  ForConstants<kRows>([&](auto r) HWY_ATTR {
    const Vector query = hn::Load(Floats(), queries + r * dims);
    ForConstants<kEntries>([&](auto e) HWY_ATTR {
      sums[r * kEntries + e] = hn::MulAdd(keys[e], query, sums[r * kEntries + e]);
    });
  });
}

// scores[r * kBlockEntries + entry] = q[r] . k[entry], without scales of whole rows.
template <KvType kType, size_t kRows>
HWY_NOINLINE void ScoreFew(const KvBlock& block, const Ahead& ahead, size_t head_dim, const FewLayout& at,
                           size_t first_row) {
  constexpr size_t kEntries = HWY_MIN(kLanes, (kRows > 2 && !kManyRegisters) ? 2 : 4);
  constexpr size_t kParts = kLanes / kEntries;
  const Floats d;
  const size_t n_scales = RowScales(kType, static_cast<uint32_t>(head_dim));
  const size_t dims = at.dims;
  const float* HWY_RESTRICT queries = at.queries() + first_row * dims;
  float* HWY_RESTRICT scores = at.scores() + first_row * kBlockEntries;
  const size_t whole = head_dim / kLanes * kLanes;
  for (size_t begin = 0; begin < block.n_entries; begin += kLanes) {
    Vector parts[kRows][kParts];
    for (size_t part = 0; part < kParts; ++part) {
      const std::byte* rows[kEntries];
      const float* scales[kEntries];
      ForConstants<kEntries>([&](auto e) HWY_ATTR {
        // Beyond the last entry: the last again.
        const size_t entry = HWY_MIN(begin + part * kEntries + e, block.n_entries - 1);
        ahead.Prefetch(begin + part * kEntries + e);
        rows[e] = block.k[entry];
        scales[e] = at.k_scales() + entry * n_scales;
      });
      Vector sums[kRows * kEntries];
      ForConstants<kRows * kEntries>([&](auto k) HWY_ATTR { sums[k] = hn::Zero(d); });
      Vector keys[kEntries];
      for (size_t i = 0; i < whole; i += kLanes) {
        ForConstants<kEntries>([&](auto e) HWY_ATTR { keys[e] = LoadScaled<kType>(rows[e], scales[e], i); });
        AddKeyProducts<kRows>(queries + i, dims, keys, sums);
      }
      if (whole < head_dim) {
        ForConstants<kEntries>(
            [&](auto e) HWY_ATTR { keys[e] = LoadTail<kType>(rows[e], scales[e], whole, head_dim); });
        AddKeyProducts<kRows>(queries + whole, dims, keys, sums);
      }
      ForConstants<kRows>([&](auto r)
                              HWY_ATTR { parts[r][part] = SumEach<kEntries>(d, sums + r * kEntries); });
    }
    for (size_t r = 0; r < kRows; ++r) {
      hn::Store(SumEach<kParts, kEntries>(d, parts[r]), d, scores + r * kBlockEntries + begin);
    }
  }
}

// Scales and the cap of scores; k_scales as below.
HWY_NOINLINE void CapFew(const AttendRows& rows, const FewLayout& at, const KvBlock& block,
                         const float* k_scales) {
  const Floats d;
  for (size_t r = 0; r < rows.n_rows; ++r) {
    float* scores = at.scores() + r * kBlockEntries;
    for (size_t i = 0; i < block.n_entries; i += kLanes) {
      Vector score = hn::Load(d, scores + i);
      if (k_scales != nullptr) score = hn::Mul(score, hn::Load(d, k_scales + i));
      hn::Store(Capped(d, score, rows.score_cap), d, scores + i);
    }
  }
}

// Scales and biases of scores, where entries have any; k_scales as below.
HWY_NOINLINE void AddBiasesFew(const AttendRows& rows, const FewLayout& at, const KvBlock& block,
                               const float* k_scales) {
  const Floats d;
  for (size_t r = 0; r < rows.n_rows; ++r) {
    float* scores = at.scores() + r * kBlockEntries;
    for (size_t i = 0; i < block.n_entries; i += kLanes) {
      Vector score = hn::Load(d, scores + i);
      if (k_scales != nullptr) score = hn::Mul(score, hn::Load(d, k_scales + i));
      hn::Store(hn::Add(score, hn::LoadU(d, block.biases + i)), d, scores + i);
    }
  }
}

// Scores to weights. k_scales, v_scales: one for each entry, or null.
HWY_NOINLINE void SoftmaxFew(const AttendRows& rows, const FewLayout& at, const KvBlock& block,
                             const float* k_scales, const float* v_scales) {
  const Floats d;
  const Vector masked = hn::Set(d, kMaskedScore);
  const size_t n_entries = block.n_entries;
  alignas(64) float maximum[kPadFloats] = {};
  for (size_t r = 0; r < rows.n_rows; ++r) {
    float* scores = at.scores() + r * kBlockEntries;
    const size_t visible = HWY_MIN(size_t{block.visible[r]}, n_entries);
    Vector largest = hn::Set(d, at.maximum()[r]);
    for (size_t i = 0; i < n_entries; i += kLanes) {
      Vector score = hn::Load(d, scores + i);
      if (k_scales != nullptr) score = hn::Mul(score, hn::Load(d, k_scales + i));
      if (i + kLanes > visible) {
        score = hn::IfThenElse(hn::FirstN(d, visible > i ? visible - i : 0), score, masked);
      }
      hn::Store(score, d, scores + i);
      largest = hn::Max(largest, score);
    }
    maximum[r] = hn::GetLane(hn::MaxOfLanes(d, largest));
  }
  for (size_t r = 0; r < rows.n_rows; r += kLanes) {
    const Vector of_rows = hn::Load(d, maximum + r);
    const Vector before = hn::IfThenElseZero(hn::FirstN(d, rows.n_rows - r), hn::Load(d, at.maximum() + r));
    hn::Store(hn::Exp(d, hn::Sub(before, of_rows)), d, at.correction() + r);
    hn::Store(of_rows, d, at.maximum() + r);
  }
  for (size_t r = 0; r < rows.n_rows; ++r) {
    float* scores = at.scores() + r * kBlockEntries;
    float* const kept = block.kept_weights != nullptr ? block.kept_weights + r * kBlockEntries : nullptr;
    if (kept != nullptr) block.kept_maxima[r] = at.maximum()[r];
    const Vector of_row = hn::Set(d, at.maximum()[r]);
    Vector weight = hn::Zero(d);
    for (size_t i = 0; i < n_entries; i += kLanes) {
      const Vector score = hn::Load(d, scores + i);
      const auto is_seen = hn::Gt(score, hn::Set(d, 0.5F * kMaskedScore));
      Vector one = hn::IfThenElseZero(is_seen, hn::Exp(d, hn::Sub(score, of_row)));
      one = hn::IfThenElse(hn::IsNaN(score), score, one);  // Exp makes it 0
      weight = hn::Add(weight, one);
      if (kept != nullptr) hn::StoreU(one, d, kept + i);
      if (v_scales != nullptr) one = hn::Mul(one, hn::Load(d, v_scales + i));
      hn::Store(one, d, scores + i);
    }
    at.weight()[r] = at.weight()[r] * at.correction()[r] + hn::GetLane(hn::SumOfLanes(d, weight));
  }
}

// Sums of kVectors vectors of dimensions from `begin` on.
template <KvType kType, size_t kRows, size_t kVectors, bool kIsTail>
HWY_INLINE void AccumulatePart(const KvBlock& block, const Ahead& ahead, size_t head_dim, const FewLayout& at,
                               size_t first_row, size_t begin) {
  const Floats d;
  const size_t n_scales = RowScales(kType, static_cast<uint32_t>(head_dim));
  const float* HWY_RESTRICT weights = at.scores() + first_row * kBlockEntries;
  const float* HWY_RESTRICT scales = at.v_scales();
  float* HWY_RESTRICT to = at.sums() + first_row * at.dims + begin;
  Vector sums[kRows][kVectors];
  for (size_t r = 0; r < kRows; ++r) {
    const Vector correction = hn::Set(d, at.correction()[first_row + r]);
    for (size_t v = 0; v < kVectors; ++v) {
      sums[r][v] = hn::Mul(hn::Load(d, to + r * at.dims + v * kLanes), correction);
    }
  }
  for (size_t entry = 0; entry < block.n_entries; ++entry) {
    ahead.Prefetch(entry);
    Vector values[kVectors];
    if constexpr (kIsTail) {
      values[0] = LoadTail<kType>(block.v[entry], scales + entry * n_scales, begin, head_dim);
    } else {
      LoadManyScaled<kType>(block.v[entry], scales + entry * n_scales, begin, values);
    }
    for (size_t r = 0; r < kRows; ++r) {
      const Vector weight = hn::Set(d, weights[r * kBlockEntries + entry]);
      for (size_t v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(values[v], weight, sums[r][v]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) hn::Store(sums[r][v], d, to + r * at.dims + v * kLanes);
  }
}

template <KvType kType, size_t kRows>
HWY_NOINLINE void AccumulateFew(const KvBlock& block, const Ahead& ahead, size_t head_dim,
                                const FewLayout& at, size_t first_row) {
  constexpr size_t kVectors = (kRows > 2 && !kManyRegisters) ? 2 : 4;
  Ahead once = ahead;
  size_t begin = 0;
  for (; begin + kVectors * kLanes <= head_dim; begin += kVectors * kLanes) {
    AccumulatePart<kType, kRows, kVectors, false>(block, once, head_dim, at, first_row, begin);
    once = {};
  }
  for (; begin + kLanes <= head_dim; begin += kLanes) {
    AccumulatePart<kType, kRows, 1, false>(block, once, head_dim, at, first_row, begin);
    once = {};
  }
  if (begin < head_dim) AccumulatePart<kType, kRows, 1, true>(block, once, head_dim, at, first_row, begin);
}

// For more rows than four, elements are decoded again, from the cache: to decode a block once for both passes
// took as long or longer (8 rows of 64 and 128 dimensions, every type, AVX-512 and AVX2).
template <bool kIsValue>
void ForRows(KvType type, const KvBlock& block, const Ahead& ahead, const AttendRows& rows,
             const FewLayout& at) {
  WithType(type, [&]<KvType kType>() {
    ForFours(rows.n_rows, ahead, [&]<size_t kRows>(size_t row, const Ahead& once) {
      if constexpr (kIsValue) {
        AccumulateFew<kType, kRows>(block, once, rows.head_dim, at, row);
      } else {
        ScoreFew<kType, kRows>(block, once, rows.head_dim, at, row);
      }
    });
  });
}

HWY_INLINE Ahead AheadOf(size_t n_entries, KvType type, uint32_t head_dim, const std::byte* const* rows,
                         const std::byte* const* scales) {
  return {n_entries, RowBytes(type, head_dim), rows, RowScales(type, head_dim) != 0 ? scales : nullptr};
}

void AttendFew(const AttendRows& rows, const KvBlock& block, const KvBlock* next) {
  const FewLayout at(rows);
  const bool rounds_keys = RoundsType(rows, block.k_type);
  const bool rounds_values = RoundsType(rows, block.v_type);
  LoadScales(block.k_type, rows.head_dim, block.n_entries, block.k_scales, at.k_scales());
  const Ahead values = AheadOf(block.n_entries, block.v_type, rows.head_dim, block.v, block.v_scales);
#if KVRUN_ATTENDS_ROUNDED
  if (rounds_keys) ScoreRoundedFew(rows, at, block, values);
#endif
  if (!rounds_keys) ForRows<false>(block.k_type, block, values, rows, at);
  const float* k_scales = HasRowScale(block.k_type) ? at.k_scales() : nullptr;
  if (rows.score_cap > 0.0F) {
    CapFew(rows, at, block, k_scales);
    k_scales = nullptr;
  }
  if (block.has_biases) {
    AddBiasesFew(rows, at, block, k_scales);
    k_scales = nullptr;
  }
  if (!rounds_values) LoadScales(block.v_type, rows.head_dim, block.n_entries, block.v_scales, at.v_scales());
  const bool scales_weights = HasRowScale(block.v_type) && !rounds_values;
  SoftmaxFew(rows, at, block, k_scales, scales_weights ? at.v_scales() : nullptr);
  Ahead keys;
  if (next != nullptr) keys = AheadOf(next->n_entries, next->k_type, rows.head_dim, next->k, next->k_scales);
#if KVRUN_ATTENDS_ROUNDED
  if (rounds_values) AccumulateRoundedFew(rows, at, block, keys);
#endif
  if (!rounds_values) ForRows<true>(block.v_type, block, keys, rows, at);
}

void BeginFew(const AttendRows& rows, const float* const* queries, const float* const* before) {
  const FewLayout at(rows);
  const float scale = ScoreFactor(rows, 1.0F);
  std::fill_n(at.queries(), rows.n_rows * at.dims, 0.0F);
  std::fill_n(at.sums(), rows.n_rows * at.dims, 0.0F);
  std::fill_n(at.maximum(), rows.n_rows, kMaskedScore);
  std::fill_n(at.weight(), rows.n_rows, 0.0F);
  for (uint32_t r = 0; r < rows.n_rows; ++r) {
    for (uint32_t i = 0; i < rows.head_dim; ++i) at.queries()[r * at.dims + i] = queries[r][i] * scale;
  }
#if KVRUN_ATTENDS_ROUNDED
  if (rows.rounds) BeginRoundedFew(rows, at);
#endif
  for (uint32_t r = 0; before != nullptr && r < rows.n_rows; ++r) {
    std::copy_n(before[r], rows.head_dim, at.sums() + r * at.dims);
    at.maximum()[r] = before[r][rows.head_dim];
    at.weight()[r] = before[r][rows.head_dim + 1];
  }
}

void EndFew(const AttendRows& rows, float* const* parts) {
  const FewLayout at(rows);
  for (uint32_t r = 0; r < rows.n_rows; ++r) {
    std::copy_n(at.sums() + r * at.dims, rows.head_dim, parts[r]);
    parts[r][rows.head_dim] = at.maximum()[r];
    parts[r][rows.head_dim + 1] = at.weight()[r];
  }
}

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_HOST_ATTEND_FEW_INL_H_
