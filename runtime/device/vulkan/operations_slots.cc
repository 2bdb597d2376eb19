// Launchers of the operations on KV records: slots, encoding, attention over a mapping table.
#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/device/vulkan/command_list.h"
#include "shaders/shared/op_params.h"
#include "shaders/shared/slot_params.h"

namespace kvrun {
namespace {

KvRecordLayout LayoutOf(const KvRecordShape& record) {
  const uint32_t scales_begin = 2 * record.scales_begin_words();
  return {.n_heads = record.n_heads,
          .head_dim = record.head_dim,
          .group_tokens = record.group_tokens,
          .size_words = record.size_words(),
          .k_row_words = record.row_words(record.k_type),
          .v_row_words = record.row_words(record.v_type),
          .k_row_scales = record.row_scales(record.k_type),
          .v_row_scales = record.row_scales(record.v_type),
          .v_begin = record.v_begin_words(),
          .k_scales_begin = scales_begin,
          .v_scales_begin = scales_begin + record.v_scales_begin()};
}

// What the kernels rely on: pairs of elements, whole heads, and that records of all heads or of one make a
// stream.
void CheckRecord(const KvRecordShape& record, uint32_t n_kv_heads, uint32_t head_dim) {
  KVRUN_CHECK(record.head_dim == head_dim && head_dim % 2 == 0 && head_dim <= 256);
  KVRUN_CHECK(record.n_heads == n_kv_heads || record.n_heads == 1);
  KVRUN_CHECK(record.group_tokens > 0);
}

void CheckSource(const SlotAttentionArgs& args, const SlotSource& source) {
  const KvShape& kv = args.attention.kv_shape;
  const SlotShape& shape = source.shape;
  CheckRecord(shape.record, kv.n_kv_heads, kv.head_dim);
  KVRUN_CHECK(shape.n_streams == kv.n_sequences * (kv.n_kv_heads / shape.record.n_heads));
  KVRUN_CHECK(shape.n_window_slots <= shape.n_slots);
  KVRUN_CHECK(shape.fits_table());
  KVRUN_CHECK(source.slots->size_bytes() >= shape.size_bytes());
}

RecordCopyParams CopyParams(const KvRecordShape& record, const KvShape& kv, const EntrySpace& space,
                            uint32_t first_token, uint32_t n_groups) {
  CheckRecord(record, kv.n_kv_heads, kv.head_dim);
  KVRUN_CHECK(kv.type == KvType::kF16 || kv.type == KvType::kF32);
  KVRUN_CHECK(kv.n_sequences == 1);
  KVRUN_CHECK(uint64_t{first_token} + uint64_t{n_groups} * record.group_tokens <= kv.n_ctx);
  return {.record = LayoutOf(record),
          .n_kv_heads = kv.n_kv_heads,
          .n_ctx = kv.n_ctx,
          .first_token = first_token,
          .n_groups = n_groups,
          .means_begin = space.means_begin,
          .first_head = 0};
}

}  // namespace

uint64_t VulkanComputeDevice::AttendSlotsScratchBytes(const SlotAttentionArgs& args) const {
  return std::max(PlanAttendSlots(plan(), is_cpu(), args).scratch_floats * sizeof(float), uint64_t{16});
}

Status VulkanCommandList::Launch(const RopeAndEncodeOp& op) {
  const SlotAttentionArgs& args = op.args;
  const SlotSource& window = args.window();
  CheckSource(args, window);
  KVRUN_CHECK(window.shape.n_window_slots >= 1 && !window.shape.is_shared);
  const AttentionArgs& attention = args.attention;
  const uint32_t n_kv_heads = attention.kv_shape.n_kv_heads;
  const RopeEncodeParams params{.record = LayoutOf(window.shape.record),
                                .n_heads = attention.n_heads,
                                .n_kv_heads = n_kv_heads,
                                .n_tokens = attention.n_tokens,
                                .rotary_dim = attention.rotary_dim,
                                .rope_halves = attention.rope_halves ? 1U : 0U,
                                .has_qk_norm = attention.norms != nullptr ? 1U : 0U,
                                .norm_epsilon = attention.norm_epsilon,
                                .n_slots = window.shape.n_slots,
                                .n_window_slots = window.shape.n_window_slots,
                                .means_begin = args.space.means_begin};
  const uint32_t n_rows = attention.n_tokens * (attention.n_heads + 2 * n_kv_heads);
  const KernelChoice kernel = ChooseRopeAndEncode(device_.plan(), device_.is_cpu(), window.shape.record,
                                                  args.space.is_used(), n_rows);
  if (attention.angles != nullptr) NoteHostBuffer(AsVulkan(*attention.angles));
  const Buffer* const constants = args.space.is_used() ? args.space.constants : attention.norms;
  const std::array storage = {Binding{MemoryOrEmpty(attention.qkv), Access::kReadWrite},
                              Binding{MemoryOrEmpty(window.slots), Access::kReadWrite},
                              Binding{MemoryOrEmpty(attention.angles), Access::kRead},
                              Binding{MemoryOrEmpty(constants), Access::kRead}};
  return Record({.kernel = kernel,
                 .storage = storage,
                 .step = &AsVulkan(*attention.step),
                 .params = ParamBytes(params)});
}

// The output of all sources.
Status VulkanCommandList::AttendMerged(const SlotAttentionArgs& args, const AttendSlotsPlan& plan) {
  const AttentionArgs& attention = args.attention;
  const uint32_t n_kv_heads = attention.kv_shape.n_kv_heads;
  const uint32_t head_dim = attention.kv_shape.head_dim;
  AttendSourcesParams params{.sources = {},
                             .n_heads = attention.n_heads,
                             .n_kv_heads = n_kv_heads,
                             .n_splits = plan.merged->choice.n_splits,
                             .split_block = plan.merged->choice.split_block,
                             .keeps_parts = plan.keeps_parts ? 1U : 0U,
                             .qkv_stride = (attention.n_heads + 2 * n_kv_heads) * head_dim,
                             .scale = attention.scale(),
                             .score_cap = attention.score_cap,
                             .means_begin = args.space.means_begin};
  KVRUN_ASSIGN_OR_RETURN(const DeviceBuffer* const counters, Counters());
  std::vector<Binding> storage = {{MemoryOrEmpty(attention.qkv), Access::kRead}};
  for (size_t place = 0; place < plan.merged->places.size(); ++place) {
    const std::optional<uint32_t> nth = plan.merged->places.at(place);
    const SlotSource source = nth ? args.sources.at(*nth) : SlotSource{};
    storage.push_back({MemoryOrEmpty(source.slots), Access::kRead});
    storage.push_back({MemoryOrEmpty(source.table), Access::kRead});
    if (!nth) continue;
    CheckSource(args, source);
    const SlotShape& shape = source.shape;
    KVRUN_CHECK(source.table->size_bytes() >= shape.table_bytes());
    params.sources[place] = {.record_heads = shape.record.n_heads,
                             .group_tokens = shape.record.group_tokens,
                             .record_words = shape.record.size_words(),
                             .n_slots = shape.stream_slots(),
                             .table_stride = shape.table_words()};
  }
  storage.push_back({MemoryOrEmpty(attention.output), Access::kWrite});
  storage.push_back({MemoryOrEmpty(attention.scratch), Access::kReadWrite});
  storage.push_back({MemoryOrEmpty(args.space.constants), Access::kRead});
  storage.push_back({counters, Access::kReadWrite});
  return Record({.kernel = WithCap(plan.merged->choice.kernel, attention.score_cap),
                 .storage = storage,
                 .step = &AsVulkan(*attention.step),
                 .params = ParamBytes(params)});
}

// The parts of one source, and its scores if they are kept; or the output, where there are no parts.
Status VulkanCommandList::AttendSource(const SlotAttentionArgs& args, const AttendSlotsPlan& plan,
                                       uint32_t nth) {
  const SlotSource& source = args.sources.at(nth);
  const AttendSlotsPlan::Source& place = plan.sources.at(nth);
  CheckSource(args, source);
  const AttentionArgs& attention = args.attention;
  const SlotShape& shape = source.shape;
  KVRUN_CHECK(source.table->size_bytes() >= shape.table_bytes());
  const uint32_t n_kv_heads = attention.kv_shape.n_kv_heads;
  const uint32_t head_dim = shape.record.head_dim;
  const AttendSlotsParams params{.record = LayoutOf(shape.record),
                                 .n_heads = attention.n_heads,
                                 .n_kv_heads = n_kv_heads,
                                 .n_slots = shape.stream_slots(),
                                 .table_stride = shape.table_words(),
                                 .n_splits = place.choice.n_splits,
                                 .split_block = place.choice.split_block,
                                 .first_part = place.first_part,
                                 .n_parts = plan.n_parts,
                                 .keeps_parts = plan.keeps_parts ? 1U : 0U,
                                 .qkv_stride = (attention.n_heads + 2 * n_kv_heads) * head_dim,
                                 .scale = attention.scale(),
                                 .scores_begin = static_cast<uint32_t>(place.scores_begin),
                                 .scores_stride = static_cast<uint32_t>(place.scores_stride),
                                 .score_cap = attention.score_cap};
  const Buffer* result = plan.keeps_parts ? attention.scratch : attention.output;
  const std::array storage = {Binding{MemoryOrEmpty(attention.qkv), Access::kRead},
                              Binding{MemoryOrEmpty(source.slots), Access::kRead},
                              Binding{MemoryOrEmpty(source.table), Access::kRead},
                              Binding{MemoryOrEmpty(result), Access::kWrite}};
  return Record({.kernel = WithCap(place.choice.kernel, attention.score_cap),
                 .storage = storage,
                 .step = &AsVulkan(*attention.step),
                 .params = ParamBytes(params)});
}

Status VulkanCommandList::Launch(const AttendSlotsOp& op) {
  const SlotAttentionArgs& args = op.args;
  const AttentionArgs& attention = args.attention;
  const AttendSlotsPlan plan = PlanAttendSlots(device_.plan(), device_.is_cpu(), args);
  if (plan.merged) return AttendMerged(args, plan);
  for (uint32_t nth = 0; nth < args.n_sources; ++nth) {
    if (args.sources.at(nth).shape.n_slots != 0) KVRUN_RETURN_IF_ERROR(AttendSource(args, plan, nth));
  }
  if (!plan.keeps_parts) return Status::Ok();
  for (uint32_t nth = 0; nth < args.n_sources; ++nth) {
    if (plan.sources.at(nth).keeps_scores) KVRUN_RETURN_IF_ERROR(JoinSlotMass(args, plan, nth));
  }
  if (args.space.is_used()) return CombineInSpace(args, plan.n_parts);
  return CombineSplits({attention.scratch, 0}, plan.n_parts, attention.n_tokens * attention.n_heads,
                       attention.kv_shape.head_dim, attention.output);
}

Status VulkanCommandList::CombineInSpace(const SlotAttentionArgs& args, uint32_t n_splits) {
  const AttentionArgs& attention = args.attention;
  const CombineInSpaceParams params{.head_dim = attention.kv_shape.head_dim,
                                    .n_splits = n_splits,
                                    .n_heads = attention.n_heads,
                                    .n_kv_heads = attention.kv_shape.n_kv_heads,
                                    .means_begin = args.space.means_begin};
  const std::array storage = {Binding{MemoryOrEmpty(attention.scratch), Access::kRead},
                              Binding{MemoryOrEmpty(attention.output), Access::kWrite},
                              Binding{MemoryOrEmpty(args.space.constants), Access::kRead}};
  return Record({.kernel = {.variant = "combine_in_space_f32_floor",
                            .constants = {},
                            .groups = {attention.n_tokens * attention.n_heads, 1, 1}},
                 .storage = storage,
                 .step = &AsVulkan(*attention.step),
                 .params = ParamBytes(params)});
}

Status VulkanCommandList::Launch(const EncodeRecordsArgs& args) {
  const RecordCopyParams params =
      CopyParams(args.record, args.kv_shape, args.space, args.first_token, args.n_groups);
  const std::array storage = {Binding{MemoryOrEmpty(args.kv), Access::kRead},
                              Binding{MemoryOrEmpty(args.records), Access::kReadWrite},
                              Binding{MemoryOrEmpty(args.space.constants), Access::kRead}};
  return Record({.kernel = ChooseEncodeRecords(args.record, args.kv_shape.type, args.space.is_used(),
                                               args.kv_shape.n_kv_heads, args.n_groups),
                 .storage = storage,
                 .params = ParamBytes(params)});
}

Status VulkanCommandList::Launch(const DecodeRecordsArgs& args) {
  RecordCopyParams params =
      CopyParams(args.record, args.kv_shape, args.space, args.first_token, args.n_groups);
  for (const KvWindow& window : KvWindows(*args.kv, args.kv_shape, Access::kWrite)) {
    params.first_head = window.first_stream;
    params.n_kv_heads = window.n_streams;
    const std::array storage = {Binding{MemoryOrEmpty(args.records), Access::kRead}, window.binding,
                                Binding{MemoryOrEmpty(args.space.constants), Access::kRead}};
    KVRUN_RETURN_IF_ERROR(
        Record({.kernel = ChooseDecodeRecords(args.record, args.kv_shape.type, args.space.is_used(),
                                              window.n_streams, args.n_groups),
                .storage = storage,
                .params = ParamBytes(params)}));
  }
  return Status::Ok();
}

}  // namespace kvrun
