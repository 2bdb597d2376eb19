// Every choice that depends on the device, made once by a pure function.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/vulkan/device_facts.h"

namespace kvrun {

// What the buffers of one memory use have in common.
struct MemoryUse {
  uint32_t type_index = 0;
  uint32_t heap_index = 0;
  bool device_local = false;
  bool host_visible = false;
  bool coherent = false;  // else: flush after writing, invalidate before reading
  bool cached = false;
};

// What is known of a device besides its facts.
struct PlanRequest {
  bool allow_subgroups = true;  // false: their self-test has failed
};

struct DevicePlan {
  uint32_t queue_family = 0;

  // Memory.
  MemoryUse device_local;  // weights, KV, activations
  MemoryUse upload;        // written by the CPU, read by the device
  MemoryUse readback;      // written by the device, read by the CPU: cached if there is a choice
  MemoryUse shared;        // both read and write it, such as KV slots: coherent, and cached if such is
  bool unified_memory = false;
  uint64_t max_allocation_bytes = 0;  // at most 256 MiB; larger tensors are cut into slices
  uint64_t max_uncut_bytes = 0;       // an allocation of what cannot be cut: a layer's KV; at most 1 GiB
  uint64_t max_binding_bytes = 0;     // a multiple of storage_offset_alignment_bytes
  uint64_t max_uniform_binding_bytes = 0;
  uint64_t storage_offset_alignment_bytes = 0;
  uint64_t uniform_offset_alignment_bytes = 0;
  uint64_t non_coherent_atom_bytes = 0;
  bool use_external_memory_host = false;  // still to be proved by its self-test
  uint64_t host_import_alignment_bytes = 0;
  bool use_memory_budget = false;
  bool enable_portability_subset = false;

  // Kernels.
  uint32_t max_storage_buffers = 0;  // per kernel
  uint32_t max_workgroup_invocations = 0;
  uint32_t max_workgroup_size_x = 0;
  uint32_t max_workgroup_count_x = 0;
  uint32_t max_workgroup_count_y = 0;
  uint32_t max_workgroup_count_z = 0;
  uint32_t max_shared_memory_bytes = 0;
  uint32_t max_push_constants_bytes = 0;
  bool use_subgroup_shuffle = false;     // shuffle and arithmetic on a width that is known
  uint32_t subgroup_width = 0;           // 0 unless use_subgroup_shuffle
  uint32_t required_subgroup_width = 0;  // to be asked for at pipeline creation; 0: not needed
  bool use_subgroup_size_control = false;
  bool use_full_subgroups = false;  // can be asked for, where the workgroup is a multiple of the width
  bool use_float16 = false;         // arithmetic
  bool use_int8 = false;            // arithmetic
  bool use_int16 = false;           // arithmetic
  bool use_storage_8bit = false;
  bool use_storage_16bit = false;
  bool use_integer_dot = false;
  bool few_accumulators = false;
  bool literal_shared_sizes = false;
  bool lane_from_local_index = false;
  bool prefer_shared_memory = true;
  // What kernels only read, they read as texels, of buffers of at most so many; 0: as storage.
  uint32_t max_texels = 0;

  // Submission.
  bool use_timeline = false;
  bool split_submits = false;
  bool timestamps = false;
  double timestamp_period_ns = 0;
  uint32_t timestamp_valid_bits = 0;

  std::vector<std::string> quirks;  // names of those that apply
  std::vector<std::string> notes;   // for `doctor`
};

// Fails, with the reason, if the device is below the floor profile.
Result<DevicePlan> PlanDevice(const DeviceFacts& facts, const PlanRequest& request);

}  // namespace kvrun
