#include "runtime/device/vulkan/self_test.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "runtime/device/self_test_attention.h"
#include "runtime/device/self_test_index.h"
#include "runtime/device/self_test_layers.h"
#include "runtime/device/self_test_mass.h"
#include "runtime/device/self_test_operations.h"
#include "runtime/device/self_test_slots.h"
#include "runtime/device/vulkan/kernel_plan.h"
#include "runtime/device/vulkan/score_plan.h"
#include "runtime/device/vulkan/shader_library.h"
#include "shaders/shared/index_params.h"
#include "shaders/shared/op_params.h"

namespace kvrun {
namespace {

using Checks = std::vector<KernelCheck>;

void AddMatMuls(const DevicePlan& plan, bool is_cpu, Checks& checks) {
  for (const TensorType type : kSelfTestTypes) {
    const bool is_float = GetTensorType(type).block_elements == 1;
    for (const uint32_t n_tokens : {1U, 2U, 4U, 8U}) {
      for (const uint32_t n_cols : {512U, 66U}) {
        if (n_cols == 66 && (!is_float || n_tokens != 1)) continue;  // only floats have such rows
        constexpr uint32_t kRows = 100;
        checks.push_back({fmt::format("{} ({} x {}, {} token{})",
                                      ChooseMatMul(plan, is_cpu, type, kRows, n_cols, n_tokens).variant,
                                      kRows, n_cols, n_tokens, n_tokens == 1 ? "" : "s"),
                          [=](VulkanComputeDevice& device) {
                            return CheckMatMul(device, type, kRows, n_cols, n_tokens);
                          }});
      }
    }
  }
}

void AddGatedProducts(const DevicePlan& plan, bool is_cpu, Checks& checks) {
  constexpr uint32_t kRows = 45;
  constexpr uint32_t kCols = 512;
  for (const TensorType type : kSelfTestTypes) {
    const ProductEnds ends{.has_norm = true, .gate = KVRUN_GATE_SILU};
    checks.push_back(
        {fmt::format("{} ({} x {}, norm and gate)",
                     ChooseMatMul(plan, is_cpu, type, kRows, kCols, 1, ends).variant, kRows, kCols),
         [=](VulkanComputeDevice& device) { return CheckGatedProduct(device, type, kRows, kCols); }});
  }
}

void AddAttend(const DevicePlan& plan, bool is_cpu, const AttentionCase& c, Checks& checks) {
  AttentionArgs args;
  args.kv_shape = c.kv_shape();
  args.n_heads = c.n_heads();
  args.n_tokens = c.n_tokens;
  args.of_prompt = c.n_tokens > 1;
  args.window_tokens = c.window_tokens;
  args.score_cap = c.score_cap;
  const AttendChoice choice = ChooseAttend(plan, is_cpu, args);
  checks.push_back({fmt::format("{}{} (head size {}, {}{}{})", choice.kernel.variant,
                                choice.n_splits > 1 ? ", combine_splits_f32_floor" : "", c.head_dim,
                                c.n_tokens > 1 ? fmt::format("prefill of {}", c.n_tokens) : "decode",
                                c.window_tokens > 0 ? ", window" : "", c.score_cap > 0.0F ? ", cap" : ""),
                    [c](VulkanComputeDevice& device) { return CheckAttention(device, c, false); }});
}

void AddAttendNew(const DevicePlan& plan, bool is_cpu, const AttentionCase& c, bool halves, Checks& checks) {
  AttentionArgs args;
  args.kv_shape = c.kv_shape();
  args.n_heads = c.n_heads();
  args.n_tokens = 1;
  args.window_tokens = c.window_tokens;
  args.score_cap = c.score_cap;
  const std::optional<AttendChoice> choice = ChooseAttendNew(plan, is_cpu, args);
  if (!choice) return;
  checks.push_back(
      {fmt::format("{} (head size {}, position {}{}{})", choice->kernel.variant, c.head_dim, c.position,
                   c.window_tokens > 0 ? ", window" : "", c.score_cap > 0.0F ? ", cap" : ""),
       [=](VulkanComputeDevice& device) { return CheckAttendNew(device, c, halves); }});
}

void AddAttentionChecks(const DevicePlan& plan, bool is_cpu, Checks& checks) {
  for (const KvType type : {KvType::kF16, KvType::kF32}) {
    for (const bool halves : {false, true}) {
      const AttentionCase c{.type = type, .group = 3, .n_tokens = 3, .position = 100};
      checks.push_back({fmt::format("rope_store_{}_floor ({})", type == KvType::kF16 ? "f16" : "f32",
                                    halves ? "halves" : "neighbours"),
                        [=](VulkanComputeDevice& device) { return CheckRope(device, c, halves); }});
    }
    for (const uint32_t head_dim : {64U, 80U}) {  // 80 is never a subgroup's
      for (const uint32_t group : {1U, 2U, 4U, 8U}) {
        AddAttend(plan, is_cpu, {type, head_dim, group, 1, 450}, checks);
        AddAttendNew(plan, is_cpu, {type, head_dim, group, 1, 450}, group % 2 == 0, checks);
      }
      AddAttendNew(plan, is_cpu, {type, head_dim, 3, 1, 0}, false, checks);
      AddAttendNew(plan, is_cpu, {type, head_dim, 2, 1, 600, 300, 2.0F}, true, checks);
      AddAttend(plan, is_cpu, {type, head_dim, 3, 20, 300}, checks);
      // Across the ring's end.
      AddAttend(plan, is_cpu, {type, head_dim, 2, 1, 600, 300, 2.0F}, checks);
      AddAttend(plan, is_cpu, {type, head_dim, 3, 20, 1020, 200}, checks);
    }
    const AttentionCase in_ring{.type = type, .n_tokens = 3, .position = 510, .window_tokens = 100};
    checks.push_back({fmt::format("rope_store_{}_floor (window)", type == KvType::kF16 ? "f16" : "f32"),
                      [=](VulkanComputeDevice& device) { return CheckRope(device, in_ring, false); }});
    const AttentionCase in_parts{type, 64, 3, 20, 300};
    checks.push_back(
        {fmt::format("merge_splits_f32_floor (of {} entries)", type == KvType::kF16 ? "f16" : "f32"),
         [=](VulkanComputeDevice& device) { return CheckAttention(device, in_parts, true); }});
  }
}

void AddAttendSlots(const DevicePlan& plan, bool is_cpu, const SlotCase& c, Checks& checks) {
  const AttendChoice choice = ChooseAttendSlots(plan, is_cpu, c.shape(), c.n_heads(), SlotCase::kKvHeads, 1);
  const std::string_view combines = c.in_space            ? ", combine_in_space_f32_floor"
                                    : choice.n_splits > 1 ? ", combine_splits_f32_floor"
                                                          : "";
  checks.push_back({fmt::format("{}{} (K {}, V {}, head size {}{}{})", choice.kernel.variant, combines,
                                VariantTypeName(c.k_type), VariantTypeName(c.v_type), c.head_dim,
                                c.has_biases ? ", biases" : "", c.score_cap > 0.0F ? ", cap" : ""),
                    [c](VulkanComputeDevice& device) { return CheckSlotAttention(device, c); }});
}

// Where one dispatch takes them all.
void AddAttendSources(const DevicePlan& plan, bool is_cpu, const SlotCase& c, Checks& checks) {
  const AttendSlotsPlan planned = PlanAttendSlots(plan, is_cpu, ArgsOfSources(c));
  if (!planned.merged) return;
  checks.push_back({fmt::format("{} (K {}, V {}, head size {})", planned.merged->choice.kernel.variant,
                                VariantTypeName(c.k_type), VariantTypeName(c.v_type), c.head_dim),
                    [c](VulkanComputeDevice& device) { return CheckSlotSources(device, c); }});
}

void AddRopeAndEncode(const DevicePlan& plan, bool is_cpu, const SlotCase& c, Checks& checks) {
  const KernelChoice kernel = ChooseRopeAndEncode(plan, is_cpu, c.shape().record, c.in_space, 1);
  checks.push_back(
      {fmt::format("{} ({}{})", kernel.variant, c.in_space ? "space, " : "", VariantTypeName(c.k_type)),
       [c](VulkanComputeDevice& device) { return CheckRopeAndEncode(device, c); }});
}

void AddSlotChecks(const DevicePlan& plan, bool is_cpu, Checks& checks) {
  for (const KvType type : kSelfTestRecordTypes) {
    for (const KvType kv_type : {KvType::kF16, KvType::kF32}) {
      checks.push_back({fmt::format("encode_records_{0}_floor, decode_records_{0}_floor ({1})",
                                    VariantTypeName(kv_type), VariantTypeName(type)),
                        [=](VulkanComputeDevice& device) { return CheckRecords(device, kv_type, type); }});
    }
    AddRopeAndEncode(plan, is_cpu, {.k_type = type, .v_type = type}, checks);
  }
  for (const KvType type : {KvType::kF16, KvType::kInt4}) {
    for (const KvType kv_type : {KvType::kF16, KvType::kF32}) {
      checks.push_back(
          {fmt::format("encode_records_{0}_floor, decode_records_{0}_floor (space, {1})",
                       VariantTypeName(kv_type), VariantTypeName(type)),
           [=](VulkanComputeDevice& device) { return CheckRecords(device, kv_type, type, true); }});
    }
    AddRopeAndEncode(plan, is_cpu, {.k_type = type, .v_type = type, .in_space = true}, checks);
    for (const uint32_t head_dim : {64U, 72U, 256U}) {
      AddAttendSlots(plan, is_cpu, {.k_type = type, .v_type = type, .head_dim = head_dim, .in_space = true},
                     checks);
    }
  }
  // Every pair of types; those that a subgroup may take in every size of a tile. Heads of 72 are never a
  // subgroup's.
  uint32_t turn = 0;
  for (const KvType k_type : kSelfTestRecordTypes) {
    for (const KvType v_type : kSelfTestRecordTypes) {
      for (uint32_t group = 1; group <= 4; ++group) {
        const SlotCase c{k_type, v_type, 64, group};
        const bool subgroup = ChooseAttendSlots(plan, is_cpu, c.shape(), c.n_heads(), SlotCase::kKvHeads, 1)
                                  .kernel.variant.ends_with("_subgroup");
        if (subgroup || group == turn % 4 + 1) AddAttendSlots(plan, is_cpu, c, checks);
        if (group == turn % 4 + 1) AddAttendSources(plan, is_cpu, c, checks);
      }
      ++turn;
    }
  }
  for (const uint32_t group : {1U, 2U, 3U, 4U}) {
    AddAttendSlots(plan, is_cpu, {KvType::kFp8, KvType::kInt4, 72, group}, checks);
    AddAttendSlots(plan, is_cpu, {KvType::kFp8, KvType::kInt4, 72, group, true}, checks);
  }
  for (const KvType type : kSelfTestRecordTypes)
    AddAttendSlots(plan, is_cpu, {type, type, 64, turn++ % 4 + 1, true}, checks);
  for (const uint32_t head_dim : {64U, 72U}) {
    SlotCase capped{KvType::kInt8, KvType::kInt8, head_dim, 2, true};
    capped.score_cap = 2.0F;
    AddAttendSlots(plan, is_cpu, capped, checks);
  }
}

void AddSlotMass(const DevicePlan& plan, bool is_cpu, const SlotCase& c, const MassForm& form,
                 Checks& checks) {
  const AttendChoice choice =
      ChooseAttendSlots(plan, is_cpu, c.shape(), c.n_heads(), SlotCase::kKvHeads, 1, true);
  checks.push_back(
      {fmt::format("{}, slot_mass_f32_floor, combine_splits_f32_floor (K {}, V {}, head size {}{}; {})",
                   choice.kernel.variant, VariantTypeName(c.k_type), VariantTypeName(c.v_type), c.head_dim,
                   c.has_biases ? ", biases" : "", MassFormText(form)),
       [c, form](VulkanComputeDevice& device) { return CheckSlotMass(device, c, form); }});
}

void AddMassChecks(const DevicePlan& plan, bool is_cpu, Checks& checks) {
  uint32_t turn = 0;
  const auto form = [&turn] { return kSelfTestMassForms[turn % kSelfTestMassForms.size()]; };
  for (const KvType type : kSelfTestRecordTypes) {
    AddSlotMass(plan, is_cpu, {type, type, 64, turn % 4 + 1, turn % 2 == 1}, form(), checks);
    ++turn;
  }
  for (const bool has_biases : {false, true}) {
    AddSlotMass(plan, is_cpu, {KvType::kFp8, KvType::kInt4, 72, 3, has_biases}, form(), checks);
    ++turn;
  }
  for (const KvType type : {KvType::kF16, KvType::kF32}) {
    for (const RowMassCase& c : SelfTestRowMassCases(type)) {
      checks.push_back({fmt::format("sum_weights_{0}_floor, attention_mass_{0}_floor (head size {1}; {2})",
                                    VariantTypeName(type), c.head_dim, MassFormText(c.form)),
                        [c](VulkanComputeDevice& device) { return CheckRowMass(device, c); }});
    }
  }
}

ScorePlace PlaceOf(const ScorePlan& plan) {
  return {.n_rows = plan.n_rows,
          .n_lists = plan.n_lists,
          .scores_begin = plan.groups.scores_begin,
          .scores_stride = plan.groups.scores_stride,
          .scratch_floats = plan.scratch_words,
          .candidates_begin = plan.candidates_begin + 1};  // behind their number
}

std::string SelectVariant(const ScoreCase& c, const ScorePlan& score) {
  if (std::holds_alternative<ChooseByWeight>(c.rule)) return "select_weighted_f32_floor";
  return fmt::format("select_groups{}{}_f32_floor{}", score.narrow_select_lanes != 0 ? "_narrow" : "",
                     MassShareOf(c.rule) != 0.0F ? "_mass" : "",
                     std::holds_alternative<ChooseAndSample>(c.rule) ? ", sample_groups_f32_floor" : "");
}

std::string ScoreVariants(const ScoreCase& c, const ScorePlan& score, const ScorePass& pass,
                          std::string_view type) {
  if (c.reduction == HeadReduction::kSum) return fmt::format("score_sum_{}_floor", type);
  const bool projects = score.projects_in_scores;
  const std::string groups =
      pass.keeps ? "score_kept_f32_floor" : fmt::format("score_groups{}_{}_floor", pass.heads, type);
  return fmt::format("{}score_rows{}_{}_{}, {}", projects ? "project_" : "", pass.heads, type,
                     projects ? "wide" : "floor", groups);
}

void AddScore(const DevicePlan& plan, bool is_cpu, const ScoreCase& c, const char* how, Checks& checks) {
  const ScorePlan score = PlanScore(plan, is_cpu, ScoreArgsOf(c));
  const std::string_view type = IndexTypeName(c.type);
  std::string scored = ScoreVariants(c, score, score.groups, type);
  if (score.has_stages) {
    scored = fmt::format("mean_queries_f32_floor, {}, select_groups{}_f32_floor, {}",
                         ScoreVariants(c, score, score.first, type),
                         score.narrow_select_lanes != 0 ? "_narrow" : "", scored);
  }
  const std::string_view query = score.projects_in_scores      ? ""
                                 : score.rotates_in_projection ? "rotate_project_query_f32_wide"
                                 : c.query_form == QueryForm::kSigned
                                     ? "rotate_query_f32_floor, sign_query_f32_floor"
                                     : "rotate_query_f32_floor, project_query_f32_floor";
  const std::string_view then = query.empty() ? "" : ", ";
  checks.push_back({fmt::format("{}{}{}, {} ({})", query, then, scored, SelectVariant(c, score), how),
                    [c](VulkanComputeDevice& device) {
                      return CheckScore(device, c,
                                        PlaceOf(PlanScore(device.plan(), device.is_cpu(), ScoreArgsOf(c))));
                    }});
}

void AddIndexChecks(const DevicePlan& plan, bool is_cpu, Checks& checks) {
  for (const KvType type : {KvType::kF16, KvType::kInt8, KvType::kInt4}) {
    AddScore(plan, is_cpu, {type, 10, 2, HeadReduction::kSum}, "sum", checks);
    AddScore(plan, is_cpu, {type, 10, 2, HeadReduction::kSoftmax}, "softmax", checks);
    AddScore(plan, is_cpu, {type, 10, 2, HeadReduction::kSoftmax, 0, QueryForm::kProjected, ChooseByMass{}},
             "mass", checks);
    AddScore(plan, is_cpu,
             {type, 10, 2, HeadReduction::kGqa, 0, QueryForm::kProjected, ChooseByMass{.mass_share = 0.15F}},
             "share of the mass", checks);
    AddScore(plan, is_cpu, {type, 10, 2, HeadReduction::kGqa}, "gqa", checks);
    AddScore(plan, is_cpu, {type, 10, 2, HeadReduction::kPerKvHead}, "per KV head", checks);
    ScoreCase in_stages{type, 10, 2, HeadReduction::kSoftmax};
    in_stages.rule = ChooseByMass{.stages = ScoreStages{20, 8}};
    AddScore(plan, is_cpu, in_stages, "mass, in two stages", checks);
  }
  ScoreCase sum_in_stages{KvType::kInt4, 10, 2, HeadReduction::kSum};
  sum_in_stages.rule = ChooseByLargest{.stages = ScoreStages{20, 5}};
  AddScore(plan, is_cpu, sum_in_stages, "sum, in two stages", checks);
  ScoreCase by_weight{KvType::kInt8, 10, 2, HeadReduction::kPerKvHead};
  by_weight.rule = ChooseByWeight{.most_weight = 8};
  AddScore(plan, is_cpu, by_weight, "by weight", checks);
  by_weight.rule = ChooseByWeight{.most_weight = 8, .per_weight = true};
  AddScore(plan, is_cpu, by_weight, "per weight", checks);
  ScoreCase sampled{KvType::kInt4, 10, 2, HeadReduction::kPerKvHead};
  sampled.rule = ChooseAndSample{.n_sampled = 20, .seed = 3};
  AddScore(plan, is_cpu, sampled, "a sample of the others", checks);
  ScoreCase told{KvType::kInt4, 10, 2, HeadReduction::kSoftmax};
  told.rule = ChooseByLargest{.tells_scores = true};
  AddScore(plan, is_cpu, told, "with scores", checks);
  told.rule = ChooseByMass{.mass_share = 0.15F, .tells_scores = true};
  AddScore(plan, is_cpu, told, "share of the mass, with scores", checks);
  AddScore(plan, is_cpu, {KvType::kInt8, 10, 2, HeadReduction::kSum, 0, QueryForm::kAffine}, "affine, sum",
           checks);
  AddScore(plan, is_cpu, {KvType::kInt8, 10, 2, HeadReduction::kPerKvHead, 0, QueryForm::kAffine},
           "affine, per KV head", checks);
  AddScore(plan, is_cpu, {KvType::kInt4, 10, 2, HeadReduction::kSoftmax, 2, QueryForm::kSigned},
           "signed, two rows per group", checks);
  AddScore(plan, is_cpu, {KvType::kF16, 10, 2, HeadReduction::kSum, 1, QueryForm::kSigned},
           "signed, a row per group", checks);
  for (const KvType type : {KvType::kF16, KvType::kF32}) {
    checks.push_back({fmt::format("project_keys_{}_floor", type == KvType::kF16 ? "f16" : "f32"),
                      [=](VulkanComputeDevice& device) { return CheckProjectKeys(device, type); }});
  }
  for (const uint32_t dim : {72U, 30U}) {
    checks.push_back({fmt::format("accumulate_gram_f32_floor ({} dimensions)", dim),
                      [=](VulkanComputeDevice& device) { return CheckGram(device, dim); }});
  }
}

void AddExperts(Checks& checks) {
  for (const TensorType type : kSelfTestTypes) {
    // Of many tokens uses of an expert come together; float rows need not be whole vectors.
    for (const ExpertsCase& c : {ExpertsCase{type, 512, 1, false}, ExpertsCase{type, 512, 20, true},
                                 ExpertsCase{type, 66, 7, false}}) {
      if (c.n_cols == 66 && GetTensorType(type).block_elements != 1) continue;
      const std::string_view groups = c.n_tokens > 5 ? ", group_experts_u32_floor" : "";
      checks.push_back(
          {fmt::format("expert_matmul_{}_floor{}{} ({} columns, {} token{})", VariantTypeName(type), groups,
                       c.adds_up ? ", sum_experts_f32_floor" : "", c.n_cols, c.n_tokens,
                       c.n_tokens == 1 ? "" : "s"),
           [c](VulkanComputeDevice& device) { return CheckExpertMatMul(device, c, kSelfTestTolerance); }});
    }
  }
}

void AddLayerChecks(Checks& checks) {
  for (const uint32_t n : {576U, 30U}) {
    checks.push_back({fmt::format("rms_norm_f32_floor ({} columns, added)", n),
                      [=](VulkanComputeDevice& device) { return CheckRmsNormThatAdds(device, n); }});
    checks.push_back({fmt::format("swiglu_f32_floor ({} columns, gelu)", n),
                      [=](VulkanComputeDevice& device) { return CheckGelu(device, n); }});
  }
  for (const uint32_t n : {576U, 33U}) {
    checks.push_back({fmt::format("sigmoid_gate_f32_floor ({} columns)", n),
                      [=](VulkanComputeDevice& device) { return CheckSigmoidGate(device, n); }});
  }
  checks.push_back({"sigmoid_gate_f32_floor (before and after a copy)", CheckCopy});
  for (const auto& [n_experts, n_used] : {std::pair{128U, 8U}, std::pair{7U, 7U}}) {
    checks.push_back({fmt::format("choose_experts_f32_floor ({} of {})", n_used, n_experts),
                      [n_experts = n_experts, n_used = n_used](VulkanComputeDevice& device) {
                        return CheckChooseExperts(device, n_experts, n_used);
                      }});
  }
  AddExperts(checks);
  for (const bool of_prompt : {false, true}) {
    const std::string_view how = of_prompt ? "prompt" : "decode";
    for (const bool is_gated : {false, true}) {
      checks.push_back(
          {fmt::format("short_convolution_f32_floor ({}{})", how, is_gated ? ", gated" : ""),
           [=](VulkanComputeDevice& device) { return CheckShortConvolution(device, of_prompt, is_gated); }});
    }
    for (const uint32_t head_dim : {128U, 36U}) {
      checks.push_back(
          {fmt::format("delta_rule_f32_floor, delta_gates_f32_floor (head size {}, {})", head_dim, how),
           [=](VulkanComputeDevice& device) { return CheckDeltaRule(device, head_dim, of_prompt); }});
    }
  }
  for (const uint32_t head_dim : {128U, 20U}) {
    checks.push_back({fmt::format("gated_norm_f32_floor (head size {})", head_dim),
                      [=](VulkanComputeDevice& device) { return CheckGatedNorm(device, head_dim); }});
  }
}

// Names begin with the variants that run, with ", " between them.
void NameTexelVariants(Checks& checks) {
  for (KernelCheck& check : checks) {
    std::string name;
    size_t begin = 0;
    while (begin < check.name.size()) {
      const size_t end = std::min(check.name.find_first_of(" ,", begin), check.name.size());
      const std::string word = check.name.substr(begin, end - begin);
      const std::string texel = TexelVariant(word);
      name += texel.empty() ? word : texel;
      begin = std::min(check.name.find_first_not_of(" ,", end), check.name.size());
      name += check.name.substr(end, begin - end);
    }
    check.name = name;
  }
}

}  // namespace

Result<std::string> CheckSubgroups(VulkanComputeDevice& device) {
  return CheckMatMul(device, TensorType::kF32, 40, 68, 2);  // of one token, GPUs need none
}

std::vector<KernelCheck> KernelChecks(const DevicePlan& plan, bool is_cpu) {
  Checks checks;
  for (const TensorType type : kSelfTestTypes) {
    checks.push_back({fmt::format("embed_{}_floor", VariantTypeName(type)),
                      [=](VulkanComputeDevice& device) { return CheckEmbed(device, type); }});
  }
  AddMatMuls(plan, is_cpu, checks);
  AddGatedProducts(plan, is_cpu, checks);
  for (const uint32_t n : {576U, 30U}) {
    checks.push_back({fmt::format("rms_norm_f32_floor ({} columns)", n),
                      [=](VulkanComputeDevice& device) { return CheckRmsNorm(device, n); }});
    checks.push_back({fmt::format("swiglu_f32_floor ({} columns)", n),
                      [=](VulkanComputeDevice& device) { return CheckSwiGlu(device, n); }});
  }
  checks.push_back({"gather_rows_f32_floor", CheckGather});
  AddLayerChecks(checks);
  AddAttentionChecks(plan, is_cpu, checks);
  AddSlotChecks(plan, is_cpu, checks);
  AddMassChecks(plan, is_cpu, checks);
  AddIndexChecks(plan, is_cpu, checks);
  if (plan.max_texels != 0) NameTexelVariants(checks);
  return checks;
}

}  // namespace kvrun
