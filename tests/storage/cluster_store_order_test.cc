// Clusters against a model in memory: thousands of random writes, fetches and forgets, over files that carry
// out requests in any order, with little staging. No cluster is ever disturbed by its neighbours.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

#include "platform/base/units.h"
#include "platform/io/faulty_block_file.h"
#include "tests/storage/cluster_fixture.h"
#include "tests/storage/newest_first_file.h"

namespace kvrun::testing {
namespace {

struct RandomCase {
  const char* name;
  uint32_t alignment_bytes;
  ClusterLayout layout;
  bool newest_first;
  uint32_t queue_depth;
  uint32_t staging_percent;  // of a half
  uint32_t record_bytes;
};

class ClusterStoreModel : public ::testing::TestWithParam<RandomCase> {
 protected:
  static constexpr uint32_t kLayers = 2;
  static constexpr uint32_t kStreams = 2;
  static constexpr uint32_t kClusters = 5;
  static constexpr uint32_t kMaxRecords = 6;

  void SetUp() override {
    const RandomCase& c = GetParam();
    std::unique_ptr<BlockFile> file = fixture_.MakeFile(IoBackend::kThreads, DirectIo::kOff, c.queue_depth);
    ASSERT_NE(file, nullptr) << fixture_.reason;
    if (c.newest_first) file = std::make_unique<NewestFirstFile>(std::move(file));
    file = AlignedFile(std::move(file), c.alignment_bytes);
    const uint64_t half_bytes = RoundUp<uint64_t>(kMaxRecords * c.record_bytes, c.alignment_bytes);
    auto made = ClusterStore::Create(std::move(file),
                                     {kLayers, kStreams, kClusters, kMaxRecords, c.record_bytes, c.layout},
                                     half_bytes * c.staging_percent / 100);
    ASSERT_TRUE(made.ok()) << made.status().message();
    store_ = std::move(made).value();
  }

  uint32_t Below(uint64_t n) { return static_cast<uint32_t>(random_() % n); }

  // Grows, shrinks, or changes from some record on; or all is new.
  void Write(uint32_t layer, uint32_t stream, uint32_t cluster) {
    std::vector<uint64_t>& versions = model_[{layer, stream, cluster}];
    const uint32_t n = 1 + Below(kMaxRecords);
    const uint32_t first_changed = Below(std::min<uint64_t>(versions.size(), n) + 1);
    versions.resize(n);
    for (uint32_t i = first_changed; i < n; ++i) versions[i] = ++version_;
    const Status status =
        store_->Write(layer, stream, cluster, first_changed,
                      MakeClusterRecords(GetParam().record_bytes, layer, stream, cluster, versions));
    ASSERT_TRUE(status.ok()) << status.message();
  }

  void Fetch(uint32_t layer, uint32_t one_in) {
    std::vector<WantedCluster> wanted;
    bool all_there = true;
    for (uint32_t stream = 0; stream < kStreams; ++stream) {
      for (uint32_t cluster = 0; cluster < kClusters; ++cluster) {
        const auto found = model_.find({layer, stream, cluster});
        if (found == model_.end() && Below(20) > 0) continue;
        if (Below(one_in) > 0) continue;
        all_there &= found != model_.end();
        wanted.push_back({stream, cluster, found != model_.end() ? found->second : std::vector<uint64_t>{0}});
      }
    }
    std::shuffle(wanted.begin(), wanted.end(), random_);
    ClusterReader reader(GetParam().record_bytes, wanted, Below(4));
    const Status status = store_->Fetch(layer, reader.fetches());
    ASSERT_EQ(status.ok(), all_there) << status.message();
    if (all_there) {
      ASSERT_EQ(reader.Wrong(layer), "");
    } else {
      EXPECT_NE(status.message().find("not on flash"), std::string::npos) << status.message();
    }
  }

  StoreFixture fixture_;
  std::unique_ptr<ClusterStore> store_;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, std::vector<uint64_t>> model_;
  uint64_t version_ = 0;
  std::mt19937_64 random_{20261124};
};

TEST_P(ClusterStoreModel, HoldsWhatTheModelHolds) {
  for (int step = 0; step < 4000; ++step) {
    SCOPED_TRACE(::testing::Message() << "step " << step);
    const uint32_t layer = Below(kLayers);
    const uint32_t stream = Below(kStreams);
    const uint32_t cluster = Below(kClusters);
    const uint32_t action = Below(16);
    if (action == 0) {
      store_->Forget(layer, stream, cluster);
      model_.erase({layer, stream, cluster});
    } else if (action == 1) {
      ASSERT_TRUE(store_->Flush().ok());
    } else if (action < 6) {
      Fetch(layer, 1 + Below(3));
    } else {
      Write(layer, stream, cluster);
    }
    if (HasFatalFailure()) return;
  }
  for (uint32_t layer = 0; layer < kLayers; ++layer) Fetch(layer, 1);
  EXPECT_EQ(store_->stats().records_read_again, 0U);
}

INSTANTIATE_TEST_SUITE_P(
    All, ClusterStoreModel,
    ::testing::Values(RandomCase{"bytes", 1, ClusterLayout::kDualHead, false, 4, 250, 100},
                      RandomCase{"bytes_newest_first", 1, ClusterLayout::kDualHead, true, 5, 300, 100},
                      RandomCase{"least_staging", 512, ClusterLayout::kDualHead, true, 4, 100, 300},
                      RandomCase{"pages_of_512", 512, ClusterLayout::kDualHead, false, 3, 270, 300},
                      RandomCase{"full_pages", 512, ClusterLayout::kDualHead, true, 6, 400, 1024},
                      RandomCase{"pages_of_4096", 4096, ClusterLayout::kDualHead, true, 8, 330, 3000},
                      RandomCase{"one_request", 4096, ClusterLayout::kDualHead, false, 1, 1000, 5000},
                      RandomCase{"up", 512, ClusterLayout::kCluster, true, 4, 220, 300},
                      RandomCase{"up_bytes", 1, ClusterLayout::kCluster, false, 4, 220, 100}),
    [](const ::testing::TestParamInfo<RandomCase>& test) { return test.param.name; });

// Nothing is carried out before it has to be, and then the newest first.
class ClusterStoreOrder : public ::testing::Test {
 protected:
  static constexpr uint32_t kRecord = 1000;
  static constexpr uint32_t kDepth = 6;

  void Make(uint64_t staging_bytes, const FaultPlan& plan = {}) {
    auto faulty = std::make_unique<FaultyBlockFile>(
        fixture_.MakeFile(IoBackend::kThreads, DirectIo::kOff, kDepth), plan);
    auto file = std::make_unique<NewestFirstFile>(std::move(faulty));
    file_ = file.get();
    store_ =
        ClusterStore::Create(std::move(file), {1, 1, 20, 4, kRecord, ClusterLayout::kDualHead}, staging_bytes)
            .value();
  }

  Status Write(uint32_t cluster, const std::vector<uint64_t>& versions, uint32_t first_changed = 0) {
    return store_->Write(0, 0, cluster, first_changed, MakeClusterRecords(kRecord, 0, 0, cluster, versions));
  }

  // All with the same versions.
  Status Fetch(const std::vector<uint32_t>& clusters, const std::vector<uint64_t>& versions) {
    std::vector<WantedCluster> wanted;
    for (const uint32_t cluster : clusters) wanted.push_back({0, cluster, versions});
    ClusterReader reader(kRecord, wanted);
    Status status = store_->Fetch(0, reader.fetches());
    if (status.ok()) {
      EXPECT_EQ(reader.Wrong(0), "");
    }
    return status;
  }

  StoreFixture fixture_;
  NewestFirstFile* file_ = nullptr;
  std::unique_ptr<ClusterStore> store_;
};

TEST_F(ClusterStoreOrder, TheQueueIsFilledAndNotOverfilled) {
  Make(64 * kKiB);
  for (uint32_t cluster = 0; cluster < 20; ++cluster) ASSERT_TRUE(Write(cluster, {1, 2}).ok());
  EXPECT_EQ(file_->most_held(), kDepth);
  ASSERT_TRUE(store_->Flush().ok());
  EXPECT_TRUE(Fetch({0, 2, 4, 6, 8, 10, 12, 14, 16, 18}, {1, 2}).ok());
  EXPECT_EQ(file_->most_held(), kDepth);
}

// Writes that nothing waits for hold all of the staging.
TEST_F(ClusterStoreOrder, AFetchTakesItsStagingFromWrites) {
  for (const uint64_t staging_bytes : {4 * kRecord, 8 * kRecord}) {
    Make(staging_bytes);
    ASSERT_TRUE(Write(0, {1, 2, 3, 4}).ok());
    ASSERT_TRUE(store_->Flush().ok());
    for (const uint32_t cluster : {3U, 4U}) ASSERT_TRUE(Write(cluster, {1, 2, 3, 4}).ok());
    EXPECT_TRUE(Fetch({0}, {1, 2, 3, 4}).ok());
  }
}

// The error of a write shows in the next Write, which then writes nothing.
TEST_F(ClusterStoreOrder, AWriteThatAnswersAnErrorLeavesItsClusterNotWritten) {
  FaultPlan plan;
  plan.faults = {{FaultKind::kIoError, IoKind::kWrite, 1}};
  Make(64 * kKiB, plan);
  ASSERT_TRUE(Write(3, {1}).ok());
  ASSERT_TRUE(store_->Flush().ok());
  ASSERT_TRUE(Write(3, {1, 2}, 1).ok());
  EXPECT_EQ(Write(3, {1, 2, 3}, 2).code(), StatusCode::kIo);  // waits for the one above
  EXPECT_EQ(store_->stats().writes, 2U);
  EXPECT_EQ(Fetch({3}, {1, 2}).code(), StatusCode::kIo);
  ASSERT_TRUE(Write(3, {1, 2, 3}, 2).ok());
  EXPECT_TRUE(Fetch({3}, {1, 2, 3}).ok());
}

TEST_F(ClusterStoreOrder, AnErrorNamesAllThatWasReadAtOnce) {
  FaultPlan plan;
  plan.faults = {{FaultKind::kShortRead, IoKind::kRead, 0}, {FaultKind::kBitFlip, IoKind::kRead, 1, 2}};
  Make(64 * kKiB, plan);
  for (uint32_t cluster = 0; cluster < 20; ++cluster) ASSERT_TRUE(Write(cluster, {1, 2}).ok());
  ASSERT_TRUE(store_->Flush().ok());
  const Status unread = Fetch({1, 2}, {1, 2});
  EXPECT_EQ(unread.code(), StatusCode::kIo);
  EXPECT_NE(unread.message().find("layer 0, stream 0, clusters 1 to 2 of"), std::string::npos)
      << unread.message();
  const Status changed = Fetch({8}, {1, 2});
  EXPECT_EQ(changed.code(), StatusCode::kCorrupt);
  EXPECT_NE(changed.message().find("layer 0, stream 0, cluster 8 of"), std::string::npos)
      << changed.message();
  EXPECT_EQ(store_->stats().records_read_again, 2U);
  EXPECT_TRUE(Fetch({1, 2, 8}, {1, 2}).ok());
}

}  // namespace
}  // namespace kvrun::testing
