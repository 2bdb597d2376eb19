#include "platform/vulkan/device_plan.h"

#include <gtest/gtest.h>
#include <volk.h>

#include <algorithm>
#include <filesystem>

#include "platform/base/units.h"
#include "platform/vulkan/quirks.h"
#include "tests/support/recorded_devices.h"

namespace kvrun {
namespace {

using testing::kDevices;

DeviceFacts Load(const std::string& name) { return testing::RecordedFacts(name); }

DevicePlan Plan(const DeviceFacts& facts) { return testing::PlanOfFacts(facts); }

bool HasQuirk(const DevicePlan& plan, std::string_view name) {
  return std::find(plan.quirks.begin(), plan.quirks.end(), name) != plan.quirks.end();
}

class EveryDevice : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Facts, EveryDevice, ::testing::ValuesIn(kDevices),
                         [](const auto& device) { return std::string(device.param); });

TEST(DeviceFactsFiles, AllAreTested) {
  size_t files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(KVRUN_SOURCE_DIR) + "/tests/data/device_facts")) {
    files += entry.path().extension() == ".json" ? 1 : 0;
  }
  EXPECT_EQ(files, std::size(kDevices));
}

TEST_P(EveryDevice, NamesItsSource) { EXPECT_GT(Load(GetParam()).source.size(), 40u); }

TEST_P(EveryDevice, PlanIsWithinTheDevice) {
  const DeviceFacts facts = Load(GetParam());
  const DevicePlan plan = Plan(facts);
  EXPECT_NE(facts.queue_families.at(plan.queue_family).flags & VK_QUEUE_COMPUTE_BIT, 0u);
  EXPECT_LE(plan.max_allocation_bytes, 256 * kMiB);
  EXPECT_LE(plan.max_allocation_bytes, facts.max_allocation_bytes);
  EXPECT_LE(plan.max_uncut_bytes, facts.max_allocation_bytes);
  EXPECT_GE(plan.max_uncut_bytes, kGiB);
  EXPECT_LE(plan.max_binding_bytes, facts.max_storage_buffer_range_bytes);
  EXPECT_GE(plan.max_binding_bytes, 128 * kMiB - 256);
  EXPECT_EQ(plan.max_binding_bytes % plan.storage_offset_alignment_bytes, 0u);
  for (const MemoryUse* use : {&plan.device_local, &plan.upload, &plan.readback, &plan.shared}) {
    const MemoryTypeFacts& type = facts.memory_types.at(use->type_index);
    EXPECT_EQ(type.heap_index, use->heap_index);
    EXPECT_EQ((type.flags & VK_MEMORY_PROPERTY_HOST_COHERENT_BIT) != 0, use->coherent);
    // Protected, lazily allocated and vendor types cannot hold our buffers.
    EXPECT_EQ(type.flags & ~0xfu, 0u);
  }
  EXPECT_TRUE(plan.device_local.device_local);
  EXPECT_TRUE(plan.upload.host_visible && plan.readback.host_visible && plan.shared.host_visible);
  // As the CPU wants it, wherever there is such memory; Vulkan promises what is coherent alone.
  const auto has_visible = [&facts](uint32_t wanted, uint32_t unwanted) {
    return std::any_of(
        facts.memory_types.begin(), facts.memory_types.end(), [&](const MemoryTypeFacts& type) {
          const uint32_t all = wanted | VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT;
          return (type.flags & ~0xfu) == 0 && (type.flags & all) == all && (type.flags & unwanted) == 0;
        });
  };
  EXPECT_EQ(plan.upload.cached, !has_visible(0, VK_MEMORY_PROPERTY_HOST_CACHED_BIT));
  EXPECT_EQ(plan.readback.cached, has_visible(VK_MEMORY_PROPERTY_HOST_CACHED_BIT, 0));
  EXPECT_TRUE(plan.shared.coherent);
  EXPECT_EQ(plan.shared.cached,
            has_visible(VK_MEMORY_PROPERTY_HOST_CACHED_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT, 0));
  EXPECT_EQ(plan.use_timeline, facts.timeline);
  EXPECT_TRUE(plan.timestamps);
}

TEST_P(EveryDevice, FloorClampTurnsEverythingOff) {
  const auto facts = ClampFacts(Load(GetParam()), "floor");
  ASSERT_TRUE(facts.ok());
  const DevicePlan plan = Plan(*facts);
  EXPECT_EQ(plan.max_workgroup_invocations, 128u);
  EXPECT_EQ(plan.max_shared_memory_bytes, 16 * kKiB);
  EXPECT_EQ(plan.max_storage_buffers, 4u);
  EXPECT_EQ(plan.max_binding_bytes, 128 * kMiB);
  EXPECT_EQ(plan.storage_offset_alignment_bytes, 256u);
  EXPECT_EQ(plan.max_push_constants_bytes, 128u);
  EXPECT_FALSE(plan.use_subgroup_shuffle || plan.use_subgroup_size_control || plan.use_full_subgroups);
  EXPECT_EQ(plan.subgroup_width, 0u);
  EXPECT_FALSE(plan.use_float16 || plan.use_int8 || plan.use_int16 || plan.use_integer_dot);
  EXPECT_FALSE(plan.use_storage_8bit || plan.use_storage_16bit);
  EXPECT_FALSE(plan.use_timeline || plan.use_external_memory_host || plan.use_memory_budget);
  EXPECT_EQ(FormatApiVersion(facts->api_version), "1.1.0");
}

TEST(DevicePlan, Adreno660KeepsAwayFromHostImportAndBytes) {
  const DevicePlan plan = Plan(Load("adreno_660"));
  EXPECT_FALSE(plan.use_storage_8bit);
  EXPECT_FALSE(plan.use_external_memory_host);
  EXPECT_TRUE(HasQuirk(plan, "adreno-660-host-import"));
  EXPECT_TRUE(plan.unified_memory);
  EXPECT_EQ(plan.subgroup_width, 64u);
  EXPECT_EQ(plan.required_subgroup_width, 0u);
}

TEST(DevicePlan, Adreno740AllocatesInChunksAndAsksForItsSubgroupWidth) {
  const DevicePlan plan = Plan(Load("adreno_740"));
  EXPECT_EQ(plan.max_allocation_bytes, 256 * kMiB);
  EXPECT_EQ(plan.max_binding_bytes, 128 * kMiB);
  EXPECT_TRUE(plan.use_subgroup_shuffle);
  EXPECT_EQ(plan.subgroup_width, 64u);
  EXPECT_EQ(plan.required_subgroup_width, 64u);  // it would vary from 64 to 128
  EXPECT_TRUE(plan.split_submits);
  EXPECT_TRUE(plan.use_storage_8bit);
  EXPECT_TRUE(plan.readback.coherent);
  EXPECT_FALSE(plan.few_accumulators);
}

TEST(DevicePlan, AVaryingSubgroupWidthThatCannotBeAskedForIsNotUsed) {
  const auto facts = ClampFacts(Load("adreno_740"), "subgroup_size_control=0");
  const DevicePlan plan = Plan(*facts);
  EXPECT_FALSE(plan.use_subgroup_shuffle);
  EXPECT_EQ(plan.subgroup_width, 0u);
}

TEST(DevicePlan, WithoutShuffleOrWithAnOddWidthSubgroupsAreNotUsed) {
  DeviceFacts facts = Load("mali_g710");
  facts.subgroup_ops &= ~uint32_t{VK_SUBGROUP_FEATURE_SHUFFLE_BIT};
  EXPECT_FALSE(Plan(facts).use_subgroup_shuffle);
  for (const uint32_t width : {0u, 1u, 2u, 256u}) {  // drivers have reported 0
    facts = Load("mali_g710");
    facts.subgroup_width = facts.min_subgroup_width = facts.max_subgroup_width = width;
    EXPECT_FALSE(Plan(facts).use_subgroup_shuffle) << width;
  }
}

TEST(DevicePlan, Adreno825HasNoIntegerDot) {
  DeviceFacts facts = Load("adreno_830");
  EXPECT_TRUE(Plan(facts).use_integer_dot);
  facts.name = "Adreno (TM) 825";
  const DevicePlan plan = Plan(facts);
  EXPECT_FALSE(plan.use_integer_dot || plan.use_int8 || plan.use_storage_8bit);
  EXPECT_TRUE(HasQuirk(plan, "adreno-825-int8-dot"));
  facts.driver_id = VK_DRIVER_ID_MESA_TURNIP;  // the bug is the proprietary driver's
  EXPECT_TRUE(Plan(facts).use_integer_dot);
  facts.driver_id = 0;  // a driver that does not say
  EXPECT_FALSE(Plan(facts).use_integer_dot);
}

TEST(DevicePlan, Adreno8xxQuirks) {
  EXPECT_TRUE(Plan(Load("adreno_830")).few_accumulators);
  const DevicePlan plan = Plan(Load("adreno_840"));
  EXPECT_TRUE(plan.literal_shared_sizes && plan.lane_from_local_index);
  EXPECT_FALSE(plan.few_accumulators);
  EXPECT_EQ(plan.queue_family, 1u);  // compute alone
}

TEST(DevicePlan, MaliIsNarrowAndPrefersItsCache) {
  for (const char* name : {"mali_g57", "mali_g710", "mali_g720"}) {
    const DevicePlan plan = Plan(Load(name));
    EXPECT_EQ(plan.subgroup_width, 16u);
    EXPECT_FALSE(plan.prefer_shared_memory);
    EXPECT_FALSE(plan.use_external_memory_host);
    EXPECT_TRUE(plan.unified_memory);
    EXPECT_TRUE(plan.shared.device_local && plan.shared.coherent);
    EXPECT_EQ(plan.shared.cached, std::string_view(name) != "mali_g57");  // which has no memory that is both
  }
  EXPECT_EQ(Plan(Load("mali_g710")).max_workgroup_invocations, 512u);
  EXPECT_EQ(Plan(Load("mali_g720")).max_workgroup_invocations, 1024u);
  // Coherent or cached, never both: reading back is worth the invalidation.
  const DevicePlan g57 = Plan(Load("mali_g57"));
  EXPECT_TRUE(g57.readback.cached);
  EXPECT_FALSE(g57.readback.coherent);
  EXPECT_TRUE(g57.upload.coherent);
}

TEST(DevicePlan, OrinIsUnified) {
  const DevicePlan plan = Plan(Load("jetson_orin"));
  EXPECT_TRUE(plan.unified_memory);
  EXPECT_TRUE(plan.shared.device_local && plan.upload.device_local && plan.readback.device_local);
  EXPECT_EQ(plan.subgroup_width, 32u);
  EXPECT_EQ(plan.max_shared_memory_bytes, 48 * kKiB);
  EXPECT_TRUE(plan.use_external_memory_host && plan.prefer_shared_memory && plan.quirks.empty());
  EXPECT_EQ(plan.max_binding_bytes, uint64_t{4294967280});
}

TEST(DevicePlan, ADiscreteGpuKeepsItsWindowFree) {
  const DeviceFacts facts = Load("rtx_4090");
  const DevicePlan plan = Plan(facts);
  EXPECT_FALSE(plan.unified_memory);
  EXPECT_FALSE(plan.device_local.host_visible);
  EXPECT_FALSE(plan.shared.device_local || plan.upload.device_local || plan.readback.device_local);
  EXPECT_TRUE(plan.shared.cached);
  EXPECT_EQ(plan.queue_family, 2u);  // compute without graphics
}

// The CPU would read what both use across the bus, word by word.
TEST(DevicePlan, ADiscreteGpuWhoseMemoryIsAllVisibleSharesTheCpus) {
  const DevicePlan plan = Plan(Load("radeon_rx_6700_xt"));
  EXPECT_FALSE(plan.unified_memory);
  EXPECT_TRUE(plan.shared.cached && plan.shared.coherent);
  EXPECT_FALSE(plan.shared.device_local || plan.upload.device_local || plan.readback.device_local);
  EXPECT_EQ(plan.required_subgroup_width, 64u);
}

// A Raspberry Pi 5 has one memory type for all: its CPU reads without a cache, and a note says so.
TEST(DevicePlan, V3dHasOneMemoryTypeAndEightBuffers) {
  const DeviceFacts facts = Load("raspberry_pi_5_v3d");
  ASSERT_EQ(facts.memory_types.size(), 1u);
  const DevicePlan plan = Plan(facts);
  EXPECT_TRUE(plan.unified_memory);
  for (const MemoryUse* use : {&plan.device_local, &plan.upload, &plan.readback, &plan.shared}) {
    EXPECT_TRUE(use->device_local && use->host_visible && use->coherent);
    EXPECT_FALSE(use->cached);
  }
  EXPECT_NE(
      std::find(plan.notes.begin(), plan.notes.end(), "no cached host memory: reading results back is slow"),
      plan.notes.end());
  EXPECT_EQ(plan.max_storage_buffers, 8u);  // of a stage; a set may have more
  EXPECT_EQ(plan.max_workgroup_invocations, 256u);
  EXPECT_EQ(plan.max_shared_memory_bytes, 16 * kKiB);
  EXPECT_EQ(plan.max_push_constants_bytes, 128u);
  EXPECT_EQ(plan.non_coherent_atom_bytes, 256u);
  EXPECT_EQ(plan.subgroup_width, 16u);
  EXPECT_FALSE(plan.use_float16 || plan.use_int8 || plan.use_int16);
  EXPECT_TRUE(plan.use_timeline);
}

// Its driver of 2023 offered no other subgroup operations than the basic ones.
TEST(DevicePlan, AnOldV3dDriverHasNoSubgroups) {
  const DevicePlan plan = Plan(*ClampFacts(Load("raspberry_pi_5_v3d"), "subgroup_ops=1"));
  EXPECT_FALSE(plan.use_subgroup_shuffle);
  EXPECT_EQ(plan.subgroup_width, 0u);
}

TEST(DevicePlan, TurnipHasNoneOfTheProprietaryDriversBugs) {
  const DevicePlan plan = Plan(Load("turnip_adreno_740"));
  EXPECT_TRUE(plan.quirks.empty());
  EXPECT_FALSE(plan.split_submits);
  EXPECT_EQ(plan.subgroup_width, 128u);
  EXPECT_EQ(plan.required_subgroup_width, 128u);  // it would vary from 64
  EXPECT_EQ(plan.max_workgroup_invocations, 2048u);
  EXPECT_EQ(plan.max_workgroup_size_x, 1024u);
  EXPECT_EQ(plan.max_binding_bytes, 128 * kMiB);
  EXPECT_EQ(plan.storage_offset_alignment_bytes, 4u);
  EXPECT_TRUE(plan.shared.cached && plan.shared.coherent);
  EXPECT_EQ(plan.max_texels, 0u) << "a GPU's texels are not measured";
}

TEST(DevicePlan, Adreno750IsAsThe740) {
  const DevicePlan plan = Plan(Load("adreno_750"));
  EXPECT_EQ(plan.quirks, std::vector<std::string>{"adreno-long-dispatch"});
  EXPECT_TRUE(plan.shared.cached && plan.shared.coherent);
  EXPECT_EQ(plan.required_subgroup_width, 64u);
}

// A Pixel, and an RK3588 with Mesa's driver.
TEST(DevicePlan, WhereCachedIsNotCoherentWhatBothUseIsNotCached) {
  for (const char* name : {"mali_g715", "panvk_mali_g610"}) {
    const DevicePlan plan = Plan(Load(name));
    EXPECT_TRUE(plan.shared.coherent && plan.upload.coherent) << name;
    EXPECT_FALSE(plan.shared.cached) << name;
    EXPECT_TRUE(plan.readback.cached) << name;
    EXPECT_FALSE(plan.readback.coherent) << name;
    EXPECT_EQ(plan.subgroup_width, 16u) << name;
  }
  EXPECT_TRUE(HasQuirk(Plan(Load("mali_g715")), "mali-shared-memory"));
  EXPECT_TRUE(Plan(Load("panvk_mali_g610")).quirks.empty()) << "those are of Arm's own driver";
  // Some kernels map none of its memory as cached.
  DeviceFacts older = Load("panvk_mali_g610");
  older.memory_types = {{0, 1}, {0, 7}};
  EXPECT_FALSE(Plan(older).readback.cached);
}

TEST(DevicePlan, OrinNanoIsAsOrinWithLessMemory) {
  const DeviceFacts nano = Load("jetson_orin_nano");
  const DeviceFacts orin = Load("jetson_orin");
  EXPECT_LT(nano.memory_heaps.front().size_bytes, orin.memory_heaps.front().size_bytes);
  const DevicePlan plan = Plan(nano);
  EXPECT_TRUE(plan.unified_memory && plan.shared.cached && plan.use_external_memory_host);
  EXPECT_EQ(plan.queue_family, Plan(orin).queue_family);
}

// It varies from 8 to 32: the width that is reported is asked for.
TEST(DevicePlan, IntelAsksForItsSubgroupWidth) {
  for (const char* name : {"intel_iris_xe", "intel_rpl_s", "intel_uhd_630"}) {
    const DevicePlan plan = Plan(Load(name));
    EXPECT_TRUE(plan.unified_memory) << name;
    EXPECT_EQ(plan.subgroup_width, 32u) << name;
    EXPECT_EQ(plan.required_subgroup_width, 32u) << name;
    EXPECT_TRUE(plan.use_full_subgroups) << name;
    EXPECT_TRUE(plan.shared.cached && plan.shared.coherent && plan.shared.device_local) << name;
    EXPECT_EQ(plan.readback.type_index, plan.shared.type_index) << name;
  }
  EXPECT_FALSE(Plan(Load("intel_iris_xe")).upload.cached);
  EXPECT_TRUE(Plan(Load("intel_uhd_630")).upload.cached) << "there is one type";
  EXPECT_FALSE(Plan(Load("intel_uhd_630")).use_integer_dot);
}

// RADV divides an APU's one memory into a CPU's heap, cached, and a larger one of the GPU, which is not.
TEST(DevicePlan, AnApuSharesWhatTheCpuCaches) {
  const DeviceFacts facts = Load("radeon_780m");
  const DevicePlan plan = Plan(facts);
  EXPECT_TRUE(plan.unified_memory);
  EXPECT_TRUE(plan.shared.cached && plan.shared.coherent);
  EXPECT_TRUE(plan.readback.cached);
  EXPECT_TRUE(plan.upload.device_local && plan.device_local.device_local);
  EXPECT_LT(facts.memory_heaps[plan.shared.heap_index].size_bytes,
            facts.memory_heaps[plan.device_local.heap_index].size_bytes);
  EXPECT_EQ(plan.required_subgroup_width, 64u);
}

TEST(DevicePlan, WithoutTimelineSemaphoresThereAreFences) {
  const DevicePlan plan = Plan(Load("adreno_620"));
  EXPECT_FALSE(plan.use_timeline);
  EXPECT_NE(std::find(plan.notes.begin(), plan.notes.end(), "no timeline semaphores: one fence per submit"),
            plan.notes.end());
  EXPECT_EQ(plan.required_subgroup_width, 64u);  // it would vary up to 128
  EXPECT_FALSE(plan.use_full_subgroups || plan.use_storage_8bit || plan.use_storage_16bit);
}

TEST(DevicePlan, UnusableDevicesSayWhy) {
  const struct {
    const char* clamp;
    const char* reason;
  } cases[] = {{"api_version=1.0", "Vulkan 1.0"},
               {"max_workgroup_invocations=64", "workgroup invocations"},
               {"max_shared_memory_bytes=8192", "shared memory"},
               {"max_storage_buffers_per_stage=3", "storage buffers"},
               {"max_storage_buffer_range_bytes=1000000", "per storage binding"}};
  for (const auto& item : cases) {
    const auto plan = PlanDevice(*ClampFacts(Load("adreno_740"), item.clamp), {});
    ASSERT_FALSE(plan.ok()) << item.clamp;
    EXPECT_EQ(plan.status().code(), StatusCode::kUnsupported);
    EXPECT_NE(plan.status().message().find(item.reason), std::string::npos) << plan.status().message();
    EXPECT_NE(plan.status().message().find("Adreno (TM) 740"), std::string::npos);
  }
  DeviceFacts facts = Load("adreno_740");
  facts.queue_families = {{VK_QUEUE_TRANSFER_BIT, 1, 0}};
  EXPECT_FALSE(PlanDevice(facts, {}).ok());
  facts = Load("adreno_740");
  facts.memory_types = {{0, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT}};
  EXPECT_FALSE(PlanDevice(facts, {}).ok());
}

TEST(Quirks, DriverRangesAreInclusive) {
  // Every row is well-formed and found for a device made after it, at both ends of its range.
  for (const Quirk& quirk : AllQuirks()) {
    EXPECT_FALSE(quirk.name.empty() || quirk.symptom.empty() || quirk.source.empty());
    EXPECT_NE(quirk.effects, 0u);
    DeviceFacts facts;
    facts.vendor_id = quirk.vendor_id;
    facts.name = "some " + std::string(quirk.device_name_part) + " device";
    facts.driver_id = quirk.driver_id;
    for (const uint32_t version : {quirk.first_driver_version, quirk.last_driver_version}) {
      facts.driver_version = version;
      const auto found = FindQuirks(facts);
      EXPECT_NE(std::find(found.begin(), found.end(), &quirk), found.end()) << quirk.name;
    }
    facts.vendor_id = 1;
    EXPECT_TRUE(FindQuirks(facts).empty());
  }
}

}  // namespace
}  // namespace kvrun
