// How many instructions a driver's compiler makes of a matrix-vector product's inner loop, for each weight:
// what bounds a product on a GPU with few cores. Runs nothing, so that it needs no GPU where the driver can
// do without one, as Mesa's for AMD (Debian's mesa-vulkan-drivers):
//
//   RADV_FORCE_FAMILY=vangogh VK_DRIVER_FILES=/usr/share/vulkan/icd.d/radeon_icd.x86_64.json
//   kernel_instructions
#include <fmt/format.h>
#include <volk.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/device/vulkan/shader_library.h"
#include "tests/support/or_die.h"
#include "tests/support/spirv_reflect.h"

namespace kvrun::testing {
namespace {

void CheckVk(VkResult result, const char* what) {
  if (result == VK_SUCCESS) return;
  fmt::print(stderr, "{}: VkResult {}\n", what, static_cast<int>(result));
  std::exit(1);
}

VkDevice OpenFirstDevice() {
  CheckVk(volkInitialize(), "no Vulkan loader");
  VkApplicationInfo app{};
  app.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO;
  app.apiVersion = VK_API_VERSION_1_1;
  VkInstanceCreateInfo instance_info{};
  instance_info.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
  instance_info.pApplicationInfo = &app;
  VkInstance instance = VK_NULL_HANDLE;
  CheckVk(vkCreateInstance(&instance_info, nullptr, &instance), "vkCreateInstance");
  volkLoadInstance(instance);
  uint32_t count = 1;
  VkPhysicalDevice physical = VK_NULL_HANDLE;
  const VkResult found = vkEnumeratePhysicalDevices(instance, &count, &physical);
  if (count == 0) CheckVk(VK_ERROR_INITIALIZATION_FAILED, "no device");
  if (found != VK_INCOMPLETE) CheckVk(found, "vkEnumeratePhysicalDevices");
  VkPhysicalDeviceProperties properties;
  vkGetPhysicalDeviceProperties(physical, &properties);
  fmt::print("{}\n", properties.deviceName);
  const float priority = 1.0F;
  VkDeviceQueueCreateInfo queue{};
  queue.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO;
  queue.queueCount = 1;
  queue.pQueuePriorities = &priority;
  const char* extension = VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME;
  VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR feature{};
  feature.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR;
  feature.pipelineExecutableInfo = VK_TRUE;
  VkDeviceCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO;
  info.pNext = &feature;
  info.queueCreateInfoCount = 1;
  info.pQueueCreateInfos = &queue;
  info.enabledExtensionCount = 1;
  info.ppEnabledExtensionNames = &extension;
  VkDevice device = VK_NULL_HANDLE;
  CheckVk(vkCreateDevice(physical, &info, nullptr, &device), "the driver tells nothing of its binaries");
  volkLoadDevice(device);
  return device;
}

VkPipelineLayout LayoutOf(VkDevice device, const ReflectedShader& shader) {
  std::vector<VkDescriptorSetLayoutBinding> bindings;
  for (const ReflectedBinding& binding : shader.bindings) {
    bindings.push_back({binding.binding,
                        binding.kind == BindingKind::kStorageBuffer ? VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
                                                                    : VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER,
                        1, VK_SHADER_STAGE_COMPUTE_BIT, nullptr});
  }
  VkDescriptorSetLayoutCreateInfo set_info{};
  set_info.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO;
  set_info.bindingCount = static_cast<uint32_t>(bindings.size());
  set_info.pBindings = bindings.data();
  VkDescriptorSetLayout set = VK_NULL_HANDLE;
  CheckVk(vkCreateDescriptorSetLayout(device, &set_info, nullptr, &set), "vkCreateDescriptorSetLayout");
  const VkPushConstantRange range{VK_SHADER_STAGE_COMPUTE_BIT, 0,
                                  static_cast<uint32_t>(shader.push_constants.size() * 4)};
  VkPipelineLayoutCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO;
  info.setLayoutCount = 1;
  info.pSetLayouts = &set;
  info.pushConstantRangeCount = 1;
  info.pPushConstantRanges = &range;
  VkPipelineLayout layout = VK_NULL_HANDLE;
  CheckVk(vkCreatePipelineLayout(device, &info, nullptr, &layout), "vkCreatePipelineLayout");
  return layout;
}

VkPipeline Compile(VkDevice device, const ShaderCode& code, std::span<const uint32_t> constants) {
  VkShaderModuleCreateInfo module_info{};
  module_info.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO;
  module_info.codeSize = code.words.size_bytes();
  module_info.pCode = code.words.data();
  VkShaderModule module = VK_NULL_HANDLE;
  CheckVk(vkCreateShaderModule(device, &module_info, nullptr, &module), "vkCreateShaderModule");
  std::vector<VkSpecializationMapEntry> entries;
  for (uint32_t i = 0; i < constants.size(); ++i) entries.push_back({i, 4 * i, 4});
  const VkSpecializationInfo specialization{static_cast<uint32_t>(entries.size()), entries.data(),
                                            constants.size_bytes(), constants.data()};
  VkComputePipelineCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO;
  info.flags = VK_PIPELINE_CREATE_CAPTURE_INTERNAL_REPRESENTATIONS_BIT_KHR;
  info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
  info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
  info.stage.module = module;
  info.stage.pName = "main";
  info.stage.pSpecializationInfo = &specialization;
  info.layout = LayoutOf(device, OrDie(ReflectShader(code.words)));
  VkPipeline pipeline = VK_NULL_HANDLE;
  CheckVk(vkCreateComputePipelines(device, VK_NULL_HANDLE, 1, &info, nullptr, &pipeline),
          "vkCreateComputePipelines");
  return pipeline;
}

std::string AssemblyOf(VkDevice device, VkPipeline pipeline) {
  VkPipelineExecutableInfoKHR info{};
  info.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR;
  info.pipeline = pipeline;
  uint32_t count = 0;
  const auto get = vkGetPipelineExecutableInternalRepresentationsKHR;
  CheckVk(get(device, &info, &count, nullptr), "no representations");
  VkPipelineExecutableInternalRepresentationKHR empty{};
  empty.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INTERNAL_REPRESENTATION_KHR;
  std::vector<VkPipelineExecutableInternalRepresentationKHR> all(count, empty);
  CheckVk(get(device, &info, &count, all.data()), "no sizes of representations");
  std::vector<std::string> texts(count);
  for (uint32_t i = 0; i < count; ++i) {
    texts[i].resize(all[i].dataSize);
    all[i].pData = texts[i].data();
  }
  CheckVk(get(device, &info, &count, all.data()), "no texts of representations");
  for (uint32_t i = 0; i < count; ++i) {
    if (std::string(all[i].name) == "Assembly") return texts[i];
  }
  return {};
}

// Of AMD's code: basic blocks begin with "BBn:", and a branch names one.
struct Block {
  std::string name;
  uint32_t n_instructions = 0;
  uint32_t n_adds = 0;  // multiply-adds
  std::vector<std::string> branches;
};

std::vector<Block> BlocksOf(const std::string& assembly) {
  std::vector<Block> blocks;
  std::istringstream lines(assembly);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("BB")) {
      blocks.push_back({line.substr(0, line.find(':')), 0, 0, {}});
      continue;
    }
    std::istringstream words(line);
    std::string name;
    std::string operand;
    if (blocks.empty() || !(words >> name) || name.starts_with(';')) continue;
    ++blocks.back().n_instructions;
    if (name.starts_with("v_fma") || name.starts_with("v_pk_fma")) ++blocks.back().n_adds;
    if ((name.starts_with("s_branch") || name.starts_with("s_cbranch")) && words >> operand)
      blocks.back().branches.push_back(operand);
  }
  return blocks;
}

// Of the shortest loop that has a multiply-add for most weights.
uint32_t LoopInstructions(const std::vector<Block>& blocks, uint32_t n_weights) {
  uint32_t least = 0;
  for (size_t end = 0; end < blocks.size(); ++end) {
    for (const std::string& target : blocks[end].branches) {
      const auto begin =
          std::find_if(blocks.begin(), blocks.end(), [&](const Block& b) { return b.name == target; });
      const auto last = blocks.begin() + static_cast<std::ptrdiff_t>(end);
      if (begin > last) continue;
      uint32_t n = 0;
      uint32_t n_adds = 0;
      for (auto block = begin; block <= last; ++block) n += block->n_instructions, n_adds += block->n_adds;
      if (n_adds >= n_weights / 4 * 3 && (least == 0 || n < least)) least = n;
    }
  }
  return least;
}

int Main() {
  const VkDevice device = OpenFirstDevice();
  // Blocks of 32 columns that a lane takes in a turn of the loop, of one row.
  struct Case {
    std::string_view type;
    uint32_t n_blocks;
  };
  constexpr std::array kCases = {Case{"q4_0", 4}, Case{"q4_1", 4}, Case{"q4_k", 4}, Case{"q5_k", 4},
                                 Case{"q6_k", 4}, Case{"q8_0", 2}, Case{"f16", 1}};
  fmt::print("instructions a weight: rows a lane 1, 2\n");
  for (const Case& c : kCases) {
    fmt::print("{:6}", c.type);
    for (const uint32_t rows : {1U, 2U}) {
      const ShaderCode* code = FindShader(fmt::format("matvec{}_{}_floor", rows, c.type));
      const std::array<uint32_t, 5> constants = {16, 1, 1, 512, 0};  // with a norm
      const uint32_t n_weights = rows * c.n_blocks * 32;
      const std::string assembly = AssemblyOf(device, Compile(device, *code, constants));
      fmt::print(" {:6.2f}",
                 static_cast<double>(LoopInstructions(BlocksOf(assembly), n_weights)) / n_weights);
    }
    fmt::print("\n");
  }
  return 0;
}

}  // namespace
}  // namespace kvrun::testing

int main() { return kvrun::testing::Main(); }
