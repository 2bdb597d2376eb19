// Launchers of the operations that tell how much attention entries receive.
#include <array>
#include <cmath>

#include "platform/base/check.h"
#include "runtime/device/vulkan/command_list.h"
#include "shaders/shared/mass_params.h"
#include "shaders/shared/step_params.h"

namespace kvrun {
namespace {

MassFormParams FormParams(const MassForm& form) {
  return {.n_moments = form.n_moments,
          .heads = static_cast<uint32_t>(form.heads),
          .rows = static_cast<uint32_t>(form.rows)};
}

float ScoreScaleOf(const RowMassArgs& args) {
  if (args.score_scale != 0.0F) return args.score_scale;
  return 1.0F / std::sqrt(static_cast<float>(args.kv_shape.head_dim));
}

RowMassParams ParamsOf(const RowMassArgs& args) {
  const KvShape& kv = args.kv_shape;
  KVRUN_CHECK(kv.type == KvType::kF16 || kv.type == KvType::kF32);
  KVRUN_CHECK(kv.n_sequences == 1 && kv.head_dim % 2 == 0 && args.n_heads % kv.n_kv_heads == 0);
  KVRUN_CHECK(args.n_entries >= 1 && args.n_entries <= kv.n_ctx && args.n_rows <= KVRUN_MAX_STEP_TOKENS);
  return {.form = FormParams(args.form),
          .n_rows = args.n_rows,
          .n_heads = args.n_heads,
          .n_kv_heads = kv.n_kv_heads,
          .head_dim = kv.head_dim,
          .n_ctx = kv.n_ctx,
          .tile_begin = args.tile_begin,
          .n_entries = args.n_entries,
          .is_first = args.is_first ? 1U : 0U,
          .mass_stride = args.mass_stride,
          .mass_begin = args.mass_begin,
          .scale = ScoreScaleOf(args),
          .score_cap = args.score_cap};
}

}  // namespace

// Of one source, whose scores were kept.
Status VulkanCommandList::JoinSlotMass(const SlotAttentionArgs& args, const AttendSlotsPlan& plan,
                                       uint32_t nth) {
  const AttentionArgs& attention = args.attention;
  const KvShape& kv = attention.kv_shape;
  const SlotSource& source = args.sources.at(nth);
  const SlotShape& shape = source.shape;
  const MassForm& form = args.mass_form;
  KVRUN_CHECK(form.n_moments >= 1 && form.n_moments <= KVRUN_MAX_SLOT_MASS_MOMENTS);
  // Else several KV heads would write the same masses at once.
  KVRUN_CHECK(!shape.is_shared || shape.record.n_heads == 1);
  KVRUN_CHECK(source.mass->size_bytes() >= source.mass_bytes(kv, form));
  const SlotMassParams params{.form = FormParams(form),
                              .n_heads = attention.n_heads,
                              .n_kv_heads = kv.n_kv_heads,
                              .head_dim = kv.head_dim,
                              .n_parts = plan.n_parts,
                              .scores_begin = static_cast<uint32_t>(plan.sources.at(nth).scores_begin),
                              .scores_stride = static_cast<uint32_t>(plan.sources.at(nth).scores_stride),
                              .record_heads = shape.record.n_heads,
                              .group_tokens = shape.record.group_tokens,
                              .table_stride = shape.table_words(),
                              .list_entries = shape.n_slots * shape.record.group_tokens,
                              .n_lists = shape.is_shared ? 1 : kv.n_sequences * kv.n_kv_heads};
  NoteHostBuffer(AsVulkan(*source.mass));
  const std::array storage = {Binding{MemoryOrEmpty(attention.scratch), Access::kRead},
                              Binding{MemoryOrEmpty(source.table), Access::kRead},
                              Binding{MemoryOrEmpty(source.mass), Access::kReadWrite}};
  return Record({.kernel = ChooseSlotMass(device_.is_cpu(), shape, form, attention.n_heads, kv.n_kv_heads,
                                          attention.n_tokens),
                 .storage = storage,
                 .step = &AsVulkan(*attention.step),
                 .params = ParamBytes(params)});
}

Status VulkanCommandList::Launch(const SumWeightsOp& op) {
  const RowMassArgs& args = op.args;
  const RowMassParams params = ParamsOf(args);
  NoteHostBuffer(AsVulkan(*args.sums));
  const std::array storage = {Binding{MemoryOrEmpty(args.queries), Access::kRead},
                              Binding{MemoryOrEmpty(args.kv), Access::kRead},
                              Binding{MemoryOrEmpty(args.sums), Access::kReadWrite}};
  return Record(
      {.kernel = WithCap(ChooseSumWeights(args.kv_shape, args.n_heads, args.n_rows), args.score_cap),
       .storage = storage,
       .step = &AsVulkan(*args.step),
       .params = ParamBytes(params)});
}

Status VulkanCommandList::Launch(const AttentionMassOp& op) {
  const RowMassArgs& args = op.args;
  const RowMassParams params = ParamsOf(args);
  const MassForm& form = args.form;
  KVRUN_CHECK(form.rows != MassForm::Rows::kReplace);
  KVRUN_CHECK(form.n_moments >= 1 && form.n_moments <= KVRUN_MAX_MASS_MOMENTS);
  KVRUN_CHECK(uint64_t{args.mass_begin} + args.n_entries <= args.mass_stride);
  NoteHostBuffer(AsVulkan(*args.mass));
  const std::array storage = {Binding{MemoryOrEmpty(args.queries), Access::kRead},
                              Binding{MemoryOrEmpty(args.kv), Access::kRead},
                              Binding{MemoryOrEmpty(args.sums), Access::kRead},
                              Binding{MemoryOrEmpty(args.mass), Access::kReadWrite}};
  return Record({.kernel = WithCap(ChooseAttentionMass(args.kv_shape, args.n_entries), args.score_cap),
                 .storage = storage,
                 .step = &AsVulkan(*args.step),
                 .params = ParamBytes(params)});
}

}  // namespace kvrun
