// Which launcher an operation has.
#include <variant>

#include "runtime/device/vulkan/command_list.h"

namespace kvrun {

Status VulkanCommandList::Add(const Operation& operation) {
  return std::visit([this](const auto& args) { return Launch(args); }, operation);
}

}  // namespace kvrun
