#include "runtime/store/cluster_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "platform/base/units.h"
#include "platform/io/rate_limited_block_file.h"
#include "tests/storage/allocation_counter.h"
#include "tests/storage/cluster_fixture.h"

namespace kvrun::testing {
namespace {

struct ClusterCase {
  const char* name;
  IoBackend backend;
  DirectIo direct;
  uint32_t alignment_bytes;  // 0: the file's
  uint32_t record_bytes;
  ClusterLayout layout;
};

class ClusterStoreTest : public ::testing::TestWithParam<ClusterCase> {
 protected:
  static constexpr uint32_t kLayers = 2;
  static constexpr uint32_t kStreams = 3;
  static constexpr uint32_t kClusters = 7;  // odd: the last pool has one
  static constexpr uint32_t kMaxRecords = 9;

  void SetUp() override { Make(256 * kKiB, 8); }

  std::unique_ptr<BlockFile> MakeFile(uint32_t queue_depth) {
    return AlignedFile(fixture_.MakeFile(GetParam().backend, GetParam().direct, queue_depth),
                       GetParam().alignment_bytes);
  }

  void Make(uint64_t staging_bytes, uint32_t queue_depth) {
    store_.reset();
    auto file = MakeFile(queue_depth);
    if (file == nullptr) GTEST_SKIP() << fixture_.reason;
    shape_ = {kLayers, kStreams, kClusters, kMaxRecords, GetParam().record_bytes, GetParam().layout};
    auto made = ClusterStore::Create(std::move(file), shape_, staging_bytes);
    ASSERT_TRUE(made.ok()) << made.status().message();
    store_ = std::move(made).value();
  }

  uint64_t HalfBytes() const {
    return RoundUp<uint64_t>(uint64_t{kMaxRecords} * shape_.record_bytes, store_->mode().alignment_bytes);
  }

  // Records whose bytes follow from where they belong, and from a version for each.
  std::vector<std::byte> Records(uint32_t layer, uint32_t stream, uint32_t cluster,
                                 const std::vector<uint64_t>& versions) const {
    return MakeClusterRecords(shape_.record_bytes, layer, stream, cluster, versions);
  }

  Status Write(uint32_t layer, uint32_t stream, uint32_t cluster, uint32_t first_changed,
               const std::vector<uint64_t>& versions) {
    return store_->Write(layer, stream, cluster, first_changed, Records(layer, stream, cluster, versions));
  }

  void ExpectRecords(uint32_t layer, const std::vector<WantedCluster>& wanted) {
    ClusterReader reader(shape_.record_bytes, wanted);
    const Status status = store_->Fetch(layer, reader.fetches());
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(reader.Wrong(layer), "");
  }

  StoreFixture fixture_;
  ClusterStoreShape shape_;
  std::unique_ptr<ClusterStore> store_;
};

TEST_P(ClusterStoreTest, GivesBackWhatItGot) {
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    std::vector<WantedCluster> wanted;
    for (uint32_t stream = 0; stream < kStreams; ++stream) {
      for (uint32_t cluster = 0; cluster < kClusters; ++cluster) {
        const uint32_t n = 1 + (stream * 5 + cluster * 2 + layer) % kMaxRecords;
        wanted.push_back({stream, cluster, std::vector<uint64_t>(n, 10 + n)});
        ASSERT_TRUE(Write(layer, stream, cluster, 0, wanted.back().versions).ok());
      }
    }
    ExpectRecords(layer, wanted);
    std::reverse(wanted.begin(), wanted.end());
    ExpectRecords(layer, wanted);
    ExpectRecords(layer, {wanted[3], wanted[9], wanted[4]});
  }
  ExpectRecords(0, {});
}

// A record at a time; what was there is not written again, but for the page that the new one begins in.
TEST_P(ClusterStoreTest, AClusterGrowsAndShrinks) {
  const uint64_t alignment = store_->mode().alignment_bytes;
  for (const uint32_t cluster : {2U, 3U}) {
    std::vector<uint64_t> versions;
    for (uint32_t n = 1; n <= kMaxRecords; ++n) {
      versions.push_back(n);
      const uint64_t before = store_->stats().written_bytes;
      ASSERT_TRUE(Write(1, 2, cluster, n - 1, versions).ok());
      const uint64_t begin = uint64_t{n - 1} * shape_.record_bytes / alignment * alignment;
      const uint64_t end = RoundUp<uint64_t>(uint64_t{n} * shape_.record_bytes, alignment);
      EXPECT_EQ(store_->stats().written_bytes - before, end - begin) << n;
      ExpectRecords(1, {{2, cluster, versions}});
    }
    versions[4] = 44;  // and all after it
    for (uint32_t i = 5; i < kMaxRecords; ++i) versions[i] = 50 + i;
    ASSERT_TRUE(Write(1, 2, cluster, 4, versions).ok());
    ExpectRecords(1, {{2, cluster, versions}});
    const uint64_t writes = store_->stats().writes;
    versions.resize(3);
    ASSERT_TRUE(Write(1, 2, cluster, 3, versions).ok());
    EXPECT_EQ(store_->stats().writes, writes);
    ExpectRecords(1, {{2, cluster, versions}});
    versions.insert(versions.end(), {90, 91});
    ASSERT_TRUE(Write(1, 2, cluster, 3, versions).ok());
    ExpectRecords(1, {{2, cluster, versions}});
  }
}

// Again and again at one place, without waiting: the last one counts. Read right after, while that goes on.
TEST_P(ClusterStoreTest, WritesToOneClusterKeepTheirOrder) {
  for (uint64_t version = 0; version < 20; ++version) {
    const uint32_t n = 1 + static_cast<uint32_t>(version * 5 % kMaxRecords);
    ASSERT_TRUE(Write(0, 1, 5, 0, std::vector<uint64_t>(n, version)).ok());
    ASSERT_TRUE(Write(0, 1, 4, 0, std::vector<uint64_t>(2, version)).ok());
    if (version % 4 == 3)
      ExpectRecords(0, {{1, 5, std::vector<uint64_t>(n, version)}, {1, 4, {version, version}}});
  }
}

TEST_P(ClusterStoreTest, RecordsThatAreNotWantedAreLeftOut) {
  const std::vector<uint64_t> versions = {1, 2, 3, 4, 5};
  for (const uint32_t cluster : {0U, 1U}) ASSERT_TRUE(Write(0, 0, cluster, 0, versions).ok());
  for (const uint32_t skip_every : {1U, 2U, 3U}) {
    ClusterReader reader(shape_.record_bytes, {{0, 0, versions}, {0, 1, versions}}, skip_every);
    const Status status = store_->Fetch(0, reader.fetches());
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(reader.Wrong(0), "");
  }
  EXPECT_EQ(store_->stats().records_read, 3 * 10U);
}

TEST_P(ClusterStoreTest, WhatIsForgottenIsNotThere) {
  for (const uint32_t cluster : {2U, 3U}) ASSERT_TRUE(Write(1, 2, cluster, 0, {1, 2, 3}).ok());
  store_->Forget(1, 2, 3);  // while it may still be written
  store_->Forget(kLayers, 0, 0);
  store_->Forget(0, kStreams, 0);
  store_->Forget(0, 0, kClusters);
  ClusterReader reader(shape_.record_bytes, {{2, 2, {1, 2, 3}}, {2, 3, {1, 2, 3}}});
  const Status status = store_->Fetch(1, reader.fetches());
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_EQ(status.message(),
            "layer 1, stream 2, cluster 3 of the KV cache is not on flash: the sequence has to be computed "
            "again");
  ExpectRecords(1, {{2, 2, {1, 2, 3}}});
  ASSERT_TRUE(Write(1, 2, 3, 2, {7, 8, 9}).ok());  // all of it, whatever is said to have changed
  ExpectRecords(1, {{2, 2, {1, 2, 3}}, {2, 3, {7, 8, 9}}});
}

TEST_P(ClusterStoreTest, RefusesWhatItDoesNotHave) {
  EXPECT_EQ(Write(kLayers, 0, 0, 0, {1}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Write(0, kStreams, 0, 0, {1}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Write(0, 0, kClusters, 0, {1}).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(Write(0, 0, 0, 0, {1, 1}).ok());
  EXPECT_EQ(Write(0, 0, 0, 0, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Write(0, 0, 0, 3, {1, 2}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Write(0, 0, 0, 0, std::vector<uint64_t>(kMaxRecords + 1, 1)).code(),
            StatusCode::kInvalidArgument);
  const auto odd = Records(0, 0, 0, {1, 2});
  EXPECT_EQ(store_->Write(0, 0, 0, 0, std::span(odd).first(odd.size() - 1)).code(),
            StatusCode::kInvalidArgument);
  ExpectRecords(0, {{0, 0, {1, 1}}});  // as it was
  const auto fetch = [&](uint32_t layer, const std::vector<WantedCluster>& wanted) {
    return store_->Fetch(layer, ClusterReader(shape_.record_bytes, wanted).fetches()).code();
  };
  EXPECT_EQ(fetch(0, {{0, 1, {1}}}), StatusCode::kIo);  // not written
  EXPECT_EQ(fetch(kLayers, {{0, 0, {1, 1}}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(fetch(0, {{kStreams, 0, {1, 1}}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(fetch(0, {{0, kClusters, {1, 1}}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(fetch(0, {{0, UINT32_MAX, {1, 1}}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(fetch(0, {{0, 0, {1}}}), StatusCode::kInvalidArgument);  // it has two
  EXPECT_EQ(fetch(0, {{0, 0, {}}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(fetch(0, {{0, 0, {1, 1}}, {0, 0, {1, 1}}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(fetch(0, std::vector<WantedCluster>(kStreams * kClusters + 1, {0, 0, {1, 1}})),
            StatusCode::kInvalidArgument);
  ClusterFetch unequal{0, 0, 2, {}};
  EXPECT_EQ(store_->Fetch(0, {&unequal, 1}).code(), StatusCode::kInvalidArgument);
}

TEST_P(ClusterStoreTest, SmallStagingAndShortQueuesAreOnlySlower) {
  for (const uint64_t staging_bytes : {HalfBytes(), 2 * HalfBytes() + 1, 3 * HalfBytes()}) {
    for (const uint32_t queue_depth : {1U, 2U, 5U}) {
      Make(staging_bytes, queue_depth);
      std::vector<WantedCluster> wanted;
      for (uint32_t stream = 0; stream < kStreams; ++stream) {
        for (uint32_t cluster = 0; cluster < kClusters; ++cluster) {
          const uint32_t n = cluster % 3 == 0 ? kMaxRecords : 1 + cluster;
          wanted.push_back({stream, cluster, std::vector<uint64_t>(n, n)});
          ASSERT_TRUE(Write(1, stream, cluster, 0, wanted.back().versions).ok());
        }
      }
      ExpectRecords(1, wanted);
    }
  }
}

TEST_P(ClusterStoreTest, StagingOfLessThanAClusterIsRefused) {
  const auto refused = ClusterStore::Create(MakeFile(8), shape_, HalfBytes() - 1);
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("staging"), std::string::npos) << refused.status().message();
}

TEST_P(ClusterStoreTest, NothingIsAllocated) {
  const std::vector<std::byte> records = Records(0, 0, 0, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  std::vector<WantedCluster> wanted;
  for (uint32_t i = kStreams * kClusters; i > 0; --i)
    wanted.push_back({(i - 1) % kStreams, (i - 1) / kStreams, std::vector<uint64_t>(kMaxRecords, 0)});
  const ClusterReader reader(shape_.record_bytes, wanted, 4);
  Make(2 * HalfBytes(), 4);
  const HeapUse before = CurrentHeapUse();
  bool good = true;
  for (uint32_t round = 0; round < 5; ++round) {
    for (const WantedCluster& cluster : wanted)
      good &= store_->Write(0, cluster.stream, cluster.cluster, round * 2, records).ok();
    good &= store_->Fetch(0, reader.fetches()).ok() && store_->Flush().ok();
    store_->Forget(0, 1, round);
  }
  EXPECT_EQ(CurrentHeapUse().n_allocations, before.n_allocations);
  EXPECT_TRUE(good);
}

TEST_P(ClusterStoreTest, HoldsWhatItSays) {
  constexpr uint64_t kHashStateBytes = kKiB;  // from malloc, which is not counted
  auto file = MakeFile(5);
  const IoMode mode = file->mode();
  const uint32_t halves = shape_.layout == ClusterLayout::kDualHead ? kClusters + 1 : kClusters;
  const uint64_t file_bytes = ClusterStore::FileBytes(shape_, mode);
  EXPECT_EQ(file_bytes, kLayers * kStreams * halves * HalfBytes());
  const uint64_t staging_bytes = 100 * kKiB + 17;
  BlockFile& held_file = *file;
  const HeapUse before = CurrentHeapUse();
  auto store = ClusterStore::Create(std::move(file), shape_, staging_bytes);
  const HeapUse after = CurrentHeapUse();
  ASSERT_TRUE(store.ok());
  const uint64_t held_bytes =
      after.live_bytes - before.live_bytes + BlockFileMemoryBytes(mode) + kHashStateBytes;
  const uint64_t said_bytes = ClusterStore::MemoryBytes(shape_, staging_bytes, mode);
  EXPECT_GE(held_bytes, said_bytes);
  EXPECT_LE(held_bytes, said_bytes + 256);
  // The file's space is there: its last byte is read, and nothing lies behind it.
  const AlignedMemory memory(64 * kKiB);
  const auto last = memory.span().first(mode.alignment_bytes);
  EXPECT_EQ(DoOne(held_file, IoKind::kRead, file_bytes - last.size(), last), 0);
}

TEST_P(ClusterStoreTest, ASlowDiskChangesNothing) {
  auto slow = std::make_unique<RateLimitedBlockFile>(MakeFile(4), RateLimit{512 * kMiB, 300});
  store_ = ClusterStore::Create(std::move(slow), shape_, 2 * HalfBytes()).value();
  std::vector<WantedCluster> wanted;
  for (uint32_t cluster = 0; cluster < kClusters; ++cluster) {
    wanted.push_back({0, cluster, std::vector<uint64_t>(1 + cluster, 5)});
    ASSERT_TRUE(Write(0, 0, cluster, 0, wanted.back().versions).ok());
  }
  ExpectRecords(0, wanted);
}

INSTANTIATE_TEST_SUITE_P(
    All, ClusterStoreTest,
    ::testing::Values(
        ClusterCase{"io_uring_direct", IoBackend::kIoUring, DirectIo::kOn, 0, 5000, ClusterLayout::kDualHead},
        ClusterCase{"aio_direct", IoBackend::kAio, DirectIo::kOn, 0, 4096, ClusterLayout::kDualHead},
        ClusterCase{"threads_512", IoBackend::kThreads, DirectIo::kOff, 512, 700, ClusterLayout::kDualHead},
        ClusterCase{"threads_4096", IoBackend::kThreads, DirectIo::kOff, 4096, 700, ClusterLayout::kDualHead},
        ClusterCase{"threads_1", IoBackend::kThreads, DirectIo::kOff, 1, 333, ClusterLayout::kDualHead},
        ClusterCase{"tiny_records", IoBackend::kThreads, DirectIo::kOff, 512, 3, ClusterLayout::kDualHead},
        ClusterCase{"up_4096", IoBackend::kIoUring, DirectIo::kOff, 4096, 5000, ClusterLayout::kCluster},
        ClusterCase{"up_512", IoBackend::kThreads, DirectIo::kOff, 512, 1024, ClusterLayout::kCluster},
        ClusterCase{"up_1", IoBackend::kThreads, DirectIo::kOff, 1, 333, ClusterLayout::kCluster}),
    [](const ::testing::TestParamInfo<ClusterCase>& test) { return test.param.name; });

}  // namespace
}  // namespace kvrun::testing
