#include "platform/vulkan/device_plan.h"

#include <fmt/format.h>
#include <volk.h>

#include <algorithm>
#include <optional>

#include "platform/base/units.h"
#include "platform/vulkan/quirks.h"

namespace kvrun {
namespace {

constexpr uint64_t kMaxAllocationBytes = 256 * kMiB;
constexpr uint64_t kMaxUncutBytes = kGiB;  // which any device has
constexpr uint32_t kMinSubgroupWidth = 4;
constexpr uint32_t kMaxSubgroupWidth = 128;

Status Unusable(const DeviceFacts& facts, std::string_view why) {
  return {StatusCode::kUnsupported,
          fmt::format("device \"{}\" cannot be used: {}; choose another with --device", facts.name, why)};
}

// What the floor profile promises; a conformant Vulkan 1.1 driver never fails here.
Status CheckFloor(const DeviceFacts& facts) {
  if (facts.api_version < VK_API_VERSION_1_1) {
    return Unusable(
        facts, fmt::format("it offers Vulkan {}, and 1.1 is needed", FormatApiVersion(facts.api_version)));
  }
  const struct {
    std::string_view what;
    uint64_t has;
    uint64_t needed;
  } limits[] = {
      {"workgroup invocations", facts.max_workgroup_invocations, 128},
      {"workgroup size", facts.max_workgroup_size_x, 128},
      {"bytes of shared memory", facts.max_shared_memory_bytes, 16 * kKiB},
      {"bytes of push constants", facts.max_push_constants_bytes, 128},
      {"storage buffers per stage", facts.max_storage_buffers_per_stage, 4},
      {"bytes per storage binding", facts.max_storage_buffer_range_bytes, 128 * kMiB},
      {"workgroups per dispatch", facts.max_workgroup_count_x, 65535},
  };
  for (const auto& limit : limits) {
    if (limit.has >= limit.needed) continue;
    return Unusable(facts,
                    fmt::format("it allows {} {}, and {} are needed", limit.has, limit.what, limit.needed));
  }
  return Status::Ok();
}

// Compute without graphics is free of the display's time-outs; else any family with compute.
std::optional<uint32_t> ChooseQueueFamily(const DeviceFacts& facts) {
  std::optional<uint32_t> best;
  int best_score = -1;
  for (uint32_t i = 0; i < facts.queue_families.size(); ++i) {
    const QueueFamilyFacts& family = facts.queue_families[i];
    if ((family.flags & VK_QUEUE_COMPUTE_BIT) == 0 || family.queue_count == 0) continue;
    int score = 0;
    if (family.timestamp_valid_bits > 0) score += 2;
    if ((family.flags & VK_QUEUE_GRAPHICS_BIT) == 0) score += 1;
    if (score > best_score) {
      best_score = score;
      best = i;
    }
  }
  return best;
}

bool Has(const MemoryTypeFacts& type, uint32_t flag) { return (type.flags & flag) != 0; }

// Types that carry any other property need a feature that is not enabled, or cannot hold buffers.
bool IsPlain(const MemoryTypeFacts& type) {
  constexpr uint32_t kPlain = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT | VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                              VK_MEMORY_PROPERTY_HOST_COHERENT_BIT | VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
  return (type.flags & ~kPlain) == 0 && type.flags != 0;
}

bool IsUnified(const DeviceFacts& facts) {
  if (facts.type == DeviceType::kDiscreteGpu) return false;
  return std::any_of(facts.memory_types.begin(), facts.memory_types.end(), [](const MemoryTypeFacts& type) {
    return IsPlain(type) && Has(type, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT) &&
           Has(type, VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT);
  });
}

struct Preference {
  uint32_t flag;
  int if_set;  // score if the flag is set
};

// The type with all of `required` and the highest score; on equal scores the larger heap, then the
// earlier type, as the specification orders them.
std::optional<MemoryUse> ChooseMemory(const DeviceFacts& facts, uint32_t required,
                                      std::initializer_list<Preference> preferences) {
  std::optional<MemoryUse> best;
  int best_score = 0;
  for (uint32_t i = 0; i < facts.memory_types.size(); ++i) {
    const MemoryTypeFacts& type = facts.memory_types[i];
    if (!IsPlain(type) || (type.flags & required) != required) continue;
    int score = 0;
    for (const Preference& preference : preferences) {
      if (Has(type, preference.flag)) score += preference.if_set;
    }
    const bool larger =
        best && score == best_score &&
        facts.memory_heaps[type.heap_index].size_bytes > facts.memory_heaps[best->heap_index].size_bytes;
    if (best && score <= best_score && !larger) continue;
    best_score = score;
    best = MemoryUse{.type_index = i,
                     .heap_index = type.heap_index,
                     .device_local = Has(type, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT),
                     .host_visible = Has(type, VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT),
                     .coherent = Has(type, VK_MEMORY_PROPERTY_HOST_COHERENT_BIT),
                     .cached = Has(type, VK_MEMORY_PROPERTY_HOST_CACHED_BIT)};
  }
  return best;
}

Status PlanMemory(const DeviceFacts& facts, DevicePlan& plan) {
  constexpr uint32_t kLocal = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
  constexpr uint32_t kVisible = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT;
  constexpr uint32_t kCoherent = VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  constexpr uint32_t kCached = VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
  plan.unified_memory = IsUnified(facts);
  const int near = plan.unified_memory ? 8 : -8;  // a discrete GPU's window is not ours to fill
  auto local = ChooseMemory(facts, 0, {{kLocal, 16}, {kVisible, -4}, {kCached, -2}});
  const auto upload = ChooseMemory(facts, kVisible, {{kLocal, near}, {kCoherent, 4}, {kCached, -2}});
  const auto readback = ChooseMemory(facts, kVisible, {{kCached, 16}, {kLocal, near}, {kCoherent, 4}});
  // The CPU reads it too, which takes far longer without a cache (docs/measurements/gpu.md). Where
  // what is cached is not coherent, it is rather not cached. Cached counts for more than local: drivers
  // of APUs call what is cached the CPU's, though it is the same memory.
  const auto shared = ChooseMemory(facts, kVisible, {{kCoherent, 32}, {kCached, 16}, {kLocal, near}});
  if (!local || !upload || !readback || !shared) {
    return Unusable(facts, "it has no memory that the host can see");
  }
  plan.device_local = *local;
  plan.upload = *upload;
  plan.readback = *readback;
  plan.shared = *shared;
  const auto allocation = [&facts](uint64_t most) {
    return facts.max_allocation_bytes == 0 ? most : std::min(facts.max_allocation_bytes, most);
  };
  plan.max_allocation_bytes = allocation(kMaxAllocationBytes);
  plan.max_uncut_bytes = allocation(kMaxUncutBytes);
  const auto alignment = [](uint64_t bytes) { return std::max<uint64_t>(bytes, 4); };
  plan.storage_offset_alignment_bytes = alignment(facts.min_storage_buffer_offset_alignment_bytes);
  plan.uniform_offset_alignment_bytes = alignment(facts.min_uniform_buffer_offset_alignment_bytes);
  plan.non_coherent_atom_bytes = std::max<uint64_t>(facts.non_coherent_atom_bytes, 1);
  plan.max_binding_bytes = facts.max_storage_buffer_range_bytes / plan.storage_offset_alignment_bytes *
                           plan.storage_offset_alignment_bytes;
  plan.max_uniform_binding_bytes = facts.max_uniform_buffer_range_bytes;
  plan.enable_portability_subset = facts.portability_subset;
  plan.use_memory_budget = facts.memory_budget;
  if (!plan.readback.cached) plan.notes.emplace_back("no cached host memory: reading results back is slow");
  if (!plan.shared.coherent)
    plan.notes.emplace_back("shared memory is not coherent: flushed and invalidated");
  return Status::Ok();
}

// The width that compute kernels will have, if it is certain.
void PlanSubgroups(const DeviceFacts& facts, uint32_t effects, bool allowed, DevicePlan& plan) {
  constexpr uint32_t kNeeded = VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_SHUFFLE_BIT;
  if (!allowed) {
    plan.notes.emplace_back("subgroup shuffle has failed its self-test: sums go through shared memory");
    return;
  }
  if ((effects & kQuirkNoSubgroups) != 0 || (facts.subgroup_ops & kNeeded) != kNeeded) {
    plan.notes.emplace_back("no subgroup shuffle: sums go through shared memory");
    return;
  }
  if (facts.subgroup_width < kMinSubgroupWidth || facts.subgroup_width > kMaxSubgroupWidth) {
    plan.notes.push_back(fmt::format("subgroups of {} are not used", facts.subgroup_width));
    return;
  }
  const bool varies = facts.min_subgroup_width != facts.max_subgroup_width;
  if (varies && !facts.subgroup_size_control) {
    plan.notes.push_back(fmt::format("subgroup width varies from {} to {} and cannot be asked for: not used",
                                     facts.min_subgroup_width, facts.max_subgroup_width));
    return;
  }
  plan.use_subgroup_shuffle = true;
  plan.subgroup_width = facts.subgroup_width;
  plan.use_subgroup_size_control = facts.subgroup_size_control;
  plan.use_full_subgroups = facts.subgroup_size_control && facts.compute_full_subgroups;
  plan.required_subgroup_width = varies ? facts.subgroup_width : 0;
}

// Mesa's CPU driver reads storage lane by lane in a loop with a bounds check in each, but texels with
// gathers: several times faster. Drivers of GPUs are left with storage until one is measured.
uint32_t PlanTexels(const DeviceFacts& facts) {
  constexpr uint32_t kFewestTexels = 1U << 20;  // 16 MiB: most matrices
  const bool use = facts.type == DeviceType::kCpu && facts.max_texel_buffer_elements >= kFewestTexels;
  return use ? facts.max_texel_buffer_elements : 0;
}

void PlanKernels(const DeviceFacts& facts, uint32_t effects, DevicePlan& plan) {
  plan.max_storage_buffers = std::min(facts.max_storage_buffers_per_stage, facts.max_storage_buffers_per_set);
  plan.max_workgroup_invocations = facts.max_workgroup_invocations;
  plan.max_workgroup_size_x = facts.max_workgroup_size_x;
  plan.max_workgroup_count_x = facts.max_workgroup_count_x;
  plan.max_workgroup_count_y = facts.max_workgroup_count_y;
  plan.max_workgroup_count_z = facts.max_workgroup_count_z;
  plan.max_shared_memory_bytes = facts.max_shared_memory_bytes;
  plan.max_push_constants_bytes = facts.max_push_constants_bytes;
  const bool no_int8 = (effects & kQuirkNoIntegerDot) != 0;
  plan.use_float16 = facts.shader_float16;
  plan.use_int8 = facts.shader_int8 && !no_int8;
  plan.use_int16 = facts.shader_int16;
  plan.use_storage_8bit = facts.storage_buffer_8bit && !no_int8;
  plan.use_storage_16bit = facts.storage_buffer_16bit;
  plan.use_integer_dot = facts.integer_dot_product && !no_int8;
  plan.few_accumulators = (effects & kQuirkFewAccumulators) != 0;
  plan.literal_shared_sizes = (effects & kQuirkLiteralSharedSizes) != 0;
  plan.lane_from_local_index = (effects & kQuirkNoSubgroupInvocationId) != 0;
  plan.max_texels = PlanTexels(facts);
  plan.prefer_shared_memory = (effects & kQuirkSharedMemorySlow) == 0;
}

}  // namespace

Result<DevicePlan> PlanDevice(const DeviceFacts& facts, const PlanRequest& request) {
  KVRUN_RETURN_IF_ERROR(CheckFloor(facts));
  DevicePlan plan;
  const std::optional<uint32_t> family = ChooseQueueFamily(facts);
  if (!family) return Unusable(facts, "it has no queue for compute");
  plan.queue_family = *family;

  uint32_t effects = 0;
  for (const Quirk* quirk : FindQuirks(facts)) {
    effects |= quirk->effects;
    plan.quirks.emplace_back(quirk->name);
    plan.notes.push_back(fmt::format("{}: {} ({})", quirk->name, quirk->symptom, quirk->source));
  }
  KVRUN_RETURN_IF_ERROR(PlanMemory(facts, plan));
  PlanSubgroups(facts, effects, request.allow_subgroups, plan);
  PlanKernels(facts, effects, plan);
  plan.use_external_memory_host = facts.external_memory_host && (effects & kQuirkNoExternalMemoryHost) == 0;
  plan.host_import_alignment_bytes = facts.min_imported_host_pointer_alignment_bytes;
  plan.use_timeline = facts.timeline;
  if (!plan.use_timeline) plan.notes.emplace_back("no timeline semaphores: one fence per submit");
  plan.split_submits = (effects & kQuirkSplitSubmits) != 0;
  plan.timestamp_valid_bits = facts.queue_families[*family].timestamp_valid_bits;
  plan.timestamps = plan.timestamp_valid_bits > 0 && facts.timestamp_period_ns > 0;
  plan.timestamp_period_ns = facts.timestamp_period_ns;
  if (facts.type == DeviceType::kCpu) plan.notes.emplace_back("this Vulkan driver runs on the CPU");
  return plan;
}

}  // namespace kvrun
