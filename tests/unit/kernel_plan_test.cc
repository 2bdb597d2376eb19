#include "runtime/device/vulkan/kernel_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "platform/base/units.h"
#include "runtime/device/vulkan/shader_library.h"
#include "shaders/shared/op_params.h"

namespace kvrun {
namespace {

constexpr TensorType kTypes[] = {
    TensorType::kF32,  TensorType::kF16,  TensorType::kBF16, TensorType::kQ8_0,   TensorType::kQ4_0,
    TensorType::kQ4_1, TensorType::kQ5_0, TensorType::kQ5_1, TensorType::kQ2_K,   TensorType::kQ3_K,
    TensorType::kQ4_K, TensorType::kQ5_K, TensorType::kQ6_K, TensorType::kIQ4_NL, TensorType::kIQ4_XS};
constexpr uint32_t kFloorAttendKeys = 64;  // LOCAL_SIZE of attend_floor.comp

DevicePlan FloorPlan() {
  DevicePlan plan;
  plan.max_workgroup_invocations = plan.max_workgroup_size_x = 128;
  plan.max_workgroup_count_x = plan.max_workgroup_count_y = plan.max_workgroup_count_z = 65535;
  return plan;
}

DevicePlan SubgroupPlan(uint32_t width) {
  DevicePlan plan = FloorPlan();
  plan.use_subgroup_shuffle = true;
  plan.subgroup_width = width;
  return plan;
}

struct MatMulCase {
  uint32_t n_rows;
  uint32_t n_cols;
  uint32_t n_tokens;
};
constexpr MatMulCase kMatMulCases[] = {{1, 32, 1},       {576, 576, 1},     {576, 1536, 8},   {49152, 576, 1},
                                       {151936, 896, 1}, {49152, 576, 16},  {3072, 576, 512}, {33, 5, 3},
                                       {14336, 4096, 2}, {128256, 4096, 4}, {1, 1, 17}};

// Every row is somebody's, and no workgroup is idle.
void CheckRows(const KernelChoice& choice, uint32_t n_rows, uint32_t group_rows) {
  EXPECT_GE(uint64_t{choice.groups[0]} * group_rows, n_rows);
  EXPECT_LT((choice.groups[0] - 1) * uint64_t{group_rows}, n_rows);
}

void CheckMatVec(const DevicePlan& plan, const KernelChoice& choice, const MatMulCase& c, uint32_t gate) {
  const uint32_t splits = choice.constants[0];
  const uint32_t local_size = choice.constants[3];
  EXPECT_EQ(local_size, splits * KVRUN_ROW_INTERLEAVE);
  EXPECT_LE(local_size, std::min<uint32_t>(plan.max_workgroup_invocations, KVRUN_MATVEC_LOCAL_SIZE));
  EXPECT_LE(splits, CeilDiv(c.n_cols, 32U));  // they divide blocks of columns
  const bool has_two = choice.variant.starts_with("matvec2_");
  EXPECT_TRUE(has_two || gate == 0);
  CheckRows(choice, c.n_rows, KVRUN_ROW_INTERLEAVE * (has_two && gate == 0 ? 2 : 1));
}

void CheckMatMul(const DevicePlan& plan, bool is_cpu, TensorType type, const MatMulCase& c, uint32_t gate) {
  const KernelChoice choice =
      ChooseMatMul(plan, is_cpu, type, c.n_rows, c.n_cols, c.n_tokens, {.has_norm = gate != 0, .gate = gate});
  SCOPED_TRACE(choice.variant + ", " + std::to_string(c.n_rows) + " rows");
  EXPECT_NE(FindShader(choice.variant), nullptr);
  ASSERT_EQ(choice.constants.size(), 5U);
  EXPECT_EQ(choice.constants[1], gate != 0 ? 1U : 0U);
  EXPECT_EQ(choice.constants[2], c.n_cols % 4 == 0 ? 1U : 0U);
  EXPECT_EQ(choice.constants[4], gate);
  EXPECT_LE(choice.groups[0], plan.max_workgroup_count_x);
  EXPECT_LE(choice.groups[1], plan.max_workgroup_count_y);
  if (!is_cpu && c.n_tokens == 1) return CheckMatVec(plan, choice, c, gate);
  const uint32_t lanes = choice.constants[0];
  const uint32_t local_size = choice.constants[3];
  EXPECT_EQ(lanes, plan.use_subgroup_shuffle ? plan.subgroup_width : 32U);
  EXPECT_LE(local_size, std::min(plan.max_workgroup_invocations, 128U));
  EXPECT_EQ(local_size % lanes, 0U);
  const uint32_t rows_per_lane = c.n_tokens == 1 && gate == 0 ? 8 : 4;
  CheckRows(choice, c.n_rows, local_size * rows_per_lane);
}

TEST(KernelPlan, MatMulCoversItsShapeAtEveryWidth) {
  for (const bool is_cpu : {false, true}) {
    for (const uint32_t width : {0U, 4U, 8U, 16U, 32U, 64U, 128U}) {
      const DevicePlan plan = width == 0 ? FloorPlan() : SubgroupPlan(width);
      for (const TensorType type : kTypes) {
        for (const MatMulCase& c : kMatMulCases) {
          CheckMatMul(plan, is_cpu, type, c, 0);
          if (c.n_tokens == 1) CheckMatMul(plan, is_cpu, type, c, KVRUN_GATE_SILU);
        }
      }
    }
  }
}

TEST(KernelPlan, MatMulByTokens) {
  const DevicePlan plan = SubgroupPlan(32);
  const auto variant = [&](const DevicePlan& p, bool is_cpu, uint32_t n_tokens) {
    return ChooseMatMul(p, is_cpu, TensorType::kQ4_1, 576, 576, n_tokens).variant;
  };
  EXPECT_EQ(variant(plan, true, 1), "matvec_q4_1_subgroup");
  EXPECT_EQ(variant(plan, false, 1), "matvec1_q4_1_floor");
  EXPECT_EQ(variant(plan, true, 2), "matmul2_q4_1_subgroup");
  EXPECT_EQ(variant(plan, true, 3), "matmul4_q4_1_subgroup");
  EXPECT_EQ(variant(plan, true, 8), "matmul8_q4_1_subgroup");
  EXPECT_EQ(variant(FloorPlan(), true, 8), "matmul8_q4_1_floor");
  EXPECT_EQ(ChooseMatMul(plan, true, TensorType::kQ4_1, 576, 576, 17).groups[1], 3U);
}

// A GPU of few cores has enough to do with two rows a lane; one with many needs all the workgroups there are.
TEST(KernelPlan, RowsALaneOfOneTokenByDevice) {
  DevicePlan plan = FloorPlan();
  plan.max_workgroup_invocations = 1024;
  const auto choice = [&](uint32_t n_rows) {
    return ChooseMatMul(plan, false, TensorType::kQ4_0, n_rows, 2048, 1);
  };
  EXPECT_EQ(choice(3072).variant, "matvec1_q4_0_floor");
  EXPECT_EQ(choice(128256).variant, "matvec2_q4_0_floor");
  EXPECT_EQ(choice(3072).constants[0], 16U);  // 512 invocations
  EXPECT_EQ(choice(128256).constants[0], 4U);
  plan.unified_memory = true;
  EXPECT_EQ(choice(576).variant, "matvec1_q4_0_floor");
  EXPECT_EQ(choice(3072).variant, "matvec2_q4_0_floor");
}

// A product whose bias is not beside the norm's weights, or of several tokens, is not one with its norm; a
// matrix in two slices has its gate and what that gates in different ones.
TEST(KernelPlan, WhatIsOneWithAProduct) {
  class SomeBuffer : public Buffer {
   public:
    SomeBuffer() : Buffer(4) {}
    std::span<std::byte> host() override { return {}; }
    Status Flush(uint64_t, uint64_t) override { return Status::Ok(); }
    Status Invalidate(uint64_t, uint64_t) override { return Status::Ok(); }
  };
  SomeBuffer norm;
  SomeBuffer bias;
  MatMulArgs args{.n_tokens = 1, .norm = {.weight = &norm}};
  EXPECT_TRUE(FusionOf(args, 1).norm && FusionOf(args, 1).gate);
  EXPECT_TRUE(FusionOf(args, 2).norm);
  EXPECT_FALSE(FusionOf(args, 2).gate);
  args.bias = &norm;
  EXPECT_TRUE(FusionOf(args, 1).norm);
  args.bias = &bias;
  EXPECT_FALSE(FusionOf(args, 1).norm);
  args.bias = nullptr;
  args.n_tokens = 2;
  EXPECT_FALSE(FusionOf(args, 1).norm || FusionOf(args, 1).gate);
}

TEST(KernelPlan, FewAccumulatorsMeansSmallTiles) {
  for (const uint32_t width : {0U, 16U, 64U}) {
    DevicePlan plan = width == 0 ? FloorPlan() : SubgroupPlan(width);
    plan.few_accumulators = true;
    const KernelChoice matmul = ChooseMatMul(plan, false, TensorType::kQ4_0, 100, 64, 64);
    EXPECT_TRUE(matmul.variant.starts_with("matmul2_")) << matmul.variant;
    EXPECT_EQ(matmul.groups[1], 32U);
    const AttendChoice attend = ChooseAttend(plan, false, {KvType::kF16, 1, 1, 64, 512}, 8, 64, true);
    EXPECT_TRUE(attend.kernel.variant.starts_with("attend4_")) << attend.kernel.variant;
  }
}

struct AttendCase {
  KvShape kv;
  uint32_t n_heads;
  uint32_t n_tokens;
  bool of_prompt;
};

std::vector<AttendCase> AttendCases() {
  std::vector<AttendCase> cases;
  for (const KvType type : {KvType::kF16, KvType::kF32}) {
    for (const uint32_t head_dim : {8U, 10U, 16U, 48U, 64U, 80U, 96U, 128U, 256U}) {
      for (const uint32_t group : {1U, 2U, 3U, 4U, 7U, 8U}) {
        for (const uint32_t n_ctx : {1U, 127U, 8192U}) {
          cases.push_back({{type, 1, 3, head_dim, n_ctx}, 3 * group, 512, true});
          cases.push_back({{type, 16, 3, head_dim, n_ctx}, 3 * group, 16, false});
          cases.push_back({{type, 1, 1, head_dim, n_ctx}, group, 1, true});
        }
      }
    }
  }
  return cases;
}

void CheckAttend(const DevicePlan& plan, bool is_cpu, const AttendCase& c) {
  const AttendChoice choice = ChooseAttend(plan, is_cpu, c.kv, c.n_heads, c.n_tokens, c.of_prompt);
  const std::string& variant = choice.kernel.variant;
  SCOPED_TRACE(variant + ", head size " + std::to_string(c.kv.head_dim));
  ASSERT_NE(FindShader(variant), nullptr);
  EXPECT_GE(choice.n_splits, 1U);
  EXPECT_LE(choice.n_splits, std::max(1U, c.kv.n_ctx / 128));
  EXPECT_EQ(choice.kernel.groups[1], choice.n_splits);
  EXPECT_EQ(choice.kernel.groups[2], c.of_prompt ? 1U : c.n_tokens);
  const auto rows = static_cast<uint32_t>(variant[6] - '0');
  const uint32_t span_rows = (c.of_prompt ? c.n_tokens : 1) * (c.n_heads / c.kv.n_kv_heads);
  const uint32_t tiles = CeilDiv(span_rows, rows) * c.kv.n_kv_heads;
  for (const uint32_t groups : choice.kernel.groups) EXPECT_LE(groups, 65535U);
  if (variant.ends_with("_floor")) {
    EXPECT_EQ(choice.kernel.groups[0], tiles);
    EXPECT_GE(plan.max_workgroup_invocations, kFloorAttendKeys);
    return;
  }
  ASSERT_EQ(choice.kernel.constants.size(), 3U);
  const uint32_t lanes = choice.kernel.constants[0];
  const uint32_t local_size = choice.kernel.constants[2];
  EXPECT_EQ(lanes, plan.subgroup_width);
  EXPECT_EQ(choice.kernel.constants[1], c.kv.head_dim);
  EXPECT_EQ(local_size % lanes, 0U);
  EXPECT_LE(local_size, plan.max_workgroup_invocations);
  EXPECT_GE(choice.kernel.groups[0] * (local_size / lanes), tiles);
  // What attend_subgroup.comp asks for.
  const uint32_t vectors = c.kv.head_dim / (c.kv.type == KvType::kF16 ? 8 : 4);
  EXPECT_TRUE(vectors % lanes == 0 || lanes % vectors == 0);
  EXPECT_LE(vectors, 4 * lanes);
  EXPECT_LE(rows * (c.kv.type == KvType::kF16 ? 2 : 1), 2 * lanes);  // Q is shared in at most two loads
}

TEST(KernelPlan, AttendCoversItsShapeAtEveryWidth) {
  for (const bool is_cpu : {false, true}) {
    for (const uint32_t width : {0U, 4U, 8U, 16U, 32U, 64U, 128U}) {
      const DevicePlan plan = width == 0 ? FloorPlan() : SubgroupPlan(width);
      for (const AttendCase& c : AttendCases()) CheckAttend(plan, is_cpu, c);
    }
  }
}

TEST(KernelPlan, AttendTakesTheFloorWhereLanesDoNotFit) {
  const auto variant = [](const DevicePlan& plan, uint32_t head_dim) {
    return ChooseAttend(plan, true, {KvType::kF16, 1, 1, head_dim, 64}, 1, 1, false).kernel.variant;
  };
  EXPECT_EQ(variant(SubgroupPlan(32), 64), "attend1_f16_subgroup");
  EXPECT_EQ(variant(SubgroupPlan(32), 80), "attend1_f16_floor");  // ten vectors
  EXPECT_EQ(variant(SubgroupPlan(32), 10), "attend1_f16_floor");  // no whole vector
  EXPECT_EQ(variant(SubgroupPlan(4), 64), "attend1_f16_floor");   // too narrow
  EXPECT_EQ(variant(FloorPlan(), 64), "attend1_f16_floor");
}

TEST(KernelPlan, CommittedDevicesStayWithinTheirLimits) {
  const std::filesystem::path folder = std::string(KVRUN_SOURCE_DIR) + "/tests/data/device_facts";
  size_t n_devices = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto facts = LoadDeviceFacts(entry.path().string());
    ASSERT_TRUE(facts.ok()) << facts.status().message();
    const auto plan = PlanDevice(*facts, {});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    ++n_devices;
    SCOPED_TRACE(facts->name);
    for (const TensorType type : kTypes) {
      for (const MatMulCase& c : kMatMulCases) CheckMatMul(*plan, false, type, c, 0);
    }
    for (const AttendCase& c : AttendCases()) CheckAttend(*plan, false, c);
  }
  EXPECT_GE(n_devices, 6U);
}

}  // namespace
}  // namespace kvrun
