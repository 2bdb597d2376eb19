#include "runtime/device/host/self_test.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "runtime/device/host/score.h"
#include "runtime/device/self_test_attention.h"
#include "runtime/device/self_test_index.h"
#include "runtime/device/self_test_layers.h"
#include "runtime/device/self_test_mass.h"
#include "runtime/device/self_test_operations.h"
#include "runtime/device/self_test_slots.h"

namespace kvrun::host {
namespace {

using Checks = std::vector<HostCheck>;

// Activations of 8 bits are off by up to 1/254 of the largest of 32, here by 0.2 % on average, in either
// direction: products of 512 by so much of a typical one, and the largest by three times that.
constexpr double kRoundedTolerance = 1e-2;
// Queries, weights and values in 16 bits.
constexpr double kRoundedAttentionTolerance = 1e-3;
// Queries of an index in 8 bits: products are off by 1/500 of the largest column's share on average, and
// weights by as many units of a logarithm to base 2.
constexpr double kRoundedScoreTolerance = 3e-2;

std::string_view TypeName(KvType type) {
  switch (type) {
    case KvType::kF16: return "f16";
    case KvType::kF32: return "f32";
    case KvType::kFp8: return "fp8";
    case KvType::kInt8: return "int8";
    case KvType::kInt4: return "int4";
  }
  return "";
}

template <typename Run>
void Add(Checks& checks, std::string name, Run run, bool exact_activations = true) {
  checks.push_back({std::move(name), exact_activations, std::move(run)});
}

std::string ProductName(TensorType type, uint32_t n_rows, uint32_t n_cols, uint32_t n_tokens) {
  return fmt::format("{} ({}, {} x {}, {} token{}", n_tokens == 1 ? "matvec" : "matmul", TensorTypeName(type),
                     n_rows, n_cols, n_tokens, n_tokens == 1 ? "" : "s");
}

// 100 rows: the last panel of sixteen is not full. 29 tokens: tiles of every size.
void AddMatMuls(Checks& checks) {
  constexpr uint32_t kRows = 100;
  for (const TensorType type : kSelfTestTypes) {
    const bool is_float = GetTensorType(type).block_elements == 1;
    for (const uint32_t n_tokens : {1U, 2U, 4U, 29U}) {
      for (const uint32_t n_cols : {512U, 66U}) {
        if (n_cols == 66 && (!is_float || n_tokens != 1)) continue;  // only floats have such rows
        const std::string name = ProductName(type, kRows, n_cols, n_tokens);
        Add(checks, name + ")",
            [=](HostDevice& device) { return CheckMatMul(device, type, kRows, n_cols, n_tokens); });
        if (is_float) continue;  // nothing is rounded then
        Add(
            checks, name + ", activations of 8 bits)",
            [=](HostDevice& device) {
              return CheckMatMul(device, type, kRows, n_cols, n_tokens, kRoundedTolerance);
            },
            false);
      }
    }
  }
}

void AddAttend(Checks& checks, const AttentionCase& c) {
  const std::string name = fmt::format("{} ({}, head size {}, {} head{} of a KV head, {}{}",
                                       c.window_tokens > 0 ? "attend_window" : "attend", TypeName(c.type),
                                       c.head_dim, c.group, c.group == 1 ? "" : "s",
                                       c.n_tokens > 1 ? fmt::format("prefill of {}", c.n_tokens) : "decode",
                                       c.score_cap > 0.0F ? ", cap" : "");
  Add(checks, name + ")", [c](HostDevice& device) { return CheckAttention(device, c, false); });
  if (c.n_tokens == 1) return;  // nothing is rounded then
  Add(
      checks, name + ", rounded to 16 bits)",
      [c](HostDevice& device) { return CheckAttention(device, c, false, kRoundedAttentionTolerance); },
      false);
}

void AddAttentionChecks(Checks& checks) {
  for (const KvType type : {KvType::kF16, KvType::kF32}) {
    for (const bool halves : {false, true}) {
      const AttentionCase c{.type = type, .group = 3, .n_tokens = 3, .position = 100};
      Add(checks, fmt::format("rope_and_store ({}, {})", TypeName(type), halves ? "halves" : "neighbours"),
          [=](HostDevice& device) { return CheckRope(device, c, halves); });
    }
    for (const uint32_t head_dim : {64U, 80U}) {
      for (const uint32_t group : {1U, 2U, 4U, 8U}) AddAttend(checks, {type, head_dim, group, 1, 450});
      AddAttend(checks, {type, head_dim, 3, 20, 300});
      // Across the ring's end.
      AddAttend(checks, {type, head_dim, 2, 1, 600, 300, 2.0F});
      AddAttend(checks, {type, head_dim, 3, 20, 1020, 200});
    }
    const AttentionCase in_ring{.type = type, .n_tokens = 3, .position = 510, .window_tokens = 100};
    Add(checks, fmt::format("rope_and_store ({}, window)", TypeName(type)),
        [=](HostDevice& device) { return CheckRope(device, in_ring, false); });
    const AttentionCase in_parts{type, 64, 3, 20, 300};
    Add(checks, fmt::format("attend, finish_attention ({})", TypeName(type)),
        [=](HostDevice& device) { return CheckAttention(device, in_parts, true); });
  }
}

void AddSlotChecks(Checks& checks) {
  for (const KvType type : kSelfTestRecordTypes) {
    for (const KvType kv_type : {KvType::kF16, KvType::kF32}) {
      Add(checks,
          fmt::format("encode_records, decode_records ({} of {} entries)", TypeName(type), TypeName(kv_type)),
          [=](HostDevice& device) { return CheckRecords(device, kv_type, type); });
    }
    Add(checks, fmt::format("rope_and_encode ({})", TypeName(type)),
        [=](HostDevice& device) { return CheckRopeAndEncode(device, {.k_type = type, .v_type = type}); });
  }
  for (const KvType type : {KvType::kF16, KvType::kInt4}) {
    for (const KvType kv_type : {KvType::kF16, KvType::kF32}) {
      Add(checks,
          fmt::format("encode_records, decode_records (space, {} of {} entries)", TypeName(type),
                      TypeName(kv_type)),
          [=](HostDevice& device) { return CheckRecords(device, kv_type, type, true); });
    }
    Add(checks, fmt::format("rope_and_encode (space, {})", TypeName(type)), [=](HostDevice& device) {
      return CheckRopeAndEncode(device, {.k_type = type, .v_type = type, .in_space = true});
    });
    for (const uint32_t head_dim : {64U, 72U, 256U}) {
      Add(checks, fmt::format("attend_slots (space, {}, head size {})", TypeName(type), head_dim),
          [=](HostDevice& device) {
            return CheckSlotAttention(
                device, {.k_type = type, .v_type = type, .head_dim = head_dim, .in_space = true});
          });
    }
  }
  const auto add_attend = [&checks](const SlotCase& c) {
    Add(checks,
        fmt::format("attend_slots (K {}, V {}, head size {}, {} head{} of a KV head{})", TypeName(c.k_type),
                    TypeName(c.v_type), c.head_dim, c.group, c.group == 1 ? "" : "s",
                    c.has_biases ? ", biases" : ""),
        [c](HostDevice& device) { return CheckSlotAttention(device, c); });
  };
  // Every pair of types, and in turn every number of heads.
  uint32_t turn = 0;
  for (const KvType k_type : kSelfTestRecordTypes) {
    for (const KvType v_type : kSelfTestRecordTypes) add_attend({k_type, v_type, 64, turn++ % 4 + 1});
  }
  for (const uint32_t group : {1U, 2U, 3U, 4U}) add_attend({KvType::kFp8, KvType::kInt4, 72, group});
  for (const KvType type : kSelfTestRecordTypes) add_attend({type, type, 64, turn++ % 4 + 1, true});
  for (const auto& [k_type, v_type] : {std::pair{KvType::kInt8, KvType::kInt4},
                                       {KvType::kInt8, KvType::kInt8},
                                       {KvType::kF16, KvType::kInt4}}) {
    for (const uint32_t head_dim : {64U, 72U, 256U}) {
      const SlotCase c{k_type, v_type, head_dim, turn++ % 4 + 1, turn % 2 == 0};
      Add(
          checks,
          fmt::format("attend_slots (K {}, V {}, head size {}, rounded to 16 bits)", TypeName(k_type),
                      TypeName(v_type), head_dim),
          [c](HostDevice& device) { return CheckSlotAttention(device, c, kRoundedAttentionTolerance); },
          false);
    }
  }
}

void AddMassChecks(Checks& checks) {
  uint32_t turn = 0;
  const auto add_slots = [&](const SlotCase& c) {
    const MassForm form = kSelfTestMassForms[turn++ % kSelfTestMassForms.size()];
    Add(checks,
        fmt::format("attend_slots (mass of K {}, V {}, head size {}, {} head{} of a KV head{}; {})",
                    TypeName(c.k_type), TypeName(c.v_type), c.head_dim, c.group, c.group == 1 ? "" : "s",
                    c.has_biases ? ", biases" : "", MassFormText(form)),
        [c, form](HostDevice& device) { return CheckSlotMass(device, c, form); });
  };
  for (const KvType type : kSelfTestRecordTypes) add_slots({type, type, 64, turn % 4 + 1, turn % 2 == 1});
  for (const uint32_t group : {3U, 9U}) add_slots({KvType::kFp8, KvType::kInt4, 72, group, group == 9});
  for (const KvType type : {KvType::kF16, KvType::kF32}) {
    for (const RowMassCase& c : SelfTestRowMassCases(type)) {
      Add(checks,
          fmt::format("sum_weights, attention_mass ({}, head size {}; {})", TypeName(type), c.head_dim,
                      MassFormText(c.form)),
          [c](HostDevice& device) { return CheckRowMass(device, c); });
    }
  }
}

void AddExperts(Checks& checks) {
  for (const TensorType type : kSelfTestTypes) {
    const bool is_float = GetTensorType(type).block_elements == 1;
    for (const ExpertsCase& c : {ExpertsCase{type, 512, 1, false}, ExpertsCase{type, 512, 20, true},
                                 ExpertsCase{type, 66, 7, false}}) {
      if (c.n_cols == 66 && !is_float) continue;
      const std::string name =
          fmt::format("expert_matmul ({}, {} columns, {} token{}{}", TensorTypeName(type), c.n_cols,
                      c.n_tokens, c.n_tokens == 1 ? "" : "s", c.adds_up ? ", added up" : "");
      Add(checks, name + ")",
          [c](HostDevice& device) { return CheckExpertMatMul(device, c, kSelfTestTolerance); });
      if (is_float) continue;  // nothing is rounded then
      Add(
          checks, name + ", activations of 8 bits)",
          [c](HostDevice& device) { return CheckExpertMatMul(device, c, kRoundedTolerance); }, false);
    }
  }
}

void AddLayerChecks(Checks& checks) {
  for (const uint32_t n : {576U, 30U}) {
    Add(checks, fmt::format("rms_norm ({} columns, added)", n),
        [=](HostDevice& device) { return CheckRmsNormThatAdds(device, n); });
    Add(checks, fmt::format("geglu ({} columns)", n),
        [=](HostDevice& device) { return CheckGelu(device, n); });
    Add(checks, fmt::format("sigmoid_gate ({} columns)", n),
        [=](HostDevice& device) { return CheckSigmoidGate(device, n); });
  }
  Add(checks, "copy, sigmoid_gate", CheckCopy);
  for (const auto& [n_experts, n_used] : {std::pair{128U, 8U}, std::pair{7U, 7U}}) {
    Add(checks, fmt::format("choose_experts ({} of {})", n_used, n_experts),
        [n_experts = n_experts, n_used = n_used](HostDevice& device) {
          return CheckChooseExperts(device, n_experts, n_used);
        });
  }
  AddExperts(checks);
  for (const bool of_prompt : {false, true}) {
    const std::string_view how = of_prompt ? "prompt" : "decode";
    for (const bool is_gated : {false, true}) {
      Add(checks, fmt::format("short_convolution ({}{})", how, is_gated ? ", gated" : ""),
          [=](HostDevice& device) { return CheckShortConvolution(device, of_prompt, is_gated); });
    }
    for (const uint32_t head_dim : {128U, 36U}) {
      Add(checks, fmt::format("delta_rule (head size {}, {})", head_dim, how),
          [=](HostDevice& device) { return CheckDeltaRule(device, head_dim, of_prompt); });
    }
  }
  for (const uint32_t head_dim : {128U, 20U}) {
    Add(checks, fmt::format("gated_norm (head size {})", head_dim),
        [=](HostDevice& device) { return CheckGatedNorm(device, head_dim); });
  }
}

Result<std::string> CheckScoreHere(HostDevice& device, const ScoreCase& c, double tolerance = 2e-3) {
  const ScoreArgs args = ScoreArgsOf(c);
  const ScoreLayout layout = LayOutScores(args);
  return CheckScore(device, c,
                    {.n_rows = layout.n_rows,
                     .n_lists = layout.n_lists,
                     .scores_begin = layout.scores_begin,
                     .scores_stride = args.index_shape.n_groups,
                     .scratch_floats = layout.n_floats,
                     .candidates_begin = layout.candidates_begin + 1},
                    tolerance);
}

void AddIndexChecks(Checks& checks) {
  for (const KvType type : {KvType::kF16, KvType::kInt8, KvType::kInt4}) {
    const auto add_score = [&](const ScoreCase& c, std::string_view how) {
      Add(checks, fmt::format("score_and_select ({}, {})", TypeName(type), how),
          [c](HostDevice& device) { return CheckScoreHere(device, c); });
      if (type != KvType::kInt4) return;  // nothing is rounded then
      Add(
          checks, fmt::format("score_and_select ({}, {}, queries of 8 bits)", TypeName(type), how),
          [c](HostDevice& device) { return CheckScoreHere(device, c, kRoundedScoreTolerance); }, false);
    };
    ScoreCase c{type, 10, 2, HeadReduction::kSum};
    add_score(c, "sum");
    for (const auto& [reduction, how] :
         {std::pair{HeadReduction::kSoftmax, "softmax"}, std::pair{HeadReduction::kGqa, "gqa"},
          std::pair{HeadReduction::kPerKvHead, "per KV head"}}) {
      c.reduction = reduction;
      add_score(c, how);
    }
    c = {type, 10, 2, HeadReduction::kSoftmax};
    c.rule = ChooseByMass{};
    add_score(c, "mass");
    c.reduction = HeadReduction::kGqa;
    c.rule = ChooseByMass{.mass_share = 0.15F};
    add_score(c, "share of the mass");
    c = {type, 10, 2, HeadReduction::kSoftmax};
    c.rule = ChooseByMass{.tells_scores = true, .stages = ScoreStages{20, 8}};
    add_score(c, "in two stages");
    c = {type, 10, 2, HeadReduction::kPerKvHead};
    c.rule = ChooseAndSample{.n_sampled = 20, .seed = 3};
    add_score(c, "a sample of the others");
    c.rule = ChooseByLargest{.tells_scores = true};
    add_score(c, "with scores");
    c.rule = ChooseByMass{.mass_share = 0.15F, .tells_scores = true};
    add_score(c, "share of the mass, with scores");
    c.rule = ChooseByWeight{.most_weight = 8};
    add_score(c, "by weight");
    c.rule = ChooseByWeight{.most_weight = 8, .per_weight = true};
    add_score(c, "per weight");
    c = {type, 10, 2, HeadReduction::kPerKvHead};
    c.query_form = QueryForm::kAffine;
    add_score(c, "affine, per KV head");
    c.reduction = HeadReduction::kSum;
    add_score(c, "affine, sum");
    c = {type, 10, 2, HeadReduction::kSoftmax};
    c.query_form = QueryForm::kSigned;
    c.rows_per_group = 2;
    add_score(c, "signed, two rows per group");
    c.reduction = HeadReduction::kSum;
    c.rows_per_group = 1;
    add_score(c, "signed, a row per group");
  }
  for (const KvType type : {KvType::kF16, KvType::kF32}) {
    Add(checks, fmt::format("project_keys ({})", TypeName(type)),
        [=](HostDevice& device) { return CheckProjectKeys(device, type); });
  }
  for (const uint32_t dim : {72U, 30U}) {
    Add(checks, fmt::format("accumulate_gram ({} dimensions)", dim),
        [=](HostDevice& device) { return CheckGram(device, dim); });
  }
}

}  // namespace

std::vector<HostCheck> HostChecks() {
  Checks checks;
  for (const TensorType type : kSelfTestTypes) {
    Add(checks, fmt::format("embed ({})", TensorTypeName(type)),
        [=](HostDevice& device) { return CheckEmbed(device, type); });
  }
  AddMatMuls(checks);
  for (const uint32_t n : {576U, 30U}) {
    Add(checks, fmt::format("rms_norm ({} columns)", n),
        [=](HostDevice& device) { return CheckRmsNorm(device, n); });
    Add(checks, fmt::format("swiglu ({} columns)", n),
        [=](HostDevice& device) { return CheckSwiGlu(device, n); });
  }
  Add(checks, "gather_rows", CheckGather);
  AddAttentionChecks(checks);
  AddSlotChecks(checks);
  AddMassChecks(checks);
  AddLayerChecks(checks);
  AddIndexChecks(checks);
  return checks;
}

}  // namespace kvrun::host
