#include "runtime/device/select/make_pair.h"

#include <string_view>
#include <utility>

namespace kvrun {

Result<std::unique_ptr<Device>> MakePair(std::unique_ptr<VulkanComputeDevice> prefill,
                                         std::unique_ptr<host::HostDevice> decode, uint32_t max_decode_rows) {
  VulkanComputeDevice& vulkan = *prefill;
  const auto make_shared = [&vulkan](uint64_t size_bytes, BufferUse use,
                                     std::string_view part) -> Result<pair::SharedBuffer> {
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<VulkanBuffer> buffer,
                           vulkan.CreateCachedBuffer(size_bytes, use, part, host::kMemoryAlignmentBytes));
    std::byte* const bytes = buffer->memory().mapped();
    return pair::SharedBuffer{std::move(buffer), bytes};
  };
  // Now rather than when weights are loaded.
  KVRUN_RETURN_IF_ERROR(make_shared(sizeof(float), BufferUse::kShared, "activations").status());
  pair::PairParts parts{.prefill = std::move(prefill),
                        .decode = std::move(decode),
                        .make_shared = make_shared,
                        .notes = {},
                        .max_decode_rows = max_decode_rows};
  if (!vulkan.plan().readback.device_local) {
    parts.notes.emplace_back("the two devices share the CPU's memory, which is not the prefill device's own");
  }
  return std::unique_ptr<Device>(std::make_unique<pair::PairDevice>(std::move(parts)));
}

}  // namespace kvrun
