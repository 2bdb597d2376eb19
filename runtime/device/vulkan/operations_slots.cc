// Launchers of the operations on KV records: slots, encoding, attention over a mapping table.
#include <array>
#include <cmath>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/device/vulkan/command_list.h"
#include "shaders/shared/op_params.h"
#include "shaders/shared/slot_params.h"

namespace kvrun {
namespace {

template <typename Params>
std::span<const std::byte> Bytes(const Params& params) {
  return std::as_bytes(std::span<const Params, 1>(&params, 1));
}

const VulkanBuffer& AsVulkan(const Buffer& buffer) { return static_cast<const VulkanBuffer&>(buffer); }

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

void CheckSlots(const SlotAttentionArgs& args) {
  const KvShape& kv = args.attention.kv_shape;
  const SlotShape& shape = args.shape;
  CheckRecord(shape.record, kv.n_kv_heads, kv.head_dim);
  KVRUN_CHECK(shape.n_streams == kv.n_sequences * (kv.n_kv_heads / shape.record.n_heads));
  KVRUN_CHECK(shape.n_window_slots >= 1 && shape.n_window_slots <= shape.n_slots);
  KVRUN_CHECK(args.slots->size_bytes() >= shape.size_bytes());
}

RecordCopyParams CopyParams(const KvRecordShape& record, const KvShape& kv, uint32_t first_token,
                            uint32_t n_groups) {
  CheckRecord(record, kv.n_kv_heads, kv.head_dim);
  KVRUN_CHECK(kv.type == KvType::kF16 || kv.type == KvType::kF32);
  KVRUN_CHECK(kv.n_sequences == 1);
  KVRUN_CHECK(uint64_t{first_token} + uint64_t{n_groups} * record.group_tokens <= kv.n_ctx);
  return {.record = LayoutOf(record),
          .n_kv_heads = kv.n_kv_heads,
          .n_ctx = kv.n_ctx,
          .first_token = first_token,
          .n_groups = n_groups};
}

AttendChoice Choose(const VulkanComputeDevice& device, const SlotAttentionArgs& args) {
  const AttentionArgs& attention = args.attention;
  return ChooseAttendSlots(device.plan(), device.is_cpu(), args.shape, attention.n_heads,
                           attention.kv_shape.n_kv_heads, attention.n_tokens);
}

}  // namespace

uint64_t VulkanComputeDevice::AttendSlotsScratchBytes(const SlotAttentionArgs& args) const {
  const uint32_t n_splits = Choose(*this, args).n_splits;
  if (n_splits == 1) return 16;
  return uint64_t{args.attention.n_tokens} * args.attention.n_heads * n_splits *
         (args.shape.record.head_dim + 2) * sizeof(float);
}

Status VulkanCommandList::RopeAndEncode(const SlotAttentionArgs& args) {
  CheckSlots(args);
  const AttentionArgs& attention = args.attention;
  const uint32_t n_kv_heads = attention.kv_shape.n_kv_heads;
  const RopeEncodeParams params{.record = LayoutOf(args.shape.record),
                                .n_heads = attention.n_heads,
                                .n_kv_heads = n_kv_heads,
                                .n_tokens = attention.n_tokens,
                                .rotary_dim = attention.rotary_dim,
                                .rope_halves = attention.rope_halves ? 1U : 0U,
                                .has_qk_norm = attention.norms != nullptr ? 1U : 0U,
                                .norm_epsilon = attention.norm_epsilon,
                                .n_slots = args.shape.n_slots,
                                .n_window_slots = args.shape.n_window_slots};
  const KernelChoice kernel =
      ChooseRopeAndEncode(args.shape.record, attention.n_heads, n_kv_heads, attention.n_tokens);
  NoteHostBuffer(AsVulkan(*attention.angles));
  const std::array storage = {Binding{MemoryOrEmpty(attention.qkv), Access::kReadWrite},
                              Binding{MemoryOrEmpty(args.slots), Access::kReadWrite},
                              Binding{MemoryOrEmpty(attention.angles), Access::kRead},
                              Binding{MemoryOrEmpty(attention.norms), Access::kRead}};
  return Record(
      {.kernel = kernel, .storage = storage, .step = &AsVulkan(*attention.step), .params = Bytes(params)});
}

Status VulkanCommandList::AttendSlots(const SlotAttentionArgs& args) {
  CheckSlots(args);
  const AttentionArgs& attention = args.attention;
  const uint32_t n_kv_heads = attention.kv_shape.n_kv_heads;
  const uint32_t head_dim = args.shape.record.head_dim;
  const AttendChoice choice = Choose(device_, args);
  const AttendSlotsParams params{.record = LayoutOf(args.shape.record),
                                 .n_heads = attention.n_heads,
                                 .n_kv_heads = n_kv_heads,
                                 .n_slots = args.shape.n_slots,
                                 .table_stride = 2 + args.shape.table_slots,
                                 .n_splits = choice.n_splits,
                                 .qkv_stride = (attention.n_heads + 2 * n_kv_heads) * head_dim,
                                 .scale = 1.0F / std::sqrt(static_cast<float>(head_dim))};
  const Buffer* result = choice.n_splits == 1 ? attention.output : attention.scratch;
  const std::array storage = {
      Binding{MemoryOrEmpty(attention.qkv), Access::kRead}, Binding{MemoryOrEmpty(args.slots), Access::kRead},
      Binding{MemoryOrEmpty(args.table), Access::kRead}, Binding{MemoryOrEmpty(result), Access::kWrite}};
  KVRUN_RETURN_IF_ERROR(Record({.kernel = choice.kernel,
                                .storage = storage,
                                .step = &AsVulkan(*attention.step),
                                .params = Bytes(params)}));
  if (choice.n_splits == 1) return Status::Ok();

  const CombineParams combine{
      .n_rows = attention.n_tokens * attention.n_heads, .head_dim = head_dim, .n_splits = choice.n_splits};
  const KernelChoice kernel{.variant = "combine_splits_f32_floor",
                            .constants = {},
                            .groups = {CeilDiv(combine.n_rows * head_dim, 64U), 1, 1}};
  const std::array combine_storage = {Binding{MemoryOrEmpty(attention.scratch), Access::kRead},
                                      Binding{MemoryOrEmpty(attention.output), Access::kWrite}};
  return Record({.kernel = kernel, .storage = combine_storage, .params = Bytes(combine)});
}

Status VulkanCommandList::EncodeRecords(const Buffer& kv, const KvShape& kv_shape, uint32_t first_token,
                                        uint32_t n_groups, const KvRecordShape& record, Buffer* records) {
  const RecordCopyParams params = CopyParams(record, kv_shape, first_token, n_groups);
  const std::array storage = {Binding{MemoryOrEmpty(&kv), Access::kRead},
                              Binding{MemoryOrEmpty(records), Access::kReadWrite}};
  return Record({.kernel = ChooseEncodeRecords(record, kv_shape.type, kv_shape.n_kv_heads, n_groups),
                 .storage = storage,
                 .params = Bytes(params)});
}

Status VulkanCommandList::DecodeRecords(const Buffer& records, const KvRecordShape& record, uint32_t n_groups,
                                        uint32_t first_token, const KvShape& kv_shape, Buffer* kv) {
  const RecordCopyParams params = CopyParams(record, kv_shape, first_token, n_groups);
  const std::array storage = {Binding{MemoryOrEmpty(&records), Access::kRead},
                              Binding{MemoryOrEmpty(kv), Access::kWrite}};
  return Record({.kernel = ChooseDecodeRecords(record, kv_shape.type, kv_shape.n_kv_heads, n_groups),
                 .storage = storage,
                 .params = Bytes(params)});
}

}  // namespace kvrun
