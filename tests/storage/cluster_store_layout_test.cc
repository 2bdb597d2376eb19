// Where clusters lie on flash, and what is read at once: with the numbers of docs/formats/kv_clusters.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "platform/base/units.h"
#include "tests/storage/cluster_fixture.h"

namespace kvrun::testing {
namespace {

class ClusterStoreLayout : public ::testing::Test {
 protected:
  void Make(const ClusterStoreShape& shape, uint32_t alignment_bytes, uint64_t staging_bytes = kMiB,
            uint32_t queue_depth = 8) {
    auto file =
        AlignedFile(fixture_.MakeFile(IoBackend::kThreads, DirectIo::kOff, queue_depth), alignment_bytes);
    ASSERT_NE(file, nullptr) << fixture_.reason;
    shape_ = shape;
    file_ = file.get();
    auto made = ClusterStore::Create(std::move(file), shape, staging_bytes);
    ASSERT_TRUE(made.ok()) << made.status().message();
    store_ = std::move(made).value();
  }

  void Write(uint32_t stream, uint32_t cluster, uint32_t n_records, uint32_t first_changed = 0) {
    const std::vector<uint64_t> versions(n_records, 1);
    const Status status =
        store_->Write(0, stream, cluster, first_changed,
                      MakeClusterRecords(shape_.record_bytes, 0, stream, cluster, versions));
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(store_->Flush().ok());
    n_records_[stream * shape_.n_clusters + cluster] = n_records;
  }

  // What a Fetch of these clusters adds to reads, read_bytes, records_read, runs.
  std::vector<uint64_t> Read(const std::vector<std::pair<uint32_t, uint32_t>>& clusters) {
    std::vector<WantedCluster> wanted;
    for (const auto& [stream, cluster] : clusters) {
      const uint32_t n = n_records_[stream * shape_.n_clusters + cluster];
      wanted.push_back({stream, cluster, std::vector<uint64_t>(n, 1)});
    }
    ClusterReader reader(shape_.record_bytes, wanted);
    const ClusterStoreStats before = store_->stats();
    const Status status = store_->Fetch(0, reader.fetches());
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(reader.Wrong(0), "");
    const ClusterStoreStats& after = store_->stats();
    EXPECT_GT(after.read_wait_ms, before.read_wait_ms);
    EXPECT_EQ(after.records_read_again, 0U);
    return {after.reads - before.reads, after.read_bytes - before.read_bytes,
            after.records_read - before.records_read, after.runs - before.runs};
  }

  // The file holds these records of layer 0 (offset, cluster, index), and zeros.
  void ExpectFile(const std::vector<std::tuple<uint64_t, uint32_t, uint32_t>>& records) {
    const uint64_t file_bytes = ClusterStore::FileBytes(shape_, store_->mode());
    const AlignedMemory memory(file_bytes);
    std::vector<std::byte> expected(file_bytes);
    for (const auto& [offset, cluster, i] : records) {
      FillPattern(std::span(expected).subspan(offset, shape_.record_bytes),
                  ClusterRecordPlace(0, 0, cluster, i), 1);
    }
    ASSERT_EQ(DoOne(*file_, IoKind::kRead, 0, memory.span()), 0);
    const auto [at, wrong] = std::mismatch(expected.begin(), expected.end(), memory.data());
    EXPECT_EQ(at, expected.end()) << "at byte " << at - expected.begin();
  }

  using Numbers = std::vector<uint64_t>;

  StoreFixture fixture_;
  ClusterStoreShape shape_;
  BlockFile* file_ = nullptr;
  std::unique_ptr<ClusterStore> store_;
  std::map<uint32_t, uint32_t> n_records_;
};

constexpr ClusterStoreShape kExample{2, 1, 4, 5, 1000, ClusterLayout::kDualHead};

TEST_F(ClusterStoreLayout, TheExampleWithPagesOf512) {
  Make(kExample, 512);
  EXPECT_EQ(ClusterStore::FileBytes(kExample, store_->mode()), 40960U);
  for (const auto& [cluster, n] : {std::pair{0, 3}, {1, 2}, {2, 5}, {3, 1}}) Write(0, cluster, n);
  ExpectFile({{0, 0, 0},
              {1000, 0, 1},
              {2000, 0, 2},
              {9240, 1, 0},
              {8240, 1, 1},
              {10240, 2, 0},
              {11240, 2, 1},
              {12240, 2, 2},
              {13240, 2, 3},
              {14240, 2, 4},
              {19480, 3, 0}});
  // 3072 bytes at 0, 2048 at 8192, 5120 at 10240, and 512 at 19456: flash pages, not those of the file.
  EXPECT_EQ(store_->stats().pages_written, 1U + 1 + 2 + 1);
  EXPECT_EQ(Read({{0, 1}, {0, 2}}), (Numbers{1, 7168, 7, 1}));
  EXPECT_EQ(Read({{0, 0}, {0, 1}}), (Numbers{2, 3072 + 2048, 5, 2}));
  EXPECT_EQ(Read({{0, 3}, {0, 2}, {0, 1}, {0, 0}}), (Numbers{3, 3072 + 7168 + 1024, 11, 3}));
  const uint64_t before = store_->stats().written_bytes;
  Write(0, 1, 3, 2);
  EXPECT_EQ(store_->stats().written_bytes - before, 1536U);
  EXPECT_EQ(Read({{0, 1}, {0, 2}}), (Numbers{1, 8192, 8, 1}));
  ExpectFile({{0, 0, 0},
              {1000, 0, 1},
              {2000, 0, 2},
              {9240, 1, 0},
              {8240, 1, 1},
              {7240, 1, 2},
              {10240, 2, 0},
              {11240, 2, 1},
              {12240, 2, 2},
              {13240, 2, 3},
              {14240, 2, 4},
              {19480, 3, 0}});
}

TEST_F(ClusterStoreLayout, TheExampleWithPagesOf4096) {
  Make(kExample, 4096);
  EXPECT_EQ(ClusterStore::FileBytes(kExample, store_->mode()), 65536U);
  for (const auto& [cluster, n] : {std::pair{0, 3}, {1, 2}, {2, 5}, {3, 1}}) Write(0, cluster, n);
  ExpectFile({{0, 0, 0},
              {1000, 0, 1},
              {2000, 0, 2},
              {15384, 1, 0},
              {14384, 1, 1},
              {16384, 2, 0},
              {17384, 2, 1},
              {18384, 2, 2},
              {19384, 2, 3},
              {20384, 2, 4},
              {31768, 3, 0}});
  const ClusterStoreStats written = store_->stats();
  EXPECT_EQ(written.pages_written, 1U + 1 + 2 + 1);
  EXPECT_EQ(Read({{0, 1}, {0, 2}}), (Numbers{1, 12288, 7, 1}));
  EXPECT_EQ(store_->stats().pages_read - written.pages_read, 3U);
  EXPECT_EQ(store_->CountRuns(0, 0, std::vector<uint32_t>{0, 1, 2, 3}), 3U) << "1 and 2 adjoin";
  EXPECT_EQ(store_->CountRuns(0, 0, std::vector<uint32_t>{0, 2}), 2U);
  const uint64_t before = store_->stats().written_bytes;
  Write(0, 1, 3, 2);
  EXPECT_EQ(store_->stats().written_bytes - before, 4096U);
  EXPECT_EQ(Read({{0, 1}, {0, 2}}), (Numbers{1, 12288, 8, 1}));
  ExpectFile({{0, 0, 0},
              {1000, 0, 1},
              {2000, 0, 2},
              {15384, 1, 0},
              {14384, 1, 1},
              {13384, 1, 2},
              {16384, 2, 0},
              {17384, 2, 1},
              {18384, 2, 2},
              {19384, 2, 3},
              {20384, 2, 4},
              {31768, 3, 0}});
}

TEST_F(ClusterStoreLayout, InTheOtherLayoutAllGrowUpwards) {
  Make({2, 1, 4, 5, 1000, ClusterLayout::kCluster}, 512);
  for (const auto& [cluster, n] : {std::pair{0, 1}, {1, 2}, {2, 1}}) Write(0, cluster, n);
  ExpectFile({{0, 0, 0}, {5120, 1, 0}, {6120, 1, 1}, {10240, 2, 0}});
  EXPECT_EQ(Read({{0, 1}, {0, 2}}), (Numbers{2, 2048 + 1024, 3, 2}));
  Write(0, 1, 5);  // full: its pages reach the next cluster's, its bytes do not
  EXPECT_EQ(Read({{0, 1}, {0, 2}}), (Numbers{1, 5120 + 1024, 6, 2}));
}

// Full clusters of a pool meet in the middle; where that is not on a page's border, with a gap.
TEST_F(ClusterStoreLayout, FullClustersOfAPoolAreOneRead) {
  Make(kExample, 512);
  for (const uint32_t cluster : {0U, 1U}) Write(0, cluster, 5);
  EXPECT_EQ(Read({{0, 0}, {0, 1}}), (Numbers{1, 10240, 10, 2}));
  n_records_.clear();
  Make(kExample, 1);
  for (const uint32_t cluster : {0U, 1U}) Write(0, cluster, 5);
  EXPECT_EQ(Read({{0, 0}, {0, 1}}), (Numbers{1, 10000, 10, 1}));
}

// The last cluster of a stream adjoins the first of the next; where the last pool has one, it does not.
TEST_F(ClusterStoreLayout, StreamsAdjoinToo) {
  Make({1, 2, 4, 5, 1000, ClusterLayout::kDualHead}, 512);
  Write(0, 3, 2);
  Write(1, 0, 3);
  EXPECT_EQ(Read({{1, 0}, {0, 3}}), (Numbers{1, 2048 + 3072, 5, 1}));
  n_records_.clear();
  Make({1, 2, 3, 5, 1000, ClusterLayout::kDualHead}, 512);
  Write(0, 2, 5);
  Write(1, 0, 3);
  EXPECT_EQ(Read({{1, 0}, {0, 2}}), (Numbers{2, 5120 + 3072, 8, 2}));
}

// 8 clusters of 512 KiB, all side by side.
TEST_F(ClusterStoreLayout, ReadsAreNoLongerThanAMegabyteOrWhatTheStagingAllows) {
  const ClusterStoreShape shape{1, 1, 8, 8, 64 * kKiB, ClusterLayout::kDualHead};
  for (const auto& [staging_bytes, n_reads] :
       {std::pair<uint64_t, uint64_t>{4 * kMiB, 4}, {2 * kMiB, 4}, {3 * kMiB / 2, 8}, {kMiB / 2, 8}}) {
    Make(shape, 4096, staging_bytes);
    std::vector<std::pair<uint32_t, uint32_t>> all;
    for (uint32_t cluster = 0; cluster < 8; ++cluster) {
      Write(0, cluster, 8);
      all.emplace_back(0, cluster);
    }
    EXPECT_EQ(Read(all), (Numbers{n_reads, 4 * kMiB, 64, 1})) << staging_bytes;
  }
  // A cluster of more than a megabyte is one.
  Make({1, 1, 2, 8, 512 * kKiB, ClusterLayout::kDualHead}, 4096, 4 * kMiB);
  Write(0, 0, 8);
  EXPECT_EQ(Read({{0, 0}}), (Numbers{1, 4 * kMiB, 8, 1}));
}

TEST_F(ClusterStoreLayout, WhatCannotBeIsRefused) {
  constexpr uint32_t kMany = UINT32_MAX;
  IoMode mode;
  mode.alignment_bytes = 4096;
  mode.queue_depth = 32;
  for (const ClusterLayout layout : {ClusterLayout::kDualHead, ClusterLayout::kCluster}) {
    for (const ClusterStoreShape& shape :
         {ClusterStoreShape{0, 1, 1, 1, 16, layout}, ClusterStoreShape{1, 0, 1, 1, 16, layout},
          ClusterStoreShape{1, 1, 0, 1, 16, layout}, ClusterStoreShape{1, 1, 1, 0, 16, layout},
          ClusterStoreShape{1, 1, 1, 1, 0, layout}, ClusterStoreShape{kMany, kMany, 4, 1, 1, layout},
          ClusterStoreShape{1, 1, kMany, kMany, kMany, layout}, ClusterStoreShape{1, kMany, 2, 1, 1, layout},
          ClusterStoreShape{kMany, kMany, kMany, kMany, kMany, layout}}) {
      auto file = fixture_.MakeFile(IoBackend::kThreads, DirectIo::kOff);
      const auto refused = ClusterStore::Create(std::move(file), shape, kMiB);
      EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument) << refused.status().message();
    }
    const ClusterStoreShape most{kMany, kMany, kMany, kMany, kMany, layout};
    EXPECT_EQ(ClusterStore::FileBytes(most, mode), UINT64_MAX);
    EXPECT_EQ(ClusterStore::MemoryBytes(most, kMiB, mode), UINT64_MAX);
    const ClusterStoreShape small{1, 1, 1, 1, 1, layout};
    EXPECT_EQ(ClusterStore::MemoryBytes(small, UINT64_MAX, mode), UINT64_MAX);
  }
  // A disk that is too small shows at once.
  auto file = fixture_.MakeFile(IoBackend::kThreads, DirectIo::kOff);
  const auto large = ClusterStore::Create(
      std::move(file), {1024, 1, 1U << 20, 1U << 10, 1U << 10, ClusterLayout::kDualHead}, kMiB);
  EXPECT_EQ(large.status().code(), StatusCode::kIo);
  EXPECT_NE(large.status().message().find("--kv-dir"), std::string::npos) << large.status().message();
}

}  // namespace
}  // namespace kvrun::testing
