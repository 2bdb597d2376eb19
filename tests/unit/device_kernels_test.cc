// Which kernels recorded devices get for models of 1B to 8B: such as exist, and as the device allows.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/device/vulkan/kernel_plan.h"
#include "runtime/device/vulkan/score_plan.h"
#include "runtime/device/vulkan/shader_library.h"
#include "tests/support/recorded_devices.h"
#include "tests/support/spirv_reflect.h"

namespace kvrun {
namespace {

constexpr uint32_t kModelHeads = 32;
constexpr uint32_t kModelKvHeads = 8;

// Rows and columns: Q or O and gate of 1B; Q or O and gate of 8B; 1B's output.
constexpr std::pair<uint32_t, uint32_t> kProducts[] = {
    {2048, 2048}, {8192, 2048}, {4096, 4096}, {14336, 4096}, {128256, 2048}};
constexpr TensorType kProductTypes[] = {TensorType::kF16, TensorType::kQ8_0, TensorType::kQ4_0,
                                        TensorType::kQ4_K, TensorType::kQ6_K};

// The workgroup size that a binary has if no constant says another (OpExecutionMode LocalSize).
uint32_t LiteralLocalSize(std::span<const uint32_t> words) {
  constexpr uint32_t kOpExecutionMode = 16;
  constexpr uint32_t kLocalSize = 17;
  for (size_t at = 5; at < words.size() && words[at] >> 16 != 0; at += words[at] >> 16) {
    if ((words[at] & 0xffff) == kOpExecutionMode && words[at + 2] == kLocalSize)
      return words[at + 3] * words[at + 4] * words[at + 5];
  }
  return 0;
}

// Views of one buffer share its binding. Reading a binary takes long.
size_t StorageBuffers(const std::string& variant) {
  static std::map<std::string, size_t> known;
  if (const auto found = known.find(variant); found != known.end()) return found->second;
  const ShaderCode* code = FindShader(variant);
  EXPECT_NE(code, nullptr) << variant;
  if (code == nullptr) return 0;
  const auto shader = testing::ReflectShader(code->words);
  EXPECT_TRUE(shader.ok()) << variant;
  std::set<uint32_t> bindings;
  for (const testing::ReflectedBinding& binding : shader->bindings) {
    if (binding.kind == testing::BindingKind::kStorageBuffer) bindings.insert(binding.binding);
  }
  return known[variant] = bindings.size();
}

SlotAttentionArgs ModelSlots(uint32_t head_dim, uint32_t n_sources) {
  SlotAttentionArgs args;
  args.attention.n_heads = kModelHeads;
  args.attention.n_tokens = 1;
  args.attention.kv_shape = {KvType::kF16, 1, kModelKvHeads, head_dim, 1};
  for (uint32_t i = 0; i + 1 < n_sources; ++i)
    args.Add({.shape = {{KvType::kInt8, KvType::kInt4, kModelKvHeads, head_dim, 4}, 1, 256, 0, 256}});
  args.Add({.shape = {{KvType::kF16, KvType::kF16, kModelKvHeads, head_dim, 4}, 1, 16, 16, 16}});
  return args;
}

ScoreArgs ModelScores(uint32_t head_dim, uint32_t rank, ChoiceRule rule) {
  ScoreArgs args;
  args.attention.n_heads = kModelHeads;
  args.attention.n_tokens = 1;
  args.attention.kv_shape = {KvType::kF16, 1, kModelKvHeads, head_dim, 1};
  args.index_shape = {KvType::kInt4, rank, 4, 8192, 1};
  args.rule = rule;
  return args;
}

std::vector<std::string> ScoreVariants(const DevicePlan& plan, const ScoreArgs& args) {
  const ScorePlan score = PlanScore(plan, false, args);
  const std::string heads = std::to_string(score.groups.heads);
  std::vector<std::string> variants = {"score_rows" + heads + "_int4_floor"};
  variants.push_back(score.groups.keeps ? "score_kept_f32_floor" : "score_groups" + heads + "_int4_floor");
  if (score.rotates_in_projection) {
    variants.emplace_back("rotate_project_query_f32_wide");
  } else {
    variants.insert(variants.end(), {"rotate_query_f32_floor", "project_query_f32_floor"});
  }
  return variants;
}

// All that a step asks for, on a device with this plan.
class KernelsOf {
 public:
  explicit KernelsOf(const DevicePlan& plan) : plan_(plan) {}

  std::set<std::string> Check() {
    for (const uint32_t n_tokens : {1U, 2U, 8U, 512U}) {
      Products(n_tokens);
      Attention(n_tokens);
    }
    for (const uint32_t head_dim : {64U, 128U}) {
      for (uint32_t n_sources = 1; n_sources <= kMaxSlotSources; ++n_sources) Slots(head_dim, n_sources);
      for (const uint32_t rank : {64U, 128U}) {
        for (const ChoiceRule& rule : {ChoiceRule{}, ChoiceRule{ChooseByMass{}}})
          Scores(ModelScores(head_dim, rank, rule));
      }
    }
    return variants_;
  }

 private:
  void Products(uint32_t n_tokens) {
    for (const TensorType type : kProductTypes) {
      for (const auto& [n_rows, n_cols] : kProducts) {
        const KernelChoice product = ChooseMatMul(plan_, false, type, n_rows, n_cols, n_tokens);
        CheckKernel(product, product.constants.at(3));
        const KernelChoice experts =
            ChooseExpertMatMul(plan_, false, type, 32, n_rows, n_cols, 4 * n_tokens).kernel;
        CheckKernel(experts, experts.constants.at(4));
      }
    }
  }

  void Attention(uint32_t n_tokens) {
    for (const uint32_t head_dim : {64U, 128U}) {
      for (const uint32_t n_ctx : {512U, 32768U}) {
        const KernelChoice kernel =
            ChooseAttend(plan_, false, {KvType::kF16, 1, kModelKvHeads, head_dim, n_ctx}, kModelHeads,
                         n_tokens, n_tokens > 1)
                .kernel;
        CheckSubgroupKernel(kernel);
        AttentionArgs args;
        args.kv_shape = {KvType::kF16, n_tokens, kModelKvHeads, head_dim, n_ctx};
        args.n_heads = kModelHeads;
        args.n_tokens = n_tokens;
        args.rotary_dim = head_dim;
        if (const auto choice = ChooseAttendNew(plan_, false, args)) CheckSubgroupKernel(choice->kernel);
      }
      CheckKernel(
          ChooseRopeAndEncode(plan_, false, {KvType::kInt8, KvType::kInt4, kModelKvHeads, head_dim, 4}, true,
                              n_tokens * (kModelHeads + 2 * kModelKvHeads)),
          0);
    }
  }

  void Slots(uint32_t head_dim, uint32_t n_sources) {
    const AttendSlotsPlan planned = PlanAttendSlots(plan_, false, ModelSlots(head_dim, n_sources));
    if (planned.merged) return CheckSubgroupKernel(planned.merged->choice.kernel);
    for (uint32_t i = 0; i < n_sources; ++i) CheckSubgroupKernel(planned.sources.at(i).choice.kernel);
  }

  void Scores(const ScoreArgs& args) {
    const ScorePlan score = PlanScore(plan_, false, args);
    EXPECT_FALSE(score.projects_in_scores) << "a CPU's";
    for (const std::string& variant : ScoreVariants(plan_, args))
      CheckKernel({.variant = variant, .constants = {}, .groups = {score.groups.workgroups, kModelHeads, 1}},
                  variant.starts_with("score_") ? score.local_size : 0);
  }

  void CheckSubgroupKernel(const KernelChoice& kernel) {
    CheckKernel(kernel, kernel.variant.ends_with("_subgroup") ? kernel.constants.at(2) : 0);
  }

  // local_size: 0 if the binary alone says it.
  void CheckKernel(const KernelChoice& kernel, uint32_t local_size) {
    SCOPED_TRACE(kernel.variant);
    variants_.insert(kernel.variant);
    const ShaderCode* code = FindShader(kernel.variant);
    ASSERT_NE(code, nullptr);
    if (local_size == 0) local_size = LiteralLocalSize(code->words);
    EXPECT_GE(local_size, 1U);
    EXPECT_LE(local_size, plan_.max_workgroup_invocations);
    EXPECT_LE(local_size, plan_.max_workgroup_size_x);
    EXPECT_LE(kernel.groups[0], plan_.max_workgroup_count_x);
    EXPECT_LE(kernel.groups[1], plan_.max_workgroup_count_y);
    EXPECT_LE(kernel.groups[2], plan_.max_workgroup_count_z);
    EXPECT_LE(StorageBuffers(kernel.variant), plan_.max_storage_buffers);
    if (kernel.variant.ends_with("_subgroup")) {
      EXPECT_TRUE(plan_.use_subgroup_shuffle);
      EXPECT_EQ(kernel.constants.at(0), plan_.subgroup_width);
      EXPECT_EQ(local_size % plan_.subgroup_width, 0U);
    }
  }

  const DevicePlan& plan_;
  std::set<std::string> variants_;
};

DevicePlan RecordedPlan(const std::string& name, std::string_view clamp = "") {
  const auto facts = ClampFacts(testing::RecordedFacts(name), clamp);
  EXPECT_TRUE(facts.ok());
  return testing::PlanOfFacts(*facts);
}

bool AnyEndsWith(const std::set<std::string>& names, std::string_view end) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return name.ends_with(end); });
}

class EveryDeviceKernels : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Facts, EveryDeviceKernels, ::testing::ValuesIn(testing::kDevices),
                         [](const auto& device) { return std::string(device.param); });

TEST_P(EveryDeviceKernels, AreWithinItsLimits) {
  const DevicePlan plan = RecordedPlan(GetParam());
  EXPECT_EQ(AnyEndsWith(KernelsOf(plan).Check(), "_subgroup"), plan.use_subgroup_shuffle);
}

TEST_P(EveryDeviceKernels, AreTheFloorsWithoutSubgroups) {
  for (const char* clamp : {"floor", "subgroup_ops=1"}) {
    const DevicePlan plan = RecordedPlan(GetParam(), clamp);
    EXPECT_FALSE(AnyEndsWith(KernelsOf(plan).Check(), "_subgroup")) << clamp;
  }
}

// What plans compare max_storage_buffers with is what the binaries bind.
TEST(DeviceKernels, ThatDoMoreAtOnceBindWhatPlansCount) {
  EXPECT_EQ(StorageBuffers("attend_new4_f16_subgroup"), kAttendNewBuffers);
  EXPECT_EQ(StorageBuffers("rotate_project_query_f32_wide"), kRotateProjectBuffers);
  EXPECT_EQ(StorageBuffers("project_score_rows9_int4_wide"), kProjectScoreBuffers);
  EXPECT_EQ(StorageBuffers("attend_sources4_int8_int4_subgroup"), kAttendSourcesBuffers);
}

TEST(DeviceKernels, V3dUsesEightBuffers) {
  const DevicePlan plan = RecordedPlan("raspberry_pi_5_v3d");
  AttentionArgs attention;
  attention.kv_shape = {KvType::kF16, 1, kModelKvHeads, 64, 8192};
  attention.n_heads = kModelHeads;
  attention.n_tokens = 1;
  attention.rotary_dim = 64;
  EXPECT_TRUE(ChooseAttendNew(plan, false, attention).has_value());
  const auto scores = ScoreVariants(plan, ModelScores(64, 64, {}));
  EXPECT_NE(std::find(scores.begin(), scores.end(), "rotate_project_query_f32_wide"), scores.end());
  // Sources of slots are attended one by one: together they bind thirteen.
  const AttendSlotsPlan slots = PlanAttendSlots(plan, false, ModelSlots(64, 3));
  EXPECT_FALSE(slots.merged.has_value());
  EXPECT_EQ(slots.sources[0].choice.kernel.variant, "attend_slots4_int8_int4_subgroup");
  EXPECT_EQ(slots.sources[2].choice.kernel.variant, "attend_slots4_f16_subgroup");
  const KernelChoice product = ChooseMatMul(plan, false, TensorType::kQ4_0, 2048, 2048, 1);
  EXPECT_EQ(product.variant, "matvec2_q4_0_floor");
  EXPECT_EQ(product.constants, (std::vector<uint32_t>{8, 0, 1, 256, 0}));
  EXPECT_EQ(product.groups[0], 32U);
}

TEST(DeviceKernels, SourcesAreAttendedTogetherByThoseOfThirteenBuffers) {
  for (const char* name : {"adreno_750", "turnip_adreno_740", "mali_g715", "panvk_mali_g610",
                           "jetson_orin_nano", "intel_iris_xe", "radeon_780m", "adreno_620"})
    EXPECT_TRUE(PlanAttendSlots(RecordedPlan(name), false, ModelSlots(128, 4)).merged.has_value()) << name;
}

// Turnip's subgroups have 128 lanes.
TEST(DeviceKernels, ProductsOfOneTokenDoNotDependOnSubgroups) {
  const DevicePlan plan = RecordedPlan("turnip_adreno_740");
  const KernelChoice product = ChooseMatMul(plan, false, TensorType::kQ4_0, 4096, 4096, 1);
  EXPECT_EQ(product.constants, (std::vector<uint32_t>{16, 0, 1, 512, 0}));
  EXPECT_EQ(product.groups[0], 64U);
  const KvShape kv = {KvType::kF16, 1, kModelKvHeads, 64, 8192};
  EXPECT_EQ(ChooseAttend(plan, false, kv, kModelHeads, 1, true).kernel.variant, "attend4_f16_subgroup");
}

// How work is waited for changes no kernel.
TEST(DeviceKernels, WithoutTimelineSemaphoresTheyAreTheSame) {
  const DevicePlan plan = RecordedPlan("adreno_620");
  ASSERT_FALSE(plan.use_timeline);
  const DevicePlan with_timeline = RecordedPlan("adreno_660");
  ASSERT_TRUE(with_timeline.use_timeline);
  EXPECT_EQ(KernelsOf(plan).Check(), KernelsOf(with_timeline).Check());
}

TEST(DeviceKernels, Adreno830HasSmallTiles) {
  const DevicePlan small = RecordedPlan("adreno_830");
  for (const std::string& variant : KernelsOf(small).Check()) {
    EXPECT_FALSE(variant.starts_with("matmul4_") || variant.starts_with("matmul8_") ||
                 variant.starts_with("attend8_"))
        << variant;
  }
  EXPECT_EQ(ChooseMatMul(RecordedPlan("adreno_750"), false, TensorType::kQ4_0, 4096, 4096, 512).variant,
            "matmul8_q4_0_subgroup");
}

}  // namespace
}  // namespace kvrun
