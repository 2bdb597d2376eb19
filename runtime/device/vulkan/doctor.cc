#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <utility>

#include "platform/base/units.h"
#include "platform/io/folder.h"
#include "platform/vulkan/self_tests.h"
#include "runtime/device/vulkan/broken_shader.h"
#include "runtime/device/vulkan/found_devices.h"
#include "runtime/device/vulkan/self_test.h"
#include "runtime/device/vulkan/shader_library.h"

namespace kvrun {
namespace {

// For checking the self-tests themselves: the variant that KVRUN_BREAK_KERNEL names miscalculates.
constexpr const char* kBreakKernel = "KVRUN_BREAK_KERNEL";

std::vector<std::pair<std::string, std::string>> DescribeLimits(const DeviceFacts& facts) {
  uint64_t memory_bytes = 0;
  for (const MemoryHeapFacts& heap : facts.memory_heaps) memory_bytes += heap.size_bytes;
  const auto number = [](uint64_t value) { return fmt::format("{}", value); };
  return {
      {"Vulkan", FormatApiVersion(facts.api_version)},
      {"memory of all heaps", FormatBytes(memory_bytes)},
      {"largest allocation", FormatBytes(facts.max_allocation_bytes)},
      {"allocations", number(facts.max_allocations)},
      {"storage binding", FormatBytes(facts.max_storage_buffer_range_bytes)},
      {"uniform binding", FormatBytes(facts.max_uniform_buffer_range_bytes)},
      {"storage alignment", FormatBytes(facts.min_storage_buffer_offset_alignment_bytes)},
      {"storage buffers", number(facts.max_storage_buffers_per_stage)},
      {"push constants", FormatBytes(facts.max_push_constants_bytes)},
      {"shared memory", FormatBytes(facts.max_shared_memory_bytes)},
      {"invocations", number(facts.max_workgroup_invocations)},
      {"workgroups", fmt::format("{} x {} x {}", facts.max_workgroup_count_x, facts.max_workgroup_count_y,
                                 facts.max_workgroup_count_z)},
      {"subgroup width", facts.min_subgroup_width == facts.max_subgroup_width
                             ? number(facts.subgroup_width)
                             : fmt::format("{} ({} to {})", facts.subgroup_width, facts.min_subgroup_width,
                                           facts.max_subgroup_width)},
      {"timestamp period", fmt::format("{:g} ns", facts.timestamp_period_ns)},
  };
}

std::string DescribeMemory(const char* name, const MemoryUse& use) {
  return fmt::format("memory for {}: type {}, heap {}{}{}{}{}", name, use.type_index, use.heap_index,
                     use.device_local ? ", of the device" : "",
                     use.host_visible ? ", visible to the host" : "", use.coherent ? ", coherent" : "",
                     use.cached ? ", cached" : "");
}

std::string DescribeSubgroups(const DevicePlan& plan) {
  if (!plan.use_subgroup_shuffle) return "kernels: floor (no subgroup operations)";
  return fmt::format("kernels: subgroup, {} lanes{}{}", plan.subgroup_width,
                     plan.required_subgroup_width != 0 ? ", width asked for" : "",
                     plan.use_full_subgroups ? ", full subgroups asked for" : "");
}

std::vector<std::string> DescribePlan(const DevicePlan& plan) {
  const auto used = [](const char* name, bool is_used) {
    return fmt::format("{}: {}", name, is_used ? "used" : "not used");
  };
  std::vector<std::string> lines = {
      fmt::format("queue family: {}", plan.queue_family),
      DescribeMemory("weights and KV", plan.device_local),
      DescribeMemory("uploads", plan.upload),
      DescribeMemory("results", plan.readback),
      DescribeMemory("file reads", plan.shared),
      fmt::format("memory of device and host: {}", plan.unified_memory ? "one" : "apart"),
      fmt::format("allocations of at most {}", FormatBytes(plan.max_allocation_bytes)),
      fmt::format("buffers of at most {}", FormatBytes(plan.max_binding_bytes)),
      used("imported host memory", plan.use_external_memory_host),
      used("memory budget of the driver", plan.use_memory_budget),
      DescribeSubgroups(plan),
      fmt::format("matrix products: tiles of at most {} tokens", plan.few_accumulators ? 4 : 8),
      used("16-bit float arithmetic", plan.use_float16),
      used("8-bit integer arithmetic", plan.use_int8),
      used("16-bit integer arithmetic", plan.use_int16),
      used("8-bit storage", plan.use_storage_8bit),
      used("16-bit storage", plan.use_storage_16bit),
      used("integer dot product", plan.use_integer_dot),
      fmt::format("reuse of data: {}", plan.prefer_shared_memory ? "shared memory" : "the device's cache"),
      fmt::format("order of host and device: {}", plan.use_timeline ? "timeline semaphore" : "fences"),
      fmt::format("submissions of a token: {}", plan.split_submits ? "several" : "one"),
      used("timestamps", plan.timestamps),
  };
  if (plan.literal_shared_sizes) lines.emplace_back("shared arrays: literal sizes only");
  if (plan.lane_from_local_index) lines.emplace_back("lanes: counted by local index");
  for (const std::string& quirk : plan.quirks) lines.push_back("driver quirk: " + quirk);
  for (const std::string& note : plan.notes) lines.push_back("note: " + note);
  lines.emplace_back("shaders: " + std::string(ShaderCompilerVersion()));
  return lines;
}

// Where files can be made: the cache folder if there is one already.
std::string TestFolder() {
  std::error_code error;
  const std::optional<std::string> cache = CacheFolder();
  if (cache && std::filesystem::is_directory(*cache, error)) return *cache;
  const char* folder = std::getenv("TMPDIR");
  return folder != nullptr && *folder != '\0' ? folder : "/tmp";
}

// What a device may do without: that it is not there is no failure.
Result<std::string> OrAnotherWay(Result<std::string> outcome) {
  if (outcome.ok() || outcome.status().code() != StatusCode::kUnsupported) return outcome;
  return "not there; another way is used (" + outcome.status().message() + ")";
}

std::vector<KernelCheck> SystemChecks() {
  return {{"memory import",
           [](VulkanComputeDevice& device) { return OrAnotherWay(TestMemoryImport(device.vulkan())); }},
          {"timeline", [](VulkanComputeDevice& device) { return TestTimeline(device.vulkan()); }},
          {"direct read into mapped memory", [](VulkanComputeDevice& device) {
             return OrAnotherWay(TestDirectReadIntoMapped(device.vulkan(), TestFolder()));
           }}};
}

Status BreakKernel(VulkanComputeDevice& device) {
  const char* name = std::getenv(kBreakKernel);
  if (name == nullptr || *name == '\0') return Status::Ok();
  const ShaderCode* code = FindShader(name);
  if (code == nullptr) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{}: no kernel is named \"{}\"; the names are those of shaders/variants.txt",
                        kBreakKernel, name)};
  }
  device.pipelines().OverrideShader(name, BreakShader(code->words));
  return Status::Ok();
}

// One device's tests. `found` outlives it.
class Examination {
 public:
  Examination(const FoundDevices& found, size_t index)
      : found_(found), index_(index), plan_(PlanDevice(found.facts[index], {})) {
    if (!plan_.ok()) return;
    checks_ = SystemChecks();
    const bool is_cpu = found.facts[index].type == DeviceType::kCpu;
    for (KernelCheck& check : KernelChecks(*plan_, is_cpu)) checks_.push_back(std::move(check));
  }

  size_t n_tests() const { return 1 + checks_.size(); }

  Result<DoctorReport> Run(const CheckUpPace& pace) const {
    const DeviceFacts& facts = found_.facts[index_];
    DoctorReport report{.name = facts.name,
                        .kind = std::string(DeviceKindName(facts.type)),
                        .driver = fmt::format("{} {}", facts.driver_name, facts.driver_info),
                        .limits = DescribeLimits(facts),
                        .plan = {},
                        .tests = {},
                        .n_left_out = 0};
    if (!plan_.ok()) {
      report.tests.push_back({"usable", false, plan_.status().message()});
      KVRUN_RETURN_IF_ERROR(pace.tick());
      return report;
    }
    report.plan = DescribePlan(*plan_);
    auto device = OpenFoundDevice(found_, index_, false, "");
    report.tests.push_back({"opening the device", device.ok(), device.ok() ? "" : device.status().message()});
    KVRUN_RETURN_IF_ERROR(pace.tick());
    if (!device.ok()) return report;
    KVRUN_RETURN_IF_ERROR(BreakKernel(**device));
    KVRUN_RETURN_IF_ERROR(RunChecks<KernelCheck>(checks_, pace, &report, [&](const KernelCheck& check) {
      return ToResult(check.name, check.run(**device));
    }));
    return report;
  }

 private:
  const FoundDevices& found_;
  size_t index_;
  Result<DevicePlan> plan_;
  std::vector<KernelCheck> checks_;
};

}  // namespace

CheckUp PlanCheckUp(const FoundDevices& found, size_t index) {
  const auto examination = std::make_shared<const Examination>(found, index);
  return {.n_tests = examination->n_tests(),
          .run = [examination](const CheckUpPace& pace) { return examination->Run(pace); }};
}

}  // namespace kvrun
