// Launchers of what layers other than full attention consist of.
#include "runtime/device/vulkan/command_list.h"

namespace kvrun {

Status VulkanCommandList::Launch(const SigmoidGateArgs&) { return {StatusCode::kUnsupported, "not yet"}; }
Status VulkanCommandList::Launch(const CopyArgs&) { return {StatusCode::kUnsupported, "not yet"}; }
Status VulkanCommandList::Launch(const ChooseExpertsArgs&) { return {StatusCode::kUnsupported, "not yet"}; }
Status VulkanCommandList::Launch(const ExpertMatMulArgs&) { return {StatusCode::kUnsupported, "not yet"}; }
Status VulkanCommandList::Launch(const ShortConvolutionArgs&) {
  return {StatusCode::kUnsupported, "not yet"};
}
Status VulkanCommandList::Launch(const DeltaRuleArgs&) { return {StatusCode::kUnsupported, "not yet"}; }
Status VulkanCommandList::Launch(const GatedNormArgs&) { return {StatusCode::kUnsupported, "not yet"}; }

}  // namespace kvrun
