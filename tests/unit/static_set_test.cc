// The static set: which entries are in it, what its source holds, what is left of groups in slots, what an
// index is told.
#include "runtime/kv/groups/static_set.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "tests/support/static_set_fixture.h"

namespace kvrun::testing {
namespace {

using Ids = std::vector<uint32_t>;

class StaticSetTest : public StaticSetFixture {};

// Groups of 4, a window of 6, 30 entries: the first 24 are before the window, the first 4 pinned.
TEST_F(StaticSetTest, WhatReceivesMostOverAllHeadsOfAStreamIsChosen) {
  StaticSet set(*device_, plan_, kLayers);
  GivenAttention attention(2, 24);
  const auto give = [&](uint32_t position, float first, float second) {
    attention.At(attention.all, 0, position) = first;
    attention.At(attention.all, 1, position) = second;
  };
  give(3, 9.0F, 9.0F);  // pinned
  give(4, 0.1F, 0.8F);
  give(7, 1.0F, 0.0F);
  give(15, 0.7F, 0.4F);
  give(16, 0.95F, 0.0F);
  give(23, 0.0F, 2.0F);
  RunOrDie(set.choice().Choose(0, {0, 0, 30}, attention));
  EXPECT_EQ(Positions(set), (Ids{7, 15, 16, 23}));
  EXPECT_TRUE(Positions(set, 1).empty()) << "of another layer";
  // A later prompt chooses anew, and may say other things.
  give(15, 0.0F, 0.0F);
  RunOrDie(set.choice().Choose(0, {0, 28, 31}, attention));
  EXPECT_EQ(Positions(set), (Ids{4, 7, 16, 23}));
}

TEST_F(StaticSetTest, OfEqualOnesTheNewerIsChosenAndWhatIsNoNumberGetsNothing) {
  StaticSet set(*device_, plan_, kLayers);
  GivenAttention attention(2, 24);
  std::fill(attention.all.begin(), attention.all.end(), 0.5F);
  RunOrDie(set.choice().Choose(0, {0, 0, 30}, attention));
  EXPECT_EQ(Positions(set), (Ids{20, 21, 22, 23}));
  for (const uint32_t position : {20U, 22U}) {
    for (const uint32_t head : {0U, 1U}) {
      attention.At(attention.all, head, position) = std::numeric_limits<float>::quiet_NaN();
    }
  }
  attention.At(attention.all, 0, 21) = std::numeric_limits<float>::infinity();
  attention.At(attention.all, 1, 21) = 1.5F;  // that alone counts
  RunOrDie(set.choice().Choose(0, {0, 0, 30}, attention));
  EXPECT_EQ(Positions(set), (Ids{18, 19, 21, 23}));
}

TEST_F(StaticSetTest, EachStreamHasItsOwn) {
  Shape(KvType::kF16, 1, 2, 2);  // two sequences of two streams
  plan_.of_groups().statics.n_entries = plan_.of_groups().statics.most_entries = 2;
  StaticSet set(*device_, plan_, kLayers);
  GivenAttention attention(2, 24);
  for (const auto& [head, position] : {std::pair{0, 9}, {0, 11}, {1, 4}, {1, 20}}) {
    attention.At(attention.all, head, position) = 1.0F;
  }
  RunOrDie(set.choice().Choose(1, {1, 0, 30}, attention));
  EXPECT_EQ(Positions(set, 1, 2), (Ids{9, 11}));
  EXPECT_EQ(Positions(set, 1, 3), (Ids{4, 20}));
  EXPECT_TRUE(Positions(set, 1, 0).empty());
  EXPECT_TRUE(Positions(set, 1, 1).empty());
}

// Nothing lies before the window but what is pinned; and fewer entries than there is room for.
TEST_F(StaticSetTest, ShortPrompts) {
  StaticSet set(*device_, plan_, kLayers);
  GivenAttention attention(2, 24);
  RunOrDie(set.choice().Choose(0, {0, 0, 30}, attention));
  EXPECT_EQ(Positions(set).size(), 4U);
  for (const uint32_t end : {2U, 6U, 10U, 13U}) {
    RunOrDie(set.choice().Choose(0, {0, 0, end}, attention));
    EXPECT_TRUE(Positions(set).empty()) << end;
  }
  plan_.of_groups().statics.n_entries = plan_.of_groups().statics.most_entries = 7;
  RunOrDie(set.choice().Choose(0, {0, 0, 14}, attention));
  EXPECT_EQ(Positions(set), (Ids{4, 5, 6, 7}));
}

TEST_F(StaticSetTest, EvenlySpacedOnesForBenchmarks) {
  StaticSet set(*device_, plan_, kLayers);
  set.choice().ChooseEvenly(0, 24);
  for (uint32_t layer = 0; layer < kLayers; ++layer) EXPECT_EQ(Positions(set, layer), (Ids{4, 9, 14, 19}));
  set.choice().ChooseEvenly(0, 6);
  EXPECT_EQ(Positions(set), (Ids{4, 5}));
  set.choice().ChooseEvenly(0, 2);
  EXPECT_TRUE(Positions(set).empty());
}

TEST_F(StaticSetTest, TheSourceHoldsItsEntriesAsTheyWereStored) {
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kFp8, KvType::kInt8, KvType::kInt4}) {
    for (const uint32_t heads : {1U, 3U}) {
      SCOPED_TRACE(fmt::format("type {}, {} heads", static_cast<int>(type), heads));
      Shape(type, heads, 2);
      plan_.of_groups().statics.n_entries = plan_.of_groups().statics.most_entries = 20;
      StaticSet set(*device_, plan_, kLayers);
      // More groups than are read at once.
      const Ids chosen = {4, 5, 7, 9, 13, 18, 22, 27, 30, 33, 38, 40, 44, 51, 52, 53, 54, 55, 60, 67};
      Choose(set, chosen, 100);
      NotingIndex index;
      RunOrDie(set.Load(Reader(), {}, &index));
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        for (const uint32_t stream : {0U, 1U}) {
          EXPECT_EQ(Positions(set, layer, stream), chosen);
          ExpectLoaded(set, layer, stream);
          EXPECT_EQ(index.Lacks(layer, stream, group_tokens()), chosen);
        }
      }
      for (const NotingIndex::Call& call : index.calls) EXPECT_TRUE(call.has_record);
    }
  }
}

// What is in a slot: entries that are not in the set, in order, scales too, whatever lies behind them.
TEST_F(StaticSetTest, GroupsInSlotsHoldTheOthersInFront) {
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kFp8, KvType::kInt8, KvType::kInt4}) {
    for (const uint32_t heads : {1U, 3U}) {
      for (const uint32_t group : {4U, 5U}) {
        SCOPED_TRACE(fmt::format("type {}, {} heads, groups of {}", static_cast<int>(type), heads, group));
        Shape(type, heads, 1);
        plan_.record.group_tokens = plan_.slots.record.group_tokens = group;
        plan_.of_groups().statics.n_entries = plan_.of_groups().statics.most_entries = 1000;
        StaticSet set(*device_, plan_, kLayers);
        // A mask of entries for each group.
        for (uint32_t mask = 0; mask < 1U << group; ++mask) {
          Ids chosen;
          for (uint32_t i = 0; i < group; ++i) {
            if ((mask >> i & 1U) != 0) chosen.push_back(2 * group + i);
          }
          plan_.of_groups().statics.n_entries = static_cast<uint32_t>(chosen.size());
          Choose(set, chosen, 60);
          ASSERT_EQ(Positions(set), chosen);
          const std::vector<std::byte> stored = RecordOf(0, 0, 2);
          std::vector<std::byte> slot = stored;
          set.Compact(0, 0, 2, slot);
          uint32_t n = 0;
          for (uint32_t i = 0; i < group; ++i) {
            if ((mask >> i & 1U) != 0) continue;
            EXPECT_EQ(EntryBytes(plan_.slots.record, slot, n), EntryBytes(plan_.record, stored, i));
            ++n;
          }
          EXPECT_EQ(set.CountOthers(0, 0, 2), n);
          EXPECT_EQ(set.EntriesOf(0, 0, 2).size(), group - n);
          EXPECT_EQ(set.CountOthers(0, 0, 1), group) << "of a group before it";
          EXPECT_EQ(set.CountOthers(0, 0, 3), group) << "of a group behind it";
          slot = stored;
          set.Compact(0, 0, 3, slot);
          EXPECT_EQ(slot, stored);
        }
      }
    }
  }
}

TEST_F(StaticSetTest, WhatIsTruncatedIsGoneFromTheSourceAndBackInTheIndex) {
  plan_.of_groups().statics.n_entries = plan_.of_groups().statics.most_entries = 6;
  StaticSet set(*device_, plan_, kLayers);
  Choose(set, Ids{5, 8, 10, 13, 17, 22}, 30);
  NotingIndex index;
  RunOrDie(set.Load(Reader(), {}, &index));
  index.calls.clear();
  read_groups_.clear();
  set.Truncate(0, 12);
  EXPECT_EQ(Positions(set), (Ids{5, 8, 10}));
  ExpectLoaded(set, 0, 0);
  // The sequence ends in group 4, which is not whole: nothing of it can be read.
  RunOrDie(set.TakeBack(0, 18, Reader(), &index));
  EXPECT_EQ(read_groups_, (Ids{3, 3})) << "of each layer";
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(index.Lacks(layer, 0, group_tokens()), (Ids{5, 8, 10}));
  }
  for (const NotingIndex::Call& call : index.calls) EXPECT_EQ(call.has_record, call.group == 3);
  index.calls.clear();
  RunOrDie(set.TakeBack(0, 18, Reader(), &index));
  EXPECT_TRUE(index.calls.empty()) << "it was all back";
}

// The set of a later prompt: what is in it no more is back in the index.
TEST_F(StaticSetTest, AnotherSetTakesTheIndexsEntriesBack) {
  StaticSet set(*device_, plan_, kLayers);
  Choose(set, Ids{5, 6, 13, 20}, 30);
  NotingIndex index;
  RunOrDie(set.Load(Reader(), {}, &index));
  set.Drop();
  Choose(set, Ids{6, 9, 20, 21}, 30);
  RunOrDie(set.Load(Reader(), {}, &index));
  EXPECT_EQ(index.Lacks(0, 0, group_tokens()), (Ids{6, 9, 20, 21}));
  ExpectLoaded(set, 1, 0);
}

// Whatever call fails, in the end the index lacks what is in the set, and nothing else.
TEST_F(StaticSetTest, AfterABadReadTheIndexLacksWhatIsInTheSet) {
  Shape(KvType::kF16, 1, 2);
  plan_.of_groups().statics.n_entries = plan_.of_groups().statics.most_entries = 12;
  const Ids first = {5, 9, 13, 17, 21, 25, 29, 33, 37, 41, 45, 49};
  const Ids second = {6, 10, 14, 18, 22, 26, 61, 62, 63, 64, 65, 66};
  for (uint64_t fails_from = 0; fails_from < 12; ++fails_from) {
    for (const bool chooses_again : {false, true}) {
      SCOPED_TRACE(fmt::format("from read {} on, {}", fails_from, chooses_again));
      StaticSet set(*device_, plan_, kLayers);
      Choose(set, first, 100);
      NotingIndex index;
      fails_from_ = n_reads_ + fails_from;
      const Status status = set.Load(Reader(), {}, &index);
      fails_from_ = UINT64_MAX;
      EXPECT_EQ(status.ok(), fails_from >= 8) << "two for each stream of each layer";
      set.Drop();
      if (chooses_again) Choose(set, second, 100);
      RunOrDie(set.Load(Reader(), {}, &index));
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        for (const uint32_t stream : {0U, 1U}) {
          EXPECT_EQ(index.Lacks(layer, stream, group_tokens()), chooses_again ? second : first);
          ExpectLoaded(set, layer, stream);
        }
      }
    }
  }
}

// What cannot be read when a sequence is truncated is back when it is tried again, or with the next source.
TEST_F(StaticSetTest, AfterABadReadWhatWasTruncatedComesBackLater) {
  plan_.of_groups().statics.n_entries = plan_.of_groups().statics.most_entries = 6;
  for (const bool is_tried_again : {false, true}) {
    StaticSet set(*device_, plan_, kLayers);
    Choose(set, Ids{5, 8, 10, 13, 17, 22}, 30);
    NotingIndex index;
    RunOrDie(set.Load(Reader(), {}, &index));
    set.Truncate(0, 12);
    fails_from_ = 0;
    EXPECT_EQ(set.TakeBack(0, 18, Reader(), &index).code(), StatusCode::kIo);
    fails_from_ = UINT64_MAX;
    read_groups_.clear();
    if (is_tried_again) {
      RunOrDie(set.TakeBack(0, 18, Reader(), &index));
    } else {
      set.Drop();
      RunOrDie(set.Load(Reader(), {}, &index));
    }
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      EXPECT_EQ(index.Lacks(layer, 0, group_tokens()), (Ids{5, 8, 10}));
    }
    EXPECT_EQ(std::count(read_groups_.begin(), read_groups_.end(), 4U), 0) << "it is not whole";
  }
}

}  // namespace
}  // namespace kvrun::testing
