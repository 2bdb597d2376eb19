// Pages that are laid anew without a static set: what they hold, what their numbers mean in the index and in
// the store, and what is left of them after a bad read or write.
#include "runtime/kv/groups/static_pages.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "tests/support/static_set_fixture.h"

namespace kvrun::testing {
namespace {

using Ids = std::vector<uint32_t>;

// Holds what it is given; can fail.
class StoreInMemory final : public RecordStore {
 public:
  Status Fetch(uint32_t layer, std::span<const GroupFetch> fetches) override {
    for (const GroupFetch& fetch : fetches) {
      const auto found = records.find({layer, fetch.stream, fetch.group});
      if (found == records.end()) return {StatusCode::kIo, "it is not there"};
      std::copy(found->second.begin(), found->second.end(), fetch.memory);
    }
    return Status::Ok();
  }
  Status Append(uint32_t layer, uint32_t stream, uint32_t first_group,
                std::span<const std::byte> all) override {
    if (n_appends++ >= fails_from) return {StatusCode::kIo, "the disk is full"};
    for (size_t i = 0; i * record_bytes < all.size(); ++i) {
      const auto record = all.subspan(i * record_bytes, record_bytes);
      records[{layer, stream, first_group + static_cast<uint32_t>(i)}] = {record.begin(), record.end()};
    }
    return Status::Ok();
  }
  Status Flush() override {
    if (!fails_late) return Status::Ok();
    fails_late = false;
    records.clear();
    return {StatusCode::kIo, "the disk is full"};
  }
  Status Truncate(uint32_t, uint32_t) override { return Status::Ok(); }

  size_t record_bytes = 0;
  uint64_t n_appends = 0;
  uint64_t fails_from = UINT64_MAX;
  bool fails_late = false;  // nothing of what was written is there
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, std::vector<std::byte>> records;
};

// Which entries of which record make each row.
class RowsOfRecords final : public KvIndex {
 public:
  explicit RowsOfRecords(const KvPlan& plan) : plan_(plan) {}
  void FillScore(uint32_t, ScoreArgs*) const override {}
  bool takes_records() const override { return true; }
  Status VisitState(StateVisitor&, std::span<const uint32_t>) override { return Status::Ok(); }
  Status NoteStored(uint32_t layer, uint32_t stream, uint32_t first_group,
                    std::span<const std::byte> all) override {
    const size_t bytes = plan_.record.size_bytes();
    for (size_t i = 0; i * bytes < all.size(); ++i) {
      RunOrDie(
          TakeOut(layer, stream, first_group + static_cast<uint32_t>(i), all.subspan(i * bytes, bytes), {}));
    }
    return Status::Ok();
  }
  Status TakeOut(uint32_t layer, uint32_t stream, uint32_t group, std::span<const std::byte> record,
                 std::span<const uint32_t> entries) override {
    if (record.empty()) return Status::Ok();  // it is not whole
    std::vector<std::vector<std::byte>>& row = rows[{layer, stream, group}];
    row.clear();
    for (uint32_t i = 0; i < plan_.record.group_tokens; ++i) {
      if (std::binary_search(entries.begin(), entries.end(), i)) continue;
      row.push_back(EntryBytes(plan_.record, record, i));
    }
    return Status::Ok();
  }

  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, std::vector<std::vector<std::byte>>> rows;

 private:
  const KvPlan& plan_;
};

class StaticPagesTest : public StaticSetFixture {
 protected:
  static constexpr uint32_t kStream = 1;

  void SetUp() override {
    StaticSetFixture::SetUp();
    Shape(KvType::kInt8, 2, 2);
    store_.record_bytes = plan_.record.size_bytes();
  }

  // Positions from the first that is not pinned to the end of groups, without `taken`.
  Ids Others(uint32_t end_group, const Ids& taken) const {
    Ids others;
    for (uint32_t position = plan_.choice.n_pinned * group_tokens(); position < end_group * group_tokens();
         ++position) {
      if (!std::binary_search(taken.begin(), taken.end(), position)) others.push_back(position);
    }
    return others;
  }

  // Of layer 1: the numbers say where each entry is, and rows and records hold what they say.
  void ExpectLaid(StaticPages& pages, const RowsOfRecords& index, uint32_t end_group, const Ids& taken) {
    Ids found;
    bool was_filled_in_part = false;
    for (uint32_t number = plan_.choice.n_pinned; number < end_group; ++number) {
      ASSERT_TRUE(pages.Has(1, kStream, number));
      const size_t before = found.size();
      pages.AddPositions(1, kStream, number, &found);
      const auto n = static_cast<uint32_t>(found.size() - before);
      ASSERT_EQ(pages.CountEntries(1, kStream, number), n);
      EXPECT_TRUE(!was_filled_in_part || n == 0) << "only the last is filled in part";
      was_filled_in_part |= n < group_tokens();
      const auto row = index.rows.at({1, kStream, number});
      ASSERT_EQ(row.size(), n);
      if (n == 0) continue;
      const auto& record = store_.records.at({1, kStream, plan_.n_groups() + number});
      for (uint32_t i = 0; i < n; ++i) {
        const uint32_t position = found[before + i];
        const auto entry = EntryBytes(plan_.record, RecordOf(1, kStream, position / group_tokens()),
                                      position % group_tokens());
        EXPECT_EQ(EntryBytes(plan_.record, record, i), entry);
        EXPECT_EQ(row[i], entry);
      }
    }
    EXPECT_EQ(found, Others(end_group, taken));
    EXPECT_FALSE(pages.Has(1, kStream, end_group));
    EXPECT_FALSE(pages.Has(1, kStream, 0)) << "it is pinned";
  }

  StoreInMemory store_;
};

TEST_F(StaticPagesTest, HoldWhatIsNotInTheSetInOrder) {
  std::mt19937 random(5);
  for (const uint32_t end_group : {2U, 3U, 9U, 10U, 17U, 32U}) {
    for (const double share : {0.0, 0.05, 0.3, 0.7, 1.0}) {
      for (const uint32_t group : {1U, 3U, 4U}) {
        plan_.record.group_tokens = plan_.slots.record.group_tokens = group;
        store_.record_bytes = plan_.record.size_bytes();
        SCOPED_TRACE(fmt::format("{} groups of {}, {} of them taken", end_group, group, share));
        RowsOfRecords index(plan_);
        StaticPages pages(plan_, kLayers, store_, index);
        Ids taken;
        for (uint32_t position = group; position < end_group * group; ++position) {
          if (share == 1.0 || std::uniform_real_distribution(0.0, 1.0)(random) < share)
            taken.push_back(position);
        }
        RunOrDie(pages.Lay(1, kStream, end_group, taken, Reader()));
        ExpectLaid(pages, index, end_group, taken);
        EXPECT_FALSE(pages.Has(0, kStream, 1)) << "another layer";
        EXPECT_FALSE(pages.Has(1, 0, 1)) << "another stream";
        EXPECT_EQ(pages.GroupsOfRows(1, kStream, UINT32_MAX).size(), end_group - 1);
      }
    }
  }
}

TEST_F(StaticPagesTest, AreWrittenOnlyWhereTheSetIsAnother) {
  RowsOfRecords index(plan_);
  StaticPages pages(plan_, kLayers, store_, index);
  RunOrDie(pages.Lay(1, kStream, 10, Ids{5, 9, 20}, Reader()));
  const uint64_t n_appends = store_.n_appends;
  RunOrDie(pages.Lay(1, kStream, 10, Ids{5, 9, 20}, Reader()));
  RunOrDie(pages.Lay(1, kStream, 14, Ids{5, 9, 20}, Reader()));
  EXPECT_EQ(store_.n_appends, n_appends) << "groups that were stored since stay as they are";
  EXPECT_FALSE(pages.Has(1, kStream, 10));
  RunOrDie(pages.Lay(1, kStream, 14, Ids{5, 9, 21}, Reader()));
  EXPECT_GT(store_.n_appends, n_appends);
  ExpectLaid(pages, index, 14, {5, 9, 21});
  pages.Drop(kStream);
  EXPECT_FALSE(pages.Has(1, kStream, 3));
  EXPECT_EQ(pages.GroupsOfRows(1, kStream, 18), (Ids{1, 2, 3})) << "rows are still the pages'";
  pages.NoteRows(1, kStream);
  EXPECT_FALSE(pages.has_rows(1, kStream));
  RunOrDie(pages.Lay(1, kStream, 14, Ids{5, 9, 21}, Reader()));
  ExpectLaid(pages, index, 14, {5, 9, 21});
}

// Whatever fails, there are no pages then, and what is laid the next time is right.
TEST_F(StaticPagesTest, AfterABadReadOrWriteThereAreNone) {
  const Ids first = {5, 9, 20, 40};
  const Ids second = {6, 7, 41, 60};
  for (const bool is_read : {true, false}) {
    bool has_succeeded = false;
    for (uint64_t fails_from = 0; !has_succeeded; ++fails_from) {
      SCOPED_TRACE(fmt::format("{} from {} on", is_read ? "read" : "write", fails_from));
      RowsOfRecords index(plan_);
      StaticPages pages(plan_, kLayers, store_, index);
      RunOrDie(pages.Lay(1, kStream, 20, first, Reader()));
      (is_read ? fails_from_ : store_.fails_from) = (is_read ? n_reads_ : store_.n_appends) + fails_from;
      const Status status = pages.Lay(1, kStream, 20, second, Reader());
      fails_from_ = store_.fails_from = UINT64_MAX;
      has_succeeded = status.ok();
      EXPECT_EQ(pages.Has(1, kStream, 1), has_succeeded);
      EXPECT_TRUE(pages.has_rows(1, kStream));
      RunOrDie(pages.Lay(1, kStream, 20, second, Reader()));
      ExpectLaid(pages, index, 20, second);
      EXPECT_LT(fails_from, 10U);
    }
  }
}

// Groups first, then pages by ascending place; numbers without entries are not read.
TEST_F(StaticPagesTest, ReadsAreOfPagesBehindTheGroups) {
  RowsOfRecords index(plan_);
  StaticPages pages(plan_, kLayers, store_, index);
  RunOrDie(pages.Lay(1, kStream, 5, Ids{4, 5, 6, 7, 8}, Reader()));  // 11 entries: pages 1, 2, 3
  std::byte slots[8];
  const std::vector<GroupFetch> fetches = {
      {0, 1, &slots[0]},       {0, 7, &slots[1]},       {kStream, 0, &slots[2]}, {kStream, 1, &slots[3]},
      {kStream, 3, &slots[4]}, {kStream, 4, &slots[5]}, {kStream, 5, &slots[6]}, {kStream, 9, &slots[7]}};
  const auto expect = [&](uint32_t layer, const std::vector<std::pair<uint32_t, size_t>>& expected) {
    const std::span<const GroupFetch> reads = pages.Reads(layer, fetches);
    ASSERT_EQ(reads.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(reads[i].group, expected[i].first);
      EXPECT_EQ(reads[i].memory, &slots[expected[i].second]);
    }
  };
  const uint32_t n = plan_.n_groups();
  expect(1, {{1, 0}, {7, 1}, {0, 2}, {5, 6}, {9, 7}, {n + 1, 3}, {n + 3, 4}});
  expect(0, {{1, 0}, {7, 1}, {0, 2}, {1, 3}, {3, 4}, {4, 5}, {5, 6}, {9, 7}});
}

// An error of a write that comes after all was laid: it is laid again.
TEST_F(StaticPagesTest, AWriteMayFailLate) {
  plan_.of_groups().statics.n_entries = plan_.of_groups().statics.most_entries = 6;
  RowsOfRecords index(plan_);
  StaticPages pages(plan_, kLayers, store_, index);
  StaticSet set(*device_, plan_, kLayers, &pages);
  const Ids chosen = {5, 8, 10, 13, 17, 22};
  Choose(set, chosen, 38);
  store_.fails_late = true;
  EXPECT_EQ(set.Load(Reader(), Ids{8}, &index).code(), StatusCode::kIo);
  EXPECT_FALSE(pages.Has(1, kStream, 1));
  set.Drop();
  RunOrDie(set.Load(Reader(), Ids{8}, &index));
  ExpectLaid(pages, index, 8, chosen);
}

// The set and its pages: what slots hold is in front, and what is truncated is back in all rows.
TEST_F(StaticPagesTest, ASetLaysThemAndTakesThemBack) {
  plan_.of_groups().statics.n_entries = plan_.of_groups().statics.most_entries = 6;
  RowsOfRecords index(plan_);
  StaticPages pages(plan_, kLayers, store_, index);
  StaticSet set(*device_, plan_, kLayers, &pages);
  const Ids chosen = {5, 8, 10, 13, 17, 22};
  Choose(set, chosen, 38);
  RunOrDie(set.Load(Reader(), Ids{8}, &index));
  ExpectLaid(pages, index, 8, chosen);
  ExpectLoaded(set, 1, kStream);
  EXPECT_EQ(set.CountOthers(1, kStream, 1), 4U);
  EXPECT_EQ(set.CountOthers(1, kStream, 6), 2U);  // 28 - 6 others
  EXPECT_EQ(set.CountOthers(1, kStream, 7), 0U);
  EXPECT_EQ(set.CountOthers(1, kStream, 8), 4U);
  std::vector<std::byte> slot = RecordOf(1, kStream, 3);
  set.Compact(1, kStream, 1, slot);
  EXPECT_EQ(slot, RecordOf(1, kStream, 3)) << "it is a page";
  set.Truncate(0, 12);
  EXPECT_FALSE(pages.Has(1, kStream, 1));
  read_groups_.clear();
  RunOrDie(set.TakeBack(0, 18, Reader(), &index));
  EXPECT_EQ(read_groups_, (Ids{1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3})) << "all whole groups, of each list";
  for (uint32_t group = 1; group < 4; ++group) {
    const size_t n_taken = group == 1 ? 1 : group == 2 ? 2 : 0;
    EXPECT_EQ(index.rows.at({1, kStream, group}).size(), 4 - n_taken);
  }
  read_groups_.clear();
  RunOrDie(set.TakeBack(0, 18, Reader(), &index));
  EXPECT_TRUE(read_groups_.empty());
}

}  // namespace
}  // namespace kvrun::testing
