#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

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

SelfTestResult ToResult(const std::string& name, const Result<std::string>& outcome) {
  return {name, outcome.ok(), outcome.ok() ? *outcome : outcome.status().message()};
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

// The tests of all devices, counted together.
class Doctor {
 public:
  Doctor(const FoundDevices& found, const std::function<bool(size_t, size_t)>& progress)
      : found_(found), progress_(progress) {}

  void Add(size_t index) {
    Patient patient{.index = index, .plan = PlanDevice(found_.facts[index], {}), .checks = {}};
    if (patient.plan.ok()) {
      patient.checks = SystemChecks();
      const bool is_cpu = found_.facts[index].type == DeviceType::kCpu;
      for (KernelCheck& check : KernelChecks(*patient.plan, is_cpu)) {
        patient.checks.push_back(std::move(check));
      }
    }
    total_ += 1 + patient.checks.size();
    patients_.push_back(std::move(patient));
  }

  Result<std::vector<DoctorReport>> Run() {
    std::vector<DoctorReport> reports;
    for (const Patient& patient : patients_) {
      KVRUN_ASSIGN_OR_RETURN(DoctorReport report, Examine(patient));
      reports.push_back(std::move(report));
    }
    return reports;
  }

 private:
  struct Patient {
    size_t index;
    Result<DevicePlan> plan;
    std::vector<KernelCheck> checks;
  };

  Result<DoctorReport> Examine(const Patient& patient) {
    const DeviceFacts& facts = found_.facts[patient.index];
    DoctorReport report{.name = facts.name,
                        .kind = std::string(DeviceKindName(facts.type)),
                        .driver = fmt::format("{} {}", facts.driver_name, facts.driver_info),
                        .limits = DescribeLimits(facts),
                        .plan = {},
                        .tests = {}};
    if (!patient.plan.ok()) {
      report.tests.push_back({"usable", false, patient.plan.status().message()});
      KVRUN_RETURN_IF_ERROR(Tick());
      return report;
    }
    report.plan = DescribePlan(*patient.plan);
    auto device = OpenFoundDevice(found_, patient.index, false, "");
    report.tests.push_back({"opening the device", device.ok(), device.ok() ? "" : device.status().message()});
    KVRUN_RETURN_IF_ERROR(Tick());
    if (!device.ok()) return report;
    KVRUN_RETURN_IF_ERROR(BreakKernel(**device));
    for (const KernelCheck& check : patient.checks) {
      report.tests.push_back(ToResult(check.name, check.run(**device)));
      KVRUN_RETURN_IF_ERROR(Tick());
    }
    return report;
  }

  Status Tick() {
    ++done_;
    if (progress_ && progress_(done_, total_))
      return {StatusCode::kCancelled, "the self-tests were cancelled"};
    return Status::Ok();
  }

  const FoundDevices& found_;
  const std::function<bool(size_t, size_t)>& progress_;
  std::vector<Patient> patients_;
  size_t done_ = 0;
  size_t total_ = 0;
};

}  // namespace

Result<std::vector<DoctorReport>> ExamineDevices(const FoundDevices& found, std::span<const size_t> indices,
                                                 const std::function<bool(size_t, size_t)>& progress) {
  Doctor doctor(found, progress);
  for (const size_t index : indices) doctor.Add(index);
  return doctor.Run();
}

}  // namespace kvrun
