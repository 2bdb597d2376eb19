// Attention of many rows: lanes lie along the rows, and each block is decoded once for all of them.
// Compiled once for each instruction set, hence the guard.
#if defined(KVRUN_HOST_ATTEND_MANY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_HOST_ATTEND_MANY_INL_H_
#undef KVRUN_HOST_ATTEND_MANY_INL_H_
#else
#define KVRUN_HOST_ATTEND_MANY_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "runtime/device/host/attend_elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

// Products of four rows of numbers from `left` (one number after the other) with vectors of `right`:
// to[j][v] += left[j * left_stride + i * left_step] * right[i][v], for i below `count`.
template <size_t kVectors>
HWY_INLINE void Multiply(const float* HWY_RESTRICT left, size_t left_stride, size_t left_step,
                         const float* HWY_RESTRICT right, size_t right_stride, size_t count,
                         Vector (&to)[4][kVectors]) {
  const Floats d;
  for (size_t i = 0; i < count; ++i) {
    Vector vectors[kVectors];
    for (size_t v = 0; v < kVectors; ++v) vectors[v] = hn::Load(d, right + i * right_stride + v * kLanes);
    for (size_t j = 0; j < 4; ++j) {
      const Vector number = hn::Set(d, left[j * left_stride + i * left_step]);
      for (size_t v = 0; v < kVectors; ++v) to[j][v] = hn::MulAdd(number, vectors[v], to[j][v]);
    }
  }
}

// scores[entry][lane], of kVectors vectors of rows from `lane` on. Keys beyond the last entry are zeros.
template <size_t kVectors>
HWY_NOINLINE void ScoreMany(const Layout& at, size_t n_entries, size_t head_dim, size_t lane) {
  const Floats d;
  for (size_t entry = 0; entry < n_entries; entry += 4) {
    Vector scores[4][kVectors];
    for (size_t j = 0; j < 4; ++j)
      for (size_t v = 0; v < kVectors; ++v) scores[j][v] = hn::Zero(d);
    Multiply<kVectors>(at.keys() + entry * at.dims, at.dims, 1, at.queries() + lane, at.lanes, head_dim,
                       scores);
    for (size_t j = 0; j < 4; ++j)
      for (size_t v = 0; v < kVectors; ++v)
        hn::Store(scores[j][v], d, at.scores() + (entry + j) * at.lanes + lane + v * kLanes);
  }
}

template <size_t kVectors>
HWY_NOINLINE void AccumulateMany(const Layout& at, size_t n_entries, size_t head_dim, size_t lane) {
  const Floats d;
  for (size_t i = 0; i < head_dim; i += 4) {
    Vector sums[4][kVectors];
    float* HWY_RESTRICT to = at.sums() + i * at.lanes + lane;
    for (size_t v = 0; v < kVectors; ++v) {
      const Vector correction = hn::Load(d, at.correction() + lane + v * kLanes);
      for (size_t j = 0; j < 4; ++j)
        sums[j][v] = hn::Mul(hn::Load(d, to + j * at.lanes + v * kLanes), correction);
    }
    Multiply<kVectors>(at.values() + i, 1, at.dims, at.scores() + lane, at.lanes, n_entries, sums);
    for (size_t j = 0; j < 4; ++j)
      for (size_t v = 0; v < kVectors; ++v) hn::Store(sums[j][v], d, to + j * at.lanes + v * kLanes);
  }
}

// A vector of rows from `lane` on. visible: of each row, as a number.
void SoftmaxMany(const Layout& at, size_t n_entries, size_t lane, const float* visible) {
  const Floats d;
  const Vector masked = hn::Set(d, kMaskedScore);
  const Vector last = hn::Load(d, visible + lane);
  const bool sees_all = hn::AllTrue(d, hn::Ge(last, hn::Set(d, static_cast<float>(n_entries))));
  float* HWY_RESTRICT scores = at.scores() + lane;
  const Vector before = hn::Load(d, at.maximum() + lane);
  Vector maximum = before;
  for (size_t entry = 0; entry < n_entries; ++entry) {
    Vector score = hn::Load(d, scores + entry * at.lanes);
    if (!sees_all) {
      score = hn::IfThenElse(hn::Lt(hn::Set(d, static_cast<float>(entry)), last), score, masked);
      hn::Store(score, d, scores + entry * at.lanes);
    }
    maximum = hn::Max(maximum, score);
  }
  const Vector correction = hn::Exp(d, hn::Sub(before, maximum));
  Vector weight = hn::Mul(hn::Load(d, at.weight() + lane), correction);
  for (size_t entry = 0; entry < n_entries; ++entry) {
    const Vector score = hn::Load(d, scores + entry * at.lanes);
    const auto is_seen = hn::Gt(score, hn::Set(d, 0.5F * kMaskedScore));
    const Vector one = hn::IfThenElseZero(is_seen, hn::Exp(d, hn::Sub(score, maximum)));
    hn::Store(one, d, scores + entry * at.lanes);
    weight = hn::Add(weight, one);
  }
  hn::Store(maximum, d, at.maximum() + lane);
  hn::Store(weight, d, at.weight() + lane);
  hn::Store(correction, d, at.correction() + lane);
}

template <bool kIsValue>
void ForLanes(const Layout& at, size_t n_entries, size_t head_dim) {
  constexpr size_t kMost = kManyRegisters ? 4 : 2;
  size_t lane = 0;
  const auto run = [&]<size_t kVectors>() {
    for (; lane + kVectors * kLanes <= at.lanes; lane += kVectors * kLanes) {
      if constexpr (kIsValue) {
        AccumulateMany<kVectors>(at, n_entries, head_dim, lane);
      } else {
        ScoreMany<kVectors>(at, n_entries, head_dim, lane);
      }
    }
  };
  run.template operator()<kMost>();
  if constexpr (kMost > 2) run.template operator()<2>();
  run.template operator()<1>();
}

void AttendMany(const AttendRows& rows, const Layout& at, const KvBlock& block) {
  const size_t n = block.n_entries;
  const size_t head_dim = rows.head_dim;
  DecodeBlock(block.k_type, block.k, at.k_scales(), n, head_dim, at.keys());
  const size_t padded = RoundUp<size_t>(n, 4);
  std::memset(at.keys() + n * at.dims, 0, (padded - n) * at.dims * sizeof(float));
  DecodeBlock(block.v_type, block.v, at.v_scales(), n, head_dim, at.values());
  ForLanes<false>(at, n, head_dim);
  alignas(64) float visible[kMaxAttendRows] = {};
  for (size_t r = 0; r < rows.n_rows; ++r) visible[r] = static_cast<float>(block.visible[r]);
  for (size_t lane = 0; lane < at.lanes; lane += kLanes) SoftmaxMany(at, n, lane, visible);
  ForLanes<true>(at, n, head_dim);
}

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_HOST_ATTEND_MANY_INL_H_
