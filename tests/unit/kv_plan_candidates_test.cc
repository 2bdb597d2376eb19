// How many groups are candidates, and where all are.
#include "runtime/kv/planner/kv_plan_candidates.h"

#include <gtest/gtest.h>

#include <utility>

namespace kvrun::testing {
namespace {

CandidateInput Of1B(uint32_t n_ctx, uint32_t n_chosen) {
  return {.n_queries = 32,
          .n_kv_heads = 8,
          .rank = 64,
          .group_tokens = 4,
          .n_groups = n_ctx / 4,
          .n_chosen = n_chosen};
}

TEST(KvPlanCandidates, ALongContextHasTwoStages) {
  for (const uint32_t n_ctx : {8192U, 32768U, 131072U}) {
    const uint32_t n_chosen = n_ctx / 4 / 16;
    const CandidatePlan plan = PlanCandidates(Of1B(n_ctx, n_chosen));
    EXPECT_EQ(plan.first_columns, 32U);
    EXPECT_GE(plan.n_groups, 2 * n_chosen);
    EXPECT_LE(plan.n_groups, n_ctx / 4 / 2);
  }
}

// What ScoreArgs::is_consistent asks for, and that a stage saves something.
TEST(KvPlanCandidates, CandidatesHaveRoomForWhatIsChosen) {
  for (uint32_t n_ctx = 512; n_ctx < 500000; n_ctx += n_ctx / 3) {
    for (uint32_t n_chosen = 1; n_chosen <= n_ctx / 4; n_chosen += n_chosen / 2 + 1) {
      for (const uint32_t group : {1U, 3U, 4U, 16U, 64U}) {
        CandidateInput input = Of1B(n_ctx, n_chosen);
        input.group_tokens = group;
        input.n_groups = n_ctx / group;
        const CandidatePlan plan = PlanCandidates(input);
        if (plan.n_groups == 0) {
          EXPECT_EQ(plan.first_columns, 0U);
          continue;
        }
        EXPECT_GE(plan.n_groups, n_chosen);
        EXPECT_LE(plan.n_groups, input.n_groups / 2);
        EXPECT_GE(plan.first_columns, 1U);
        EXPECT_LE(plan.first_columns, input.rank);
      }
    }
  }
}

TEST(KvPlanCandidates, ScoresThatTakeLittleHaveOneStage) {
  CandidateInput input = Of1B(8192, 128);
  EXPECT_GT(PlanCandidates(input).n_groups, 0U);
  input.n_queries = 9;
  input.rank = 24;
  EXPECT_EQ(PlanCandidates(input).n_groups, 0U);
  EXPECT_EQ(PlanCandidates(Of1B(2048, 32)).n_groups, 0U);
}

TEST(KvPlanCandidates, ALargeChoiceHasOneStage) {
  EXPECT_GT(PlanCandidates(Of1B(32768, 700)).n_groups, 0U);
  EXPECT_EQ(PlanCandidates(Of1B(32768, 4096)).n_groups, 0U);
}

// Few heads that share a KV head, and a narrow index: the first stage would take a third of all.
TEST(KvPlanCandidates, AFirstStageThatSavesLittleIsNone) {
  CandidateInput input = Of1B(131072, 700);
  input.n_queries = 9;
  input.n_kv_heads = 3;
  input.rank = 24;
  EXPECT_EQ(PlanCandidates(input).n_groups, 0U);
  input.rank = 64;
  EXPECT_GT(PlanCandidates(input).n_groups, 0U);
  input.n_kv_heads = 9;
  EXPECT_EQ(PlanCandidates(input).n_groups, 0U);
}

// Wide indexes are looked at in part, narrow ones as a whole.
TEST(KvPlanCandidates, ColumnsOfTheFirstStage) {
  CandidateInput input = Of1B(131072, 700);
  for (const auto& [rank, columns] :
       {std::pair{24U, 24U}, {32U, 32U}, {64U, 32U}, {128U, 32U}, {256U, 64U}}) {
    input.rank = rank;
    EXPECT_EQ(PlanCandidates(input).first_columns, columns);
  }
}

// Candidates grow with what is chosen, as long as there are any.
TEST(KvPlanCandidates, MoreChosenMoreCandidates) {
  uint32_t last = 0;
  for (uint32_t n_chosen = 1; n_chosen < 1000; n_chosen += 13) {
    const CandidatePlan plan = PlanCandidates(Of1B(32768, n_chosen));
    if (plan.n_groups == 0) continue;
    EXPECT_GT(plan.n_groups, last);
    last = plan.n_groups;
  }
  EXPECT_GT(last, 0U);
}

}  // namespace
}  // namespace kvrun::testing
