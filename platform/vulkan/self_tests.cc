#include "platform/vulkan/self_tests.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "platform/base/units.h"
#include "platform/vulkan/commands.h"
#include "platform/vulkan/memory.h"
#include "platform/vulkan/memory_import.h"
#include "platform/vulkan/timeline.h"

namespace kvrun {
namespace {

constexpr uint64_t kTestBytes = 64 * kKiB;
constexpr uint64_t kTestTimeoutNs = uint64_t{5} * 1'000'000'000;

void FillPattern(std::span<std::byte> bytes, uint32_t seed) {
  uint32_t state = seed;
  for (std::byte& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<std::byte>(state >> 24);
  }
}

Status Compare(std::span<const std::byte> expected, std::span<const std::byte> found, std::string_view what) {
  const auto [a, b] = std::mismatch(expected.begin(), expected.end(), found.begin(), found.end());
  if (a == expected.end()) return Status::Ok();
  return {StatusCode::kDevice, fmt::format("{}: byte {} is {:#04x} and not {:#04x}", what,
                                           a - expected.begin(), static_cast<int>(*b), static_cast<int>(*a))};
}

void RecordCopy(const VulkanDevice& device, VkCommandBuffer commands, VkBuffer from, VkBuffer to) {
  const VkBufferCopy region{0, 0, kTestBytes};
  device.vk().vkCmdCopyBuffer(commands, from, to, 1, &region);
  RecordFullBarrier(device, commands);
}

// What the device sees in `buffer`.
Result<std::vector<std::byte>> ReadThroughDevice(const VulkanDevice& device, VkBuffer buffer) {
  DeviceAllocator allocator(device);
  KVRUN_ASSIGN_OR_RETURN(
      const DeviceBuffer readback,
      allocator.Allocate({.size_bytes = kTestBytes, .kind = MemoryKind::kReadback, .name = "self-test"}));
  KVRUN_RETURN_IF_ERROR(RunOnce(device, "copying in a self-test", [&](VkCommandBuffer commands) {
    RecordCopy(device, commands, buffer, readback.handle());
  }));
  KVRUN_RETURN_IF_ERROR(readback.Invalidate());
  return std::vector<std::byte>(readback.bytes().begin(), readback.bytes().end());
}

struct FreeAligned {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};
using AlignedBytes = std::unique_ptr<std::byte, FreeAligned>;

Result<AlignedBytes> AllocateAligned(uint64_t size_bytes, uint64_t alignment) {
  void* bytes = nullptr;
  const int error =
      posix_memalign(&bytes, std::bit_ceil(std::max<uint64_t>(alignment, sizeof(void*))), size_bytes);
  if (error != 0) return StatusFromErrno(error, "cannot allocate host memory");
  return AlignedBytes(static_cast<std::byte*>(bytes));
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

// Writes `content` to an unlinked file and returns it open for direct reads.
Result<int> OpenDirectTestFile(const std::string& folder, std::span<const std::byte> content) {
  std::string path = folder + "/kvrun-self-test-XXXXXX";
  const FileDescriptor writer(mkstemp(path.data()));
  if (writer.get() < 0) return StatusFromErrno(errno, "cannot create a file in " + folder);
  const int direct = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  const int open_error = errno;
  unlink(path.c_str());
  if (direct < 0 && open_error == EINVAL) {
    return Status(StatusCode::kUnsupported, "the file system of " + folder + " has no direct reads");
  }
  if (direct < 0) return StatusFromErrno(open_error, "cannot open a file in " + folder + " for direct reads");
  const ssize_t written = pwrite(writer.get(), content.data(), content.size(), 0);
  if (written != static_cast<ssize_t>(content.size()) || fsync(writer.get()) != 0) {
    const int error = errno;
    close(direct);
    return StatusFromErrno(error, "cannot write a file in " + folder);
  }
  return direct;
}

Status TestHostAndDeviceWaits(const VulkanDevice& device, Timeline& host, Timeline& work) {
  const TimelinePoint start{&host, 1};
  Status submitted;
  // With fences Submit returns only once the host has signalled, so it has a thread of its own.
  std::thread submitter([&] { submitted = work.Submit({}, 1, start); });
  const Result<bool> early = work.Wait(1, 20'000'000);
  const Status signalled = host.Signal(1);
  submitter.join();
  KVRUN_RETURN_IF_ERROR(submitted);
  KVRUN_RETURN_IF_ERROR(signalled);
  if (!early.ok()) return early.status();
  if (*early) return {StatusCode::kDevice, "the device did not wait for the host"};
  const Result<bool> done = work.Wait(1, kTestTimeoutNs);
  if (!done.ok()) return done.status();
  if (!*done)
    return {StatusCode::kDevice, fmt::format("\"{}\" did not signal within 5 s", device.facts().name)};
  return Status::Ok();
}

}  // namespace

Result<std::string> TestMemoryImport(const VulkanDevice& device) {
  const uint64_t alignment = std::max<uint64_t>(device.plan().host_import_alignment_bytes, 4 * kKiB);
  const uint64_t size_bytes = RoundUp(kTestBytes, alignment);
  KVRUN_ASSIGN_OR_RETURN(const AlignedBytes host, AllocateAligned(size_bytes, alignment));
  const std::span<std::byte> bytes(host.get(), size_bytes);
  FillPattern(bytes, 1);
  KVRUN_ASSIGN_OR_RETURN(const ImportedBuffer imported, ImportedBuffer::Import(device, bytes));
  KVRUN_ASSIGN_OR_RETURN(const std::vector<std::byte> seen, ReadThroughDevice(device, imported.handle()));
  KVRUN_RETURN_IF_ERROR(Compare(bytes.first(kTestBytes), seen, "imported host memory read by the device"));
  KVRUN_RETURN_IF_ERROR(RunOnce(device, "filling imported memory", [&](VkCommandBuffer commands) {
    device.vk().vkCmdFillBuffer(commands, imported.handle(), 0, kTestBytes, 0x5a5a5a5a);
    RecordFullBarrier(device, commands);
  }));
  const std::vector<std::byte> filled(kTestBytes, std::byte{0x5a});
  KVRUN_RETURN_IF_ERROR(
      Compare(filled, bytes.first(kTestBytes), "imported host memory written by the device"));
  return fmt::format("{} imported at an alignment of {}", FormatBytes(size_bytes), FormatBytes(alignment));
}

Result<std::string> TestDirectReadIntoMapped(const VulkanDevice& device, const std::string& folder) {
  const uint64_t page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  std::vector<std::byte> content(kTestBytes);
  FillPattern(content, 2);
  KVRUN_ASSIGN_OR_RETURN(const int fd, OpenDirectTestFile(folder, content));
  const FileDescriptor file(fd);
  DeviceAllocator allocator(device);
  KVRUN_ASSIGN_OR_RETURN(const DeviceBuffer shared, allocator.Allocate({.size_bytes = kTestBytes,
                                                                        .kind = MemoryKind::kShared,
                                                                        .name = "self-test",
                                                                        .alignment_bytes = page_bytes}));
  if (reinterpret_cast<uintptr_t>(shared.mapped()) % page_bytes != 0) {
    return Status(StatusCode::kUnsupported,
                  "mapped device memory does not start at a page: reads are staged");
  }
  const ssize_t count = pread(file.get(), shared.mapped(), kTestBytes, 0);
  if (count < 0 && errno == EFAULT) {
    return Status(StatusCode::kUnsupported,
                  "the driver's mapped memory refuses direct reads (EFAULT): reads are staged");
  }
  if (count < 0) return StatusFromErrno(errno, "cannot read directly into mapped memory");
  if (count != static_cast<ssize_t>(kTestBytes)) {
    return Status(StatusCode::kIo, fmt::format("a direct read gave {} of {} bytes", count, kTestBytes));
  }
  KVRUN_RETURN_IF_ERROR(shared.Flush());
  KVRUN_ASSIGN_OR_RETURN(const std::vector<std::byte> seen, ReadThroughDevice(device, shared.handle()));
  KVRUN_RETURN_IF_ERROR(Compare(content, seen, "direct read into mapped memory"));
  return fmt::format("{} read from {} without a copy", FormatBytes(kTestBytes), folder);
}

Result<std::string> TestTimeline(const VulkanDevice& device) {
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<Timeline> host, Timeline::Create(device));
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<Timeline> work, Timeline::Create(device));
  KVRUN_RETURN_IF_ERROR(TestHostAndDeviceWaits(device, *host, *work));
  return std::string(work->uses_semaphore() ? "timeline semaphores" : "fences");
}

}  // namespace kvrun
