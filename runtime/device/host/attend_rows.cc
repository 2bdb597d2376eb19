#include "runtime/device/host/attend_rows.h"

// Vectors lie in arrays here, which those of unknown length cannot; processors that have them have NEON.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/host/attend_rows.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "runtime/device/host/attend_few-inl.h"
#include "runtime/device/host/attend_many-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvrun::host {
namespace HWY_NAMESPACE {

void AttendBlockHere(const AttendRows& rows, const KvBlock& block, const KvBlock* next) {
  const Layout at(rows);
  LoadScales(block.k_type, rows.head_dim, block.n_entries, block.k_scales, at.k_scales());
  LoadScales(block.v_type, rows.head_dim, block.n_entries, block.v_scales, at.v_scales());
  if (at.lanes == 0) {
    AttendFew(rows, at, block, next);
  } else {
    AttendMany(rows, at, block);
  }
}

void DecodeRowsHere(KvType type, uint32_t head_dim, uint32_t n_entries, const std::byte* const* rows,
                    const std::byte* const* scales, float* to) {
  alignas(64) float row_scales[kBlockEntries * kMaxRowScales + kPadFloats];
  LoadScales(type, head_dim, n_entries, scales, row_scales);
  DecodeBlock(type, rows, row_scales, n_entries, head_dim, to);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvrun::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <cmath>

namespace kvrun::host {

HWY_EXPORT(AttendBlockHere);
HWY_EXPORT(DecodeRowsHere);

size_t AttendRowsBytes(uint32_t head_dim) {
  const AttendRows rows{.head_dim = head_dim};
  return Layout(rows).count() * sizeof(float);
}

void BeginAttend(const AttendRows& rows, const float* const* queries) {
  const Layout at(rows);
  const float scale = 1.0F / std::sqrt(static_cast<float>(rows.head_dim));
  const size_t n_padded = at.lanes == 0 ? rows.n_rows : at.lanes;
  std::fill_n(at.queries(), n_padded * at.dims, 0.0F);
  std::fill_n(at.sums(), n_padded * at.dims, 0.0F);
  std::fill_n(at.maximum(), kMaxAttendRows, kMaskedScore);
  std::fill_n(at.weight(), kMaxAttendRows, 0.0F);
  const size_t row_step = at.lanes == 0 ? at.dims : 1;
  const size_t dim_step = at.lanes == 0 ? 1 : at.lanes;
  for (size_t r = 0; r < rows.n_rows; ++r) {
    float* to = at.queries() + r * row_step;
    for (size_t i = 0; i < rows.head_dim; ++i) to[i * dim_step] = queries[r][i] * scale;
  }
}

void AttendBlock(const AttendRows& rows, const KvBlock& block, const KvBlock* next) {
  HWY_DYNAMIC_DISPATCH(AttendBlockHere)(rows, block, next);
}

void DecodeRows(KvType type, uint32_t head_dim, uint32_t n_entries, const std::byte* const* rows,
                const std::byte* const* scales, float* to) {
  HWY_DYNAMIC_DISPATCH(DecodeRowsHere)(type, head_dim, n_entries, rows, scales, to);
}

void EndAttend(const AttendRows& rows, float* parts) {
  const Layout at(rows);
  const size_t row_step = at.lanes == 0 ? at.dims : 1;
  const size_t dim_step = at.lanes == 0 ? 1 : at.lanes;
  for (size_t r = 0; r < rows.n_rows; ++r) {
    const float* sums = at.sums() + r * row_step;
    float* part = parts + r * AttendPartFloats(rows.head_dim);
    for (size_t i = 0; i < rows.head_dim; ++i) part[i] = sums[i * dim_step];
    part[rows.head_dim] = at.maximum()[r];
    part[rows.head_dim + 1] = at.weight()[r];
  }
}

}  // namespace kvrun::host
#endif
