// Launchers of the operations that tell how much attention entries receive.
#include "runtime/device/vulkan/command_list.h"

namespace kvrun {

Status VulkanCommandList::SumWeights(const RowMassArgs& /*args*/) {
  return {StatusCode::kUnsupported, "attention's mass cannot be computed on Vulkan yet"};
}

Status VulkanCommandList::AttentionMass(const RowMassArgs& /*args*/) {
  return {StatusCode::kUnsupported, "attention's mass cannot be computed on Vulkan yet"};
}

}  // namespace kvrun
