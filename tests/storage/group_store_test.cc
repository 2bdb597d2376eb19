#include "runtime/store/group_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "platform/base/units.h"
#include "platform/io/faulty_block_file.h"
#include "platform/io/rate_limited_block_file.h"
#include "tests/storage/allocation_counter.h"
#include "tests/storage/store_fixture.h"

namespace kvrun::testing {
namespace {

struct Case {
  const char* name;
  IoBackend backend;
  DirectIo direct;
  uint32_t record_bytes;
};

class GroupStoreTest : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr uint32_t kLayers = 3;
  static constexpr uint32_t kStreams = 2;
  static constexpr uint32_t kGroups = 90;

  void SetUp() override { Make(256 * kKiB, 8); }

  void Make(uint64_t staging_bytes, uint32_t queue_depth) {
    store_.reset();
    auto file = fixture_.MakeFile(GetParam().backend, GetParam().direct, queue_depth);
    if (file == nullptr) GTEST_SKIP() << fixture_.reason;
    shape_ = {kLayers, kStreams, kGroups, GetParam().record_bytes};
    auto made = GroupStore::Create(std::move(file), shape_, staging_bytes);
    ASSERT_TRUE(made.ok()) << made.status().message();
    store_ = std::move(made).value();
  }

  Status Append(uint32_t layer, uint32_t stream, uint32_t first, uint32_t n, uint64_t version = 0) {
    return store_->Append(layer, stream, first,
                          MakeRecords(shape_.record_bytes, layer, stream, first, n, version));
  }

  // Fetches into memory that lies `gap_bytes` apart, and compares.
  void ExpectRecords(uint32_t layer, uint32_t stream, const std::vector<uint32_t>& groups,
                     size_t gap_bytes = 0, uint64_t version = 0) {
    const size_t step = shape_.record_bytes + gap_bytes;
    const AlignedMemory memory(groups.size() * step + 1);
    std::vector<GroupFetch> fetches;
    for (size_t i = 0; i < groups.size(); ++i)
      fetches.push_back({stream, groups[i], memory.data() + i * step});
    const Status status = store_->Fetch(layer, fetches);
    ASSERT_TRUE(status.ok()) << status.message();
    for (size_t i = 0; i < groups.size(); ++i) {
      EXPECT_TRUE(IsRecord(fetches[i].memory, shape_.record_bytes, layer, stream, groups[i], version))
          << "layer " << layer << ", stream " << stream << ", group " << groups[i];
      const std::byte* const gap = fetches[i].memory + shape_.record_bytes;
      EXPECT_TRUE(std::all_of(gap, gap + gap_bytes, [](std::byte x) { return x == std::byte{0xcd}; }))
          << groups[i];
    }
  }

  std::vector<uint32_t> AllGroups() const {
    std::vector<uint32_t> groups(kGroups);
    std::iota(groups.begin(), groups.end(), 0);
    return groups;
  }

  StoreFixture fixture_;
  GroupStoreShape shape_;
  std::unique_ptr<GroupStore> store_;
};

TEST_P(GroupStoreTest, GivesBackWhatItGot) {
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    for (uint32_t stream = 0; stream < kStreams; ++stream)
      ASSERT_TRUE(Append(layer, stream, 0, kGroups).ok());
  }
  ASSERT_TRUE(store_->Flush().ok());
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    for (uint32_t stream = 0; stream < kStreams; ++stream) {
      ExpectRecords(layer, stream, AllGroups());
      ExpectRecords(layer, stream, {0, 1, 2, 7, 9, 10, 89}, 64 * 1024);  // aligned, with gaps
      ExpectRecords(layer, stream, AllGroups(), 64 * 1024);              // more pieces than a request has
      ExpectRecords(layer, stream, {3, 4, 88, 89}, 1);                   // not aligned
      ExpectRecords(layer, stream, {7, 7, 6, 5, 30});                    // not in order: right, if not merged
      ExpectRecords(layer, stream, {});
    }
  }
}

// Groups of two streams are never one read, not even where their numbers follow each other.
TEST_P(GroupStoreTest, OneFetchReadsSeveralStreams) {
  for (uint32_t stream = 0; stream < kStreams; ++stream) ASSERT_TRUE(Append(1, stream, 0, kGroups).ok());
  const std::pair<uint32_t, uint32_t> places[] = {{0, 0}, {0, 3}, {0, kGroups - 1}, {1, 0}, {1, 1},
                                                  {0, 3}, {1, 4}};
  for (const size_t gap_bytes : {size_t{0}, size_t{1}, size_t{64 * 1024}}) {
    const size_t step = shape_.record_bytes + gap_bytes;
    const AlignedMemory memory(std::size(places) * step + 1);
    std::vector<GroupFetch> fetches;
    for (const auto& [stream, group] : places)
      fetches.push_back({stream, group, memory.data() + fetches.size() * step});
    const Status status = store_->Fetch(1, fetches);
    ASSERT_TRUE(status.ok()) << status.message();
    for (const GroupFetch& fetch : fetches) {
      EXPECT_TRUE(IsRecord(fetch.memory, shape_.record_bytes, 1, fetch.stream, fetch.group, 0))
          << "stream " << fetch.stream << ", group " << fetch.group;
    }
  }
  ASSERT_TRUE(store_->Truncate(1, 1).ok());
  std::vector<std::byte> memory(2 * size_t{shape_.record_bytes});
  const GroupFetch lost[] = {{0, 5, memory.data()}, {1, 1, memory.data() + shape_.record_bytes}};
  const Status status = store_->Fetch(1, lost);
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_NE(status.message().find("stream 1, group 1 "), std::string::npos) << status.message();
}

// As in decoding: one group at a time, read right after it was written, while that may still go on.
TEST_P(GroupStoreTest, AFetchWaitsForTheWriteOfItsRecords) {
  for (uint32_t group = 0; group < kGroups; ++group) {
    for (uint32_t layer = 0; layer < kLayers; ++layer) ASSERT_TRUE(Append(layer, 1, group, 1).ok());
    ExpectRecords(0, 1, {group});
    ExpectRecords(2, 1, group > 0 ? std::vector<uint32_t>{group - 1, group} : std::vector<uint32_t>{0});
  }
}

TEST_P(GroupStoreTest, ATruncatedRecordIsReplaced) {
  ASSERT_TRUE(Append(0, 0, 0, 20).ok());
  ASSERT_TRUE(Append(1, 0, 0, 20).ok());
  ASSERT_TRUE(Append(1, 1, 0, 20).ok());
  ASSERT_TRUE(store_->Truncate(0, 10).ok());
  std::vector<std::byte> memory(shape_.record_bytes);
  for (const uint32_t layer : {0U, 1U}) {
    const GroupFetch fetch{0, 10, memory.data()};
    const Status status = store_->Fetch(layer, {&fetch, 1});
    EXPECT_EQ(status.code(), StatusCode::kIo);
    EXPECT_NE(status.message().find("stream 0, group 10 "), std::string::npos) << status.message();
    ExpectRecords(layer, 0, {8, 9});
  }
  ExpectRecords(1, 1, {10, 19});  // another stream
  ASSERT_TRUE(Append(0, 0, 10, 5, 1).ok());
  ExpectRecords(0, 0, {10, 11, 12, 13, 14}, 0, 1);
  ExpectRecords(0, 0, {9});
  EXPECT_TRUE(store_->Truncate(0, kGroups + 5).ok());
  EXPECT_TRUE(store_->Truncate(1, 0).ok());
  EXPECT_FALSE(store_->Truncate(kStreams, 0).ok());
}

// Again and again at one place, without waiting: the last one counts.
TEST_P(GroupStoreTest, WritesToOnePlaceKeepTheirOrder) {
  for (uint64_t version = 0; version < 20; ++version) ASSERT_TRUE(Append(2, 0, 4, 3, version).ok());
  ExpectRecords(2, 0, {4, 5, 6}, 0, 19);
}

TEST_P(GroupStoreTest, RefusesWhatItDoesNotHave) {
  std::vector<std::byte> memory(shape_.record_bytes);
  const auto fetch = [&](uint32_t layer, uint32_t stream, uint32_t group) {
    const GroupFetch one{stream, group, memory.data()};
    return store_->Fetch(layer, {&one, 1}).code();
  };
  EXPECT_EQ(fetch(0, 0, 0), StatusCode::kIo);  // not written
  EXPECT_EQ(fetch(kLayers, 0, 0), StatusCode::kInvalidArgument);
  EXPECT_EQ(fetch(0, kStreams, 0), StatusCode::kInvalidArgument);
  EXPECT_EQ(fetch(0, 0, kGroups), StatusCode::kInvalidArgument);
  EXPECT_EQ(fetch(0, 0, UINT32_MAX), StatusCode::kInvalidArgument);
  const GroupFetch wide[] = {{0, 0, memory.data()}, {0, UINT32_MAX, memory.data()}};
  EXPECT_EQ(store_->Fetch(0, wide).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Append(0, 0, kGroups, 1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Append(0, 0, kGroups - 1, 2).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Append(kLayers, 0, 0, 1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Append(0, kStreams, 0, 1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(store_->Append(0, 0, 0, std::span(memory).first(memory.size() - 1)).code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(store_->Append(0, 0, 0, {}).ok());
  EXPECT_TRUE(Append(0, 0, kGroups - 1, 1).ok());
}

TEST_P(GroupStoreTest, SmallStagingAndShortQueuesAreOnlySlower) {
  const uint64_t stride = RoundUp<uint64_t>(shape_.record_bytes, store_->mode().alignment_bytes);
  for (const uint64_t staging_bytes : {stride, 2 * stride + 1, 3 * stride}) {
    for (const uint32_t queue_depth : {1U, 2U, 5U}) {
      Make(staging_bytes, queue_depth);
      ASSERT_TRUE(Append(1, 1, 0, kGroups).ok());
      ExpectRecords(1, 1, AllGroups());
      ExpectRecords(1, 1, {0, 2, 4, 5, 6, 20, 89}, 1);
    }
  }
}

TEST_P(GroupStoreTest, StagingOfLessThanARecordIsRefused) {
  const uint64_t stride = RoundUp<uint64_t>(shape_.record_bytes, store_->mode().alignment_bytes);
  const auto refused =
      GroupStore::Create(fixture_.MakeFile(GetParam().backend, GetParam().direct), shape_, stride - 1);
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("staging"), std::string::npos) << refused.status().message();
}

TEST_P(GroupStoreTest, AdjacentRecordsAreOneRead) {
  ASSERT_TRUE(Append(0, 0, 0, kGroups).ok());
  ASSERT_TRUE(store_->Flush().ok());
  const uint64_t stride = RoundUp<uint64_t>(shape_.record_bytes, store_->mode().alignment_bytes);
  const GroupStoreStats before = store_->stats();
  ExpectRecords(0, 0, {1, 2, 3, 10, 20, 21});
  const GroupStoreStats after = store_->stats();
  EXPECT_EQ(after.reads - before.reads, 3U);
  EXPECT_EQ(after.read_bytes - before.read_bytes, 6 * stride);
  EXPECT_EQ(after.records_read - before.records_read, 6U);
  EXPECT_EQ(after.records_read_again, 0U);
  EXPECT_GT(after.read_wait_ms, before.read_wait_ms);
}

TEST_P(GroupStoreTest, LongSpansAreWrittenInLongRuns) {
  Make(kMiB, 8);
  const uint64_t stride = RoundUp<uint64_t>(shape_.record_bytes, store_->mode().alignment_bytes);
  ASSERT_TRUE(Append(0, 0, 0, kGroups).ok());
  ASSERT_TRUE(store_->Flush().ok());
  const GroupStoreStats stats = store_->stats();
  EXPECT_EQ(stats.written_bytes, kGroups * stride);
  EXPECT_LE(stats.writes, std::max<uint64_t>(1, stats.written_bytes / (256 * kKiB)));
}

TEST_P(GroupStoreTest, FetchAndAppendAllocateNothing) {
  ASSERT_TRUE(Append(0, 0, 0, kGroups).ok());
  const AlignedMemory memory(kGroups * (shape_.record_bytes + size_t{1}));
  std::vector<GroupFetch> packed;
  std::vector<GroupFetch> scattered;
  for (uint32_t g = 0; g < kGroups; ++g)
    packed.push_back({0, g, memory.data() + size_t{g} * shape_.record_bytes});
  for (uint32_t g = 0; g < kGroups; g += 2) {
    scattered.push_back({0, g, memory.data() + size_t{g} * (shape_.record_bytes + 1)});
  }
  const std::vector<std::byte> records = MakeRecords(shape_.record_bytes, 0, 1, 0, kGroups);
  const HeapUse before = CurrentHeapUse();
  bool good = true;
  for (int round = 0; round < 5; ++round) {
    good &= store_->Append(0, 1, 0, records).ok();
    for (std::vector<GroupFetch>* fetches : {&packed, &scattered}) good &= store_->Fetch(0, *fetches).ok();
    for (GroupFetch& fetch : packed) fetch.stream = 1 - fetch.stream;
    good &= store_->Flush().ok() && store_->Truncate(1, 3).ok();
  }
  EXPECT_EQ(CurrentHeapUse().n_allocations, before.n_allocations);
  EXPECT_TRUE(good);
}

TEST_P(GroupStoreTest, HoldsWhatItSays) {
  for (const uint64_t staging_bytes : {100 * kKiB + 17, 2 * kMiB}) {
    auto file = fixture_.MakeFile(GetParam().backend, GetParam().direct, 5);
    const IoMode mode = file->mode();
    EXPECT_EQ(GroupStore::FileBytes(shape_, mode),
              kLayers * kStreams * kGroups * RoundUp<uint64_t>(shape_.record_bytes, mode.alignment_bytes));
    BlockFile& held_file = *file;
    const HeapUse before = CurrentHeapUse();
    auto store = GroupStore::Create(std::move(file), shape_, staging_bytes);
    const HeapUse after = CurrentHeapUse();
    ASSERT_TRUE(store.ok());
    // Registering memory may leave a list of one region, or a note, in the file.
    const uint64_t held_bytes = after.live_bytes - before.live_bytes + BlockFileMemoryBytes(mode);
    const uint64_t said_bytes = GroupStore::MemoryBytes(shape_, staging_bytes, mode);
    EXPECT_GE(held_bytes, said_bytes);
    EXPECT_LE(held_bytes, said_bytes + 256);
    // The file's space is there: its last byte is read, and nothing lies behind it.
    const AlignedMemory memory(64 * kKiB);
    const uint64_t file_bytes = GroupStore::FileBytes(shape_, mode);
    const auto last = memory.span().first(mode.alignment_bytes);
    EXPECT_EQ(DoOne(held_file, IoKind::kRead, file_bytes - last.size(), last), 0);
    EXPECT_NE(DoOne(held_file, IoKind::kRead, file_bytes, last), 0);
  }
}

// Memory that was not written is 0xcd here (allocation_counter_test.cc): none of it reaches the file.
TEST_P(GroupStoreTest, PaddingIsZeros) {
  auto file = fixture_.MakeFile(GetParam().backend, GetParam().direct);
  BlockFile& held_file = *file;
  store_ = GroupStore::Create(std::move(file), shape_, kMiB).value();
  ASSERT_TRUE(Append(0, 0, 0, 3).ok());
  ASSERT_TRUE(store_->Flush().ok());
  const uint64_t stride = RoundUp<uint64_t>(shape_.record_bytes, held_file.mode().alignment_bytes);
  const AlignedMemory memory(3 * stride);
  ASSERT_EQ(DoOne(held_file, IoKind::kRead, 0, memory.span()), 0);
  for (uint32_t group = 0; group < 3; ++group) {
    const std::byte* const record = memory.data() + group * stride;
    EXPECT_TRUE(IsRecord(record, shape_.record_bytes, 0, 0, group));
    EXPECT_TRUE(std::all_of(record + shape_.record_bytes, record + stride,
                            [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST_P(GroupStoreTest, ASlowDiskChangesNothing) {
  auto file = fixture_.MakeFile(GetParam().backend, GetParam().direct, 4);
  auto slow = std::make_unique<RateLimitedBlockFile>(std::move(file), RateLimit{512 * kMiB, 300});
  store_ = GroupStore::Create(std::move(slow), shape_, 64 * kKiB + 64 * kKiB).value();
  ASSERT_TRUE(Append(0, 0, 0, kGroups).ok());
  ExpectRecords(0, 0, AllGroups());
  ExpectRecords(0, 0, {1, 5, 6, 44}, 1);
}

// Memory that disks cannot reach is filled by a copy from then on, and somebody is told.
TEST_P(GroupStoreTest, MemoryThatTakesNoReads) {
  const size_t n_notes = store_->mode().notes.size();
  const AlignedMemory memory(size_t{3} * shape_.record_bytes);
  FaultPlan plan;
  plan.refused_memory = memory.span();
  auto file = fixture_.MakeFile(GetParam().backend, GetParam().direct, 4);
  store_ = GroupStore::Create(std::make_unique<FaultyBlockFile>(std::move(file), plan), shape_, 256 * kKiB)
               .value();
  ASSERT_TRUE(Append(1, 1, 0, kGroups).ok());
  for (const uint32_t first : {5U, 80U}) {
    memory.Fill(0xcd);
    std::vector<GroupFetch> fetches;
    for (uint32_t i = 0; i < 3; ++i) {
      fetches.push_back({1, first + 2 * i, memory.data() + size_t{i} * shape_.record_bytes});
    }
    ASSERT_TRUE(store_->Fetch(1, fetches).ok());
    for (const GroupFetch& fetch : fetches) {
      EXPECT_TRUE(IsRecord(fetch.memory, shape_.record_bytes, 1, 1, fetch.group));
    }
  }
  const bool is_in_place = shape_.record_bytes % store_->mode().alignment_bytes == 0;
  EXPECT_EQ(store_->mode().notes.size(), n_notes + (is_in_place ? 1U : 0U));
}

INSTANTIATE_TEST_SUITE_P(
    All, GroupStoreTest,
    ::testing::Values(Case{"io_uring_aligned", IoBackend::kIoUring, DirectIo::kOn, 16384},
                      Case{"io_uring_padded", IoBackend::kIoUring, DirectIo::kOn, 5000},
                      Case{"aio_aligned", IoBackend::kAio, DirectIo::kOn, 16384},
                      Case{"aio_padded", IoBackend::kAio, DirectIo::kOn, 24 * 1024 + 4},
                      Case{"threads_padded", IoBackend::kThreads, DirectIo::kOn, 4},
                      Case{"threads_aligned", IoBackend::kThreads, DirectIo::kOn, 4096},
                      Case{"io_uring_buffered", IoBackend::kIoUring, DirectIo::kOff, 5000},
                      Case{"threads_buffered", IoBackend::kThreads, DirectIo::kOff, 33}),
    [](const ::testing::TestParamInfo<Case>& test) { return test.param.name; });

TEST(GroupStoreShapes, WhatCannotBeIsRefused) {
  StoreFixture fixture;
  for (const GroupStoreShape& shape :
       {GroupStoreShape{0, 1, 1, 16}, GroupStoreShape{1, 1, 1, 0}, GroupStoreShape{1U << 31, 1U << 31, 4, 1},
        GroupStoreShape{1U << 16, 1U << 16, 1U << 16, 1U << 16}}) {
    auto file = fixture.MakeFile(IoBackend::kThreads, DirectIo::kOff);
    EXPECT_EQ(GroupStore::Create(std::move(file), shape, kMiB).status().code(), StatusCode::kInvalidArgument);
  }
  // A disk that is too small shows at once.
  auto file = fixture.MakeFile(IoBackend::kThreads, DirectIo::kOff);
  const auto large = GroupStore::Create(std::move(file), {1024, 1, 1U << 20, 1U << 20}, kMiB);
  EXPECT_EQ(large.status().code(), StatusCode::kIo);
  EXPECT_NE(large.status().message().find("--kv-dir"), std::string::npos) << large.status().message();
}

}  // namespace
}  // namespace kvrun::testing
