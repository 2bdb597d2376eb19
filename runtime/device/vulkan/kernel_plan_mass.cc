// Choices for the operations that tell how much attention entries receive.
#include <fmt/format.h>

#include <algorithm>

#include "platform/base/units.h"
#include "runtime/device/vulkan/kernel_plan.h"
#include "shaders/shared/mass_params.h"

namespace kvrun {
namespace {

static_assert(static_cast<uint32_t>(MassForm::Heads::kMean) == KVRUN_MASS_HEADS_MEAN);
static_assert(static_cast<uint32_t>(MassForm::Heads::kLargest) == KVRUN_MASS_HEADS_LARGEST);
static_assert(static_cast<uint32_t>(MassForm::Rows::kAdd) == KVRUN_MASS_ROWS_ADD);
static_assert(static_cast<uint32_t>(MassForm::Rows::kLargest) == KVRUN_MASS_ROWS_LARGEST);
static_assert(static_cast<uint32_t>(MassForm::Rows::kReplace) == KVRUN_MASS_ROWS_REPLACE);

constexpr uint32_t kMassLocalSize = 64;  // of attention_mass.comp
constexpr uint32_t kQueries = 8;         // of row_mass.glsl

// Of slot_mass.comp. A CPU's invocations have more entries each: what they find out first takes as long as
// many of these.
constexpr uint32_t kMostSlotMassRows = 4;
constexpr uint32_t kSlotMassLocalSize = 64;
constexpr uint32_t kSlotMassEntries = 256;
constexpr uint32_t kCpuSlotMassLocalSize = 8;
constexpr uint32_t kCpuSlotMassEntries = 2048;

std::vector<uint32_t> VectorConstant(const KvShape& kv) { return {kv.head_dim % 8 == 0 ? 1U : 0U}; }

}  // namespace

KernelChoice ChooseSlotMass(bool is_cpu, const SlotShape& slots, const MassForm& form, uint32_t n_heads,
                            uint32_t n_kv_heads, uint32_t n_tokens) {
  const uint32_t n_entries = slots.table_slots * slots.record.group_tokens;
  const uint32_t group = n_heads / n_kv_heads;
  const uint32_t group_entries = is_cpu ? kCpuSlotMassEntries : kSlotMassEntries;
  return {.variant = "slot_mass_f32_floor",
          .constants = {slots.record.group_tokens == 1 ? 1U : 0U, slots.has_biases ? 1U : 0U, form.n_moments,
                        std::min(group, kMostSlotMassRows), group > kMostSlotMassRows ? 1U : 0U,
                        group_entries, is_cpu ? kCpuSlotMassLocalSize : kSlotMassLocalSize},
          .groups = {CeilDiv(n_entries, group_entries), n_kv_heads, n_tokens}};
}

KernelChoice ChooseSumWeights(const KvShape& kv, uint32_t n_heads, uint32_t n_rows) {
  return {.variant = fmt::format("sum_weights_{}_floor", VariantTypeName(kv.type)),
          .constants = VectorConstant(kv),
          .groups = {CeilDiv(n_rows * (n_heads / kv.n_kv_heads), kQueries), kv.n_kv_heads, 1}};
}

KernelChoice ChooseAttentionMass(const KvShape& kv, uint32_t n_entries) {
  return {.variant = fmt::format("attention_mass_{}_floor", VariantTypeName(kv.type)),
          .constants = VectorConstant(kv),
          .groups = {CeilDiv(n_entries, kMassLocalSize), kv.n_kv_heads, 1}};
}

}  // namespace kvrun
