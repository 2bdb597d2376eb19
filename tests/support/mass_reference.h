// The scalar references of attention's mass (MassForm of runtime/device/device.h): plain loops, sums in
// double.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/device/device.h"
#include "shaders/shared/step_params.h"
#include "tests/support/slot_reference.h"

namespace kvrun::testing {

// Joins what the rows give to the entries of args.sources[nth] into `mass`, which lies as SlotSource::mass.
// row_weights: AttendSlotsReference's.
void SlotMassReference(const SlotReferenceArgs& args, uint32_t n_sequences,
                       std::span<const RowWeights> row_weights, uint32_t nth, const MassForm& form,
                       std::span<double> mass);

// The fields of RowMassArgs that say what a tile is and who sees it.
struct RowMassReferenceArgs {
  std::span<const float> queries;
  std::span<const StepToken> rows;
  uint32_t n_heads = 0;
  KvShape kv_shape;
  std::span<const float> kv;  // as numbers
  uint32_t tile_begin = 0;
  uint32_t n_entries = 0;
  float score_cap = 0.0F;
  float score_scale = 0.0F;
};
// [n_rows, n_heads, 2], as RowMassArgs::sums; of what was not seen, the float -1e30 and 0.
void SumWeightsReference(const RowMassReferenceArgs& args, bool is_first, std::span<double> sums);
// [n_moments, n_kv_heads, mass_stride].
void AttentionMassReference(const RowMassReferenceArgs& args, std::span<const double> sums,
                            const MassForm& form, uint32_t mass_stride, uint32_t mass_begin,
                            std::span<double> mass);

}  // namespace kvrun::testing
