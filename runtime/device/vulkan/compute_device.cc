#include "runtime/device/vulkan/compute_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>

#include "platform/base/freed_memory.h"
#include "platform/base/units.h"
#include "runtime/device/matrix_rows.h"
#include "runtime/device/vulkan/command_list.h"
#include "runtime/device/vulkan/kernel_plan.h"

namespace kvrun {
namespace {

// Kernels read whole chunks of columns and may run past a buffer's last row by less than this; what they read
// there is multiplied with zeros.
constexpr uint64_t kSlackBytes = 256;
constexpr uint64_t kStagingBytes = 16 * kMiB;
constexpr size_t kSubmittedAtOnce = 1024;  // without growing

MemoryKind KindOf(BufferUse use) {
  if (use == BufferUse::kUpload) return MemoryKind::kUpload;
  if (use == BufferUse::kShared) return MemoryKind::kShared;
  return use == BufferUse::kReadback ? MemoryKind::kReadback : MemoryKind::kDeviceLocal;
}

}  // namespace

std::string_view DeviceKindName(DeviceType type) {
  switch (type) {
    case DeviceType::kIntegratedGpu: return "integrated";
    case DeviceType::kVirtualGpu: return "virtual";
    case DeviceType::kCpu: return "cpu";
    case DeviceType::kDiscreteGpu:
    case DeviceType::kOther: break;
  }
  return "gpu";
}

namespace {

std::string DescribePlan(const DevicePlan& plan) {
  return fmt::format(
      "{}, {}, buffers of at most {}",
      plan.use_subgroup_shuffle ? fmt::format("subgroup kernels ({} lanes)", plan.subgroup_width)
                                : "floor kernels",
      plan.use_timeline ? "timeline semaphore" : "fences", FormatBytes(plan.max_binding_bytes));
}

DeviceInfo MakeInfo(const VulkanDevice& vulkan, std::string note) {
  const DeviceFacts& facts = vulkan.facts();
  const DevicePlan& plan = vulkan.plan();
  DeviceInfo info;
  info.name = facts.name;
  info.is_cpu = info.decodes_on_cpu = facts.type == DeviceType::kCpu;
  info.kind = DeviceKindName(facts.type);
  info.driver = fmt::format("{} {}, Vulkan {}", facts.driver_name, facts.driver_info,
                            FormatApiVersion(facts.api_version));
  info.plan = DescribePlan(plan);
  if (!note.empty()) info.notes.push_back(std::move(note));
  for (const std::string& quirk : plan.quirks) info.notes.push_back("driver quirk: " + quirk);
  info.max_buffer_bytes = std::min(plan.max_binding_bytes, plan.max_allocation_bytes) - kSlackBytes;
  return info;
}

}  // namespace

uint64_t VulkanMatrix::size_bytes() const {
  return std::accumulate(
      slices_.begin(), slices_.end(), uint64_t{0},
      [](uint64_t sum, const MatrixSlice& slice) { return sum + slice.layout.size_bytes; });
}

Result<std::unique_ptr<VulkanComputeDevice>> VulkanComputeDevice::Create(std::unique_ptr<VulkanDevice> vulkan,
                                                                         bool profile, std::string note) {
  std::unique_ptr<VulkanComputeDevice> device(new VulkanComputeDevice);
  device->vulkan_ = std::move(vulkan);
  device->info_ = MakeInfo(*device->vulkan_, std::move(note));
  device->profile_ = profile;
  if (profile && !device->plan().timestamps) {
    device->info_.notes.push_back("this device has no timestamps: operations are not timed");
  }
  device->allocator_ = std::make_unique<DeviceAllocator>(*device->vulkan_);
  KVRUN_ASSIGN_OR_RETURN(device->pipelines_, PipelineLibrary::Create(*device->vulkan_));
  KVRUN_ASSIGN_OR_RETURN(device->timeline_, Timeline::Create(*device->vulkan_));
  KVRUN_ASSIGN_OR_RETURN(device->host_timeline_, Timeline::Create(*device->vulkan_));
  device->submitted_.reserve(kSubmittedAtOnce);
  KVRUN_ASSIGN_OR_RETURN(DeviceBuffer empty,
                         device->AllocateFilled(kSlackBytes, MemoryKind::kDeviceLocal, "activations"));
  device->empty_ = std::make_unique<VulkanBuffer>(std::move(empty), kSlackBytes, BufferUse::kDevice);
  return device;
}

VulkanComputeDevice::~VulkanComputeDevice() = default;

Result<DeviceBuffer> VulkanComputeDevice::AllocateFilled(uint64_t size_bytes, MemoryKind kind,
                                                         std::string_view part, uint64_t alignment_bytes) {
  KVRUN_ASSIGN_OR_RETURN(
      DeviceBuffer memory,
      allocator_->Allocate(
          {.size_bytes = size_bytes, .kind = kind, .name = part, .alignment_bytes = alignment_bytes}));
  if (memory.mapped() != nullptr) {
    std::memset(memory.mapped(), 0, size_bytes);
    KVRUN_RETURN_IF_ERROR(memory.Flush());
    return memory;
  }
  KVRUN_RETURN_IF_ERROR(RunOnce(*vulkan_, "clearing a buffer", [&](VkCommandBuffer commands) {
    vulkan_->vk().vkCmdFillBuffer(commands, memory.handle(), 0, VK_WHOLE_SIZE, 0);
    RecordFullBarrier(*vulkan_, commands);
  }));
  return memory;
}

Result<std::unique_ptr<VulkanBuffer>> VulkanComputeDevice::NewBuffer(uint64_t size_bytes, BufferUse use,
                                                                     MemoryKind kind, std::string_view part,
                                                                     uint64_t alignment_bytes) {
  const uint64_t most_bytes =
      use == BufferUse::kKv ? plan().max_uncut_bytes - kSlackBytes : info_.max_buffer_bytes;
  if (size_bytes > most_bytes) {
    return Status(StatusCode::kOutOfMemory,
                  fmt::format("a buffer of {} for {} is larger than {} allows ({})", FormatBytes(size_bytes),
                              part, info_.name, FormatBytes(most_bytes)));
  }
  const uint64_t padded_bytes = RoundUp<uint64_t>(size_bytes, 16) + kSlackBytes;
  KVRUN_ASSIGN_OR_RETURN(DeviceBuffer memory, AllocateFilled(padded_bytes, kind, part, alignment_bytes));
  return std::make_unique<VulkanBuffer>(std::move(memory), size_bytes, use);
}

Result<std::unique_ptr<Buffer>> VulkanComputeDevice::CreateBuffer(uint64_t size_bytes, BufferUse use,
                                                                  std::string_view part) {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<VulkanBuffer> buffer,
                         NewBuffer(size_bytes, use, KindOf(use), part, 1));
  return std::unique_ptr<Buffer>(std::move(buffer));
}

Result<std::unique_ptr<VulkanBuffer>> VulkanComputeDevice::CreateCachedBuffer(uint64_t size_bytes,
                                                                              BufferUse use,
                                                                              std::string_view part,
                                                                              uint64_t alignment_bytes) {
  // The plan takes cached memory for readbacks wherever there is any.
  if (!plan().readback.cached) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("{} has no memory that the CPU reads through its caches", info_.name));
  }
  return NewBuffer(size_bytes, use, MemoryKind::kReadback, part, alignment_bytes);
}

Status VulkanComputeDevice::CopyToDevice(std::span<const std::byte> bytes, const DeviceBuffer& to,
                                         uint64_t offset_bytes) {
  if (to.mapped() != nullptr) {
    std::memcpy(static_cast<std::byte*>(to.mapped()) + offset_bytes, bytes.data(), bytes.size());
    return to.Flush();
  }
  KVRUN_ASSIGN_OR_RETURN(const DeviceBuffer staging,
                         allocator_->Allocate({.size_bytes = std::min<uint64_t>(bytes.size(), kStagingBytes),
                                               .kind = MemoryKind::kUpload,
                                               .name = "staging"}));
  for (uint64_t at = 0; at < bytes.size(); at += kStagingBytes) {
    const uint64_t part_bytes = std::min<uint64_t>(bytes.size() - at, kStagingBytes);
    std::memcpy(staging.mapped(), bytes.data() + at, part_bytes);
    KVRUN_RETURN_IF_ERROR(staging.Flush());
    KVRUN_RETURN_IF_ERROR(RunOnce(*vulkan_, "copying to the device", [&](VkCommandBuffer commands) {
      RecordFullBarrier(*vulkan_, commands);
      const VkBufferCopy copy{.srcOffset = 0, .dstOffset = offset_bytes + at, .size = part_bytes};
      vulkan_->vk().vkCmdCopyBuffer(commands, staging.handle(), to.handle(), 1, &copy);
      RecordFullBarrier(*vulkan_, commands);
    }));
  }
  return Status::Ok();
}

Status VulkanComputeDevice::Upload(std::span<const std::byte> from, Buffer* to, uint64_t offset_bytes) {
  return CopyToDevice(from, static_cast<VulkanBuffer*>(to)->memory(), offset_bytes);
}

Status VulkanComputeDevice::Download(const Buffer& from, uint64_t offset_bytes, std::span<std::byte> to) {
  KVRUN_ASSIGN_OR_RETURN(
      const DeviceBuffer staging,
      allocator_->Allocate({.size_bytes = to.size(), .kind = MemoryKind::kReadback, .name = "staging"}));
  const DeviceBuffer& memory = AsVulkan(from).memory();
  KVRUN_RETURN_IF_ERROR(RunOnce(*vulkan_, "copying results to the host", [&](VkCommandBuffer commands) {
    RecordFullBarrier(*vulkan_, commands);
    const VkBufferCopy copy{.srcOffset = offset_bytes, .dstOffset = 0, .size = to.size()};
    vulkan_->vk().vkCmdCopyBuffer(commands, memory.handle(), staging.handle(), 1, &copy);
    RecordFullBarrier(*vulkan_, commands);
  }));
  KVRUN_RETURN_IF_ERROR(staging.Invalidate());
  std::memcpy(to.data(), staging.mapped(), to.size());
  return Status::Ok();
}

Result<std::unique_ptr<Buffer>> VulkanComputeDevice::CreateConstants(std::span<const std::byte> bytes,
                                                                     std::string_view part) {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer,
                         CreateBuffer(bytes.size(), BufferUse::kDevice, part));
  KVRUN_RETURN_IF_ERROR(CopyToDevice(bytes, static_cast<VulkanBuffer&>(*buffer).memory(), 0));
  return buffer;
}

Status VulkanComputeDevice::FillSlice(MatrixSlice& slice, std::span<const MatrixSource> sources) {
  const TensorTypeInfo& type = GetTensorType(slice.layout.type);
  const uint64_t row_bytes = uint64_t{slice.layout.n_cols} / type.block_elements * type.block_bytes;
  std::vector<uint32_t> host;
  std::span<uint32_t> packed;
  if (slice.memory.mapped() != nullptr) {
    packed = {reinterpret_cast<uint32_t*>(slice.memory.mapped()), slice.layout.size_bytes / 4};
  } else {
    host.resize(slice.layout.size_bytes / 4);
    packed = host;
  }
  std::vector<std::byte> buffer = RowBuffer(sources, row_bytes);
  KVRUN_RETURN_IF_ERROR(
      ForEachRow(sources, row_bytes, slice.row_begin, uint64_t{slice.row_begin} + slice.layout.n_rows, buffer,
                 [&](uint64_t row, std::span<const std::byte> bytes) {
                   PackRow(slice.layout, static_cast<uint32_t>(row) - slice.row_begin, bytes, packed);
                 }));
  return host.empty() ? slice.memory.Flush()
                      : CopyToDevice(std::as_bytes(std::span<const uint32_t>(host)), slice.memory, 0);
}

Result<std::unique_ptr<Matrix>> VulkanComputeDevice::CreateMatrix(TensorType type, uint32_t n_cols,
                                                                  std::span<const MatrixSource> sources) {
  uint32_t n_rows = 0;
  for (const MatrixSource& source : sources) n_rows += source.n_rows;
  auto matrix = std::make_unique<VulkanMatrix>(type, n_rows, n_cols);
  const uint32_t rows_per_slice = PackedRowsThatFit(type, n_cols, info_.max_buffer_bytes);
  if (rows_per_slice == 0) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("{} rows of {} columns are larger than {} allows for one buffer ({})",
                              KVRUN_ROW_INTERLEAVE, n_cols, info_.name, FormatBytes(info_.max_buffer_bytes)));
  }
  for (uint32_t row = 0; row < n_rows; row += rows_per_slice) {
    MatrixSlice slice;
    slice.row_begin = row;
    slice.layout = MakePackedLayout(type, std::min(rows_per_slice, n_rows - row), n_cols);
    KVRUN_ASSIGN_OR_RETURN(slice.memory,
                           AllocateFilled(slice.layout.size_bytes, MemoryKind::kDeviceLocal, "weights"));
    KVRUN_RETURN_IF_ERROR(FillSlice(slice, sources));
    matrix->slices_.push_back(std::move(slice));
  }
  return std::unique_ptr<Matrix>(std::move(matrix));
}

Status VulkanComputeDevice::DropUnusedKernels() {
  pipelines_->DropUnused();
  // lavapipe frees pipelines with the next submission.
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<CommandList> nothing, CreateCommandList());
  KVRUN_RETURN_IF_ERROR(nothing->Finish());
  return Execute(*nothing);
}

bool VulkanComputeDevice::FitsKv(const KvShape& shape) const {
  return shape.size_bytes() <= plan().max_uncut_bytes - kSlackBytes && KvWindowStreams(shape) > 0;
}

uint32_t VulkanComputeDevice::KvWindowStreams(const KvShape& shape) const {
  const uint32_t n_streams = shape.n_sequences * shape.n_kv_heads;
  if (shape.size_bytes() <= info_.max_buffer_bytes) return n_streams;
  const uint64_t stream_bytes = shape.size_bytes() / n_streams;
  const uint64_t alignment = plan().storage_offset_alignment_bytes;
  const uint64_t step = alignment / std::gcd(stream_bytes, alignment);
  return static_cast<uint32_t>(info_.max_buffer_bytes / stream_bytes / step * step);
}

uint64_t VulkanComputeDevice::AttendScratchBytes(const AttentionArgs& args) const {
  const uint32_t n_splits = ChooseAttend(plan(), is_cpu(), args).n_splits;
  if (n_splits == 1 && !args.goes_on()) return 16;
  return uint64_t{args.n_tokens} * args.n_heads * n_splits * (args.kv_shape.head_dim + 2) * sizeof(float);
}

Result<std::shared_ptr<const VulkanBuffer>> VulkanComputeDevice::GetWorkspace(Workspace which,
                                                                              uint64_t size_bytes) {
  std::shared_ptr<const VulkanBuffer>& kept = workspaces_.at(static_cast<size_t>(which));
  {
    const std::lock_guard lock(mutex_);
    if (kept != nullptr && kept->size_bytes() >= size_bytes) return kept;
    kept = nullptr;  // before there is a larger one, unless a list needs it
  }
  const uint64_t rounded = std::min(std::bit_ceil(size_bytes), std::max(info_.max_buffer_bytes, size_bytes));
  KVRUN_ASSIGN_OR_RETURN(const std::shared_ptr<const VulkanBuffer> made,
                         NewBuffer(rounded, BufferUse::kDevice, MemoryKind::kDeviceLocal, "workspace", 1));
  const std::lock_guard lock(mutex_);
  if (kept == nullptr || kept->size_bytes() < rounded) kept = made;
  return kept;
}

Result<std::unique_ptr<CommandList>> VulkanComputeDevice::CreateCommandList() {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<VulkanCommandList> list, VulkanCommandList::Create(*this));
  return std::unique_ptr<CommandList>(std::move(list));
}

Result<uint64_t> VulkanComputeDevice::BeginSubmission(VulkanCommandList& list) {
  KVRUN_RETURN_IF_ERROR(list.FlushUploads());
  const std::lock_guard lock(mutex_);
  // The list would write over its times. It has run to its end, so the driver has them.
  KVRUN_RETURN_IF_ERROR(TakeTimesOf(list));
  last_value_ += list.parts().size();
  submitted_.push_back({last_value_, &list});
  work_counts_.lists += 1;
  work_counts_.dispatches += list.n_dispatches();
  work_counts_.barriers += list.n_barriers();
  return last_value_;
}

TimelineWork VulkanComputeDevice::PartOf(const VulkanCommandList& list, size_t part, uint64_t list_value,
                                         uint64_t wait_host) const {
  TimelineWork work{list.parts()[part], list_value - (list.parts().size() - 1 - part), std::nullopt};
  if (part == 0 && wait_host != 0) work.wait = TimelinePoint{host_timeline_.get(), wait_host};
  return work;
}

Result<uint64_t> VulkanComputeDevice::Submit(CommandList& list, uint64_t wait_host) {
  auto& vulkan_list = static_cast<VulkanCommandList&>(list);
  KVRUN_ASSIGN_OR_RETURN(const uint64_t value, BeginSubmission(vulkan_list));
  // Not under the mutex: with fences this waits, and whoever signals may have to wait for earlier work first.
  for (size_t part = 0; part < vulkan_list.parts().size(); ++part) {
    const TimelineWork work = PartOf(vulkan_list, part, value, wait_host);
    const Status status = timeline_->Submit({&work.commands, 1}, work.value, work.wait);
    if (!status.ok()) {
      Forget(vulkan_list);
      return status;
    }
  }
  return value;
}

Status VulkanComputeDevice::SubmitAll(std::span<const Submission> submissions,
                                      const std::function<void(size_t, uint64_t)>& submitted) {
  if (!timeline_->uses_semaphore()) return Device::SubmitAll(submissions, submitted);
  const std::lock_guard lock(submit_mutex_);
  works_.clear();
  Status status = Status::Ok();
  for (const Submission& submission : submissions) {
    auto& list = static_cast<VulkanCommandList&>(*submission.list);
    const Result<uint64_t> value = BeginSubmission(list);
    status = value.status();
    if (!status.ok()) break;
    for (size_t part = 0; part < list.parts().size(); ++part)
      works_.push_back(PartOf(list, part, *value, submission.wait_host));
  }
  if (status.ok()) status = timeline_->SubmitAll(works_);
  if (!status.ok()) {
    for (const Submission& submission : submissions)
      Forget(static_cast<VulkanCommandList&>(*submission.list));
    return status;
  }
  size_t end = 0;
  for (size_t i = 0; i < submissions.size(); ++i) {
    end += static_cast<VulkanCommandList&>(*submissions[i].list).parts().size();
    submitted(i, works_[end - 1].value);
  }
  return Status::Ok();
}

VulkanComputeDevice::WorkCounts VulkanComputeDevice::work_counts() {
  const std::lock_guard lock(mutex_);
  return work_counts_;
}

uint64_t VulkanComputeDevice::ReserveHostValues(uint32_t count) {
  const std::lock_guard lock(mutex_);
  last_host_value_ += count;
  return last_host_value_ - count + 1;
}

Status VulkanComputeDevice::SignalHost(uint64_t value) { return host_timeline_->Signal(value); }

Status VulkanComputeDevice::Wait(uint64_t value) {
  KVRUN_ASSIGN_OR_RETURN(const bool reached, timeline_->Wait(value));
  if (!reached) return {StatusCode::kDevice, "the device did not finish its work; run `kvrun doctor`"};
  const std::lock_guard lock(mutex_);
  bool has_compiled = false;
  while (!submitted_.empty() && submitted_.front().value <= value) {
    VulkanCommandList& list = *submitted_.front().list;
    submitted_.erase(submitted_.begin());
    KVRUN_RETURN_IF_ERROR(list.InvalidateReadbacks());
    if (profile_) untimed_.push_back(&list);
    has_compiled |= list.TakeFirstRun();
  }
  // Only when nothing is under way: a driver may wait for all that was submitted before it hands timestamps
  // out, and lists may wait for the host.
  if (submitted_.empty()) {
    for (const VulkanCommandList* list : untimed_) KVRUN_RETURN_IF_ERROR(list->AddTimes(&times_));
    untimed_.clear();
  }
  // A driver's compiler leaves tens of MiB behind.
  if (has_compiled) ReturnFreedMemory();
  return Status::Ok();
}

void VulkanComputeDevice::Forget(const VulkanCommandList& list) {
  const std::lock_guard lock(mutex_);
  std::erase_if(submitted_, [&](const auto& entry) { return entry.list == &list; });
  static_cast<void>(TakeTimesOf(list));
}

Status VulkanComputeDevice::TakeTimesOf(const VulkanCommandList& list) {
  if (std::erase(untimed_, &list) == 0) return Status::Ok();
  return list.AddTimes(&times_);
}

Result<VulkanComputeDevice::ListParts> VulkanComputeDevice::TakeListParts() {
  const std::lock_guard lock(mutex_);
  if (idle_parts_.empty()) {
    KVRUN_ASSIGN_OR_RETURN(CommandPool pool, CommandPool::Create(*vulkan_));
    return ListParts{std::move(pool), DescriptorSets(*vulkan_)};
  }
  ListParts parts = std::move(idle_parts_.back());
  idle_parts_.pop_back();
  return parts;
}

void VulkanComputeDevice::GiveListParts(ListParts parts) {
  constexpr size_t kMostIdle = 12;  // a prompt's layer has six to eight lists
  if (!parts.pool.Reset().ok() || !parts.sets.Reset().ok()) return;
  const std::lock_guard lock(mutex_);
  if (idle_parts_.size() < kMostIdle) idle_parts_.push_back(std::move(parts));
}

std::vector<Device::MemoryPart> VulkanComputeDevice::MemoryInUse() const {
  std::vector<MemoryPart> parts;
  for (const MemoryUsage& usage : allocator_->Usage()) parts.push_back({usage.name, usage.bytes});
  return parts;
}

std::vector<OperationTime> VulkanComputeDevice::TakeOperationTimes() {
  const std::lock_guard lock(mutex_);
  std::vector<OperationTime> times;
  for (auto& [name, time] : times_) times.push_back(std::move(time));
  times_.clear();
  std::sort(times.begin(), times.end(),
            [](const OperationTime& a, const OperationTime& b) { return a.milliseconds > b.milliseconds; });
  return times;
}

}  // namespace kvrun
