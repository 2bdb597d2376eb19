#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "platform/vulkan/commands.h"
#include "platform/vulkan/memory.h"
#include "platform/vulkan/pipeline.h"
#include "platform/vulkan/pipeline_cache.h"
#include "platform/vulkan/self_tests.h"
#include "platform/vulkan/timeline.h"
#include "platform/vulkan/timestamp_pool.h"
#include "tests/support/scale_spirv.h"
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

TEST_P(VulkanPlatform, ShadowCopiesMoveOnlyByFlushAndInvalidate) {
  for (const auto& device : devices_) {
    DeviceAllocator allocator(*device, {.shadow_copies = true});
    const uint64_t atom = device->plan().non_coherent_atom_bytes;
    const DeviceBuffer buffer = Allocate(allocator, 4 * atom, MemoryKind::kShared);
    const DeviceBuffer readback = Allocate(allocator, 4 * atom, MemoryKind::kReadback);
    const auto device_view = [&]() -> std::vector<std::byte> {
      EXPECT_TRUE(RunOnce(*device, "copying", [&](VkCommandBuffer commands) {
                    RecordCopy(*device, commands, buffer, readback);
                  }).ok());
      EXPECT_TRUE(readback.Invalidate().ok());
      return {readback.bytes().begin(), readback.bytes().end()};
    };
    std::memset(buffer.mapped(), 1, buffer.size_bytes());
    ASSERT_TRUE(buffer.Flush().ok());
    std::memset(buffer.mapped(), 2, buffer.size_bytes());
    ASSERT_TRUE(buffer.Flush(atom + 1, 2).ok());  // one whole atom
    const std::vector<std::byte> seen = device_view();
    for (size_t i = 0; i < seen.size(); ++i) {
      const bool flushed = i >= atom && i < 2 * atom;
      ASSERT_EQ(seen[i], flushed ? std::byte{2} : std::byte{1}) << i;
    }
    ASSERT_TRUE(RunOnce(*device, "filling", [&](VkCommandBuffer commands) {
                  device->vk().vkCmdFillBuffer(commands, buffer.handle(), 0, VK_WHOLE_SIZE, 0x03030303);
                  RecordFullBarrier(*device, commands);
                }).ok());
    EXPECT_EQ(buffer.mapped()[0], std::byte{2});
    ASSERT_TRUE(buffer.Invalidate(0, 1).ok());
    EXPECT_EQ(buffer.mapped()[0], std::byte{3});
    EXPECT_EQ(buffer.mapped()[atom], std::byte{2});
  }
}

TEST_P(VulkanPlatform, EveryByteIsAccountedForAndGivenBack) {
  for (const auto& device : devices_) {
    DeviceAllocator allocator(*device, {.chunk_bytes = 1 << 20});
    std::vector<DeviceBuffer> buffers;
    for (int i = 0; i < 40; ++i) {
      buffers.push_back(Allocate(allocator, 100'000, MemoryKind::kShared, i % 2 == 0 ? "even" : "odd"));
    }
    buffers.push_back(Allocate(allocator, 3 << 20, MemoryKind::kShared, "large"));
    const std::vector<MemoryUsage> usage = allocator.Usage();
    ASSERT_EQ(usage.size(), 3u);
    EXPECT_EQ(usage[0].name, "large");  // largest first: 20 x 100 kB is less than 3 MiB
    EXPECT_EQ(usage[0].buffers, 1u);
    EXPECT_EQ(usage[1].buffers, 20u);
    EXPECT_GE(allocator.bytes_in_use(), 40u * 100'000u + (3u << 20));
    EXPECT_GE(allocator.bytes_reserved(), allocator.bytes_in_use());
    EXPECT_LE(allocator.bytes_reserved(), allocator.bytes_in_use() + (2u << 20));
    DeviceBuffer moved = std::move(buffers.front());
    buffers.clear();
    EXPECT_GT(allocator.bytes_in_use(), 0u);
    moved = DeviceBuffer();
    EXPECT_EQ(allocator.bytes_in_use(), 0u);
    EXPECT_EQ(allocator.bytes_reserved(), 0u);
    EXPECT_TRUE(allocator.Usage().empty());
  }
}

TEST_P(VulkanPlatform, MappedMemoryHonoursTheAlignmentAskedFor) {
  for (const auto& device : devices_) {
    for (const bool shadow : {false, true}) {
      DeviceAllocator allocator(*device, {.shadow_copies = shadow});
      const DeviceBuffer small = Allocate(allocator, 10, MemoryKind::kShared);
      std::vector<DeviceBuffer> buffers;
      for (const uint64_t size_bytes : {8192u, 100u, 40u << 20}) {
        auto paged = allocator.Allocate({.size_bytes = size_bytes,
                                         .kind = MemoryKind::kShared,
                                         .name = "slots",
                                         .alignment_bytes = 4096});
        ASSERT_TRUE(paged.ok()) << paged.status().message();
        EXPECT_EQ(reinterpret_cast<uintptr_t>(paged->mapped()) % 4096, 0u);
        buffers.push_back(std::move(paged).value());
      }
    }
  }
}

TEST_P(VulkanPlatform, ABufferThatIsTooLargeIsRefused) {
  for (const auto& device : devices_) {
    DeviceAllocator allocator(*device);
    const auto buffer = allocator.Allocate(
        {.size_bytes = device->plan().max_uncut_bytes + 1, .kind = MemoryKind::kShared, .name = "weights"});
    ASSERT_FALSE(buffer.ok());
    EXPECT_NE(buffer.status().message().find("weights"), std::string::npos);
    EXPECT_FALSE(allocator.Allocate({.size_bytes = 0, .name = "nothing"}).ok());
    EXPECT_EQ(allocator.bytes_reserved(), 0u);
  }
}

constexpr uint32_t kScaleConstants[] = {3, 2};

PipelineSpec ScaleSpec(bool dynamic) {
  return {.name = "scale",
          .spirv = testing::kScaleSpirv,
          .constants = kScaleConstants,
          .storage_buffers = 2,
          .uniform_buffers = 1,
          .dynamic_uniform_buffers = dynamic,
          .push_constants_bytes = 4,
          .required_subgroup_width = 0,
          .require_full_subgroups = false};
}

TEST_P(VulkanPlatform, PipelinesRunWithConstantsUniformsAndOffsets) {
  for (const auto& device : devices_) {
    for (const bool dynamic : {false, true}) {
      const DevicePlan& plan = device->plan();
      auto pipeline = ComputePipeline::Create(*device, ScaleSpec(dynamic));
      ASSERT_TRUE(pipeline.ok()) << pipeline.status().message();
      DeviceAllocator allocator(*device);
      const uint64_t offset = plan.storage_offset_alignment_bytes;
      const uint64_t uniform_offset = plan.uniform_offset_alignment_bytes;
      constexpr uint32_t kCount = 1000;
      const DeviceBuffer source = Allocate(allocator, offset + kCount * 4, MemoryKind::kUpload);
      const DeviceBuffer target = Allocate(allocator, kCount * 4, MemoryKind::kReadback);
      const DeviceBuffer uniform = Allocate(allocator, uniform_offset + 16, MemoryKind::kUpload);
      for (uint32_t i = 0; i < kCount; ++i) std::memcpy(source.mapped() + offset + i * 4, &i, 4);
      const uint32_t addend = 17;
      std::memcpy(uniform.mapped() + uniform_offset, &addend, 4);
      ASSERT_TRUE(source.Flush().ok() && uniform.Flush().ok());
      DescriptorSets sets(*device, 1);  // one per pool, so that pools are added
      const BufferBinding bindings[] = {{source.handle(), offset, kCount * 4},
                                        {target.handle(), 0, kCount * 4},
                                        {uniform.handle(), dynamic ? 0 : uniform_offset, 16}};
      ASSERT_TRUE(sets.Allocate(*pipeline, bindings).ok());
      const auto set = sets.Allocate(*pipeline, bindings);
      ASSERT_TRUE(set.ok()) << set.status().message();
      const auto dynamic_offset = static_cast<uint32_t>(uniform_offset);
      const Status status = RunOnce(*device, "scaling", [&](VkCommandBuffer commands) {
        const VolkDeviceTable& vk = device->vk();
        vk.vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline->handle());
        vk.vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline->layout(), 0, 1, &*set,
                                   dynamic ? 1 : 0, &dynamic_offset);
        vk.vkCmdPushConstants(commands, pipeline->layout(), VK_SHADER_STAGE_COMPUTE_BIT, 0, 4, &kCount);
        vk.vkCmdDispatch(commands, (kCount + 63) / 64, 1, 1);
        RecordFullBarrier(*device, commands);
      });
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_TRUE(target.Invalidate().ok());
      for (uint32_t i = 0; i < kCount; ++i) {
        uint32_t value = 0;
        std::memcpy(&value, target.mapped() + i * 4, 4);
        ASSERT_EQ(value, i * 12 + 17) << device->facts().name;
      }
    }
  }
}

TEST_P(VulkanPlatform, PipelinesBeyondTheDeviceAreRefused) {
  for (const auto& device : devices_) {
    PipelineSpec spec = ScaleSpec(false);
    spec.storage_buffers = device->plan().max_storage_buffers + 1;
    EXPECT_FALSE(ComputePipeline::Create(*device, spec).ok());
    spec = ScaleSpec(false);
    spec.push_constants_bytes = device->plan().max_push_constants_bytes + 4;
    EXPECT_FALSE(ComputePipeline::Create(*device, spec).ok());
    spec = ScaleSpec(false);
    const uint32_t garbage[] = {1, 2, 3, 4, 5, 6};
    spec.spirv = garbage;
    const auto pipeline = ComputePipeline::Create(*device, spec);
    ASSERT_FALSE(pipeline.ok());
    EXPECT_NE(pipeline.status().message().find("scale"), std::string::npos);
    spec = ScaleSpec(false);
    spec.required_subgroup_width = device->facts().subgroup_width;
    spec.require_full_subgroups = device->plan().use_full_subgroups;
    EXPECT_EQ(ComputePipeline::Create(*device, spec).ok(), device->plan().use_subgroup_size_control);
  }
}

// The kinds of timeline that a device has.
std::vector<bool> TimelineKinds(const VulkanDevice& device) {
  return device.plan().use_timeline ? std::vector<bool>{true, false} : std::vector<bool>{false};
}

TEST_P(VulkanPlatform, TimelineValuesArriveInOrder) {
  for (const auto& device : devices_) {
    for (const bool semaphore : TimelineKinds(*device)) {
      const auto timeline = Timeline::Create(*device, semaphore);
      ASSERT_TRUE(timeline.ok()) << timeline.status().message();
      Timeline& work = **timeline;
      EXPECT_EQ(work.uses_semaphore(), semaphore);
      EXPECT_EQ(*work.Completed(), 0u);
      EXPECT_FALSE(*work.Wait(1, 1'000'000));
      for (uint64_t round = 0; round < 20; ++round) {
        for (uint64_t i = 1; i <= 10; ++i) ASSERT_TRUE(work.Submit({}, round * 10 + i).ok());
        ASSERT_TRUE(*work.Wait(round * 10 + 5));
        EXPECT_GE(*work.Completed(), round * 10 + 5);
      }
      ASSERT_TRUE(*work.Wait(200, 5'000'000'000));
      EXPECT_EQ(*work.Completed(), 200u);
      EXPECT_FALSE(work.Submit({}, 200).ok());  // must grow
      EXPECT_FALSE(work.Signal(3).ok());
      ASSERT_TRUE(work.Submit({}, 300).ok());
      EXPECT_TRUE(*work.Wait(300));
      EXPECT_TRUE(*work.Wait(150));
    }
  }
}

// The shape of one decoded token: per layer the device signals P(i), the host answers R(i).
TEST_P(VulkanPlatform, DeviceAndHostTakeTurns) {
  constexpr uint64_t kLayers = 30;
  for (const auto& device : devices_) {
    for (const bool semaphore : TimelineKinds(*device)) {
      const auto predicted = Timeline::Create(*device, semaphore);
      const auto ready = Timeline::Create(*device, semaphore);
      ASSERT_TRUE(predicted.ok() && ready.ok());
      DeviceAllocator allocator(*device);
      const DeviceBuffer from_device = Allocate(allocator, 4, MemoryKind::kReadback);
      const DeviceBuffer from_host = Allocate(allocator, 4, MemoryKind::kUpload);
      auto pool = CommandPool::Create(*device);
      ASSERT_TRUE(pool.ok());
      std::vector<VkCommandBuffer> commands;  // all recorded ahead
      for (uint64_t layer = 1; layer <= kLayers; ++layer) {
        const auto allocated = pool->Allocate();
        ASSERT_TRUE(allocated.ok() && BeginCommands(*device, *allocated).ok());
        RecordFullBarrier(*device, *allocated);
        RecordCopy(*device, *allocated, from_host, from_device);
        ASSERT_TRUE(EndCommands(*device, *allocated).ok());
        commands.push_back(*allocated);
      }
      uint64_t correct = 0;
      std::thread host([&] {
        for (uint32_t layer = 1; layer <= kLayers; ++layer) {
          std::memcpy(from_host.mapped(), &layer, 4);
          if (!from_host.Flush().ok() || !(*ready)->Signal(layer).ok()) return;
          const auto reached = (*predicted)->Wait(layer, 10'000'000'000);
          if (!reached.ok() || !*reached || !from_device.Invalidate().ok()) return;
          uint32_t seen = 0;
          std::memcpy(&seen, from_device.mapped(), 4);
          correct += seen == layer ? 1 : 0;
        }
      });
      for (uint64_t layer = 1; layer <= kLayers; ++layer) {
        const VkCommandBuffer& work = commands[layer - 1];
        ASSERT_TRUE((*predicted)->Submit({&work, 1}, layer, TimelinePoint{ready->get(), layer}).ok());
      }
      host.join();
      EXPECT_EQ(correct, kLayers);
    }
  }
}

TEST_P(VulkanPlatform, TimestampsGrow) {
  for (const auto& device : devices_) {
    if (!device->plan().timestamps) continue;
    const auto pool = TimestampPool::Create(*device, 3);
    ASSERT_TRUE(pool.ok()) << pool.status().message();
    DeviceAllocator allocator(*device);
    const DeviceBuffer buffer = Allocate(allocator, 16 << 20, MemoryKind::kDeviceLocal);
    ASSERT_TRUE(RunOnce(*device, "timing", [&](VkCommandBuffer commands) {
                  pool->RecordReset(commands);
                  pool->RecordWrite(commands, 0);
                  device->vk().vkCmdFillBuffer(commands, buffer.handle(), 0, VK_WHOLE_SIZE, 1);
                  pool->RecordWrite(commands, 1);
                  pool->RecordWrite(commands, 2);
                }).ok());
    const auto times = pool->ReadNs(3);
    ASSERT_TRUE(times.ok()) << times.status().message();
    EXPECT_EQ((*times)[0], 0.0);
    EXPECT_GT((*times)[1], 0.0);
    EXPECT_GE((*times)[2], (*times)[1]);
    EXPECT_LT((*times)[2], 60e9);
  }
}

TEST_P(VulkanPlatform, PipelineCacheIsKeptAndADamagedOneIsIgnored) {
  for (const auto& device : devices_) {
    const std::string folder =
        ::testing::TempDir() + "/kvrun-cache-test-" + std::to_string(::getpid()) + "/nested";
    std::filesystem::remove_all(folder);
    auto cache = PipelineCache::Create(*device, 1, folder);
    ASSERT_TRUE(cache.ok());
    EXPECT_FALSE(cache->load_note().empty());
    ASSERT_TRUE(ComputePipeline::Create(*device, ScaleSpec(false), cache->handle()).ok());
    ASSERT_TRUE(cache->Save().ok());
    const std::string path = PipelineCachePath(folder, MakePipelineCacheKey(device->facts(), 1));
    struct stat info {};
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
    cache = PipelineCache::Create(*device, 1, folder);
    ASSERT_TRUE(cache.ok());
    EXPECT_EQ(cache->load_note(), "");
    EXPECT_TRUE(ComputePipeline::Create(*device, ScaleSpec(false), cache->handle()).ok());
    cache = PipelineCache::Create(*device, 2, folder);  // another set of shaders
    ASSERT_TRUE(cache.ok());
    EXPECT_NE(cache->load_note().find("set of shaders"), std::string::npos);
    std::ofstream(path, std::ios::trunc) << "not a cache";
    cache = PipelineCache::Create(*device, 1, folder);
    ASSERT_TRUE(cache.ok());
    EXPECT_FALSE(cache->load_note().empty());
    std::filesystem::remove_all(folder);
  }
}

TEST_P(VulkanPlatform, AFolderThatCannotBeMadeDoesNotStopThePipelines) {
  for (const auto& device : devices_) {
    auto cache = PipelineCache::Create(*device, 1, "/proc/no/such/folder");
    ASSERT_TRUE(cache.ok());
    EXPECT_TRUE(ComputePipeline::Create(*device, ScaleSpec(false), cache->handle()).ok());
    EXPECT_FALSE(cache->Save().ok());
    cache = PipelineCache::Create(*device, 1, std::nullopt);
    ASSERT_TRUE(cache.ok());
    EXPECT_TRUE(cache->Save().ok());
  }
}

TEST_P(VulkanPlatform, SelfTestsPassOrSayWhatIsMissing) {
  for (const auto& device : devices_) {
    const auto timeline = TestTimeline(*device);
    ASSERT_TRUE(timeline.ok()) << timeline.status().message();
    EXPECT_EQ(*timeline, device->plan().use_timeline ? "timeline semaphores" : "fences");
    const auto import = TestMemoryImport(*device);
    if (device->plan().use_external_memory_host) {
      EXPECT_TRUE(import.ok()) << import.status().message();
    } else {
      EXPECT_EQ(import.status().code(), StatusCode::kUnsupported);
    }
    const auto direct = TestDirectReadIntoMapped(*device, std::filesystem::current_path().string());
    const auto says = [&](const char* why) {
      return !direct.ok() && direct.status().message().find(why) != std::string::npos;
    };
    EXPECT_TRUE(direct.ok() || says("file system") || says("refuses direct reads"))
        << direct.status().message();
    EXPECT_FALSE(TestDirectReadIntoMapped(*device, "/no/such/folder").ok());
  }
}

TEST(VulkanInstance, CountsValidationMessages) {
  const auto devices = OpenTestDevices();
  if (devices.empty()) GTEST_SKIP() << "no Vulkan device";
  if (!TestInstance()->validation_enabled()) GTEST_SKIP() << "no validation layer";
  const uint64_t before = TestInstance()->validation_messages();
  DeviceAllocator allocator(*devices[0]);
  const DeviceBuffer buffer = Allocate(allocator, 64, MemoryKind::kDeviceLocal);
  const Status status = RunOnce(*devices[0], "making a hazard on purpose", [&](VkCommandBuffer commands) {
    devices[0]->vk().vkCmdFillBuffer(commands, buffer.handle(), 0, 64, 1);
    devices[0]->vk().vkCmdFillBuffer(commands, buffer.handle(), 0, 64, 2);
  });
  EXPECT_TRUE(status.ok());
  EXPECT_GT(TestInstance()->validation_messages(), before);
}

}  // namespace
}  // namespace kvrun
