// Choices for windows and caps of attention, and for products with experts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/device/vulkan/kernel_plan.h"
#include "runtime/device/vulkan/shader_library.h"

namespace kvrun {
namespace {

DevicePlan PlanOfWidth(uint32_t width) {
  DevicePlan plan;
  plan.max_workgroup_invocations = plan.max_workgroup_size_x = 128;
  plan.max_workgroup_count_x = plan.max_workgroup_count_y = plan.max_workgroup_count_z = 65535;
  plan.use_subgroup_shuffle = width != 0;
  plan.subgroup_width = width;
  return plan;
}

AttentionArgs Decoding(uint32_t n_ctx) {
  AttentionArgs args;
  args.kv_shape = {KvType::kF16, 1, 2, 64, n_ctx};
  args.n_heads = 4;
  args.n_tokens = 1;
  return args;
}

TEST(KernelPlanLayers, PlainAttentionIsWhatItWas) {
  for (const uint32_t width : {0U, 32U}) {
    const AttentionArgs args = Decoding(4096);
    const AttendChoice plain = ChooseAttend(PlanOfWidth(width), false, args.kv_shape, 4, 1, false);
    const AttendChoice choice = ChooseAttend(PlanOfWidth(width), false, args);
    EXPECT_EQ(choice.kernel.variant, plain.kernel.variant);
    EXPECT_EQ(choice.kernel.constants, plain.kernel.constants);
    EXPECT_EQ(choice.n_splits, plain.n_splits);
  }
}

TEST(KernelPlanLayers, ConstantsSayWhetherThereIsACapAndAWindow) {
  for (const uint32_t width : {0U, 32U}) {
    AttentionArgs args = Decoding(4096);
    const std::vector<uint32_t> plain = ChooseAttend(PlanOfWidth(width), false, args).kernel.constants;
    const auto then = [&](std::vector<uint32_t> rest) {
      rest.insert(rest.begin(), plain.begin(), plain.end());
      return rest;
    };
    args.score_cap = 50.0F;
    EXPECT_EQ(ChooseAttend(PlanOfWidth(width), false, args).kernel.constants, then({1, 0}));
    args.window_tokens = 512;
    EXPECT_EQ(ChooseAttend(PlanOfWidth(width), false, args).kernel.constants, then({1, 1}));
    args.score_cap = 0.0F;
    EXPECT_EQ(ChooseAttend(PlanOfWidth(width), false, args).kernel.constants, then({0, 1}));
  }
}

TEST(KernelPlanLayers, AWindowIsDividedAndNotTheContext) {
  AttentionArgs args = Decoding(100000);
  const uint32_t n_splits = ChooseAttend(PlanOfWidth(32), false, args).n_splits;
  args.window_tokens = 512;
  EXPECT_EQ(ChooseAttend(PlanOfWidth(32), false, args).n_splits, 4U);
  EXPECT_GT(n_splits, 4U);
}

TEST(KernelPlanLayers, ACapIsOneMoreConstant) {
  const KernelChoice kernel{.variant = "x", .constants = {3, 4}};
  EXPECT_EQ(WithCap(kernel, 0.0F).constants, kernel.constants);
  EXPECT_EQ(WithCap(kernel, 30.0F).constants, (std::vector<uint32_t>{3, 4, 1}));
}

// However uses fall on experts, there are groups enough.
TEST(KernelPlanLayers, ExpertsHaveGroupsForAllUses) {
  for (const uint32_t n_experts : {1U, 8U, 128U, 1024U}) {
    for (const uint32_t n_uses : {1U, 8U, 24U, 100U, 1000U, 16384U}) {
      const ExpertsChoice choice =
          ChooseExpertMatMul(PlanOfWidth(0), false, TensorType::kQ4_K, n_experts, 768, 2048, n_uses);
      EXPECT_EQ(choice.kernel.groups[1], choice.most_groups);
      EXPECT_LE(choice.most_groups, n_uses);
      if (choice.group_uses == 1) {
        EXPECT_EQ(choice.most_groups, n_uses);
        continue;
      }
      // The worst: as many experts as there can be have one use more than fills their groups.
      uint32_t left = n_uses;
      uint32_t n_groups = 0;
      for (uint32_t expert = 0; expert < n_experts && left > 0; ++expert) {
        --left;
        ++n_groups;
      }
      n_groups += left / choice.group_uses;
      EXPECT_GE(choice.most_groups, n_groups) << n_experts << " experts, " << n_uses << " uses";
    }
  }
}

TEST(KernelPlanLayers, ExpertsShareWhereTheyHaveSeveralUses) {
  const auto group_uses = [](uint32_t n_tokens, bool few_accumulators) {
    DevicePlan plan = PlanOfWidth(0);
    plan.few_accumulators = few_accumulators;
    return ChooseExpertMatMul(plan, false, TensorType::kQ4_K, 128, 768, 2048, 8 * n_tokens).group_uses;
  };
  EXPECT_EQ(group_uses(1, false), 1U);
  EXPECT_EQ(group_uses(16, false), 1U);
  EXPECT_EQ(group_uses(32, false), 2U);
  EXPECT_EQ(group_uses(512, false), 8U);
  EXPECT_EQ(group_uses(512, true), 4U);
}

TEST(KernelPlanLayers, ExpertsFitTheFloor) {
  for (const bool is_cpu : {false, true}) {
    for (const uint32_t n_cols : {5U, 32U, 66U, 2048U}) {
      const ExpertsChoice choice =
          ChooseExpertMatMul(PlanOfWidth(0), is_cpu, TensorType::kF32, 4, 40, n_cols, 9);
      EXPECT_NE(FindShader(choice.kernel.variant), nullptr);
      ASSERT_EQ(choice.kernel.constants.size(), 5U);
      EXPECT_EQ(choice.kernel.constants[4], 32 * choice.kernel.constants[1]);
      EXPECT_LE(choice.kernel.constants[4], 128U);
      EXPECT_EQ(choice.kernel.constants[3], n_cols % 4 == 0 ? 1U : 0U);
      EXPECT_EQ(choice.kernel.groups[0], 2U);
    }
  }
}

}  // namespace
}  // namespace kvrun
