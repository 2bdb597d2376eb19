#include "runtime/engine/offloaded/layer_score.h"

#include <optional>

#include "platform/base/check.h"
#include "shaders/shared/sample_params.h"

namespace kvrun {
namespace {

std::optional<ScoreStages> StagesOf(const KvPlan& plan) {
  const CandidatePlan candidates = plan.candidates();
  if (candidates.n_groups == 0) return std::nullopt;
  return ScoreStages{.n_candidates = candidates.n_groups, .first_columns = candidates.first_columns};
}

}  // namespace

ChoiceRule DecodeRule(const KvPlan& plan, uint32_t layer) {
  const KvChoicePlan& choice = plan.choice;
  const bool by_mass = choice.group_score == GroupScore::kMass;
  if (choice.n_sampled > 0) {
    KVRUN_CHECK(by_mass && plan.candidates().n_groups == 0 && !plan.limits_reads());
    return ChooseAndSample{.mass_share = choice.mass_share,
                           .n_sampled = choice.n_sampled,
                           .seed = MixBits(choice.sample_seed) + layer};
  }
  if (by_mass) return ChooseByMass{choice.mass_share, plan.limits_reads(), StagesOf(plan)};
  KVRUN_CHECK(choice.mass_share == 0.0F);
  return ChooseByLargest{plan.limits_reads(), StagesOf(plan)};
}

ChoiceRule ScoredRule(const KvPlan& plan) {
  if (plan.choice.group_score == GroupScore::kMass)
    return ChooseByMass{.tells_scores = true, .stages = StagesOf(plan)};
  return ChooseByLargest{.tells_scores = true, .stages = StagesOf(plan)};
}

ScoreArgs LayerScore(const StepCommands& commands, const KvPlan& plan, const KvIndex& index, uint32_t layer,
                     uint32_t n_rows, const ChoiceRule& rule, const StepPlace& place) {
  const uint32_t model_layer = commands.config().kv_layers[layer];
  ScoreArgs args{.attention = commands.Attention(model_layer, n_rows, /*of_prompt=*/false, place),
                 .sides = {},
                 .index_shape = {},
                 .reduction = plan.choice.heads,
                 .window_tokens = plan.window.n_entries,
                 .n_pinned = plan.choice.n_pinned,
                 .n_chosen = plan.layers[layer].n_chosen,
                 .rule = rule};
  index.FillScore(layer, &args);
  return args;
}

}  // namespace kvrun
