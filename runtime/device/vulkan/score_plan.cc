#include "runtime/device/vulkan/score_plan.h"

#include <algorithm>
#include <numeric>

#include "platform/base/units.h"
#include "runtime/device/vulkan/kernel_plan.h"
#include "shaders/shared/index_params.h"

namespace kvrun {
namespace {

// Of the variants: rows of z at a time. More of them hold 4 scores each in registers, and with HOIST so many
// columns of z.
constexpr uint32_t kFewHeads = 3;
constexpr uint32_t kManyHeads = 9;
constexpr uint32_t kHoistColumnsOfManyHeads = 64;
constexpr uint32_t kHoistColumns = 128;
// A CPU's driver of narrower subgroups (SwiftShader) compiles for minutes what holds z in registers.
constexpr uint32_t kFewestHoistLanes = 8;
// A CPU's workgroups take many units each: room in which there is nothing to choose then costs nothing.
constexpr uint32_t kCpuLocalSize = 8;
constexpr uint32_t kCpuWorkgroups = 8;
constexpr uint32_t kCpuProjectingWorkgroups = 4;  // each of which projects by itself
constexpr uint32_t kMaxNarrowLanes = 32;          // of select_groups_narrow.comp
constexpr uint32_t kGpuLocalSize = 64;
constexpr uint32_t kGpuWorkgroups = 64;

uint32_t RowsOf(const ScoreArgs& args) {
  switch (args.reduction) {
    case HeadReduction::kSum: return 1;
    case HeadReduction::kGqa: return args.attention.kv_shape.n_kv_heads;
    case HeadReduction::kSoftmax:
    case HeadReduction::kPerKvHead: return args.attention.n_heads;
  }
  return 0;
}

bool Hoists(const DevicePlan& plan, bool is_cpu) {
  return is_cpu && plan.use_subgroup_shuffle && plan.subgroup_width >= kFewestHoistLanes;
}

// Rows of z that an invocation multiplies with, of n_rows.
uint32_t HeadsOf(const DevicePlan& plan, bool is_cpu, uint32_t n_rows, uint32_t rank) {
  // Without shared memory or registers for more.
  const uint32_t most_columns = Hoists(plan, is_cpu) ? kHoistColumnsOfManyHeads : KVRUN_SHARED_INDEX_RANK;
  return plan.few_accumulators || n_rows <= kFewHeads || rank > most_columns ? kFewHeads : kManyHeads;
}

}  // namespace

bool MayProjectInScores(const DevicePlan& plan, bool is_cpu) {
  return Hoists(plan, is_cpu) && plan.max_storage_buffers >= kProjectScoreBuffers;
}

std::string_view IndexTypeName(KvType type) {
  if (type == KvType::kF16) return "f16";
  return type == KvType::kInt8 ? "int8" : "int4";
}

ScorePlan PlanScore(const DevicePlan& plan, bool is_cpu, const ScoreArgs& args) {
  const IndexShape& index = args.index_shape;
  const uint32_t n_tokens = args.attention.n_tokens;
  const bool is_sum = args.reduction == HeadReduction::kSum;
  ScorePlan score;
  score.n_rows = RowsOf(args);
  score.n_lists = args.reduction == HeadReduction::kPerKvHead ? args.attention.kv_shape.n_kv_heads : 1;
  score.rotates_in_projection = plan.max_storage_buffers >= kRotateProjectBuffers &&
                                args.query_form != QueryForm::kSigned &&
                                args.attention.n_heads <= KVRUN_MAX_NORMED_HEADS;
  const ScoreStages* const stages = StagesOf(args.rule);
  score.has_stages = stages != nullptr && index.n_groups > stages->n_candidates;
  score.hoist = Hoists(plan, is_cpu) && index.rank <= kHoistColumns;
  if (is_cpu) score.narrow_select_lanes = std::clamp(plan.subgroup_width, kCpuLocalSize, kMaxNarrowLanes);
  // On a CPU a dispatch costs more than the same projection by each of few workgroups. The first of two
  // stages needs all rows of z before.
  score.projects_in_scores = MayProjectInScores(plan, is_cpu) && !is_sum && !score.has_stages &&
                             score.rotates_in_projection && args.attention.kv_shape.head_dim % 4 == 0 &&
                             args.attention.kv_shape.head_dim <= KVRUN_MAX_PROJECTED_HEAD_DIM &&
                             index.rank <= KVRUN_SHARED_INDEX_RANK;
  if (score.projects_in_scores) {
    const uint32_t sharing = std::max(1U, score.n_rows / args.attention.kv_shape.n_kv_heads);
    score.project_tile_rows = std::gcd(sharing, HeadsOf(plan, is_cpu, score.n_rows, index.rank));
  }
  score.local_size = is_cpu ? kCpuLocalSize : kGpuLocalSize;
  uint64_t words = 0;
  const auto take = [&words, n_tokens](uint64_t per_token) {
    const auto begin = static_cast<uint32_t>(words);
    words += CeilDiv<uint64_t>(n_tokens * per_token, 4) * 4;
    return begin;
  };
  score.z_begin = take(uint64_t{score.n_rows} * index.rank);
  const uint32_t group_rows = index.rows();
  const auto plan_pass = [&](uint32_t stage, uint32_t n_groups, uint32_t n_rows, uint32_t z_begin) {
    const uint32_t unit_groups = group_rows <= 2 ? 4 / group_rows : 1;
    ScorePass pass;
    pass.stage = stage;
    pass.n_rows = n_rows;
    if (!is_sum) pass.heads = HeadsOf(plan, is_cpu, n_rows, index.rank);
    pass.z_begin = z_begin;
    pass.n_units = CeilDiv(n_groups, unit_groups);
    pass.scores_stride = CeilDiv(n_groups, 4U) * 4;
    const uint32_t list_rows = score.list_rows(pass);
    // What is kept takes no more than two bytes an entry and row. A CPU computes what one dispatch takes
    // twice as fast.
    pass.keeps = !is_sum && GroupScoreOf(args.rule) == GroupScore::kMass && group_rows >= 2 &&
                 (!is_cpu || list_rows > pass.heads);
    const uint32_t tiles = CeilDiv(n_rows, pass.heads);
    const uint32_t most_workgroups = CeilDiv(pass.n_units, score.local_size);
    const uint32_t of_groups = is_cpu ? CeilDiv(kCpuWorkgroups, tiles * n_tokens) : kGpuWorkgroups;
    const uint32_t of_rows =
        score.projects_in_scores ? CeilDiv(kCpuProjectingWorkgroups, tiles * n_tokens) : of_groups;
    pass.workgroups = std::min(of_rows, most_workgroups);
    pass.group_workgroups = std::min(of_groups, most_workgroups);
    if (!is_sum) pass.softmaxes_begin = take(uint64_t{n_rows} * pass.workgroups * 2);
    if (pass.keeps) {
      pass.kept_begin = take(uint64_t{n_rows} * pass.scores_stride);
      const uint32_t list_tokens = score.n_lists * n_tokens;
      pass.group_workgroups = std::min(is_cpu ? CeilDiv(kCpuWorkgroups, list_tokens) : kGpuWorkgroups,
                                       CeilDiv(pass.scores_stride / 4, score.local_size));
    } else if (list_rows > pass.heads) {
      const uint32_t unit_words = CeilDiv(unit_groups * group_rows, 4U) * 4;
      pass.totals_begin = take(uint64_t{score.n_lists} * pass.n_units * unit_words);
    }
    pass.scores_begin = take(uint64_t{score.n_lists} * pass.scores_stride);
    return pass;
  };
  if (!score.has_stages) {
    score.groups = plan_pass(KVRUN_SCORE_ALL, index.n_groups, score.n_rows, score.z_begin);
  } else {
    score.n_first_rows = is_sum ? 1 : args.attention.kv_shape.n_kv_heads;
    score.first_z_begin = take(uint64_t{score.n_first_rows} * index.rank);
    score.first = plan_pass(KVRUN_SCORE_FIRST, index.n_groups, score.n_first_rows, score.first_z_begin);
    score.candidate_words = 1 + stages->n_candidates;
    score.candidates_begin = take(score.candidate_words);
    score.groups = plan_pass(KVRUN_SCORE_CANDIDATES, stages->n_candidates, score.n_rows, score.z_begin);
  }
  score.scratch_words = words;
  return score;
}

}  // namespace kvrun
