#include "runtime/store/cluster_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <string>
#include <tuple>

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
