#include "platform/vulkan/device_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <optional>
#include <type_traits>

#include "platform/vulkan/device_facts_fields.h"

namespace kvrun {
namespace {

// The floor profile: what a device must offer, and all that the floor kernels use.
constexpr std::string_view kFloor =
    "api_version=1.1,max_storage_buffer_range_bytes=134217728,max_uniform_buffer_range_bytes=16384,"
    "max_texel_buffer_elements=65536,"
    "min_storage_buffer_offset_alignment_bytes=256,min_uniform_buffer_offset_alignment_bytes=256,"
    "max_allocation_bytes=1073741824,max_allocations=4096,max_push_constants_bytes=128,"
    "max_bound_descriptor_sets=4,max_storage_buffers_per_stage=4,max_uniform_buffers_per_stage=12,"
    "max_storage_buffers_per_set=24,max_dynamic_uniform_buffers_per_set=8,max_shared_memory_bytes=16384,"
    "max_workgroup_invocations=128,max_workgroup_size_x=128,max_workgroup_size_y=128,"
    "max_workgroup_size_z=64,max_workgroup_count_x=65535,max_workgroup_count_y=65535,"
    "max_workgroup_count_z=65535,subgroup_ops=0,subgroup_size_control=0,compute_full_subgroups=0,"
    "shader_float16=0,shader_int8=0,shader_int16=0,storage_buffer_8bit=0,storage_buffer_16bit=0,"
    "uniform_buffer_8bit=0,uniform_buffer_16bit=0,integer_dot_product=0,"
    "integer_dot_product_4x8_accelerated=0,timeline=0,buffer_device_address=0,external_memory_host=0,"
    "memory_budget=0";

std::optional<uint64_t> ParseNumber(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "1.1" or "1.1.0" as VK_MAKE_API_VERSION packs it.
std::optional<uint64_t> ParseApiVersion(std::string_view text) {
  uint64_t parts[3] = {0, 0, 0};
  size_t count = 0;
  while (count < 3) {
    const size_t dot = std::min(text.find('.'), text.size());
    const std::optional<uint64_t> part = ParseNumber(text.substr(0, dot));
    if (!part || *part > 1023) return std::nullopt;
    parts[count++] = *part;
    if (dot == text.size()) return (parts[0] << 22) | (parts[1] << 12) | parts[2];
    text.remove_prefix(dot + 1);
  }
  return std::nullopt;
}

template <typename T>
void ApplyClamp(ClampRule rule, uint64_t value, T& field) {
  if constexpr (std::is_same_v<T, bool>) {
    field = field && value != 0;
  } else {
    const auto bound = static_cast<T>(std::min<uint64_t>(value, std::numeric_limits<T>::max()));
    switch (rule) {
      case ClampRule::kFixed: break;
      case ClampRule::kAtMost: field = std::min(field, bound); break;
      case ClampRule::kAtLeast: field = std::max(field, bound); break;
      case ClampRule::kMask: field &= bound; break;
    }
  }
}

Status UnknownField(std::string_view name, std::string_view item) {
  std::string known;
  DeviceFacts none;
  VisitDeviceFacts(none, [&](std::string_view field, ClampRule rule, auto&) {
    if (rule != ClampRule::kFixed) known += fmt::format("{}{}", known.empty() ? "" : ", ", field);
  });
  return {StatusCode::kInvalidArgument,
          fmt::format("KVRUN_DEVICE_CLAMP: \"{}\" in \"{}\" is not a fact that can be clamped; give "
                      "\"floor\" or any of: {}",
                      name, item, known)};
}

Status ClampItem(std::string_view item, DeviceFacts& facts) {
  const size_t equals = item.find('=');
  const std::string_view name = item.substr(0, equals);
  const std::string_view text = equals == std::string_view::npos ? "" : item.substr(equals + 1);
  const std::optional<uint64_t> value = name == "api_version" ? ParseApiVersion(text) : ParseNumber(text);
  bool found = false;
  VisitDeviceFacts(facts, [&](std::string_view field, ClampRule rule, auto& target) {
    using Field = std::remove_reference_t<decltype(target)>;
    if (field != name || rule == ClampRule::kFixed) return;
    found = true;
    if constexpr (std::is_integral_v<Field>) {
      if (value) ApplyClamp(rule, *value, target);
    }
  });
  if (!found) return UnknownField(name, item);
  if (value) return Status::Ok();
  return {StatusCode::kInvalidArgument, fmt::format("KVRUN_DEVICE_CLAMP: \"{}\" needs a value, such as {}={}",
                                                    item, name, name == "api_version" ? "1.1" : "0")};
}

Status ClampList(std::string_view spec, DeviceFacts& facts) {
  while (!spec.empty()) {
    const size_t comma = std::min(spec.find(','), spec.size());
    const std::string_view item = spec.substr(0, comma);
    spec.remove_prefix(std::min(comma + 1, spec.size()));
    if (item.empty()) continue;
    KVRUN_RETURN_IF_ERROR(item == "floor" ? ClampList(kFloor, facts) : ClampItem(item, facts));
  }
  return Status::Ok();
}

}  // namespace

std::string_view DeviceTypeName(DeviceType type) {
  switch (type) {
    case DeviceType::kOther: return "other";
    case DeviceType::kIntegratedGpu: return "integrated GPU";
    case DeviceType::kDiscreteGpu: return "discrete GPU";
    case DeviceType::kVirtualGpu: return "virtual GPU";
    case DeviceType::kCpu: return "CPU";
  }
  return "other";
}

std::string FormatApiVersion(uint32_t version) {
  return fmt::format("{}.{}.{}", (version >> 22) & 0x7f, (version >> 12) & 0x3ff, version & 0xfff);
}

Result<DeviceFacts> ClampFacts(DeviceFacts facts, std::string_view spec) {
  KVRUN_RETURN_IF_ERROR(ClampList(spec, facts));
  return facts;
}

Result<DeviceFacts> ClampFactsByEnvironment(DeviceFacts facts) {
  const char* spec = std::getenv("KVRUN_DEVICE_CLAMP");
  return ClampFacts(std::move(facts), spec == nullptr ? "" : spec);
}

}  // namespace kvrun
