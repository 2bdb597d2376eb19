// Which variant runs an operation, with which constants and workgroups: pure functions of the device's plan
// and the operation's shape, tested without a device.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "platform/vulkan/device_plan.h"
#include "runtime/device/device.h"
#include "runtime/model/tensor_type.h"

namespace kvrun {

struct KernelChoice {
  std::string variant;  // of shaders/variants.txt
  // Of constant_id 0, 1, ...: for matrix products lanes, splits, whether inputs are read as vectors,
  // workgroup size; for attend_subgroup and attend_slots_subgroup lanes, head_dim, workgroup size; for the
  // other operations on KV records the types of K and V; for attention over slots then whether there are
  // biases.
  std::vector<uint32_t> constants;
  std::array<uint32_t, 3> groups = {1, 1, 1};
};

KernelChoice ChooseMatMul(const DevicePlan& plan, bool is_cpu, TensorType type, uint32_t n_rows,
                          uint32_t n_cols, uint32_t n_tokens);

struct AttendChoice {
  KernelChoice kernel;
  uint32_t n_splits = 1;  // of every row's positions; more than 1: joined by combine_splits
};

AttendChoice ChooseAttend(const DevicePlan& plan, bool is_cpu, const KvShape& kv, uint32_t n_heads,
                          uint32_t n_tokens, bool one_sequence);

// The entries are the mapping table's, which is data: what is chosen depends on how many it may name.
AttendChoice ChooseAttendSlots(const DevicePlan& plan, bool is_cpu, const SlotShape& slots, uint32_t n_heads,
                               uint32_t n_kv_heads, uint32_t n_tokens);

// One invocation per head of Q, K and V.
KernelChoice ChooseRopeAndEncode(const KvRecordShape& record, uint32_t n_heads, uint32_t n_kv_heads,
                                 uint32_t n_tokens);
// `type` of the KV: f16 or f32.
KernelChoice ChooseEncodeRecords(const KvRecordShape& record, KvType type, uint32_t n_kv_heads,
                                 uint32_t n_groups);
KernelChoice ChooseDecodeRecords(const KvRecordShape& record, KvType type, uint32_t n_kv_heads,
                                 uint32_t n_groups);

// "q4_1": how variants name a tensor type.
std::string VariantTypeName(TensorType type);
std::string_view VariantTypeName(KvType type);

}  // namespace kvrun
