// The one list of DeviceFacts' scalar fields, for everything that walks over them.
#pragma once

#include "platform/vulkan/device_facts.h"

namespace kvrun {

// How a clamp may change a field.
enum class ClampRule {
  kFixed,    // identity: never
  kAtMost,   // a capability: only down
  kAtLeast,  // an alignment: only up
  kMask,     // bits: only cleared
};

// Calls visit(name, rule, field) for each scalar field; Facts is DeviceFacts or const DeviceFacts.
template <typename Facts, typename Visitor>
void VisitDeviceFacts(Facts& facts, Visitor&& visit) {
  constexpr ClampRule kFixed = ClampRule::kFixed;
  constexpr ClampRule kAtMost = ClampRule::kAtMost;
  constexpr ClampRule kAtLeast = ClampRule::kAtLeast;
  constexpr ClampRule kMask = ClampRule::kMask;
#define KVRUN_FACT(rule, field) visit(#field, rule, facts.field)
  KVRUN_FACT(kFixed, source);
  KVRUN_FACT(kFixed, name);
  KVRUN_FACT(kFixed, vendor_id);
  KVRUN_FACT(kFixed, device_id);
  KVRUN_FACT(kAtMost, api_version);
  KVRUN_FACT(kFixed, driver_version);
  KVRUN_FACT(kFixed, driver_id);
  KVRUN_FACT(kFixed, driver_name);
  KVRUN_FACT(kFixed, driver_info);
  KVRUN_FACT(kFixed, device_uuid);
  KVRUN_FACT(kAtMost, max_storage_buffer_range_bytes);
  KVRUN_FACT(kAtMost, max_uniform_buffer_range_bytes);
  KVRUN_FACT(kAtMost, max_texel_buffer_elements);
  KVRUN_FACT(kAtLeast, min_storage_buffer_offset_alignment_bytes);
  KVRUN_FACT(kAtLeast, min_uniform_buffer_offset_alignment_bytes);
  KVRUN_FACT(kAtLeast, non_coherent_atom_bytes);
  KVRUN_FACT(kFixed, min_memory_map_alignment_bytes);
  KVRUN_FACT(kAtMost, max_allocation_bytes);
  KVRUN_FACT(kAtMost, max_allocations);
  KVRUN_FACT(kAtMost, max_push_constants_bytes);
  KVRUN_FACT(kAtMost, max_bound_descriptor_sets);
  KVRUN_FACT(kAtMost, max_storage_buffers_per_stage);
  KVRUN_FACT(kAtMost, max_uniform_buffers_per_stage);
  KVRUN_FACT(kAtMost, max_storage_buffers_per_set);
  KVRUN_FACT(kAtMost, max_dynamic_uniform_buffers_per_set);
  KVRUN_FACT(kAtMost, max_shared_memory_bytes);
  KVRUN_FACT(kAtMost, max_workgroup_invocations);
  KVRUN_FACT(kAtMost, max_workgroup_size_x);
  KVRUN_FACT(kAtMost, max_workgroup_size_y);
  KVRUN_FACT(kAtMost, max_workgroup_size_z);
  KVRUN_FACT(kAtMost, max_workgroup_count_x);
  KVRUN_FACT(kAtMost, max_workgroup_count_y);
  KVRUN_FACT(kAtMost, max_workgroup_count_z);
  KVRUN_FACT(kFixed, timestamp_period_ns);
  KVRUN_FACT(kFixed, subgroup_width);
  KVRUN_FACT(kFixed, min_subgroup_width);
  KVRUN_FACT(kFixed, max_subgroup_width);
  KVRUN_FACT(kMask, subgroup_ops);
  KVRUN_FACT(kAtMost, subgroup_size_control);
  KVRUN_FACT(kAtMost, compute_full_subgroups);
  KVRUN_FACT(kAtMost, shader_float16);
  KVRUN_FACT(kAtMost, shader_int8);
  KVRUN_FACT(kAtMost, shader_int16);
  KVRUN_FACT(kAtMost, storage_buffer_8bit);
  KVRUN_FACT(kAtMost, storage_buffer_16bit);
  KVRUN_FACT(kAtMost, uniform_buffer_8bit);
  KVRUN_FACT(kAtMost, uniform_buffer_16bit);
  KVRUN_FACT(kAtMost, integer_dot_product);
  KVRUN_FACT(kAtMost, integer_dot_product_4x8_accelerated);
  KVRUN_FACT(kAtMost, timeline);
  KVRUN_FACT(kAtMost, buffer_device_address);
  KVRUN_FACT(kAtMost, external_memory_host);
  KVRUN_FACT(kAtLeast, min_imported_host_pointer_alignment_bytes);
  KVRUN_FACT(kAtMost, memory_budget);
  KVRUN_FACT(kFixed, portability_subset);
#undef KVRUN_FACT
}

}  // namespace kvrun
