#include "runtime/device/vulkan/score_plan.h"

#include <algorithm>
#include <numeric>

#include "platform/base/units.h"
#include "runtime/device/vulkan/kernel_plan.h"
#include "shaders/shared/index_params.h"

namespace kvrun {
namespace {

// Of the variants: rows of z at a time. More of them hold 4 scores each in registers.
constexpr uint32_t kFewHeads = 3;
constexpr uint32_t kManyHeads = 9;
constexpr uint32_t kMaxRankOfManyHeads = 64;
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
  const uint32_t unit_groups = index.rows() <= 2 ? 4 / index.rows() : 1;
  score.n_units = CeilDiv(index.n_groups, unit_groups);
  score.scores_stride = CeilDiv(index.n_groups, 4U) * 4;

  score.rotates_in_projection = plan.max_storage_buffers >= kRotateProjectBuffers &&
                                args.query_form != QueryForm::kSigned &&
                                args.attention.n_heads <= KVRUN_MAX_NORMED_HEADS;
  if (!is_sum) {
    const bool few = plan.few_accumulators || score.n_rows <= kFewHeads || index.rank > kMaxRankOfManyHeads;
    score.heads = few ? kFewHeads : kManyHeads;
  }
  score.hoist = Hoists(plan, is_cpu);
  if (is_cpu) score.narrow_select_lanes = std::clamp(plan.subgroup_width, kCpuLocalSize, kMaxNarrowLanes);
  // On a CPU a dispatch costs more than the same projection by each of few workgroups.
  score.projects_in_scores = MayProjectInScores(plan, is_cpu) && !is_sum && score.rotates_in_projection &&
                             args.attention.kv_shape.head_dim % 4 == 0 &&
                             args.attention.kv_shape.head_dim <= KVRUN_MAX_PROJECTED_HEAD_DIM &&
                             index.rank <= KVRUN_SHARED_INDEX_RANK;
  if (score.projects_in_scores) {
    const uint32_t sharing = std::max(1U, score.n_rows / args.attention.kv_shape.n_kv_heads);
    score.project_tile_rows = std::gcd(sharing, score.heads);
  }
  score.local_size = is_cpu ? kCpuLocalSize : kGpuLocalSize;
  const uint32_t tiles = CeilDiv(score.n_rows, score.heads);
  const uint32_t most_workgroups = CeilDiv(score.n_units, score.local_size);
  const uint32_t of_groups = is_cpu ? CeilDiv(kCpuWorkgroups, tiles * n_tokens) : kGpuWorkgroups;
  const uint32_t of_rows =
      score.projects_in_scores ? CeilDiv(kCpuProjectingWorkgroups, tiles * n_tokens) : of_groups;
  score.workgroups = std::min(of_rows, most_workgroups);
  score.group_workgroups = std::min(of_groups, most_workgroups);

  uint64_t words = 0;
  const auto take = [&words, n_tokens](uint64_t per_token) {
    const auto begin = static_cast<uint32_t>(words);
    words += CeilDiv<uint64_t>(n_tokens * per_token, 4) * 4;
    return begin;
  };
  score.z_begin = take(uint64_t{score.n_rows} * index.rank);
  if (!is_sum) score.softmaxes_begin = take(uint64_t{score.n_rows} * score.workgroups * 2);
  if (score.list_rows() > score.heads) {
    const uint32_t unit_words = CeilDiv(unit_groups * index.rows(), 4U) * 4;
    score.totals_begin = take(uint64_t{score.n_lists} * score.n_units * unit_words);
  }
  score.scores_begin = take(uint64_t{score.n_lists} * score.scores_stride);
  score.scratch_words = words;
  return score;
}

}  // namespace kvrun
