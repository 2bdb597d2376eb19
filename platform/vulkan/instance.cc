#include "platform/vulkan/instance.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>

#include "platform/vulkan/vk_status.h"

namespace kvrun {
namespace {

constexpr const char* kValidationLayer = "VK_LAYER_KHRONOS_validation";

std::atomic<uint64_t> g_validation_messages{0};
std::atomic<bool> g_was_created{false};

Status LoadLoader() {
  static const VkResult result = volkInitialize();
  if (result == VK_SUCCESS) return Status::Ok();
  return {StatusCode::kNotFound,
          "no Vulkan loader (libvulkan.so.1) on this machine; install libvulkan1 and a driver (Debian: "
          "apt install libvulkan1 mesa-vulkan-drivers)"};
}

// volk keeps instance functions in globals. The loader's entry points serve every instance, so they are
// stored once; extension functions are looked up per instance instead.
void LoadInstanceFunctions(VkInstance instance) {
  static std::once_flag once;
  std::call_once(once, [instance] { volkLoadInstanceOnly(instance); });
}

// What the loader reads when it looks for drivers; it has no other way of being told.
class DriverVariables {
 public:
  explicit DriverVariables(const std::optional<std::vector<std::string>>& drivers) : lock_(Mutex()) {
    if (!drivers) return;
    std::string files;
    for (const std::string& driver : *drivers) files += (files.empty() ? "" : ":") + driver;
    for (const char* name : {"VK_DRIVER_FILES", "VK_ICD_FILENAMES"}) {
      const char* value = std::getenv(name);
      before_.emplace_back(name, value == nullptr ? std::nullopt : std::optional<std::string>(value));
      setenv(name, files.c_str(), 1);
    }
  }
  ~DriverVariables() {
    for (const auto& [name, value] : before_) {
      if (value) setenv(name, value->c_str(), 1);
      if (!value) unsetenv(name);
    }
  }
  DriverVariables(const DriverVariables&) = delete;
  DriverVariables& operator=(const DriverVariables&) = delete;

 private:
  static std::mutex& Mutex() {
    static std::mutex mutex;
    return mutex;
  }

  std::lock_guard<std::mutex> lock_;  // instances are created one after another
  std::vector<std::pair<const char*, std::optional<std::string>>> before_;
};

bool HasExtension(const char* layer, std::string_view name) {
  uint32_t count = 0;
  if (vkEnumerateInstanceExtensionProperties(layer, &count, nullptr) != VK_SUCCESS) return false;
  std::vector<VkExtensionProperties> extensions(count);
  if (vkEnumerateInstanceExtensionProperties(layer, &count, extensions.data()) < 0) return false;
  for (const VkExtensionProperties& extension : extensions) {
    if (name == extension.extensionName) return true;
  }
  return false;
}

bool HasLayer(std::string_view name) {
  uint32_t count = 0;
  if (vkEnumerateInstanceLayerProperties(&count, nullptr) != VK_SUCCESS) return false;
  std::vector<VkLayerProperties> layers(count);
  if (vkEnumerateInstanceLayerProperties(&count, layers.data()) < 0) return false;
  for (const VkLayerProperties& layer : layers) {
    if (name == layer.layerName) return true;
  }
  return false;
}

VKAPI_ATTR VkBool32 VKAPI_CALL OnMessage(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                         VkDebugUtilsMessageTypeFlagsEXT types,
                                         const VkDebugUtilsMessengerCallbackDataEXT* data, void* user) {
  // The loader itself talks through "general" messages, such as of a driver that it cannot open.
  const bool validation = (types & (VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT |
                                    VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT)) != 0;
  if (!validation) return VK_FALSE;
  static_cast<VulkanInstance*>(user)->CountValidationMessage();
  const bool error = (severity & VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT) != 0;
  std::fprintf(stderr, "kvrun: vulkan validation %s: %s\n", error ? "error" : "warning",
               data->pMessage != nullptr ? data->pMessage : "(no text)");
  return VK_FALSE;
}

VkDebugUtilsMessengerCreateInfoEXT MessengerInfo(VulkanInstance* instance) {
  VkDebugUtilsMessengerCreateInfoEXT info{};
  info.sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT;
  info.messageSeverity =
      VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT;
  info.messageType =
      VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT;
  info.pfnUserCallback = OnMessage;
  info.pUserData = instance;
  return info;
}

}  // namespace

InstanceOptions InstanceOptions::FromEnvironment() {
  const char* value = std::getenv("KVRUN_VALIDATION");
  const bool on = value != nullptr && *value != '\0' && std::strcmp(value, "0") != 0 &&
                  std::strcmp(value, "no") != 0 && std::strcmp(value, "off") != 0 &&
                  std::strcmp(value, "false") != 0;
  return {.validation = on, .sync_validation = on};
}

Result<std::shared_ptr<VulkanInstance>> VulkanInstance::Create(const InstanceOptions& options) {
  KVRUN_RETURN_IF_ERROR(LoadLoader());
  if (vkEnumerateInstanceVersion == nullptr || volkGetInstanceVersion() < VK_API_VERSION_1_1) {
    return Status(StatusCode::kUnsupported,
                  "the Vulkan loader of this machine is older than Vulkan 1.1; update libvulkan1");
  }
  const DriverVariables variables(options.drivers);
  g_was_created.store(true);
  std::shared_ptr<VulkanInstance> instance(new VulkanInstance());
  KVRUN_RETURN_IF_ERROR(instance->CreateHandle(options));
  return instance;
}

Status VulkanInstance::CreateHandle(const InstanceOptions& options) {
  std::vector<const char*> layers;
  std::vector<const char*> extensions;
  VkInstanceCreateFlags flags = 0;
  if (HasExtension(nullptr, VK_KHR_PORTABILITY_ENUMERATION_EXTENSION_NAME)) {
    extensions.push_back(VK_KHR_PORTABILITY_ENUMERATION_EXTENSION_NAME);
    flags |= VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR;
  }
  VkDebugUtilsMessengerCreateInfoEXT messenger = MessengerInfo(this);
  const VkValidationFeatureEnableEXT sync = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT;
  VkValidationFeaturesEXT features{};
  features.sType = VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT;
  features.enabledValidationFeatureCount = 1;
  features.pEnabledValidationFeatures = &sync;
  const void* next = nullptr;
  validation_enabled_ = options.validation && HasLayer(kValidationLayer);
  if (validation_enabled_) {
    layers.push_back(kValidationLayer);
    extensions.push_back(VK_EXT_DEBUG_UTILS_EXTENSION_NAME);
    next = &messenger;
    if (options.sync_validation &&
        HasExtension(kValidationLayer, VK_EXT_VALIDATION_FEATURES_EXTENSION_NAME)) {
      extensions.push_back(VK_EXT_VALIDATION_FEATURES_EXTENSION_NAME);
      features.pNext = next;
      next = &features;
    }
  } else if (options.validation) {
    std::fprintf(stderr, "kvrun: no Vulkan validation: install vulkan-validationlayers\n");
  }
  VkApplicationInfo application{};
  application.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO;
  application.pApplicationName = "kvrun";
  application.apiVersion = VK_API_VERSION_1_1;
  VkInstanceCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
  info.pNext = next;
  info.flags = flags;
  info.pApplicationInfo = &application;
  info.enabledLayerCount = static_cast<uint32_t>(layers.size());
  info.ppEnabledLayerNames = layers.data();
  info.enabledExtensionCount = static_cast<uint32_t>(extensions.size());
  info.ppEnabledExtensionNames = extensions.data();
  KVRUN_RETURN_IF_VK_ERROR(vkCreateInstance(&info, nullptr, &instance_), "cannot start Vulkan");
  LoadInstanceFunctions(instance_);
  if (validation_enabled_) CreateMessenger(messenger);
  return Status::Ok();
}

void VulkanInstance::CreateMessenger(const VkDebugUtilsMessengerCreateInfoEXT& info) {
  const auto create = reinterpret_cast<PFN_vkCreateDebugUtilsMessengerEXT>(
      vkGetInstanceProcAddr(instance_, "vkCreateDebugUtilsMessengerEXT"));
  if (create == nullptr || create(instance_, &info, nullptr, &messenger_) != VK_SUCCESS) {
    std::fprintf(stderr, "kvrun: Vulkan validation messages cannot be counted\n");
    validation_enabled_ = false;
  }
}

Status VulkanInstance::FindLoader() { return LoadLoader(); }

bool VulkanInstance::WasCreated() { return g_was_created.load(); }

uint64_t VulkanInstance::AllValidationMessages() { return g_validation_messages.load(); }

void VulkanInstance::CountValidationMessage() {
  validation_messages_.fetch_add(1);
  g_validation_messages.fetch_add(1);
}

VulkanInstance::~VulkanInstance() {
  if (messenger_ != VK_NULL_HANDLE) {
    const auto destroy = reinterpret_cast<PFN_vkDestroyDebugUtilsMessengerEXT>(
        vkGetInstanceProcAddr(instance_, "vkDestroyDebugUtilsMessengerEXT"));
    if (destroy != nullptr) destroy(instance_, messenger_, nullptr);
  }
  if (instance_ != VK_NULL_HANDLE) vkDestroyInstance(instance_, nullptr);
}

Result<std::vector<VkPhysicalDevice>> VulkanInstance::PhysicalDevices() const {
  uint32_t count = 0;
  const VkResult counted = vkEnumeratePhysicalDevices(instance_, &count, nullptr);
  // The loader's way to say that no driver has a device.
  if (counted == VK_ERROR_INITIALIZATION_FAILED) return std::vector<VkPhysicalDevice>();
  KVRUN_RETURN_IF_VK_ERROR(counted, "cannot list the Vulkan devices");
  std::vector<VkPhysicalDevice> devices(count);
  KVRUN_RETURN_IF_VK_ERROR(vkEnumeratePhysicalDevices(instance_, &count, devices.data()),
                           "cannot list the Vulkan devices");
  devices.resize(count);
  return devices;
}

}  // namespace kvrun
