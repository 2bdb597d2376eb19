#include <gtest/gtest.h>

#include <cstring>

#include "platform/vulkan/commands.h"
#include "platform/vulkan/memory.h"
#include "platform/vulkan/pipeline.h"
#include "tests/support/vulkan_devices.h"

namespace kvrun {
namespace {

using testing::OpenTestDevices;
using testing::TestInstance;

// Runs each test on every device, unclamped and at the floor, and asks for silence of the validation layer.
class VulkanPlatform : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    devices_ = OpenTestDevices(GetParam());
    if (devices_.empty()) GTEST_SKIP() << "no Vulkan device";
    messages_before_ = TestInstance()->validation_messages();
  }

  void TearDown() override {
    if (devices_.empty()) return;
    devices_.clear();
    EXPECT_EQ(TestInstance()->validation_messages(), messages_before_);
  }

  std::vector<std::unique_ptr<VulkanDevice>> devices_;
  uint64_t messages_before_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Clamp, VulkanPlatform, ::testing::Values("", "floor"), [](const auto& clamp) {
  return std::string(*clamp.param == '\0' ? "none" : clamp.param);
});

DeviceBuffer Allocate(DeviceAllocator& allocator, uint64_t size_bytes, MemoryKind kind,
                      std::string_view name = "test") {
  Result<DeviceBuffer> buffer = allocator.Allocate({.size_bytes = size_bytes, .kind = kind, .name = name});
  EXPECT_TRUE(buffer.ok()) << buffer.status().message();
  return std::move(buffer).value();
}

void RecordCopy(const VulkanDevice& device, VkCommandBuffer commands, const DeviceBuffer& from,
                const DeviceBuffer& to) {
  const VkBufferCopy region{0, 0, from.size_bytes()};
  device.vk().vkCmdCopyBuffer(commands, from.handle(), to.handle(), 1, &region);
  RecordFullBarrier(device, commands);
}

TEST_P(VulkanPlatform, BytesSurviveATripThroughEveryKindOfMemory) {
  for (const auto& device : devices_) {
    for (const bool shadow : {false, true}) {
      DeviceAllocator allocator(*device, {.shadow_copies = shadow});
      const DeviceBuffer upload = Allocate(allocator, 1001 * 4, MemoryKind::kUpload);
      const DeviceBuffer local = Allocate(allocator, 1001 * 4, MemoryKind::kDeviceLocal);
      const DeviceBuffer shared = Allocate(allocator, 1001 * 4, MemoryKind::kShared);
      const DeviceBuffer readback = Allocate(allocator, 1001 * 4, MemoryKind::kReadback);
      for (size_t i = 0; i < upload.size_bytes(); ++i) upload.mapped()[i] = static_cast<std::byte>(i * 7);
      ASSERT_TRUE(upload.Flush().ok());
      const Status status = RunOnce(*device, "copying", [&](VkCommandBuffer commands) {
        RecordCopy(*device, commands, upload, local);
        RecordCopy(*device, commands, local, shared);
        RecordCopy(*device, commands, shared, readback);
      });
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_TRUE(readback.Invalidate().ok());
      EXPECT_EQ(std::memcmp(upload.mapped(), readback.mapped(), upload.size_bytes()), 0);
    }
  }
}

}  // namespace
}  // namespace kvrun
