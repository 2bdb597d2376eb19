#include "tests/support/vulkan_devices.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "platform/vulkan/device_facts_query.h"

#ifdef __SANITIZE_ADDRESS__
// The validation layer of Debian 12 keeps the state of submitted command buffers in cycles of its own.
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions() {
  return "leak:libVkLayer_khronos_validation.so\n";
}
#endif

#ifdef __SANITIZE_THREAD__
// SwiftShader is not instrumented, so its own synchronisation is not seen.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions() {
  return "race:libvk_swiftshader.so\n";
}
#endif

namespace kvrun::testing {
namespace {

// Leaks of a library that was unloaded cannot be told from ours.
void KeepValidationLayerLoaded() {
  (void)dlopen("libVkLayer_khronos_validation.so", RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

[[noreturn]] void Die(const Status& status) {
  std::fprintf(stderr, "test set-up failed: %s\n", status.message().c_str());
  std::abort();
}

}  // namespace

std::shared_ptr<VulkanInstance> TestInstance() {
  static const std::shared_ptr<VulkanInstance> instance = []() -> std::shared_ptr<VulkanInstance> {
    const char* asked = std::getenv("KVRUN_VALIDATION");
    const bool validation = asked == nullptr || std::string_view(asked) != "0";
    Result<std::shared_ptr<VulkanInstance>> created =
        VulkanInstance::Create({.validation = validation, .sync_validation = validation});
    KeepValidationLayerLoaded();
    if (created.ok()) return std::move(created).value();
    std::fprintf(stderr, "no Vulkan for tests: %s\n", created.status().message().c_str());
    return nullptr;
  }();
  return instance;
}

std::vector<std::unique_ptr<VulkanDevice>> OpenTestDevices(
    std::string_view clamp, const std::function<void(DeviceFacts&, DevicePlan&)>& change) {
  std::vector<std::unique_ptr<VulkanDevice>> devices;
  const std::shared_ptr<VulkanInstance> instance = TestInstance();
  if (instance == nullptr) return devices;
  const Result<std::vector<VkPhysicalDevice>> physical = instance->PhysicalDevices();
  if (!physical.ok()) Die(physical.status());
  for (VkPhysicalDevice handle : *physical) {
    Result<DeviceFacts> facts = QueryDeviceFacts(handle);
    if (facts.ok()) facts = ClampFactsByEnvironment(std::move(facts).value());
    if (facts.ok()) facts = ClampFacts(std::move(facts).value(), clamp);
    if (!facts.ok()) Die(facts.status());
    Result<DevicePlan> plan = PlanDevice(*facts, {});
    if (!plan.ok()) {
      std::fprintf(stderr, "not tested: %s\n", plan.status().message().c_str());
      continue;
    }
    if (change) change(*facts, *plan);
    auto device = VulkanDevice::Create(instance, handle, *facts, *plan);
    if (!device.ok()) Die(device.status());
    devices.push_back(std::move(device).value());
  }
  return devices;
}

}  // namespace kvrun::testing
