// Requests in flight have no order: the store over a file that carries out the newest first, and none before
// it has to.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "platform/base/units.h"
#include "runtime/store/group_store.h"
#include "tests/storage/newest_first_file.h"
#include "tests/storage/store_fixture.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kRecordBytes = 1000;
constexpr uint32_t kGroups = 40;
constexpr uint32_t kQueueDepth = 6;

class GroupStoreOrder : public ::testing::Test {
 protected:
  void Make(uint64_t staging_bytes) {
    auto file = std::make_unique<NewestFirstFile>(
        fixture_.MakeFile(IoBackend::kThreads, DirectIo::kOff, kQueueDepth));
    file_ = file.get();
    store_ = GroupStore::Create(std::move(file), {1, 1, kGroups, kRecordBytes}, staging_bytes).value();
  }

  Status Append(uint32_t first, uint32_t n, uint64_t version) {
    return store_->Append(0, 0, first, MakeRecords(kRecordBytes, 0, 0, first, n, version));
  }

  Status Fetch(const std::vector<uint32_t>& groups) {
    std::vector<GroupFetch> fetches;
    for (size_t i = 0; i < groups.size(); ++i)
      fetches.push_back({0, groups[i], memory_.data() + i * 2 * kRecordBytes});
    return store_->Fetch(0, fetches);
  }

  bool Holds(size_t i, uint32_t group, uint64_t version) {
    return IsRecord(memory_.data() + i * 2 * kRecordBytes, kRecordBytes, 0, 0, group, version);
  }

  StoreFixture fixture_;
  NewestFirstFile* file_ = nullptr;
  std::unique_ptr<GroupStore> store_;
  AlignedMemory memory_{2 * kGroups * kRecordBytes};
};

TEST_F(GroupStoreOrder, TheLastWriteToAPlaceCounts) {
  Make(64 * kKiB);
  for (uint64_t version = 1; version <= 4; ++version) {
    ASSERT_TRUE(Append(0, 3, version).ok());
    ASSERT_TRUE(Append(2, 3, version).ok());  // shares one group
  }
  ASSERT_TRUE(Fetch({0, 1, 2, 3, 4}).ok());
  for (uint32_t group = 0; group < 5; ++group) EXPECT_TRUE(Holds(group, group, 4)) << group;
}

TEST_F(GroupStoreOrder, AReadComesAfterTheWriteOfItsRecord) {
  Make(64 * kKiB);
  ASSERT_TRUE(Append(0, 1, 1).ok());
  ASSERT_TRUE(Append(10, 2, 1).ok());
  ASSERT_TRUE(Append(20, 1, 1).ok());
  ASSERT_TRUE(Fetch({11}).ok());
  EXPECT_TRUE(Holds(0, 11, 1));
  ASSERT_TRUE(Fetch({0, 10, 20}).ok());
  EXPECT_TRUE(Holds(0, 0, 1) && Holds(1, 10, 1) && Holds(2, 20, 1));
}

TEST_F(GroupStoreOrder, TheQueueIsFilledAndNotOverfilled) {
  Make(64 * kKiB);
  for (uint32_t group = 0; group < kGroups; ++group) ASSERT_TRUE(Append(group, 1, 1).ok());
  EXPECT_EQ(file_->most_held(), kQueueDepth);
  ASSERT_TRUE(store_->Flush().ok());
  std::vector<uint32_t> every_second;
  for (uint32_t group = 0; group < kGroups; group += 2) every_second.push_back(group);
  ASSERT_TRUE(Fetch(every_second).ok());
  for (size_t i = 0; i < every_second.size(); ++i) EXPECT_TRUE(Holds(i, every_second[i], 1)) << i;
  EXPECT_EQ(file_->most_held(), kQueueDepth);
}

// With room for two records, whatever is released first.
TEST_F(GroupStoreOrder, LittleStagingIsSharedByWritesInAnyOrder) {
  Make(2 * kRecordBytes);
  for (uint32_t group = 0; group < kGroups; ++group) ASSERT_TRUE(Append(group, 1, 1).ok());
  ASSERT_TRUE(Append(5, 30, 2).ok());
  ASSERT_TRUE(Fetch({0, 4, 5, 6, 34, 35}).ok());
  EXPECT_TRUE(Holds(0, 0, 1) && Holds(1, 4, 1) && Holds(2, 5, 2) && Holds(3, 6, 2) && Holds(4, 34, 2) &&
              Holds(5, 35, 1));
}

}  // namespace
}  // namespace kvrun::testing
