#include "platform/vulkan/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <numeric>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "platform/vulkan/range_allocator.h"
#include "platform/vulkan/vk_status.h"

namespace kvrun {

struct MemoryChunk {
  MemoryChunk(const VulkanDevice& device_in, uint64_t size_bytes) : device(&device_in), ranges(size_bytes) {}

  const VulkanDevice* device;
  UniqueMemory memory;
  std::byte* mapped = nullptr;  // the whole chunk, as long as it lives
  bool coherent = false;
  uint32_t type_index = 0;
  RangeAllocator ranges;
};

struct AllocatorState {
  struct Account {
    uint64_t bytes = 0;
    uint64_t buffers = 0;
  };

  const VulkanDevice* device = nullptr;
  DeviceAllocator::Options options;
  mutable std::mutex mutex;
  std::array<std::vector<std::shared_ptr<MemoryChunk>>, kMemoryKindCount> chunks;
  std::map<std::string, Account, std::less<>> accounts;
  uint64_t bytes_in_use = 0;
  uint64_t bytes_reserved = 0;
};

namespace {

constexpr int kShadowPoison = 0xcd;
constexpr VkBufferUsageFlags kUsage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT |
                                      VK_BUFFER_USAGE_UNIFORM_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                                      VK_BUFFER_USAGE_TRANSFER_DST_BIT | VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT;

constexpr uint64_t kTexelBytes = 16;

const MemoryUse& UseOf(const DevicePlan& plan, MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kDeviceLocal: return plan.device_local;
    case MemoryKind::kUpload: return plan.upload;
    case MemoryKind::kReadback: return plan.readback;
    case MemoryKind::kShared: return plan.shared;
  }
  return plan.device_local;
}

std::string DescribeUsage(const std::vector<MemoryUsage>& usage) {
  std::string text;
  for (const MemoryUsage& item : usage) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", item.name, FormatBytes(item.bytes));
  }
  return text.empty() ? "nothing" : text;
}

std::vector<MemoryUsage> UsageLocked(const AllocatorState& state) {
  std::vector<MemoryUsage> usage;
  for (const auto& [name, account] : state.accounts) {
    if (account.buffers > 0) usage.push_back({name, account.bytes, account.buffers});
  }
  std::stable_sort(usage.begin(), usage.end(),
                   [](const MemoryUsage& a, const MemoryUsage& b) { return a.bytes > b.bytes; });
  return usage;
}

Status OutOfMemory(const AllocatorState& state, const BufferRequest& request, uint32_t heap_index,
                   VkResult result) {
  const std::vector<MemoryHeapFacts>& heaps = state.device->facts().memory_heaps;
  const uint64_t heap_bytes = heap_index < heaps.size() ? heaps[heap_index].size_bytes : 0;
  return {
      StatusCode::kOutOfMemory,
      fmt::format("device \"{}\" is out of memory: it has no {} left for {} in its heap of {}; kvrun uses {} "
                  "({}); use a shorter context or a smaller model ({})",
                  state.device->facts().name, FormatBytes(request.size_bytes), request.name,
                  FormatBytes(heap_bytes), FormatBytes(state.bytes_in_use), DescribeUsage(UsageLocked(state)),
                  VkResultName(result))};
}

// The plan's type, or one with the same properties if the driver does not take buffers there.
std::optional<uint32_t> TypeForBuffer(const DeviceFacts& facts, const MemoryUse& use, uint32_t allowed) {
  const auto is_allowed = [&](uint32_t index) { return ((allowed >> index) & 1u) != 0; };
  if (is_allowed(use.type_index)) return use.type_index;
  for (uint32_t i = 0; i < facts.memory_types.size(); ++i) {
    if (is_allowed(i) && facts.memory_types[i].flags == facts.memory_types[use.type_index].flags) return i;
  }
  return std::nullopt;
}

Result<std::shared_ptr<MemoryChunk>> NewChunk(AllocatorState& state, const BufferRequest& request,
                                              const MemoryUse& use, uint32_t type_index,
                                              uint64_t size_bytes) {
  const VulkanDevice& device = *state.device;
  auto chunk = std::make_shared<MemoryChunk>(device, size_bytes);
  chunk->coherent = use.coherent;
  chunk->type_index = type_index;
  VkMemoryAllocateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO;
  info.allocationSize = size_bytes;
  info.memoryTypeIndex = type_index;
  VkDeviceMemory memory = VK_NULL_HANDLE;
  const VkResult result = device.vk().vkAllocateMemory(device.handle(), &info, nullptr, &memory);
  if (result == VK_ERROR_OUT_OF_DEVICE_MEMORY || result == VK_ERROR_OUT_OF_HOST_MEMORY ||
      result == VK_ERROR_TOO_MANY_OBJECTS) {
    return OutOfMemory(state, request, use.heap_index, result);
  }
  const std::string what = fmt::format("cannot allocate {} for {}", FormatBytes(size_bytes), request.name);
  KVRUN_RETURN_IF_VK_ERROR(result, what);
  chunk->memory = UniqueMemory(device, memory);
  if (use.host_visible) {
    void* mapped = nullptr;
    KVRUN_RETURN_IF_VK_ERROR(device.vk().vkMapMemory(device.handle(), memory, 0, VK_WHOLE_SIZE, 0, &mapped),
                             "cannot map device memory for " + std::string(request.name));
    chunk->mapped = static_cast<std::byte*>(mapped);
  }
  state.bytes_reserved += size_bytes;
  return chunk;
}

Status CheckRequest(const BufferRequest& request, const DevicePlan& plan) {
  if (request.size_bytes == 0 || !std::has_single_bit(request.alignment_bytes)) {
    return {StatusCode::kInternal,
            fmt::format("a buffer of no size or of a wrong alignment was asked for ({})", request.name)};
  }
  if (request.size_bytes <= plan.max_uncut_bytes) return Status::Ok();
  return {StatusCode::kInternal,
          fmt::format("{} for {} are too much for one buffer, which may have at most {}: cut it into slices",
                      FormatBytes(request.size_bytes), request.name, FormatBytes(plan.max_uncut_bytes))};
}

bool HasTexels(const DevicePlan& plan, const BufferRequest& request) {
  return request.size_bytes >= kTexelBytes && request.size_bytes / kTexelBytes <= plan.max_texels;
}

Result<UniqueBuffer> NewBuffer(const VulkanDevice& device, const BufferRequest& request) {
  VkBufferCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
  info.size = request.size_bytes;
  info.usage = kUsage;
  if (HasTexels(device.plan(), request)) info.usage |= VK_BUFFER_USAGE_UNIFORM_TEXEL_BUFFER_BIT;
  info.sharingMode = VK_SHARING_MODE_EXCLUSIVE;
  VkBuffer handle = VK_NULL_HANDLE;
  KVRUN_RETURN_IF_VK_ERROR(device.vk().vkCreateBuffer(device.handle(), &info, nullptr, &handle),
                           fmt::format("cannot create a buffer for {}", request.name));
  return UniqueBuffer(device, handle);
}

Result<UniqueBufferView> NewTexels(const VulkanDevice& device, const BufferRequest& request,
                                   VkBuffer buffer) {
  VkBufferViewCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_BUFFER_VIEW_CREATE_INFO;
  info.buffer = buffer;
  info.format = VK_FORMAT_R32G32B32A32_UINT;
  info.range = request.size_bytes / kTexelBytes * kTexelBytes;
  VkBufferView view = VK_NULL_HANDLE;
  KVRUN_RETURN_IF_VK_ERROR(device.vk().vkCreateBufferView(device.handle(), &info, nullptr, &view),
                           fmt::format("cannot create a view of texels for {}", request.name));
  return UniqueBufferView(device, view);
}

struct Placement {
  std::shared_ptr<MemoryChunk> chunk;
  uint64_t offset = 0;
};

// Room in a chunk so that the driver's alignment holds for the offset, and the caller's for the address.
std::optional<uint64_t> AllocateIn(MemoryChunk& chunk, uint64_t size_bytes, uint64_t offset_alignment,
                                   uint64_t address_alignment) {
  const uint64_t alignment = std::lcm(offset_alignment, address_alignment);
  const uint64_t phase = (0 - reinterpret_cast<uintptr_t>(chunk.mapped)) & (address_alignment - 1);
  return chunk.ranges.Allocate(size_bytes, alignment, phase % offset_alignment == 0 ? phase : 0);
}

Result<Placement> Place(AllocatorState& state, const BufferRequest& request, const MemoryUse& use,
                        uint32_t type_index, uint64_t size_bytes, uint64_t alignment) {
  auto& chunks = state.chunks[static_cast<size_t>(request.kind)];
  for (const std::shared_ptr<MemoryChunk>& chunk : chunks) {
    if (chunk->type_index != type_index) continue;
    const auto offset = AllocateIn(*chunk, size_bytes, alignment, request.alignment_bytes);
    if (offset) return Placement{chunk, *offset};
  }
  const uint64_t limit = state.device->plan().max_uncut_bytes;
  const uint64_t common = std::min(state.options.chunk_bytes, limit);
  // Mapped memory need not start at the caller's alignment.
  const uint64_t slack =
      use.host_visible && request.alignment_bytes > alignment ? request.alignment_bytes : 0;
  const uint64_t own = size_bytes + slack <= limit ? size_bytes + slack : size_bytes;
  const uint64_t chunk_bytes = own > common / 2 ? own : common;
  Result<std::shared_ptr<MemoryChunk>> chunk = NewChunk(state, request, use, type_index, chunk_bytes);
  // A heap that is nearly full may still have room for the buffer alone.
  if (!chunk.ok() && chunk_bytes > own) chunk = NewChunk(state, request, use, type_index, own);
  if (!chunk.ok()) return chunk.status();
  auto offset = AllocateIn(**chunk, size_bytes, alignment, request.alignment_bytes);
  if (!offset) offset = (*chunk)->ranges.Allocate(size_bytes, alignment);
  KVRUN_CHECK(offset.has_value());
  chunks.push_back(*chunk);
  return Placement{*chunk, *offset};
}

}  // namespace

DeviceAllocator::Options DeviceAllocator::Options::FromEnvironment() {
  const char* value = std::getenv("KVRUN_SHADOW_MEMORY");
  Options options;
  options.shadow_copies = value != nullptr && *value != '\0' && std::strcmp(value, "0") != 0;
  return options;
}

DeviceAllocator::DeviceAllocator(const VulkanDevice& device, const Options& options)
    : state_(std::make_shared<AllocatorState>()) {
  state_->device = &device;
  state_->options = options;
}

Result<DeviceBuffer> DeviceAllocator::Allocate(const BufferRequest& request) {
  const VulkanDevice& device = *state_->device;
  KVRUN_RETURN_IF_ERROR(CheckRequest(request, device.plan()));
  DeviceBuffer buffer;
  KVRUN_ASSIGN_OR_RETURN(buffer.buffer_, NewBuffer(device, request));
  VkMemoryRequirements needs{};
  device.vk().vkGetBufferMemoryRequirements(device.handle(), buffer.handle(), &needs);
  const MemoryUse& use = UseOf(device.plan(), request.kind);
  const auto type_index = TypeForBuffer(device.facts(), use, needs.memoryTypeBits);
  if (!type_index) {
    return Status(StatusCode::kDevice, fmt::format("device \"{}\" takes no buffers in memory type {} ({})",
                                                   device.facts().name, use.type_index, request.name));
  }
  // Atoms matter only where ranges are flushed.
  const bool ranges_flushed = use.host_visible && (!use.coherent || state_->options.shadow_copies);
  const uint64_t atom = ranges_flushed ? device.plan().non_coherent_atom_bytes : 1;
  const uint64_t alignment = std::lcm(needs.alignment, atom);
  buffer.size_bytes_ = request.size_bytes;
  buffer.reserved_bytes_ = RoundUp(std::max(needs.size, request.size_bytes), atom);
  buffer.name_ = request.name;
  {
    const std::lock_guard lock(state_->mutex);
    KVRUN_ASSIGN_OR_RETURN(Placement placement,
                           Place(*state_, request, use, *type_index, buffer.reserved_bytes_, alignment));
    buffer.state_ = state_;
    buffer.chunk_ = std::move(placement.chunk);
    buffer.offset_ = placement.offset;
    AllocatorState::Account& account = state_->accounts[buffer.name_];
    account.bytes += buffer.reserved_bytes_;
    ++account.buffers;
    state_->bytes_in_use += buffer.reserved_bytes_;
  }
  KVRUN_RETURN_IF_VK_ERROR(device.vk().vkBindBufferMemory(device.handle(), buffer.handle(),
                                                          buffer.chunk_->memory.get(), buffer.offset_),
                           fmt::format("cannot bind memory for {}", request.name));
  if (HasTexels(device.plan(), request)) {
    KVRUN_ASSIGN_OR_RETURN(buffer.texels_, NewTexels(device, request, buffer.handle()));
  }
  if (buffer.chunk_->mapped == nullptr) return buffer;
  buffer.mapped_ = buffer.chunk_->mapped + buffer.offset_;
  if (state_->options.shadow_copies) buffer.UseShadow(request.alignment_bytes);
  return buffer;
}

std::vector<MemoryUsage> DeviceAllocator::Usage() const {
  const std::lock_guard lock(state_->mutex);
  return UsageLocked(*state_);
}

uint64_t DeviceAllocator::bytes_in_use() const {
  const std::lock_guard lock(state_->mutex);
  return state_->bytes_in_use;
}

uint64_t DeviceAllocator::bytes_reserved() const {
  const std::lock_guard lock(state_->mutex);
  return state_->bytes_reserved;
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(state_, other.state_);
  std::swap(chunk_, other.chunk_);
  std::swap(buffer_, other.buffer_);
  std::swap(texels_, other.texels_);
  std::swap(shadow_, other.shadow_);
  std::swap(name_, other.name_);
  std::swap(mapped_, other.mapped_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(offset_, other.offset_);
  std::swap(reserved_bytes_, other.reserved_bytes_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() { Release(); }

void DeviceBuffer::Release() {
  texels_ = {};
  buffer_ = {};  // before its memory
  if (state_ == nullptr) return;
  const std::lock_guard lock(state_->mutex);
  chunk_->ranges.Free(offset_, reserved_bytes_);
  AllocatorState::Account& account = state_->accounts[name_];
  account.bytes -= reserved_bytes_;
  --account.buffers;
  state_->bytes_in_use -= reserved_bytes_;
  if (!chunk_->ranges.empty()) return;
  state_->bytes_reserved -= chunk_->ranges.size_bytes();
  for (auto& chunks : state_->chunks) std::erase(chunks, chunk_);
}

void DeviceBuffer::UseShadow(uint64_t alignment_bytes) {
  const auto alignment = static_cast<std::align_val_t>(
      std::max<uint64_t>(std::bit_ceil(alignment_bytes), alignof(std::max_align_t)));
  shadow_ = {static_cast<std::byte*>(::operator new(reserved_bytes_, alignment)), ShadowDeleter{alignment}};
  std::memset(shadow_.get(), kShadowPoison, reserved_bytes_);
  mapped_ = shadow_.get();
}

Status DeviceBuffer::Flush(uint64_t offset, uint64_t length) const {
  return Synchronise(offset, length, true);
}

Status DeviceBuffer::Invalidate(uint64_t offset, uint64_t length) const {
  return Synchronise(offset, length, false);
}

Status DeviceBuffer::Synchronise(uint64_t offset, uint64_t length, bool to_device) const {
  KVRUN_CHECK(mapped_ != nullptr && offset <= size_bytes_ && length <= size_bytes_ - offset);
  if (length == 0 || (chunk_->coherent && shadow_ == nullptr)) return Status::Ok();
  const VulkanDevice& device = *chunk_->device;
  // offset_ and reserved_bytes_ are multiples of the atom, so the rounded range stays in this buffer.
  const uint64_t atom = device.plan().non_coherent_atom_bytes;
  const uint64_t begin = offset / atom * atom;
  const uint64_t end = std::min(RoundUp(offset + length, atom), reserved_bytes_);
  VkMappedMemoryRange range{};
  range.sType = VK_STRUCTURE_TYPE_MAPPED_MEMORY_RANGE;
  range.memory = chunk_->memory.get();
  range.offset = offset_ + begin;
  range.size = offset_ + end == chunk_->ranges.size_bytes() ? VK_WHOLE_SIZE : end - begin;
  std::byte* real = chunk_->mapped + offset_ + begin;
  if (shadow_ != nullptr && to_device) std::memcpy(real, shadow_.get() + begin, end - begin);
  if (!chunk_->coherent) {
    const auto synchronise =
        to_device ? device.vk().vkFlushMappedMemoryRanges : device.vk().vkInvalidateMappedMemoryRanges;
    KVRUN_RETURN_IF_VK_ERROR(synchronise(device.handle(), 1, &range),
                             fmt::format("cannot {} {}", to_device ? "flush" : "invalidate", name_));
  }
  if (shadow_ != nullptr && !to_device) std::memcpy(shadow_.get() + begin, real, end - begin);
  return Status::Ok();
}

}  // namespace kvrun
