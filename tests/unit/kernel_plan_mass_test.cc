#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/device/vulkan/kernel_plan.h"
#include "runtime/device/vulkan/shader_library.h"

namespace kvrun {
namespace {

// Plans look only at whether there is a buffer.
class NoBuffer : public Buffer {
 public:
  NoBuffer() : Buffer(0) {}
  std::span<std::byte> host() override { return {}; }
  Status Flush(uint64_t /*offset_bytes*/, uint64_t /*length_bytes*/) override { return Status::Ok(); }
  Status Invalidate(uint64_t /*offset_bytes*/, uint64_t /*length_bytes*/) override { return Status::Ok(); }
};

DevicePlan WithLanes(uint32_t width) {  // 0: the floor
  DevicePlan plan;
  plan.use_subgroup_shuffle = width != 0;
  plan.subgroup_width = width;
  return plan;
}

SlotSource SourceOf(uint32_t n_slots, uint32_t table_slots, Buffer* mass) {
  return {.shape = {{KvType::kF16, KvType::kF16, 1, 64, 4}, 3, n_slots, 0, table_slots}, .mass = mass};
}

SlotAttentionArgs ArgsOf(const std::vector<SlotSource>& sources) {
  SlotAttentionArgs args;
  args.attention.kv_shape = {KvType::kF16, 1, 3, 64, 0};
  args.attention.n_heads = 9;
  args.attention.n_tokens = 2;
  for (const SlotSource& source : sources) args.Add(source);
  return args;
}

uint32_t KeepsScores(const AttendSlotsPlan::Source& source) { return source.choice.kernel.constants.back(); }

TEST(KernelPlanMass, NothingIsKeptWithoutMass) {
  for (const uint32_t width : {0U, 8U, 32U}) {
    const AttendSlotsPlan one = PlanAttendSlots(WithLanes(width), true, ArgsOf({SourceOf(9, 9, nullptr)}));
    EXPECT_EQ(one.n_parts, 1U);
    EXPECT_FALSE(one.keeps_parts);
    EXPECT_EQ(one.scratch_floats, 0U);
    EXPECT_EQ(KeepsScores(one.sources[0]), 0U);
    const AttendSlotsPlan two =
        PlanAttendSlots(WithLanes(width), true, ArgsOf({SourceOf(9, 9, nullptr), SourceOf(7, 7, nullptr)}));
    EXPECT_EQ(two.n_parts, 2U);
    EXPECT_TRUE(two.keeps_parts);
    EXPECT_EQ(two.scratch_floats, uint64_t{2 * 9} * 2 * (64 + 2));
    EXPECT_EQ(two.sources[1].first_part, 1U);
  }
}

TEST(KernelPlanMass, OnePartIsKeptForItsSum) {
  NoBuffer mass;
  for (const uint32_t width : {0U, 8U, 32U}) {
    const AttendSlotsPlan plan = PlanAttendSlots(WithLanes(width), true, ArgsOf({SourceOf(9, 8, &mass)}));
    EXPECT_EQ(plan.n_parts, 1U);
    EXPECT_TRUE(plan.keeps_parts);
    EXPECT_EQ(KeepsScores(plan.sources[0]), 1U);
    EXPECT_EQ(plan.sources[0].scores_begin, uint64_t{2 * 9} * (64 + 2));
    EXPECT_EQ(plan.sources[0].scores_stride, 8U * 4);
    EXPECT_EQ(plan.scratch_floats, plan.sources[0].scores_begin + uint64_t{2 * 9} * 8 * 4);
  }
}

// Many splits, a source without mass, one without slots; 36 entries, of which a GPU's split has 32.
TEST(KernelPlanMass, ScoresLieBehindAllParts) {
  NoBuffer mass;
  const AttendSlotsPlan plan = PlanAttendSlots(WithLanes(32), false,
                                               ArgsOf({SourceOf(900, 800, &mass), SourceOf(9, 9, nullptr),
                                                       SourceOf(0, 5, &mass), SourceOf(7, 6, &mass)}));
  const uint32_t n_splits = plan.sources[0].choice.n_splits;
  EXPECT_GT(n_splits, 1U);
  EXPECT_EQ(plan.sources[1].first_part, n_splits);
  EXPECT_EQ(plan.sources[3].first_part, n_splits + 2);
  EXPECT_EQ(plan.n_parts, n_splits + 3);
  EXPECT_EQ(KeepsScores(plan.sources[0]), 1U);
  EXPECT_EQ(KeepsScores(plan.sources[1]), 0U);
  EXPECT_FALSE(plan.sources[2].keeps_scores);
  EXPECT_EQ(plan.sources[0].scores_begin, uint64_t{2 * 9} * plan.n_parts * (64 + 2));
  EXPECT_EQ(plan.sources[3].scores_begin, plan.sources[0].scores_begin + uint64_t{2 * 9} * 800 * 4);
  EXPECT_EQ(plan.scratch_floats, plan.sources[3].scores_begin + uint64_t{2 * 9} * 6 * 4);
}

// Scores are read four at a time: a row's begin at a multiple of 4, wherever parts end.
TEST(KernelPlanMass, ScoresAreWholeVectors) {
  NoBuffer mass;
  SlotAttentionArgs args = ArgsOf({SourceOf(9, 7, &mass), SourceOf(9, 5, &mass)});
  args.attention.n_tokens = 1;
  args.attention.kv_shape.head_dim = 66;
  for (SlotSource& source : args.sources) source.shape.record.group_tokens = 3;
  const AttendSlotsPlan plan = PlanAttendSlots(WithLanes(0), true, args);
  const uint64_t parts_floats = uint64_t{9} * plan.n_parts * (66 + 2);
  EXPECT_EQ(plan.sources[0].scores_begin, (parts_floats + 3) / 4 * 4);
  EXPECT_EQ(plan.sources[0].scores_stride, 24U);
  EXPECT_EQ(plan.sources[1].scores_begin, plan.sources[0].scores_begin + 9 * 24);
  EXPECT_EQ(plan.sources[1].scores_stride, 16U);
  EXPECT_EQ(plan.scratch_floats, plan.sources[1].scores_begin + 9 * 16);
}

void ExpectCovers(const KernelChoice& choice, uint32_t group_entries, uint32_t n_entries) {
  ASSERT_NE(FindShader(choice.variant), nullptr) << choice.variant;
  EXPECT_GE(choice.groups[0] * group_entries, n_entries);
  EXPECT_LT((choice.groups[0] - 1) * group_entries, n_entries);
  EXPECT_EQ(choice.groups[1], 5U);
  EXPECT_LE(choice.groups[0], 65535U);
}

TEST(KernelPlanMass, KernelsCoverTheirShape) {
  for (const uint32_t n : {1U, 15U, 16U, 17U, 511U, 512U, 513U, 50000U}) {
    const SlotShape shape = SourceOf(n, n, nullptr).shape;
    for (const bool is_cpu : {false, true}) {
      const KernelChoice choice = ChooseSlotMass(is_cpu, shape, {}, 15, 5, 7);
      ExpectCovers(choice, is_cpu ? 2048 : 256, 4 * n);
      EXPECT_EQ(choice.groups[2], 7U);
    }
    ExpectCovers(ChooseAttentionMass({KvType::kF16, 1, 5, 64, 4 * n}, 4 * n), 64, 4 * n);
    ExpectCovers(ChooseAttentionMass({KvType::kF32, 1, 5, 66, 4 * n}, 4 * n), 64, 4 * n);
  }
  for (const KvType type : {KvType::kF16, KvType::kF32}) {
    for (const uint32_t head_dim : {64U, 66U}) {
      const KvShape kv{type, 1, 4, head_dim, 100};
      const KernelChoice choice = ChooseSumWeights(kv, 12, 511);
      ASSERT_NE(FindShader(choice.variant), nullptr) << choice.variant;
      EXPECT_EQ(choice.groups, (std::array<uint32_t, 3>{(511 * 3 + 7) / 8, 4, 1}));
      // Of both kernels: whether vectors of 8 elements are read.
      EXPECT_EQ(choice.constants, std::vector<uint32_t>{head_dim == 64 ? 1U : 0U});
      EXPECT_EQ(ChooseAttentionMass(kv, 7).constants, choice.constants);
    }
  }
}

// Single entries, biases, moments, rows, whether there are more of them, entries, size of a workgroup.
TEST(KernelPlanMass, SlotMassIsMadeForItsShape) {
  SlotShape shape = SourceOf(9, 9, nullptr).shape;
  EXPECT_EQ(ChooseSlotMass(false, shape, {}, 9, 3, 1).constants,
            (std::vector<uint32_t>{0, 0, 1, 3, 0, 256, 64}));
  shape.record.group_tokens = 1;
  shape.has_biases = true;
  EXPECT_EQ(ChooseSlotMass(true, shape, {.n_moments = 2}, 15, 3, 1).constants,
            (std::vector<uint32_t>{1, 1, 2, 4, 1, 2048, 8}));
}

}  // namespace
}  // namespace kvrun
