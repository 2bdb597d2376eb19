// Launchers of the operations on the index: projection, scoring, selection, and the sums that adapters are
// made of.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/device/vulkan/command_list.h"
#include "runtime/device/vulkan/kernel_plan.h"
#include "runtime/device/vulkan/score_plan.h"
#include "shaders/shared/index_params.h"
#include "shaders/shared/sample_params.h"

namespace kvrun {
namespace {

constexpr uint32_t kTileColumns = 32;         // of project_query.comp and project_keys.comp
constexpr uint32_t kTileQueries = 4;          // of project_query.comp
constexpr uint32_t kTileRows = 32;            // of project_keys.comp
constexpr uint32_t kQueryLocalSize = 32;      // of project_query.comp
constexpr uint32_t kSignLocalSize = 32;       // of sign_query.comp
constexpr uint32_t kDirectLocalSize = 8;      // of project_query.comp with DIRECT
constexpr uint32_t kWeightedLocalSize = 128;  // of select_weighted.comp, where it is not narrow
constexpr uint32_t kMeanLocalSize = 32;       // of mean_queries.comp
constexpr uint32_t kSampleLocalSize = 128;    // of sample_groups.comp, where it is not narrow

Status CheckRank(uint32_t rank) {
  if (rank >= 1 && rank <= KVRUN_MAX_INDEX_RANK) return Status::Ok();
  return {StatusCode::kUnsupported,
          fmt::format("an index of rank {} cannot be used; it can have rank 1 to {}", rank,
                      KVRUN_MAX_INDEX_RANK)};
}

// Of a row's mean. Softmaxes are computed with powers of 2.
float QueryScale(const ScoreArgs& args) {
  const AttentionArgs& attention = args.attention;
  const uint32_t group = attention.n_heads / attention.kv_shape.n_kv_heads;
  const bool is_mean = args.reduction == HeadReduction::kGqa;
  const double factor =
      (args.reduction == HeadReduction::kSum ? 1.0 : std::numbers::log2e) / (is_mean ? group : 1);
  if (attention.score_scale != 0.0F) return static_cast<float>(factor * attention.score_scale);
  return static_cast<float>(factor / std::sqrt(attention.kv_shape.head_dim));
}

uint32_t IsVector(uint32_t columns) { return columns % 4 == 0 ? 1U : 0U; }

ScoreParams ParamsOf(const ScoreArgs& args, const ScorePlan& score, const ScorePass& pass,
                     uint32_t first_row) {
  return {.n_groups = args.index_shape.n_groups,
          .group_words = args.index_shape.group_words(),
          .group_tokens = args.index_shape.group_tokens,
          .window_tokens = args.window_tokens,
          .n_rows = pass.n_rows,
          .list_rows = score.list_rows(pass),
          .first_row = first_row,
          .n_units = pass.n_units,
          .n_workgroups = pass.workgroups,
          .z_begin = pass.z_begin,
          .softmaxes_begin = pass.softmaxes_begin,
          .totals_begin = pass.totals_begin,
          .scores_begin = pass.scores_begin,
          .scores_stride = pass.scores_stride,
          .kept_begin = pass.kept_begin,
          .candidates_begin = score.candidates_begin,
          .candidate_words = score.candidate_words};
}

ProjectQueryParams QueryParamsOf(const ScoreArgs& args, const ScorePlan& score) {
  const AttentionArgs& attention = args.attention;
  return {.n_heads = attention.n_heads,
          .n_kv_heads = attention.kv_shape.n_kv_heads,
          .head_dim = attention.kv_shape.head_dim,
          .rank = args.index_shape.rank,
          .n_rows = score.n_rows,
          .z_begin = score.z_begin,
          .scale = QueryScale(args),
          .is_affine = args.query_form == QueryForm::kAffine ? 1U : 0U,
          .rotary_dim = attention.rotary_dim,
          .rope_halves = attention.rope_halves ? 1U : 0U,
          .norm_epsilon = attention.norm_epsilon};
}

// Whether a choice may end before there are n_chosen.
bool EndsEarly(const ScoreArgs& args) {
  const float share = MassShareOf(args.rule);
  return share > 0.0F && share < 1.0F;
}

KernelChoice SelectKernel(const ScoreArgs& args, const ScorePlan& score, const ScorePass& pass) {
  const uint32_t lanes = score.narrow_select_lanes;
  KernelChoice kernel;
  kernel.groups = {score.n_lists * args.attention.n_tokens, 1, 1};
  if (std::holds_alternative<ChooseByWeight>(args.rule)) {
    kernel.variant = "select_weighted_f32_floor";
    kernel.constants = {lanes != 0 ? lanes : kWeightedLocalSize};
    return kernel;
  }
  const bool ends_early = EndsEarly(args) && pass.stage != KVRUN_SCORE_FIRST;
  kernel.variant =
      fmt::format("select_groups{}{}_f32_floor", lanes != 0 ? "_narrow" : "", ends_early ? "_mass" : "");
  if (lanes != 0) kernel.constants = {lanes};
  return kernel;
}

// Whether any four entries that are scored together are whole vectors of the index. Of candidates, only those
// of one group lie side by side.
bool HasWholeVectors(const IndexShape& index, const ScorePass& pass) {
  const uint32_t group = index.rows();
  if (pass.stage == KVRUN_SCORE_CANDIDATES && group <= 2) return false;
  const bool whole_rows = index.rank * KvElementBits(index.type) % 32 == 0;
  return whole_rows && (group % 4 == 0 || (group <= 2 && index.n_groups * group % 4 == 0));
}

// `kind`: "rows9", as variants name what is scored for.
KernelChoice ScoreKernel(const ScoreArgs& args, const ScorePlan& score, const ScorePass& pass,
                         std::string_view kind, uint32_t groups_y) {
  const IndexShape& index = args.index_shape;
  const bool of_groups = kind.starts_with("groups");
  const bool is_mass = GroupScoreOf(args.rule) == GroupScore::kMass && of_groups;
  return {.variant = fmt::format("score_{}_{}_floor", kind, IndexTypeName(index.type)),
          .constants = {index.rank, index.rows(), score.hoist ? 1U : 0U, score.local_size,
                        HasWholeVectors(index, pass) ? 1U : 0U, is_mass ? 1U : 0U, pass.stage,
                        pass.keeps ? 1U : 0U},
          .groups = {of_groups ? pass.group_workgroups : pass.workgroups, groups_y, args.attention.n_tokens}};
}

}  // namespace

uint64_t VulkanComputeDevice::ScoreScratchBytes(const ScoreArgs& args) const {
  return PlanScore(plan(), is_cpu(), args).scratch_words * sizeof(uint32_t);
}

Status VulkanCommandList::RotateQuery(const ScoreArgs& args) {
  const AttentionArgs& attention = args.attention;
  const RotateQueryParams params{.n_heads = attention.n_heads,
                                 .head_dim = attention.kv_shape.head_dim,
                                 .rotary_dim = attention.rotary_dim,
                                 .rope_halves = attention.rope_halves ? 1U : 0U,
                                 .has_norm = attention.norms != nullptr ? 1U : 0U,
                                 .norm_epsilon = attention.norm_epsilon};
  const KernelChoice kernel{.variant = "rotate_query_f32_floor",
                            .constants = {},
                            .groups = {attention.n_heads, attention.n_tokens, 1}};
  if (attention.angles != nullptr) NoteHostBuffer(AsVulkan(*attention.angles));
  const std::array storage = {Binding{MemoryOrEmpty(args.query), Access::kReadWrite},
                              Binding{MemoryOrEmpty(attention.angles), Access::kRead},
                              Binding{MemoryOrEmpty(attention.norms), Access::kRead}};
  return Record({.kernel = kernel, .storage = storage, .params = ParamBytes(params)});
}

Status VulkanCommandList::ProjectQuery(const ScoreArgs& args, const ScorePlan& score) {
  const AttentionArgs& attention = args.attention;
  if (!score.rotates_in_projection) KVRUN_RETURN_IF_ERROR(RotateQuery(args));
  if (args.query_form == QueryForm::kSigned) return SignQuery(args, score);
  const uint32_t head_dim = attention.kv_shape.head_dim;
  const uint32_t n_kv_heads = attention.kv_shape.n_kv_heads;
  const uint32_t rank = args.index_shape.rank;
  const uint32_t group = attention.n_heads / n_kv_heads;
  const uint32_t sharing = std::max(1U, group * score.n_rows / attention.n_heads);
  const ProjectQueryParams params = QueryParamsOf(args, score);
  // On a CPU, what is shared costs more than what is read twice.
  const bool is_direct = device_.is_cpu() && head_dim % 4 == 0;
  KernelChoice kernel{
      .variant = "project_query_f32_floor",
      .constants = {IsVector(rank), is_direct ? 1U : 0U, is_direct ? kDirectLocalSize : kQueryLocalSize,
                    args.sides.are_halves ? 1U : 0U},
      .groups = {CeilDiv(rank, kTileColumns), score.n_rows / sharing * CeilDiv(sharing, kTileQueries),
                 attention.n_tokens}};
  NoteHostBuffer(AsVulkan(*args.sides.scales));
  std::vector<Binding> storage = {{MemoryOrEmpty(args.query), Access::kRead},
                                  {MemoryOrEmpty(args.sides.query_side), Access::kRead},
                                  {MemoryOrEmpty(args.sides.scales), Access::kRead},
                                  {MemoryOrEmpty(args.scratch), Access::kWrite}};
  if (score.rotates_in_projection) {
    kernel.variant = "rotate_project_query_f32_wide";
    kernel.constants.push_back(attention.norms != nullptr ? 1 : 0);
    if (attention.angles != nullptr) NoteHostBuffer(AsVulkan(*attention.angles));
    storage.push_back({MemoryOrEmpty(attention.angles), Access::kRead});
    storage.push_back({MemoryOrEmpty(attention.norms), Access::kRead});
  }
  return Record({.kernel = kernel,
                 .storage = storage,
                 .step = &AsVulkan(*attention.step),
                 .params = ParamBytes(params)});
}

Status VulkanCommandList::SignQuery(const ScoreArgs& args, const ScorePlan& score) {
  const AttentionArgs& attention = args.attention;
  const uint32_t head_dim = attention.kv_shape.head_dim;
  const uint32_t n_kv_heads = attention.kv_shape.n_kv_heads;
  const SignQueryParams params{
      .n_heads = attention.n_heads,
      .n_kv_heads = n_kv_heads,
      .head_dim = head_dim,
      .n_rows = score.n_rows,
      .n_added = args.reduction == HeadReduction::kGqa ? attention.n_heads / n_kv_heads : 1,
      .z_begin = score.z_begin,
      .scale = QueryScale(args)};
  const KernelChoice kernel{
      .variant = "sign_query_f32_floor",
      .constants = {},
      .groups = {CeilDiv(n_kv_heads * head_dim, kSignLocalSize), score.n_rows, attention.n_tokens}};
  NoteHostBuffer(AsVulkan(*args.sides.scales));
  const std::array storage = {Binding{MemoryOrEmpty(args.query), Access::kRead},
                              Binding{MemoryOrEmpty(args.sides.scales), Access::kRead},
                              Binding{MemoryOrEmpty(args.scratch), Access::kWrite}};
  return Record({.kernel = kernel,
                 .storage = storage,
                 .step = &AsVulkan(*attention.step),
                 .params = ParamBytes(params)});
}

// The rows of z, and the softmaxes over what each workgroup scores by them.
Status VulkanCommandList::ProjectAndScoreRows(const ScoreArgs& args, const ScorePlan& score,
                                              const ScorePass& pass) {
  const AttentionArgs& attention = args.attention;
  const ProjectScoreParams params{.score = ParamsOf(args, score, pass, 0),
                                  .query = QueryParamsOf(args, score)};
  KernelChoice kernel =
      ScoreKernel(args, score, pass, fmt::format("rows{}", pass.heads), CeilDiv(pass.n_rows, pass.heads));
  kernel.variant =
      fmt::format("project_score_rows{}_{}_wide", pass.heads, IndexTypeName(args.index_shape.type));
  kernel.constants.push_back(attention.norms != nullptr ? 1 : 0);
  kernel.constants.push_back(score.project_tile_rows);
  kernel.constants.push_back(args.sides.are_halves ? 1 : 0);
  NoteHostBuffer(AsVulkan(*args.sides.scales));
  if (attention.angles != nullptr) NoteHostBuffer(AsVulkan(*attention.angles));
  const std::array storage = {Binding{MemoryOrEmpty(args.index), Access::kRead},
                              Binding{MemoryOrEmpty(args.query), Access::kRead},
                              Binding{MemoryOrEmpty(args.sides.query_side), Access::kRead},
                              Binding{MemoryOrEmpty(args.sides.scales), Access::kRead},
                              Binding{MemoryOrEmpty(attention.angles), Access::kRead},
                              Binding{MemoryOrEmpty(attention.norms), Access::kRead},
                              Binding{MemoryOrEmpty(args.scratch), Access::kWrite}};
  static_assert(storage.size() == kProjectScoreBuffers);
  return Record({.kernel = kernel,
                 .storage = storage,
                 .step = &AsVulkan(*attention.step),
                 .params = ParamBytes(params)});
}

Status VulkanCommandList::ScoreEntries(const ScoreArgs& args, const ScorePlan& score, const ScorePass& pass,
                                       std::string_view kind, uint32_t first_row, uint32_t groups_y) {
  const ScoreParams params = ParamsOf(args, score, pass, first_row);
  const KernelChoice kernel = ScoreKernel(args, score, pass, kind, groups_y);
  const std::array storage = {Binding{MemoryOrEmpty(args.index), Access::kRead},
                              Binding{MemoryOrEmpty(args.scratch), Access::kRead},
                              Binding{MemoryOrEmpty(args.scratch), Access::kReadWrite}};
  return Record({.kernel = kernel,
                 .storage = storage,
                 .step = &AsVulkan(*args.attention.step),
                 .params = ParamBytes(params)});
}

// Of what ScoreEntries has kept of rows.
Status VulkanCommandList::ScoreKept(const ScoreArgs& args, const ScorePlan& score, const ScorePass& pass) {
  const ScoreParams params = ParamsOf(args, score, pass, 0);
  const KernelChoice kernel{.variant = "score_kept_f32_floor",
                            .constants = {score.local_size, pass.stage},
                            .groups = {pass.group_workgroups, score.n_lists, args.attention.n_tokens}};
  const std::array storage = {Binding{MemoryOrEmpty(args.scratch), Access::kRead},
                              Binding{MemoryOrEmpty(args.scratch), Access::kReadWrite}};
  return Record({.kernel = kernel,
                 .storage = storage,
                 .step = &AsVulkan(*args.attention.step),
                 .params = ParamBytes(params)});
}

Status VulkanCommandList::ScoreGroups(const ScoreArgs& args, const ScorePlan& score, const ScorePass& pass) {
  if (args.reduction == HeadReduction::kSum) return ScoreEntries(args, score, pass, "sum", 0, 1);
  if (score.projects_in_scores) {
    KVRUN_RETURN_IF_ERROR(ProjectAndScoreRows(args, score, pass));
  } else {
    const uint32_t tiles = CeilDiv(pass.n_rows, pass.heads);
    KVRUN_RETURN_IF_ERROR(ScoreEntries(args, score, pass, fmt::format("rows{}", pass.heads), 0, tiles));
  }
  if (pass.keeps) return ScoreKept(args, score, pass);
  for (uint32_t row = 0; row < score.list_rows(pass); row += pass.heads) {
    KVRUN_RETURN_IF_ERROR(
        ScoreEntries(args, score, pass, fmt::format("groups{}", pass.heads), row, score.n_lists));
  }
  return Status::Ok();
}

// Rows of z for the first of two stages.
Status VulkanCommandList::MeanQueries(const ScoreArgs& args, const ScorePlan& score) {
  const uint32_t rank = args.index_shape.rank;
  const MeanQueriesParams params{.n_rows = score.n_rows,
                                 .n_first_rows = score.n_first_rows,
                                 .rank = rank,
                                 .first_columns = StagesOf(args.rule)->first_columns,
                                 .z_begin = score.z_begin,
                                 .first_z_begin = score.first_z_begin};
  const KernelChoice kernel{
      .variant = "mean_queries_f32_floor",
      .constants = {},
      .groups = {CeilDiv(rank, kMeanLocalSize), score.n_first_rows, args.attention.n_tokens}};
  const std::array storage = {Binding{MemoryOrEmpty(args.scratch), Access::kRead},
                              Binding{MemoryOrEmpty(args.scratch), Access::kWrite}};
  return Record({.kernel = kernel, .storage = storage, .params = ParamBytes(params)});
}

// Candidates into scratch, or the choice.
Status VulkanCommandList::SelectGroups(const ScoreArgs& args, const ScorePlan& score, const ScorePass& pass) {
  const ChoiceList shape = args.choice_list();
  const auto* const by_weight = std::get_if<ChooseByWeight>(&args.rule);
  SelectGroupsParams params{.n_groups = args.index_shape.n_groups,
                            .group_tokens = args.index_shape.group_tokens,
                            .window_tokens = args.window_tokens,
                            .n_lists = score.n_lists,
                            .n_pinned = args.n_pinned,
                            .n_chosen = args.n_chosen,
                            .list_words = shape.words(),
                            .tell_at = shape.tells_scores ? shape.scores_begin() - 1 : 0,
                            .scores_begin = pass.scores_begin,
                            .scores_stride = pass.scores_stride,
                            .mass_share = MassShareOf(args.rule),
                            .mass_scale = 0x1p31F / static_cast<float>(std::bit_ceil(score.list_rows(pass))),
                            .most_weight = by_weight != nullptr ? by_weight->most_weight : 0,
                            .per_weight = by_weight != nullptr && by_weight->per_weight ? 1U : 0U,
                            .stage = pass.stage,
                            .candidates_begin = score.candidates_begin,
                            .candidate_words = score.candidate_words,
                            .chosen_begin = 0};
  const Buffer* chosen = args.chosen;
  if (pass.stage == KVRUN_SCORE_FIRST) {
    chosen = args.scratch;
    params.n_chosen = StagesOf(args.rule)->n_candidates;
    params.list_words = score.candidate_words;
    params.tell_at = 0;
    params.chosen_begin = score.candidates_begin;
  } else {
    NoteHostBuffer(AsVulkan(*args.chosen));
  }
  std::vector<Binding> storage = {Binding{MemoryOrEmpty(args.scratch), Access::kRead}};
  if (by_weight != nullptr) storage.push_back({MemoryOrEmpty(by_weight->weights), Access::kRead});
  storage.push_back({MemoryOrEmpty(chosen), Access::kWrite});
  return Record({.kernel = SelectKernel(args, score, pass),
                 .storage = storage,
                 .step = &AsVulkan(*args.attention.step),
                 .params = ParamBytes(params)});
}

Status VulkanCommandList::Launch(const ScoreArgs& args) {
  KVRUN_CHECK(args.is_consistent());
  KVRUN_RETURN_IF_ERROR(CheckRank(args.index_shape.rank));
  const ScorePlan score = PlanScore(device_.plan(), device_.is_cpu(), args);
  if (!score.projects_in_scores) KVRUN_RETURN_IF_ERROR(ProjectQuery(args, score));
  if (score.has_stages) {
    KVRUN_RETURN_IF_ERROR(MeanQueries(args, score));
    KVRUN_RETURN_IF_ERROR(ScoreGroups(args, score, score.first));
    KVRUN_RETURN_IF_ERROR(SelectGroups(args, score, score.first));
  }
  KVRUN_RETURN_IF_ERROR(ScoreGroups(args, score, score.groups));
  KVRUN_RETURN_IF_ERROR(SelectGroups(args, score, score.groups));
  const auto* const and_sample = std::get_if<ChooseAndSample>(&args.rule);
  return and_sample != nullptr ? SampleGroups(args, score, *and_sample) : Status::Ok();
}

Status VulkanCommandList::SampleGroups(const ScoreArgs& args, const ScorePlan& score,
                                       const ChooseAndSample& rule) {
  const uint32_t lanes = score.narrow_select_lanes;
  const SampleGroupsParams params{.n_groups = args.index_shape.n_groups,
                                  .group_tokens = args.index_shape.group_tokens,
                                  .window_tokens = args.window_tokens,
                                  .n_lists = score.n_lists,
                                  .n_chosen = args.n_chosen,
                                  .n_sampled = rule.n_sampled,
                                  .scores_begin = score.groups.scores_begin,
                                  .scores_stride = score.groups.scores_stride,
                                  .seed = rule.seed};
  const KernelChoice kernel{.variant = "sample_groups_f32_floor",
                            .constants = {lanes != 0 ? lanes : kSampleLocalSize},
                            .groups = {score.n_lists * args.attention.n_tokens, 1, 1}};
  const std::array storage = {Binding{MemoryOrEmpty(args.scratch), Access::kRead},
                              Binding{MemoryOrEmpty(args.chosen), Access::kReadWrite}};
  return Record({.kernel = kernel,
                 .storage = storage,
                 .step = &AsVulkan(*args.attention.step),
                 .params = ParamBytes(params)});
}

Status VulkanCommandList::Launch(const ProjectKeysArgs& args) {
  NoteHostBuffer(AsVulkan(*args.out));
  const ProjectKeysParams params{.n_tokens = args.n_tokens,
                                 .n_dims = args.kv_shape.n_kv_heads * args.kv_shape.head_dim,
                                 .rank = args.rank,
                                 .first_token = args.first_token,
                                 .head_dim = args.kv_shape.head_dim,
                                 .n_ctx = args.kv_shape.n_ctx};
  const KernelChoice kernel{
      .variant = fmt::format("project_keys_{}_floor", args.kv_shape.type == KvType::kF16 ? "f16" : "f32"),
      .constants = {IsVector(args.rank), args.sides.are_halves ? 1U : 0U},
      .groups = {CeilDiv(args.rank, kTileColumns), CeilDiv(args.n_tokens, kTileRows), 1}};
  const std::array storage = {Binding{MemoryOrEmpty(args.kv), Access::kRead},
                              Binding{MemoryOrEmpty(args.sides.key_side), Access::kRead},
                              Binding{MemoryOrEmpty(args.sides.bias), Access::kRead},
                              Binding{MemoryOrEmpty(args.out), Access::kWrite}};
  return Record({.kernel = kernel, .storage = storage, .params = ParamBytes(params)});
}

Status VulkanCommandList::Launch(const GramArgs& args) {
  constexpr uint32_t kTileI = 64;
  constexpr uint32_t kTileJ = 32;
  if (args.skip_rows >= args.n_rows) return Status::Ok();
  const AccumulateGramParams params{.n_vectors = (args.n_rows - args.skip_rows) * args.n_blocks,
                                    .first_row = args.skip_rows,
                                    .row_stride = args.row_stride,
                                    .first_column = args.first_column,
                                    .dim = args.dim,
                                    .n_blocks = args.n_blocks,
                                    .sums_offset = args.sums_offset};
  const bool vector = args.row_stride % 4 == 0 && args.first_column % 4 == 0 && args.dim % 4 == 0;
  const KernelChoice kernel{.variant = "accumulate_gram_f32_floor",
                            .constants = {vector ? 1U : 0U},
                            .groups = {CeilDiv(args.dim, kTileI), CeilDiv(args.dim, kTileJ), 1}};
  NoteHostBuffer(AsVulkan(*args.sums));
  const std::array storage = {Binding{MemoryOrEmpty(args.rows), Access::kRead},
                              Binding{MemoryOrEmpty(args.sums), Access::kReadWrite}};
  return Record({.kernel = kernel, .storage = storage, .params = ParamBytes(params)});
}

}  // namespace kvrun
