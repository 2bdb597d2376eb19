// Which variant runs an operation, with which constants and workgroups: pure functions of the device's plan
// and the operation's shape, tested without a device.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "platform/vulkan/device_plan.h"
#include "runtime/device/device.h"
#include "runtime/model/tensor_type.h"

namespace kvrun {

struct KernelChoice {
  std::string variant;  // of shaders/variants.txt
  // Of constant_id 0, 1, ...: for matrix products lanes, splits, whether inputs are read as vectors,
  // workgroup size; for attend_subgroup lanes, head_dim, workgroup size.
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

// "q4_1": how variants name a tensor type.
std::string VariantTypeName(TensorType type);

}  // namespace kvrun
