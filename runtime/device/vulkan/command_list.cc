#include "runtime/device/vulkan/command_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "platform/base/units.h"
#include "runtime/device/vulkan/shader_library.h"

namespace kvrun {
namespace {

constexpr uint32_t kMaxTimestamps = 4096;
// Where the plan asks for short submissions: about two layers of a model.
constexpr uint32_t kMaxDispatchesPerPart = 20;

bool Contains(const std::vector<const DeviceBuffer*>& buffers, const DeviceBuffer* buffer) {
  return std::find(buffers.begin(), buffers.end(), buffer) != buffers.end();
}

uint64_t LengthOf(const Binding& binding) {
  return binding.length_bytes != 0 ? binding.length_bytes : binding.memory->size_bytes();
}

}  // namespace

VulkanCommandList::VulkanCommandList(VulkanComputeDevice& device, VulkanComputeDevice::ListParts made_of)
    : device_(device), made_of_(std::move(made_of)) {}

VulkanCommandList::~VulkanCommandList() {
  device_.Forget(*this);
  device_.GiveListParts(std::move(made_of_));
}

Result<std::unique_ptr<VulkanCommandList>> VulkanCommandList::Create(VulkanComputeDevice& device) {
  KVRUN_ASSIGN_OR_RETURN(VulkanComputeDevice::ListParts made_of, device.TakeListParts());
  std::unique_ptr<VulkanCommandList> list(new VulkanCommandList(device, std::move(made_of)));
  KVRUN_RETURN_IF_ERROR(list->BeginPart());
  if (device.profile() && device.plan().timestamps) {
    KVRUN_ASSIGN_OR_RETURN(list->timestamps_, TimestampPool::Create(device.vulkan(), kMaxTimestamps));
    list->timestamps_->RecordReset(list->commands_);
    list->timestamps_->RecordWrite(list->commands_, 0);
  }
  return list;
}

Status VulkanCommandList::BeginPart() {
  if (commands_ != VK_NULL_HANDLE) KVRUN_RETURN_IF_ERROR(EndCommands(device_.vulkan(), commands_));
  KVRUN_ASSIGN_OR_RETURN(commands_, made_of_.pool.Allocate());
  parts_.push_back(commands_);
  dispatches_ = 0;
  return BeginCommands(device_.vulkan(), commands_);
}

const DeviceBuffer* VulkanCommandList::MemoryOrEmpty(const Buffer* buffer) const {
  const auto* vulkan_buffer =
      buffer == nullptr ? &device_.empty_buffer() : static_cast<const VulkanBuffer*>(buffer);
  return &vulkan_buffer->memory();
}

void VulkanCommandList::NoteHostBuffer(const VulkanBuffer& buffer) {
  NoteHostBuffer(buffer, buffer.size_bytes());
}

void VulkanCommandList::NoteHostBuffer(const VulkanBuffer& buffer, uint64_t length_bytes) {
  if (IsOfDevice(buffer.use())) return;
  auto& list = buffer.use() == BufferUse::kUpload ? uploads_ : readbacks_;
  const auto found =
      std::find_if(list.begin(), list.end(), [&](const HostRange& range) { return range.buffer == &buffer; });
  if (found == list.end()) {
    list.push_back({&buffer, length_bytes});
  } else {
    found->length_bytes = std::max(found->length_bytes, length_bytes);
  }
}

void VulkanCommandList::OrderAfterEarlier(std::span<const Binding> storage) {
  const bool depends = std::any_of(storage.begin(), storage.end(), [&](const Binding& binding) {
    return Contains(written_, binding.memory) ||
           (binding.access != Access::kRead && Contains(read_, binding.memory));
  });
  if (depends || waits_for_host_) {
    std::vector<VkBuffer> written;
    for (const DeviceBuffer* buffer : written_) written.push_back(buffer->handle());
    RecordComputeBarrier(device_.vulkan(), commands_, written, waits_for_host_);
    ++n_barriers_;
    waits_for_host_ = false;
    read_.clear();
    written_.clear();
  }
  for (const Binding& binding : storage) {
    auto& list = binding.access == Access::kRead ? read_ : written_;
    if (!Contains(list, binding.memory)) list.push_back(binding.memory);
  }
}

bool VulkanCommandList::ReadsTexels(const Dispatch& dispatch) const {
  if (device_.plan().max_texels == 0 || TexelVariant(dispatch.kernel.variant).empty()) return false;
  return std::all_of(dispatch.storage.begin(), dispatch.storage.end(), [](const Binding& binding) {
    if (binding.access != Access::kRead) return true;
    return binding.memory->texels() != VK_NULL_HANDLE && binding.length_bytes == 0;
  });
}

Status VulkanCommandList::CheckLimits(const Dispatch& dispatch) const {
  const DevicePlan& plan = device_.plan();
  const auto& groups = dispatch.kernel.groups;
  if (groups[0] > plan.max_workgroup_count_x || groups[1] > plan.max_workgroup_count_y ||
      groups[2] > plan.max_workgroup_count_z) {
    return {StatusCode::kUnsupported,
            fmt::format("{} needs {} x {} x {} workgroups, more than {} can start", dispatch.kernel.variant,
                        groups[0], groups[1], groups[2], device_.info().name)};
  }
  for (const Binding& binding : dispatch.storage) {
    if (LengthOf(binding) <= plan.max_binding_bytes) continue;
    return {StatusCode::kUnsupported,
            fmt::format("{} needs {} at once, more than {} can bind", dispatch.kernel.variant,
                        FormatBytes(LengthOf(binding)), device_.info().name)};
  }
  return Status::Ok();
}

Status VulkanCommandList::Record(const Dispatch& dispatch) {
  KVRUN_RETURN_IF_ERROR(CheckLimits(dispatch));
  const bool reads_texels = ReadsTexels(dispatch);
  const std::string variant = reads_texels ? TexelVariant(dispatch.kernel.variant) : dispatch.kernel.variant;
  std::vector<BufferBinding> bindings;
  uint32_t texel_buffers_mask = 0;
  for (const Binding& binding : dispatch.storage) {
    if (reads_texels && binding.access == Access::kRead) texel_buffers_mask |= 1U << bindings.size();
    bindings.push_back({.buffer = binding.memory->handle(),
                        .offset = binding.offset_bytes,
                        .length_bytes = LengthOf(binding),
                        .texels = binding.memory->texels()});
  }
  KVRUN_ASSIGN_OR_RETURN(const std::shared_ptr<const ComputePipeline> pipeline,
                         device_.pipelines().Get({
                             .variant = variant,
                             .constants = dispatch.kernel.constants,
                             .storage_buffers = static_cast<uint32_t>(dispatch.storage.size()),
                             .texel_buffers_mask = texel_buffers_mask,
                             .uniform_buffers = dispatch.step != nullptr ? 1U : 0U,
                             .push_constants_bytes = static_cast<uint32_t>(dispatch.params.size()),
                         }));
  if (std::find(pipelines_.begin(), pipelines_.end(), pipeline) == pipelines_.end())
    pipelines_.push_back(pipeline);
  if (dispatch.step != nullptr) {
    bindings.push_back({.buffer = dispatch.step->memory().handle(),
                        .offset = 0,
                        .length_bytes = dispatch.step->size_bytes()});
    NoteHostBuffer(*dispatch.step);
  }
  KVRUN_ASSIGN_OR_RETURN(VkDescriptorSet set, made_of_.sets.Allocate(*pipeline, bindings));

  if (device_.plan().split_submits && dispatches_ == kMaxDispatchesPerPart)
    KVRUN_RETURN_IF_ERROR(BeginPart());
  ++dispatches_;
  ++n_dispatches_;
  // A barrier also orders after the parts before, which are submitted earlier to the same queue.
  OrderAfterEarlier(dispatch.storage);
  const auto& groups = dispatch.kernel.groups;
  const VolkDeviceTable& vk = device_.vulkan().vk();
  vk.vkCmdBindPipeline(commands_, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline->handle());
  vk.vkCmdBindDescriptorSets(commands_, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline->layout(), 0, 1, &set, 0,
                             nullptr);
  vk.vkCmdPushConstants(commands_, pipeline->layout(), VK_SHADER_STAGE_COMPUTE_BIT, 0,
                        static_cast<uint32_t>(dispatch.params.size()), dispatch.params.data());
  vk.vkCmdDispatch(commands_, groups[0], groups[1], groups[2]);

  NoteTime(variant + std::string(dispatch.note));
  return Status::Ok();
}

void VulkanCommandList::NoteTime(const std::string& variant) {
  if (!timestamps_ || timed_.size() + 1 >= timestamps_->capacity()) return;
  timed_.push_back(variant);
  timestamps_->RecordWrite(commands_, static_cast<uint32_t>(timed_.size()));
}

// The queue waits before it begins with the list; what the host wrote meanwhile is seen behind a barrier.
Status VulkanCommandList::AwaitHost() {
  waits_for_host_ = true;
  return Status::Ok();
}

Status VulkanCommandList::Finish() {
  RecordFullBarrier(device_.vulkan(), commands_);
  ++n_barriers_;
  KVRUN_RETURN_IF_ERROR(EndCommands(device_.vulkan(), commands_));
  device_.pipelines().SaveCache();
  return Status::Ok();
}

Status VulkanCommandList::FlushUploads() const {
  for (const HostRange& range : uploads_) {
    KVRUN_RETURN_IF_ERROR(range.buffer->memory().Flush(0, range.length_bytes));
  }
  return Status::Ok();
}

Status VulkanCommandList::InvalidateReadbacks() const {
  for (const HostRange& range : readbacks_) {
    KVRUN_RETURN_IF_ERROR(range.buffer->memory().Invalidate(0, range.length_bytes));
  }
  return Status::Ok();
}

Status VulkanCommandList::AddTimes(std::map<std::string, OperationTime>* times) const {
  if (!timestamps_ || timed_.empty()) return Status::Ok();
  KVRUN_ASSIGN_OR_RETURN(const std::vector<double> ns,
                         timestamps_->ReadNs(static_cast<uint32_t>(timed_.size() + 1)));
  for (size_t i = 0; i < timed_.size(); ++i) {
    OperationTime& time = (*times)[timed_[i]];
    time.name = timed_[i];
    ++time.count;
    time.milliseconds += (ns[i + 1] - ns[i]) / 1e6;
  }
  return Status::Ok();
}

}  // namespace kvrun
