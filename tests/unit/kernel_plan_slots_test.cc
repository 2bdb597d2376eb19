#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "platform/base/units.h"
#include "runtime/device/host/host_device.h"
#include "runtime/device/vulkan/kernel_plan.h"
#include "runtime/device/vulkan/shader_library.h"

namespace kvrun {
namespace {

constexpr std::array kTypes = {KvType::kF32, KvType::kF16, KvType::kFp8, KvType::kInt8, KvType::kInt4};

DevicePlan PlanOf(uint32_t width) {  // 0: the floor
  DevicePlan plan;
  plan.max_workgroup_invocations = plan.max_workgroup_size_x = 128;
  plan.max_workgroup_count_x = plan.max_workgroup_count_y = plan.max_workgroup_count_z = 65535;
  plan.use_subgroup_shuffle = width != 0;
  plan.subgroup_width = width;
  return plan;
}

SlotShape SlotsOf(KvType k_type, KvType v_type, uint32_t head_dim, uint32_t table_slots,
                  bool has_biases = false) {
  return {{k_type, v_type, 1, head_dim, 4}, 1, table_slots, 1, table_slots, has_biases};
}

uint32_t RowsOf(const std::string& variant) {
  constexpr std::string_view kPrefix = "attend_slots";
  EXPECT_TRUE(variant.starts_with(kPrefix)) << variant;
  return static_cast<uint32_t>(variant[kPrefix.size()] - '0');
}

void CheckAttend(const DevicePlan& plan, bool is_cpu, const SlotShape& slots, uint32_t group,
                 uint32_t n_tokens) {
  constexpr uint32_t kKvHeads = 3;
  const AttendChoice choice = ChooseAttendSlots(plan, is_cpu, slots, group * kKvHeads, kKvHeads, n_tokens);
  const std::string& variant = choice.kernel.variant;
  SCOPED_TRACE(variant + ", head size " + std::to_string(slots.record.head_dim));
  ASSERT_NE(FindShader(variant), nullptr);
  const uint32_t rows = RowsOf(variant);
  const uint32_t has_biases = slots.has_biases ? 1 : 0;
  EXPECT_EQ(choice.kernel.groups[0], CeilDiv(group, rows) * kKvHeads);
  EXPECT_EQ(choice.kernel.groups[1], choice.n_splits);
  EXPECT_EQ(choice.kernel.groups[2], n_tokens);
  EXPECT_GE(choice.n_splits, 1U);
  const uint32_t n_entries = slots.table_slots * slots.record.group_tokens;
  // A CPU's splits have whole blocks; a GPU's an entry for each lane.
  const bool is_floor = variant.ends_with("_floor");
  const uint32_t least = is_floor ? 64
                         : is_cpu ? 4 * plan.subgroup_width
                                  : std::max(plan.subgroup_width, 32U);
  EXPECT_EQ(choice.split_block, least);
  EXPECT_LE(choice.n_splits, std::max(1U, CeilDiv(n_entries, is_cpu ? 128U : least)));
  if (!is_cpu && n_entries > least) {
    EXPECT_GT(choice.n_splits, 1U);
  }
  if (variant.ends_with("_floor")) {
    EXPECT_EQ(choice.kernel.constants,
              (std::vector<uint32_t>{static_cast<uint32_t>(slots.record.k_type),
                                     static_cast<uint32_t>(slots.record.v_type), has_biases, 0}));
    return;
  }
  // What attend_slots_subgroup.comp asks for.
  const uint32_t lanes = plan.subgroup_width;
  EXPECT_EQ(choice.kernel.constants,
            (std::vector<uint32_t>{lanes, slots.record.head_dim, lanes, has_biases, 0}));
  EXPECT_GE(lanes, 8U);
  EXPECT_LE(rows, plan.few_accumulators ? 2U : 4U);
  EXPECT_EQ(slots.record.row_words(slots.record.k_type) % 4, 0U);
  const uint32_t value_dims =
      slots.record.v_type == KvType::kInt4 ? 16 : 128 / KvElementBits(slots.record.v_type);
  const uint32_t vectors = slots.record.head_dim / value_dims;
  EXPECT_EQ(slots.record.head_dim % value_dims, 0U);
  EXPECT_TRUE(vectors % lanes == 0 || lanes % vectors == 0);
  EXPECT_LE(vectors, (value_dims == 16 ? 2 : 4) * lanes);
}

TEST(KernelPlanSlots, AttendCoversItsShapeAtEveryWidth) {
  for (const uint32_t width : {0U, 4U, 8U, 16U, 32U, 64U, 128U}) {
    for (const bool few_accumulators : {false, true}) {
      DevicePlan plan = PlanOf(width);
      plan.few_accumulators = few_accumulators;
      for (const KvType k_type : kTypes) {
        for (const KvType v_type : kTypes) {
          for (const uint32_t head_dim : {8U, 32U, 48U, 64U, 66U, 80U, 128U, 256U}) {
            for (const uint32_t group : {1U, 2U, 3U, 4U, 5U, 7U, 8U}) {
              CheckAttend(plan, group % 2 == 0, SlotsOf(k_type, v_type, head_dim, 208, group % 3 == 0), group,
                          1);
              CheckAttend(plan, group % 2 == 1, SlotsOf(k_type, v_type, head_dim, 1), group, 16);
            }
          }
        }
      }
    }
  }
}

TEST(KernelPlanSlots, PairsInUseHaveSubgroupVariants) {
  const auto variant = [](uint32_t width, KvType k_type, KvType v_type, uint32_t group) {
    return ChooseAttendSlots(PlanOf(width), true, SlotsOf(k_type, v_type, 64, 208), 3 * group, 3, 1)
        .kernel.variant;
  };
  EXPECT_EQ(variant(8, KvType::kFp8, KvType::kFp8, 3), "attend_slots3_fp8_subgroup");
  EXPECT_EQ(variant(32, KvType::kFp8, KvType::kInt4, 4), "attend_slots4_fp8_int4_subgroup");
  EXPECT_EQ(variant(64, KvType::kF16, KvType::kF16, 7), "attend_slots4_f16_subgroup");
  EXPECT_EQ(variant(64, KvType::kF16, KvType::kF16, 5), "attend_slots3_f16_subgroup");
  EXPECT_EQ(variant(32, KvType::kInt4, KvType::kFp8, 1), "attend_slots1_any_floor");  // no pair of its own
  EXPECT_EQ(variant(4, KvType::kFp8, KvType::kFp8, 1), "attend_slots1_any_floor");    // too narrow
  EXPECT_EQ(variant(0, KvType::kFp8, KvType::kFp8, 2), "attend_slots2_any_floor");
}

TEST(KernelPlanSlots, CopiesOfLongContextsStayWithinWorkgroupCounts) {
  const KvRecordShape record{KvType::kFp8, KvType::kInt4, 8, 128, 4};
  for (const uint32_t n_groups : {1U, 64U, 32768U}) {
    const KernelChoice encode = ChooseEncodeRecords(record, KvType::kF16, false, 8, n_groups);
    const KernelChoice decode = ChooseDecodeRecords(record, KvType::kF32, false, 8, n_groups);
    EXPECT_EQ(encode.variant, "encode_records_f16_floor");
    EXPECT_EQ(decode.variant, "decode_records_f32_floor");
    const uint64_t rows = uint64_t{2} * 8 * n_groups * 4;
    for (const auto& [choice, invocations] : {std::pair{encode, rows}, {decode, rows * 128 / 8}}) {
      EXPECT_LE(choice.groups[0], 65535U);
      EXPECT_LE(choice.groups[1], 65535U);
      EXPECT_GE(uint64_t{choice.groups[0]} * choice.groups[1] * 64, invocations);
    }
  }
}

// GPUs take a workgroup for each row, while they can have so many.
TEST(KernelPlanSlots, GpusEncodeARowWithAWorkgroup) {
  const KvRecordShape record{KvType::kInt8, KvType::kInt4, 8, 128, 4};
  const auto choose = [&](bool is_cpu, uint32_t n_rows) {
    return ChooseRopeAndEncode(PlanOf(0), is_cpu, record, false, n_rows);
  };
  EXPECT_EQ(choose(false, 48).variant, "rope_encode_any_wide");
  EXPECT_EQ(choose(false, 48).groups[0], 48U);
  EXPECT_EQ(choose(true, 48).variant, "rope_encode_any_floor");
  EXPECT_EQ(choose(true, 48).groups[0], 2U);
  EXPECT_EQ(choose(false, 65535).variant, "rope_encode_any_wide");
  EXPECT_EQ(choose(false, 65536).variant, "rope_encode_any_floor");
}

// One constant tells them, and what brings entries out of a space takes a row at once.
TEST(KernelPlanSlots, KernelsOfASpace) {
  const KvRecordShape record{KvType::kInt8, KvType::kInt4, 8, 128, 4};
  const std::vector<uint32_t> constants = {static_cast<uint32_t>(KvType::kInt8),
                                           static_cast<uint32_t>(KvType::kInt4), 1};
  EXPECT_EQ(ChooseRopeAndEncode(PlanOf(32), true, record, true, 48).constants, constants);
  EXPECT_EQ(ChooseEncodeRecords(record, KvType::kF16, true, 8, 32).constants, constants);
  const KernelChoice decode = ChooseDecodeRecords(record, KvType::kF16, true, 8, 32);
  EXPECT_EQ(decode.constants, constants);
  EXPECT_EQ(decode.groups[0] * 64, 2U * 8 * 32 * 4);
}

// A single part too is joined: only what joins parts brings them out.
TEST(KernelPlanSlots, PartsAreKeptInASpace) {
  SlotAttentionArgs args;
  args.Add({.shape = SlotsOf(KvType::kInt4, KvType::kInt4, 64, 8)});
  args.attention.kv_shape = {KvType::kF16, 1, 3, 64, 0};
  args.attention.n_heads = 9;
  args.attention.n_tokens = 1;
  ASSERT_EQ(PlanAttendSlots(PlanOf(32), true, args).n_parts, 1U);
  EXPECT_FALSE(PlanAttendSlots(PlanOf(32), true, args).keeps_parts);
  std::array<std::byte, 16> bytes = {};
  const host::HostBuffer constants(bytes);
  args.space.constants = &constants;
  EXPECT_TRUE(PlanAttendSlots(PlanOf(32), true, args).keeps_parts);
  EXPECT_GT(PlanAttendSlots(PlanOf(32), true, args).scratch_floats, 0U);
}

// Own slots, a pool, single entries and a window.
SlotAttentionArgs SourcesOf(const std::vector<std::pair<KvType, KvType>>& types, uint32_t head_dim = 64) {
  SlotAttentionArgs args;
  args.attention.kv_shape = {KvType::kF16, 1, 3, head_dim, 0};
  args.attention.n_heads = 9;
  args.attention.n_tokens = 1;
  for (const auto& [k_type, v_type] : types) args.Add({.shape = SlotsOf(k_type, v_type, head_dim, 100)});
  return args;
}

constexpr std::pair kMixed = {KvType::kInt8, KvType::kInt4};
constexpr std::pair kHalves = {KvType::kF16, KvType::kF16};

DevicePlan WithBuffers(uint32_t width, uint32_t max_storage_buffers) {
  DevicePlan plan = PlanOf(width);
  plan.max_storage_buffers = max_storage_buffers;
  return plan;
}

bool IsMerged(const DevicePlan& plan, const SlotAttentionArgs& args) {
  return PlanAttendSlots(plan, true, args).merged.has_value();
}

TEST(KernelPlanSlots, SourcesHaveOneDispatch) {
  SlotAttentionArgs args = SourcesOf({kMixed, kMixed, kMixed, kHalves});
  args.sources[1].shape.has_biases = args.sources[3].shape.has_biases = true;
  const AttendSlotsPlan plan = PlanAttendSlots(WithBuffers(8, kAttendSourcesBuffers), true, args);
  ASSERT_TRUE(plan.merged.has_value());
  const KernelChoice& kernel = plan.merged->choice.kernel;
  EXPECT_EQ(kernel.variant, "attend_sources3_int8_int4_subgroup");
  EXPECT_EQ(kernel.constants, (std::vector<uint32_t>{8, 64, 8, 4, 0b1010, 0}));
  // As many as the entries of all have blocks for: 1600 / 128, but at most 24 workgroups.
  EXPECT_EQ(plan.merged->choice.n_splits, 8U);
  EXPECT_EQ(kernel.groups, (std::array<uint32_t, 3>{3, 8, 1}));
  EXPECT_EQ(plan.n_parts, 8U);
  EXPECT_TRUE(plan.keeps_parts);
  EXPECT_EQ(plan.scratch_floats, uint64_t{9} * 8 * (64 + 2));
  for (uint32_t place = 0; place < kMaxSlotSources; ++place) EXPECT_EQ(plan.merged->places.at(place), place);
  // A GPU's parts are smaller: 1600 / 32.
  EXPECT_EQ(PlanAttendSlots(WithBuffers(8, kAttendSourcesBuffers), false, args).n_parts, 50U);
}

// Whatever has no slots has no place; the last has the last one.
TEST(KernelPlanSlots, SourcesHavePlaces) {
  SlotAttentionArgs args = SourcesOf({kMixed, {KvType::kF32, KvType::kF32}, kMixed, kHalves});
  args.sources[1].shape.n_slots = 0;
  args.sources[2].shape.has_biases = true;
  const AttendSlotsPlan three = PlanAttendSlots(WithBuffers(8, kAttendSourcesBuffers), true, args);
  ASSERT_TRUE(three.merged.has_value());
  EXPECT_EQ(three.merged->places, (std::array<std::optional<uint32_t>, 4>{0U, 2U, std::nullopt, 3U}));
  EXPECT_EQ(three.merged->choice.kernel.constants, (std::vector<uint32_t>{8, 64, 8, 3, 0b0010, 0}));
  args.sources[0].shape.n_slots = 0;
  const AttendSlotsPlan two = PlanAttendSlots(WithBuffers(8, kAttendSourcesBuffers), true, args);
  ASSERT_TRUE(two.merged.has_value());
  EXPECT_EQ(two.merged->places, (std::array<std::optional<uint32_t>, 4>{2U, std::nullopt, std::nullopt, 3U}));
  args.sources[2].shape.n_slots = 0;
  const AttendSlotsPlan one = PlanAttendSlots(WithBuffers(8, kAttendSourcesBuffers), true, args);
  EXPECT_FALSE(one.merged.has_value());
  EXPECT_EQ(one.sources[3].choice.kernel.variant, "attend_slots3_f16_subgroup");
}

// One part of a few entries is the output.
TEST(KernelPlanSlots, FewEntriesOfSourcesNeedNoParts) {
  SlotAttentionArgs args = SourcesOf({kMixed, kHalves});
  for (SlotSource& source : args.sources) source.shape.table_slots = 16;
  const AttendSlotsPlan plan = PlanAttendSlots(WithBuffers(8, kAttendSourcesBuffers), true, args);
  ASSERT_TRUE(plan.merged.has_value());
  EXPECT_EQ(plan.n_parts, 1U);
  EXPECT_FALSE(plan.keeps_parts);
  EXPECT_EQ(plan.scratch_floats, 0U);
}

TEST(KernelPlanSlots, WhatIsNotMerged) {
  const DevicePlan plan = WithBuffers(8, kAttendSourcesBuffers);
  EXPECT_TRUE(IsMerged(plan, SourcesOf({kMixed, kMixed, kHalves})));
  EXPECT_TRUE(IsMerged(plan, SourcesOf({kHalves, kHalves})));
  EXPECT_FALSE(IsMerged(WithBuffers(8, kAttendSourcesBuffers - 1), SourcesOf({kMixed, kHalves})));
  EXPECT_FALSE(IsMerged(WithBuffers(4, kAttendSourcesBuffers), SourcesOf({kMixed, kHalves})));  // too narrow
  EXPECT_FALSE(IsMerged(WithBuffers(0, kAttendSourcesBuffers), SourcesOf({kMixed, kHalves})));
  EXPECT_FALSE(IsMerged(plan, SourcesOf({kMixed, kHalves}, 80)));  // no subgroup's
  EXPECT_FALSE(IsMerged(plan, SourcesOf({kHalves})));
  EXPECT_FALSE(IsMerged(plan, SourcesOf({kMixed, kMixed})));
  EXPECT_FALSE(IsMerged(plan, SourcesOf({kMixed, {KvType::kF16, KvType::kInt4}, kHalves})));
  EXPECT_FALSE(IsMerged(plan, SourcesOf({kMixed, {KvType::kInt8, KvType::kInt8}, kHalves})));
  EXPECT_FALSE(IsMerged(plan, SourcesOf({{KvType::kInt4, KvType::kFp8}, kHalves})));  // no pair of its own
  EXPECT_FALSE(IsMerged(plan, SourcesOf({{KvType::kF32, KvType::kF32}, kHalves})));
  EXPECT_FALSE(IsMerged(plan, SourcesOf({{KvType::kFp8, KvType::kInt4}, kHalves})));  // no merged variant
  std::array<std::byte, 16> bytes = {};
  host::HostBuffer mass(bytes);
  for (uint32_t with_mass = 0; with_mass < 3; ++with_mass) {
    SlotAttentionArgs args = SourcesOf({kMixed, kMixed, kHalves});
    args.sources.at(with_mass).mass = &mass;
    EXPECT_FALSE(IsMerged(plan, args));
    EXPECT_EQ(PlanAttendSlots(plan, true, args).sources[2].choice.kernel.variant,
              "attend_slots3_f16_subgroup");
  }
}

TEST(KernelPlanSlots, MergedSourcesHaveVariants) {
  constexpr std::pair<KvType, KvType> kPairs[] = {kHalves,
                                                  {KvType::kFp8, KvType::kFp8},
                                                  {KvType::kInt8, KvType::kInt8},
                                                  {KvType::kInt4, KvType::kInt4},
                                                  kMixed};
  for (const uint32_t width : {8U, 16U, 32U, 64U, 128U}) {
    for (const auto& pair : kPairs) {
      for (uint32_t group = 1; group <= 8; ++group) {
        DevicePlan plan = WithBuffers(width, 16);
        plan.few_accumulators = group % 2 == 0;
        SlotAttentionArgs args = SourcesOf({pair, pair, kHalves}, width == 16 ? 128 : 64);
        args.attention.n_heads = 3 * group;
        const AttendSlotsPlan planned = PlanAttendSlots(plan, false, args);
        ASSERT_TRUE(planned.merged.has_value());
        const KernelChoice& kernel = planned.merged->choice.kernel;
        EXPECT_NE(FindShader(kernel.variant), nullptr) << kernel.variant;
        const auto rows = static_cast<uint32_t>(kernel.variant[std::string("attend_sources").size()] - '0');
        EXPECT_LE(rows, plan.few_accumulators ? 2U : 4U);
        EXPECT_EQ(kernel.groups[0], CeilDiv(group, rows) * 3);
      }
    }
  }
}

}  // namespace
}  // namespace kvrun
