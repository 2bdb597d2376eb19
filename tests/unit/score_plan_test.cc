// How scoring is divided: every row and entry is somebody's, sections of scratch do not overlap, variants
// exist.
#include "runtime/device/vulkan/score_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "runtime/device/vulkan/kernel_plan.h"
#include "runtime/device/vulkan/shader_library.h"
#include "shaders/shared/index_params.h"

namespace kvrun {
namespace {

ScoreArgs ArgsOf(uint32_t n_heads, uint32_t n_kv_heads, HeadReduction reduction, const IndexShape& index,
                 uint32_t n_tokens) {
  ScoreArgs args;
  args.attention.n_heads = n_heads;
  args.attention.n_tokens = n_tokens;
  args.attention.kv_shape.n_kv_heads = n_kv_heads;
  args.attention.kv_shape.head_dim = 64;
  args.index_shape = index;
  args.reduction = reduction;
  return args;
}

// Of a driver that runs on the CPU, as lavapipe.
DevicePlan Projecting() {
  DevicePlan device;
  device.use_subgroup_shuffle = true;
  device.subgroup_width = 8;
  device.max_storage_buffers = 16;
  return device;
}

struct Section {
  uint64_t begin;
  uint64_t words;
};

void AddSections(const ScorePlan& plan, const ScorePass& pass, const ScoreArgs& args,
                 std::vector<Section>& sections) {
  const uint32_t group_rows = args.index_shape.rows();
  const uint64_t tokens = args.attention.n_tokens;
  sections.push_back({pass.scores_begin, tokens * plan.n_lists * pass.scores_stride});
  if (args.reduction == HeadReduction::kSum) return;
  sections.push_back({pass.softmaxes_begin, tokens * pass.n_rows * pass.workgroups * 2});
  if (pass.keeps) {
    sections.push_back({pass.kept_begin, tokens * pass.n_rows * pass.scores_stride});
  } else if (plan.list_rows(pass) > pass.heads) {
    const uint64_t entries = uint64_t{pass.n_units} * std::max(4U, (group_rows + 3) / 4 * 4);
    sections.push_back({pass.totals_begin, tokens * plan.n_lists * entries});
  }
}

std::vector<Section> SectionsOf(const ScorePlan& plan, const ScoreArgs& args) {
  const IndexShape& index = args.index_shape;
  const uint64_t tokens = args.attention.n_tokens;
  std::vector<Section> sections = {{plan.z_begin, tokens * plan.n_rows * index.rank}};
  AddSections(plan, plan.groups, args, sections);
  if (plan.has_stages) {
    sections.push_back({plan.first_z_begin, tokens * plan.n_first_rows * index.rank});
    AddSections(plan, plan.first, args, sections);
    sections.push_back({plan.candidates_begin, tokens * (1 + StagesOf(args.rule)->n_candidates)});
  }
  std::sort(sections.begin(), sections.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  return sections;
}

void CheckPass(const ScorePlan& plan, const ScorePass& pass, const ScoreArgs& args, uint32_t n_groups) {
  const uint32_t group_rows = args.index_shape.rows();
  const uint32_t unit_groups = group_rows == 1 ? 4 : group_rows == 2 ? 2 : 1;
  EXPECT_GE(pass.n_units * unit_groups, n_groups);
  EXPECT_GE(pass.scores_stride, n_groups);
  EXPECT_EQ(pass.scores_stride % 4, 0U);
  EXPECT_GE(pass.workgroups, 1U);
  EXPECT_GE(pass.group_workgroups, 1U);
  EXPECT_LE((pass.workgroups - 1) * plan.local_size, pass.n_units);
  EXPECT_LE((pass.group_workgroups - 1) * plan.local_size, pass.n_units);
  EXPECT_EQ(pass.n_rows % plan.n_lists, 0U);
  const std::string type(IndexTypeName(args.index_shape.type));
  if (args.reduction == HeadReduction::kSum) {
    EXPECT_NE(FindShader("score_sum_" + type + "_floor"), nullptr);
    EXPECT_EQ(pass.heads, 1U);
    return;
  }
  const std::string heads = std::to_string(pass.heads);
  EXPECT_NE(FindShader("score_rows" + heads + "_" + type + "_floor"), nullptr);
  EXPECT_NE(FindShader("project_score_rows" + heads + "_" + type + "_wide"), nullptr);
  EXPECT_NE(FindShader("score_groups" + heads + "_" + type + "_floor"), nullptr);
  // Of z, and where it is projected of inputs and norms: of the floor's 16 KiB of shared memory.
  EXPECT_LE(
      (pass.heads * (KVRUN_SHARED_INDEX_RANK + KVRUN_MAX_PROJECTED_HEAD_DIM) + KVRUN_MAX_NORMED_HEADS) * 4U,
      15U * 1024U);
  EXPECT_TRUE(pass.keeps || pass.group_workgroups >= pass.workgroups);
}

// The first stage scores all groups by few rows, after all rows of z were made; the second one the
// candidates.
void CheckStages(const ScorePlan& plan, const ScoreArgs& args) {
  EXPECT_NE(FindShader("mean_queries_f32_floor"), nullptr);
  EXPECT_FALSE(plan.projects_in_scores);
  EXPECT_EQ(plan.n_rows % plan.n_first_rows, 0U);
  EXPECT_EQ(plan.n_first_rows,
            args.reduction == HeadReduction::kSum ? 1U : args.attention.kv_shape.n_kv_heads);
  EXPECT_EQ(plan.first.n_rows, plan.n_first_rows);
  EXPECT_EQ(plan.first.z_begin, plan.first_z_begin);
  EXPECT_EQ(plan.first.stage, static_cast<uint32_t>(KVRUN_SCORE_FIRST));
  EXPECT_EQ(plan.groups.stage, static_cast<uint32_t>(KVRUN_SCORE_CANDIDATES));
  EXPECT_EQ(plan.candidate_words, 1 + StagesOf(args.rule)->n_candidates);
  CheckPass(plan, plan.first, args, args.index_shape.n_groups);
}

void CheckPlan(const DevicePlan& device, bool is_cpu, const ScoreArgs& args) {
  const ScorePlan plan = PlanScore(device, is_cpu, args);
  const IndexShape& index = args.index_shape;
  SCOPED_TRACE(std::to_string(args.attention.n_heads) + " heads, groups of " +
               std::to_string(index.group_tokens) + " with " + std::to_string(index.rows()) + " rows, " +
               std::to_string(index.n_groups) + " groups");
  uint64_t end = 0;
  for (const Section& section : SectionsOf(plan, args)) {
    EXPECT_EQ(section.begin % 4, 0U);
    EXPECT_GE(section.begin, end);
    end = section.begin + section.words;
  }
  EXPECT_LE(end, plan.scratch_words);
  const ScoreStages* const stages = StagesOf(args.rule);
  ASSERT_EQ(plan.has_stages, stages != nullptr && index.n_groups > stages->n_candidates);
  if (plan.has_stages) CheckStages(plan, args);
  EXPECT_EQ(plan.groups.n_rows, plan.n_rows);
  EXPECT_EQ(plan.groups.z_begin, plan.z_begin);
  CheckPass(plan, plan.groups, args, plan.has_stages ? stages->n_candidates : index.n_groups);
  EXPECT_LE(plan.local_size, 128U);
}

TEST(ScorePlan, EveryRowAndEntryHasItsPlace) {
  DevicePlan few;
  few.few_accumulators = true;
  for (const DevicePlan& device : {DevicePlan{}, few, Projecting()}) {
    for (const bool is_cpu : {false, true}) {
      for (const auto& [n_heads, n_kv_heads] :
           {std::pair{9U, 3U}, {1U, 1U}, {32U, 8U}, {14U, 2U}, {64U, 8U}}) {
        for (const HeadReduction reduction :
             {HeadReduction::kSum, HeadReduction::kSoftmax, HeadReduction::kGqa, HeadReduction::kPerKvHead}) {
          for (const auto& [group, rows] : {std::pair{1U, 0U},
                                            {2U, 0U},
                                            {3U, 0U},
                                            {4U, 0U},
                                            {5U, 0U},
                                            {8U, 0U},
                                            {16U, 0U},
                                            {16U, 1U},
                                            {64U, 2U}}) {
            for (const uint32_t n_groups : {1U, 43U, 32768U}) {
              const IndexShape index{KvType::kInt4, 24, group, n_groups, 2, rows};
              for (const uint32_t n_tokens : {1U, 7U}) {
                ScoreArgs args = ArgsOf(n_heads, n_kv_heads, reduction, index, n_tokens);
                CheckPlan(device, is_cpu, args);
                if (reduction != HeadReduction::kSum) {
                  args.rule = ChooseByMass{};
                  CheckPlan(device, is_cpu, args);
                }
                if (reduction == HeadReduction::kPerKvHead) continue;
                for (const uint32_t n_candidates : {9U, 42U, 5000U}) {
                  const ScoreStages stages{.n_candidates = n_candidates, .first_columns = 8};
                  args.rule = ChooseByMass{.stages = stages};
                  if (reduction == HeadReduction::kSum) args.rule = ChooseByLargest{.stages = stages};
                  CheckPlan(device, is_cpu, args);
                }
              }
            }
          }
        }
      }
    }
  }
}

// What the memory budget has to hold for 8192 tokens of a model of 9 heads: far less than the index, 96 KiB a
// layer, or weights of every head.
TEST(ScorePlan, ScratchIsSmall) {
  const IndexShape index{KvType::kInt4, 24, 4, 2048, 1};
  for (const bool is_cpu : {false, true}) {
    const ScorePlan plan = PlanScore({}, is_cpu, ArgsOf(9, 3, HeadReduction::kSoftmax, index, 1));
    EXPECT_LE(plan.scratch_words * 4, 16U * 1024U);
  }
}

// Of each row and entry there are two bytes in the budget, and of each group four (kv_plan_sizes.cc); z and
// softmaxes are a part of any step's scratch. Two stages, of which the first one's rows and the second one's
// groups are a quarter each, keep less than one.
TEST(ScorePlan, WhatIsKeptIsInTheBudget) {
  for (const bool is_cpu : {false, true}) {
    for (const uint32_t rows : {1U, 2U, 3U, 4U, 8U}) {
      for (const uint32_t n_candidates : {0U, 2048 / rows}) {
        const IndexShape index{KvType::kInt4, 64, rows, 8192 / rows, 1};
        ScoreArgs args = ArgsOf(32, 8, HeadReduction::kSoftmax, index, 1);
        ChooseByMass by_mass;
        if (n_candidates != 0) by_mass.stages = ScoreStages{n_candidates, 32};
        args.rule = by_mass;
        const ScorePlan plan = PlanScore({}, is_cpu, args);
        EXPECT_EQ(plan.groups.keeps, rows >= 2);  // of a CPU, as they are more than one dispatch takes
        const uint64_t others = uint64_t{plan.n_rows} * (64 + 2 * plan.groups.workgroups) * 4 +
                                uint64_t{plan.n_first_rows} * (64 + 2 * plan.first.workgroups) * 4;
        EXPECT_LE(plan.scratch_words * 4, others + uint64_t{32} * 8192 * 2 + 8192 / rows * 4 + 64) << rows;
      }
    }
  }
}

// Where a softmax is of each head, the first stage may be of so few rows that they go together as such.
TEST(ScorePlan, FewRowsFirst) {
  const IndexShape index{KvType::kInt4, 24, 4, 100, 1};
  ScoreArgs args = ArgsOf(9, 3, HeadReduction::kSoftmax, index, 1);
  args.rule = ChooseByLargest{.stages = ScoreStages{20, 16}};
  const ScorePlan plan = PlanScore({}, false, args);
  EXPECT_EQ(plan.first.heads, 3U);
  EXPECT_EQ(plan.groups.heads, 9U);
}

// A workgroup's shared memory has room for many rows of as many columns; a CPU's registers have less.
TEST(ScorePlan, ManyRowsTogetherWhereTheyFit) {
  const auto heads = [](const DevicePlan& device, bool is_cpu, uint32_t rank) {
    const IndexShape index{KvType::kInt4, rank, 4, 100, 1};
    return PlanScore(device, is_cpu, ArgsOf(32, 8, HeadReduction::kSoftmax, index, 1)).groups.heads;
  };
  for (const uint32_t rank : {24U, 64U, 128U, static_cast<uint32_t>(KVRUN_SHARED_INDEX_RANK)})
    EXPECT_EQ(heads({}, false, rank), 9U) << rank;
  EXPECT_EQ(heads({}, false, KVRUN_SHARED_INDEX_RANK + 1), 3U);
  EXPECT_EQ(heads(Projecting(), true, 64), 9U);
  EXPECT_EQ(heads(Projecting(), true, 128), 3U);
  DevicePlan few;
  few.few_accumulators = true;
  EXPECT_EQ(heads(few, false, 24), 3U);
}

TEST(ScorePlan, AQueryIsRotatedInItsProjectionWhereSixBuffersMayBeUsed) {
  const IndexShape index{KvType::kInt4, 24, 4, 100, 1};
  ScoreArgs args = ArgsOf(9, 3, HeadReduction::kSoftmax, index, 1);
  DevicePlan device;
  for (const uint32_t buffers : {4U, 5U, 6U, 16U}) {
    device.max_storage_buffers = buffers;
    EXPECT_EQ(PlanScore(device, false, args).rotates_in_projection, buffers >= kRotateProjectBuffers)
        << buffers;
  }
  args.query_form = QueryForm::kSigned;
  EXPECT_FALSE(PlanScore(device, false, args).rotates_in_projection);
  args = ArgsOf(256, 4, HeadReduction::kSoftmax, index, 1);
  EXPECT_FALSE(PlanScore(device, false, args).rotates_in_projection) << "more heads than it has norms for";
}

// Each of its few workgroups does; a GPU's many would.
TEST(ScorePlan, ACpuProjectsAQueryWhereItScores) {
  const IndexShape index{KvType::kInt4, 24, 4, 100, 1};
  DevicePlan device = Projecting();
  for (const uint32_t buffers : {4U, 6U, 7U, 16U}) {
    device.max_storage_buffers = buffers;
    const ScoreArgs args = ArgsOf(9, 3, HeadReduction::kSoftmax, index, 1);
    EXPECT_EQ(PlanScore(device, true, args).projects_in_scores, buffers >= kProjectScoreBuffers) << buffers;
    EXPECT_FALSE(PlanScore(device, false, args).projects_in_scores);
  }
  const auto projects = [&](const ScoreArgs& args) {
    return PlanScore(device, true, args).projects_in_scores;
  };
  EXPECT_FALSE(projects(ArgsOf(9, 3, HeadReduction::kSum, index, 1))) << "nothing is scored before";
  ScoreArgs args = ArgsOf(9, 3, HeadReduction::kSoftmax, index, 1);
  args.query_form = QueryForm::kSigned;
  EXPECT_FALSE(projects(args));
  args.query_form = QueryForm::kAffine;
  EXPECT_TRUE(projects(args));
  args.attention.kv_shape.head_dim = 2 * KVRUN_MAX_PROJECTED_HEAD_DIM;
  EXPECT_FALSE(projects(args)) << "wider than it has memory for";
  args = ArgsOf(9, 3, HeadReduction::kSoftmax, index, 1);
  args.rule = ChooseByLargest{.stages = ScoreStages{20, 16}};
  EXPECT_FALSE(projects(args)) << "the first stage needs z before";
  const IndexShape wide{KvType::kInt4, KVRUN_SHARED_INDEX_RANK + 1, 4, 100, 1};
  EXPECT_FALSE(projects(ArgsOf(9, 3, HeadReduction::kSoftmax, wide, 1)));
}

// Rows of one KV head go together where they are as many in each tile.
TEST(ScorePlan, TilesOfProjectedRowsDoNotCrossKvHeads) {
  const IndexShape index{KvType::kInt4, 24, 4, 100, 1};
  const DevicePlan device = Projecting();
  const auto tile = [&](uint32_t n_heads, uint32_t n_kv_heads, HeadReduction reduction) {
    return PlanScore(device, true, ArgsOf(n_heads, n_kv_heads, reduction, index, 1)).project_tile_rows;
  };
  EXPECT_EQ(tile(9, 3, HeadReduction::kSoftmax), 3U);
  EXPECT_EQ(tile(9, 3, HeadReduction::kGqa), 1U);
  EXPECT_EQ(tile(32, 8, HeadReduction::kSoftmax), 1U);
  EXPECT_EQ(tile(12, 2, HeadReduction::kPerKvHead), 3U);
  EXPECT_EQ(tile(9, 1, HeadReduction::kSoftmax), 9U);
  EXPECT_EQ(tile(9, 9, HeadReduction::kSoftmax), 1U);
}

}  // namespace
}  // namespace kvrun
