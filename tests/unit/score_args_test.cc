// What of ScoreArgs goes together: what types do not say.
#include <gtest/gtest.h>

#include "runtime/device/index_args.h"

namespace kvrun {
namespace {

ScoreArgs ArgsBy(const ChoiceRule& rule, HeadReduction reduction = HeadReduction::kSoftmax) {
  ScoreArgs args;
  args.attention.kv_shape.n_kv_heads = 2;
  args.attention.kv_shape.head_dim = 16;
  args.index_shape.rank = 24;
  args.reduction = reduction;
  args.n_pinned = 2;
  args.n_chosen = 10;
  args.rule = rule;
  return args;
}

bool IsConsistent(const ChoiceRule& rule, HeadReduction reduction = HeadReduction::kSoftmax) {
  return ArgsBy(rule, reduction).is_consistent();
}

TEST(ScoreArgs, EachReductionButOneLacksSomething) {
  const ChoiceRule in_stages = ChooseByLargest{.stages = ScoreStages{20, 8}};
  const ChoiceRule by_weight = ChooseByWeight{.group_score = GroupScore::kMass, .most_weight = 8};
  for (const HeadReduction reduction :
       {HeadReduction::kSum, HeadReduction::kSoftmax, HeadReduction::kGqa, HeadReduction::kPerKvHead}) {
    EXPECT_TRUE(IsConsistent(ChooseByLargest{.tells_scores = true}, reduction));
    const bool has_masses = reduction != HeadReduction::kSum;
    EXPECT_EQ(IsConsistent(ChooseByMass{.mass_share = 0.5F}, reduction), has_masses);
    EXPECT_EQ(IsConsistent(ChooseAndSample{.n_sampled = 5}, reduction), has_masses);
    EXPECT_EQ(IsConsistent(by_weight, reduction), has_masses);
    EXPECT_EQ(IsConsistent(in_stages, reduction), reduction != HeadReduction::kPerKvHead);
    ScoreArgs affine = ArgsBy(ChooseByLargest{}, reduction);
    affine.query_form = QueryForm::kAffine;
    EXPECT_EQ(affine.is_consistent(), reduction != HeadReduction::kGqa);
  }
}

TEST(ScoreArgs, NumbersOfARuleAreInBounds) {
  EXPECT_TRUE(IsConsistent(ChooseByMass{.stages = ScoreStages{10, 24}}));
  EXPECT_FALSE(IsConsistent(ChooseByMass{.stages = ScoreStages{9, 24}})) << "fewer than are chosen";
  EXPECT_FALSE(IsConsistent(ChooseByMass{.stages = ScoreStages{10, 25}})) << "more columns than there are";
  EXPECT_FALSE(IsConsistent(ChooseByMass{.stages = ScoreStages{10, 0}}));
  EXPECT_TRUE(IsConsistent(ChooseByWeight{.most_weight = 8}));
  EXPECT_FALSE(IsConsistent(ChooseByWeight{.most_weight = 9}))
      << "more than may be chosen, of those not pinned";
  EXPECT_FALSE(IsConsistent(ChooseAndSample{.n_sampled = 0}));
  ScoreArgs args = ArgsBy(ChooseByLargest{});
  args.query_form = QueryForm::kSigned;
  EXPECT_FALSE(args.is_consistent()) << "two columns of the index for each of a key";
  args.index_shape.rank = 64;
  EXPECT_TRUE(args.is_consistent());
  args.n_pinned = 11;
  EXPECT_FALSE(args.is_consistent());
}

TEST(ScoreArgs, AListHasWhatTheRuleSays) {
  EXPECT_EQ(ArgsBy(ChooseByLargest{}).choice_list().words(), 11U);
  EXPECT_EQ(ArgsBy(ChooseByWeight{.most_weight = 8}).choice_list().words(), 11U);
  EXPECT_EQ(ArgsBy(ChooseByMass{.tells_scores = true}).choice_list().words(), 21U);
  EXPECT_EQ(ArgsBy(ChooseAndSample{.n_sampled = 5}).choice_list().words(), 11U + 1 + 2 * 6);
}

}  // namespace
}  // namespace kvrun
