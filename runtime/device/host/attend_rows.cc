#include "runtime/device/host/attend_rows.h"

#include <algorithm>

#include "runtime/device/instruction_targets.h"
#define HWY_WANT_AVX3_DL  // it has VNNI
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/host/attend_rows.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "runtime/device/host/attend_few-inl.h"
#include "runtime/device/host/attend_many-inl.h"
#include "runtime/device/host/attend_rounded-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvrun::host {
namespace HWY_NAMESPACE {

void BeginAttendHere(const AttendRows& rows, const float* const* queries, const float* const* before) {
  if (!AreMany(rows)) return BeginFew(rows, queries, before);
#if KVRUN_ATTENDS_ROUNDED
  if (rows.rounds) BeginRounded(rows, queries);
#endif
  BeginMany(rows, queries, before);
}

void AttendBlockHere(const AttendRows& rows, const KvBlock& block, const KvBlock* next) {
  if (!AreMany(rows)) return AttendFew(rows, block, next);
  const ManyLayout at(rows);
  LoadScales(block.k_type, rows.head_dim, block.n_entries, block.k_scales, at.k_scales());
  LoadScales(block.v_type, rows.head_dim, block.n_entries, block.v_scales, at.v_scales());
#if KVRUN_ATTENDS_ROUNDED
  if (rows.rounds) return AttendRounded(rows, block);
#endif
  AttendMany(rows, block);
}

void EndAttendHere(const AttendRows& rows, float* const* parts) {
  if (AreMany(rows)) {
    EndMany(rows, parts);
  } else {
    EndFew(rows, parts);
  }
}

void DecodeRowsHere(KvType type, uint32_t head_dim, uint32_t n_entries, const std::byte* const* rows,
                    const std::byte* const* scales, float* to) {
  alignas(64) float row_scales[kBlockEntries * kMaxRowScales + kPadFloats];
  LoadScales(type, head_dim, n_entries, scales, row_scales);
  DecodeBlock(type, rows, row_scales, n_entries, head_dim, to);
}

template <bool kAdds, uint32_t kMoments>
void JoinMoments(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT factors, uint32_t n_rows,
                 float* HWY_RESTRICT moments) {
  const Floats d;
  for (size_t i = 0; i < kBlockEntries; i += kLanes) {
    Vector joined[kMoments];
    for (size_t m = 0; m < kMoments; ++m) joined[m] = hn::LoadU(d, moments + m * kBlockEntries + i);
    for (size_t r = 0; r < n_rows; ++r) {
      const Vector weight = hn::Mul(hn::LoadU(d, weights + r * kBlockEntries + i), hn::Set(d, factors[r]));
      Vector power = weight;
      for (size_t m = 0; m < kMoments; ++m) {
        joined[m] = kAdds ? hn::Add(joined[m], power) : hn::Max(joined[m], power);
        power = hn::Mul(power, weight);
      }
    }
    for (size_t m = 0; m < kMoments; ++m) hn::StoreU(joined[m], d, moments + m * kBlockEntries + i);
  }
}

void JoinWeightsHere(const float* weights, const float* factors, uint32_t n_rows, uint32_t n_moments,
                     bool adds, float* moments) {
  if (n_moments == 1) {
    adds ? JoinMoments<true, 1>(weights, factors, n_rows, moments)
         : JoinMoments<false, 1>(weights, factors, n_rows, moments);
  } else {
    adds ? JoinMoments<true, 2>(weights, factors, n_rows, moments)
         : JoinMoments<false, 2>(weights, factors, n_rows, moments);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvrun::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvrun::host {

HWY_EXPORT(BeginAttendHere);
HWY_EXPORT(AttendBlockHere);
HWY_EXPORT(EndAttendHere);
HWY_EXPORT(DecodeRowsHere);
HWY_EXPORT(JoinWeightsHere);

size_t AttendRowsBytes(uint32_t head_dim) {
  const AttendRows rows{.head_dim = head_dim};
  return std::max(FewLayout(rows).count(), ManyLayout(rows).count()) * sizeof(float);
}

void BeginAttend(const AttendRows& rows, const float* const* queries, const float* const* before) {
  HWY_DYNAMIC_DISPATCH(BeginAttendHere)(rows, queries, before);
}

void AttendBlock(const AttendRows& rows, const KvBlock& block, const KvBlock* next) {
  HWY_DYNAMIC_DISPATCH(AttendBlockHere)(rows, block, next);
}

void EndAttend(const AttendRows& rows, float* const* parts) {
  HWY_DYNAMIC_DISPATCH(EndAttendHere)(rows, parts);
}

void DecodeRows(KvType type, uint32_t head_dim, uint32_t n_entries, const std::byte* const* rows,
                const std::byte* const* scales, float* to) {
  HWY_DYNAMIC_DISPATCH(DecodeRowsHere)(type, head_dim, n_entries, rows, scales, to);
}

void JoinWeights(const float* weights, const float* factors, uint32_t n_rows, uint32_t n_moments, bool adds,
                 float* moments) {
  HWY_DYNAMIC_DISPATCH(JoinWeightsHere)(weights, factors, n_rows, n_moments, adds, moments);
}

}  // namespace kvrun::host
#endif
