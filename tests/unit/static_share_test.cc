// The static set's share, where prompts say it: PRKV's Eq. 4 and 5, computed by hand.
#include <gtest/gtest.h>

#include <vector>

#include "runtime/kv/planner/kv_plan_statics.h"
#include "tests/support/static_set_fixture.h"

namespace kvrun::testing {
namespace {

using Ids = std::vector<uint32_t>;

// Selections of 16 entries, of 40 before the window; a stream of two heads.
class StaticShareByPrompt : public StaticSetFixture {
 protected:
  void SetUp() override {
    StaticSetFixture::SetUp();
    plan_.of_groups().statics.share = {.share = 0.25, .by_prompt = true};
    plan_.of_groups().statics.n_total = 4;
  }
  // The first row of each head gives most to [0, 16), the last one to as many from `shifted_by` on.
  static GivenAttention Overlapping(uint32_t n_entries, const Ids& shifted_by) {
    GivenAttention attention(static_cast<uint32_t>(shifted_by.size()), n_entries);
    for (uint32_t head = 0; head < shifted_by.size(); ++head) {
      for (uint32_t i = 0; i < 16; ++i) {
        attention.At(attention.first, head, i) = 1.0F;
        attention.At(attention.last, head, i + shifted_by[head]) = 1.0F;
      }
      for (uint32_t i = 0; i < n_entries; ++i) {
        attention.At(attention.all, head, i) = static_cast<float>(n_entries - i);
      }
    }
    return attention;
  }
};

TEST_F(StaticShareByPrompt, IsTheOverlapInWholeGroups) {
  StaticSet set(*device_, plan_, kLayers);
  EXPECT_EQ(set.choice().measured_share(), std::nullopt);
  GivenAttention attention = Overlapping(40, {5, 2});  // 11 and 14 in common
  RunOrDie(set.choice().Choose(0, {0, 0, 46}, attention));
  EXPECT_EQ(set.choice().measured_share(), 12.0 / 16) << "12.5, in groups of 4";
  GivenAttention less = Overlapping(40, {14, 12});  // 2 and 4
  RunOrDie(set.choice().Choose(1, {0, 0, 46}, less));
  EXPECT_EQ(set.choice().measured_share(), 4.0 / 16) << "31 of four heads";
}

TEST_F(StaticShareByPrompt, IsAllOrNothing) {
  StaticSet all(*device_, plan_, kLayers);
  GivenAttention same = Overlapping(40, {0, 0});
  RunOrDie(all.choice().Choose(0, {0, 0, 46}, same));
  EXPECT_EQ(all.choice().measured_share(), 1.0);
  StaticSet none(*device_, plan_, kLayers);
  GivenAttention other = Overlapping(40, {13, 14});
  RunOrDie(none.choice().Choose(0, {0, 0, 46}, other));
  EXPECT_EQ(none.choice().measured_share(), 0.0);
}

// A prompt that is shorter than a selection says nothing: all of its entries are selected.
TEST_F(StaticShareByPrompt, IsOfAllPromptsSoFar) {
  Shape(KvType::kF16, 2, 1, 2);
  StaticSet set(*device_, plan_, kLayers);
  GivenAttention attention = Overlapping(40, {8, 8});  // 8 of 16
  RunOrDie(set.choice().Choose(0, {0, 0, 46}, attention));
  GivenAttention shorter(2, 8);  // 8 of 8
  RunOrDie(set.choice().Choose(0, {1, 0, 14}, shorter));
  EXPECT_EQ(set.choice().measured_share(), 8.0 / 16);
}

TEST_F(StaticShareByPrompt, NothingSaysItWhereNothingIsBeforeTheWindow) {
  StaticSet set(*device_, plan_, kLayers);
  GivenAttention attention = Overlapping(40, {0, 0});
  RunOrDie(set.choice().Choose(0, {0, 0, 9}, attention));
  EXPECT_EQ(set.choice().measured_share(), std::nullopt);
  // Decoding begins with what the plan assumes; a longer prompt says it yet.
  RunOrDie(set.Load(Reader(), {}, nullptr));
  set.Drop();
  RunOrDie(set.choice().Choose(0, {0, 0, 46}, attention));
  EXPECT_EQ(set.choice().measured_share(), 1.0);
}

// As many as the share makes room for are in the set: those that get most of them.
TEST_F(StaticShareByPrompt, TheBestStayWhenItIsKnown) {
  StaticSet set(*device_, plan_, kLayers);
  GivenAttention attention = Overlapping(40, {5, 2});
  for (uint32_t layer = 0; layer < kLayers; ++layer)
    RunOrDie(set.choice().Choose(layer, {0, 0, 46}, attention));
  plan_.of_groups().statics.n_entries = 5;
  NotingIndex index;
  RunOrDie(set.Load(Reader(), {}, &index));
  EXPECT_EQ(Positions(set), (Ids{4, 5, 6, 7, 8}));
  EXPECT_EQ(index.Lacks(1, 0, group_tokens()), (Ids{4, 5, 6, 7, 8}));
  ExpectLoaded(set, 1, 0);
}

TEST_F(StaticShareByPrompt, WithAShareOfNothingAllEntriesOfAGroupCount) {
  StaticSet set(*device_, plan_, kLayers);
  GivenAttention attention = Overlapping(40, {13, 14});
  for (uint32_t layer = 0; layer < kLayers; ++layer)
    RunOrDie(set.choice().Choose(layer, {0, 0, 46}, attention));
  plan_.of_groups().statics.n_entries = 0;
  NotingIndex index;
  RunOrDie(set.Load(Reader(), {}, &index));
  EXPECT_TRUE(Positions(set).empty());
  for (uint32_t group = 0; group < 10; ++group) EXPECT_EQ(set.CountOthers(0, 0, group), 4U);
  EXPECT_TRUE(index.taken_out.empty());
  SlotAttentionArgs args;
  set.AddSources(0, &args);
  EXPECT_EQ(args.n_sources, 0U);
}

// A sequence may be truncated before it has decoded anything.
TEST_F(StaticShareByPrompt, WhatIsTruncatedBeforeItIsKnownIsGone) {
  StaticSet set(*device_, plan_, kLayers);
  GivenAttention attention = Overlapping(40, {5, 2});
  for (uint32_t i = 0; i < 40; ++i) {
    for (const uint32_t head : {0U, 1U})
      attention.At(attention.all, head, i) = static_cast<float>(i * 7 % 40);
  }
  for (uint32_t layer = 0; layer < kLayers; ++layer)
    RunOrDie(set.choice().Choose(layer, {0, 0, 46}, attention));
  NotingIndex index;
  set.Truncate(0, 12);
  RunOrDie(set.TakeBack(0, 18, Reader(), &index));
  set.Truncate(0, 8);
  RunOrDie(set.TakeBack(0, 14, Reader(), &index));
  EXPECT_TRUE(index.calls.empty()) << "nothing was taken out yet";
  plan_.of_groups().statics.n_entries = 16;
  RunOrDie(set.Load(Reader(), {}, &index));
  for (const uint32_t position : Positions(set)) EXPECT_LT(position, 8U);
  EXPECT_EQ(index.Lacks(0, 0, group_tokens()), Positions(set));
}

// The plan that a share makes has as many groups as it says, whatever floats make of their ratio.
TEST(StaticShare, WholeGroupsStayWhole) {
  for (uint32_t n_total = 2; n_total < 200; ++n_total) {
    for (uint32_t n_static = 0; n_static < n_total; ++n_static) {
      KvPlan plan;
      plan.family = GroupsPlan{};
      plan.n_ctx = 100'000;
      plan.record.group_tokens = 4;
      ShareWithStatics(n_total, 4.0 * n_static / (4.0 * n_total), false, plan);
      ASSERT_EQ(plan.of_groups().statics.n_entries, 4 * n_static) << n_total;
      ASSERT_EQ(plan.choice.n_chosen, n_total - n_static);
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
