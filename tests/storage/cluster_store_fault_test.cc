// The store of clusters over a disk that fails: whatever happens, a Fetch gives the right bytes or an error.
// Every read and every write of a scenario is made to fail in every way, one after another; then at random.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

#include "platform/base/units.h"
#include "platform/io/faulty_block_file.h"
#include "tests/storage/cluster_fixture.h"

namespace kvrun::testing {
namespace {

struct ClusterFaultCase {
  const char* name;
  IoBackend backend;
  DirectIo direct;
  uint32_t alignment_bytes;  // 0: the file's
  uint32_t record_bytes;
  ClusterLayout layout;
};

// What a caller knows of the clusters, and what the store told it.
class CheckedClusters {
 public:
  static constexpr uint32_t kLayers = 2;
  static constexpr uint32_t kStreams = 2;
  static constexpr uint32_t kClusters = 6;
  static constexpr uint32_t kMaxRecords = 5;
  static constexpr uint64_t kScenarioFetches = 9;

  CheckedClusters(std::unique_ptr<BlockFile> file, const ClusterFaultCase& c, const FaultPlan& plan)
      : record_bytes_(c.record_bytes) {
    auto faulty = std::make_unique<FaultyBlockFile>(std::move(file), plan);
    faulty_ = faulty.get();
    auto strict = AlignedFile(std::move(faulty), c.alignment_bytes);
    const uint64_t half = RoundUp<uint64_t>(kMaxRecords * c.record_bytes, strict->mode().alignment_bytes);
    auto made = ClusterStore::Create(
        std::move(strict), {kLayers, kStreams, kClusters, kMaxRecords, c.record_bytes, c.layout}, 3 * half);
    EXPECT_TRUE(made.ok()) << made.status().message();
    store_ = std::move(made).value();
  }

  // Keeps `kept` records, and has `added` new ones after them.
  void Write(uint32_t layer, uint32_t stream, uint32_t cluster, uint32_t kept, uint32_t added) {
    std::vector<uint64_t>& versions = versions_[{layer, stream, cluster}];
    versions.resize(kept);  // those that are lost are computed again: new ones, to the store as well
    const auto lost = std::find(versions.begin(), versions.end(), 0U);
    kept = static_cast<uint32_t>(lost - versions.begin());
    for (auto version = lost; version != versions.end(); ++version) *version = ++version_;
    for (uint32_t i = 0; i < added; ++i) versions.push_back(++version_);
    const Status status = store_->Write(layer, stream, cluster, kept,
                                        MakeClusterRecords(record_bytes_, layer, stream, cluster, versions));
    there_[{layer, stream, cluster}] = status.ok();
    Note(status);
  }

  void Forget(uint32_t layer, uint32_t stream, uint32_t cluster) {
    store_->Forget(layer, stream, cluster);
    there_[{layer, stream, cluster}] = false;
  }

  void Flush() { Note(store_->Flush()); }

  void Fetch(uint32_t layer, const std::vector<std::pair<uint32_t, uint32_t>>& clusters,
             uint32_t skip_every = 0) {
    std::vector<WantedCluster> wanted;
    bool all_there = true;
    for (const auto& [stream, cluster] : clusters) {
      const auto found = versions_.find({layer, stream, cluster});
      const bool there = there_[{layer, stream, cluster}];
      all_there &= there;
      wanted.push_back(
          {stream, cluster,
           found == versions_.end() || found->second.empty() ? std::vector<uint64_t>{0} : found->second});
    }
    ClusterReader reader(record_bytes_, wanted, skip_every);
    const Status status = store_->Fetch(layer, reader.fetches());
    Note(status);
    if (!status.ok()) return;
    EXPECT_TRUE(all_there) << "a cluster that is not there was handed out";
    ASSERT_EQ(reader.Wrong(layer), "");
    ++n_good_fetches_;
  }

  // A prompt's clusters, some that grow, are divided and forgotten; read in between.
  void RunScenario() {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      for (const uint32_t cluster : {0U, 1U, 2U, 3U}) Write(layer, 0, cluster, 0, 1 + cluster);
      for (const uint32_t cluster : {0U, 5U}) Write(layer, 1, cluster, 0, 5);
      Fetch(layer, {{0, 1}, {0, 2}, {1, 0}});
    }
    Write(0, 0, 1, 2, 1);
    Fetch(0, {{0, 1}, {0, 2}});
    Write(0, 0, 2, 3, 2);
    Write(1, 1, 5, 2, 0);
    Write(1, 1, 4, 0, 3);
    Fetch(1, {{1, 5}, {1, 4}}, 2);
    Forget(0, 1, 5);
    Write(0, 1, 5, 0, 3);
    Write(0, 0, 3, 1, 2);
    Fetch(0, {{0, 0}, {0, 1}, {0, 2}, {0, 3}, {1, 5}}, 3);
    Flush();
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      Fetch(layer, {{1, 5}, {0, 3}, {0, 0}});
      Fetch(layer, {{0, 1}, {0, 2}, {1, 0}});
    }
  }

  const std::vector<Status>& errors() const { return errors_; }
  uint64_t n_good_fetches() const { return n_good_fetches_; }
  uint64_t n_faults() const { return faulty_->n_faults(); }
  IoCounters counters() const { return faulty_->counters(); }
  const ClusterStoreStats& stats() const { return store_->stats(); }

 private:
  void Note(const Status& status) {
    if (status.ok()) return;
    errors_.push_back(status);
    EXPECT_TRUE(status.code() == StatusCode::kIo || status.code() == StatusCode::kCorrupt)
        << status.message();
    for (const char* part : {"layer ", "stream ", "cluster", "computed again"}) {
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    }
  }

  using Key = std::tuple<uint32_t, uint32_t, uint32_t>;

  uint32_t record_bytes_;
  FaultyBlockFile* faulty_ = nullptr;
  std::unique_ptr<ClusterStore> store_;
  std::map<Key, std::vector<uint64_t>> versions_;  // of each record
  std::map<Key, bool> there_;                      // as far as the store has said
  uint64_t version_ = 0;
  std::vector<Status> errors_;
  uint64_t n_good_fetches_ = 0;
};

class ClusterStoreFaults : public ::testing::TestWithParam<ClusterFaultCase> {
 protected:
  void SetUp() override {
    if (MakeFile() == nullptr) GTEST_SKIP() << fixture_.reason;
    CheckedClusters healthy(MakeFile(), GetParam(), {});
    healthy.RunScenario();
    ASSERT_TRUE(healthy.errors().empty()) << healthy.errors()[0].message();
    ASSERT_EQ(healthy.n_good_fetches(), CheckedClusters::kScenarioFetches);
    healthy_ = healthy.counters();
  }

  std::unique_ptr<BlockFile> MakeFile() {
    return fixture_.MakeFile(GetParam().backend, GetParam().direct, 4);
  }

  // The scenario with one fault, or several. Answers the errors that it met.
  std::vector<Status> Run(const FaultPlan& plan) {
    CheckedClusters store(MakeFile(), GetParam(), plan);
    store.RunScenario();
    n_faults_ = store.n_faults();
    n_read_again_ = store.stats().records_read_again;
    return store.errors();
  }

  StoreFixture fixture_;
  IoCounters healthy_;
  uint64_t n_faults_ = 0;
  uint64_t n_read_again_ = 0;
};

TEST_P(ClusterStoreFaults, EveryReadInEveryWay) {
  for (uint64_t index = 0; index < healthy_.reads; ++index) {
    for (const FaultKind kind : {FaultKind::kIoError, FaultKind::kShortRead, FaultKind::kBitFlip,
                                 FaultKind::kMisdirected, FaultKind::kStaleData}) {
      SCOPED_TRACE(::testing::Message() << FaultKindName(kind) << " at read " << index);
      FaultPlan plan;
      plan.seed = index + 1;
      plan.faults = {{kind, IoKind::kRead, index}};
      const std::vector<Status> errors = Run(plan);
      EXPECT_EQ(n_faults_, 1U);
      if (kind == FaultKind::kIoError || kind == FaultKind::kShortRead) {
        ASSERT_EQ(errors.size(), 1U);
        EXPECT_EQ(errors[0].code(), StatusCode::kIo);
      } else {
        // Read once more, and then right. (A flip in the padding harms nobody.)
        EXPECT_TRUE(errors.empty()) << errors[0].message();
        if (kind != FaultKind::kBitFlip) {
          EXPECT_GE(n_read_again_, 1U);
        }
      }
    }
  }
}

// All reads from one on: the second look does not help.
TEST_P(ClusterStoreFaults, EveryReadFromOneOn) {
  for (uint64_t index = 0; index < healthy_.reads; index += 2) {
    for (const FaultKind kind : {FaultKind::kIoError, FaultKind::kMisdirected, FaultKind::kStaleData}) {
      SCOPED_TRACE(::testing::Message() << FaultKindName(kind) << " from read " << index << " on");
      FaultPlan plan;
      plan.faults = {{kind, IoKind::kRead, index, UINT64_MAX}};
      const std::vector<Status> errors = Run(plan);
      ASSERT_FALSE(errors.empty());
      EXPECT_EQ(errors[0].code(), kind == FaultKind::kIoError ? StatusCode::kIo : StatusCode::kCorrupt);
    }
  }
}

TEST_P(ClusterStoreFaults, EveryWriteInEveryWay) {
  uint64_t n_detected = 0;
  for (uint64_t index = 0; index < healthy_.writes; ++index) {
    for (const FaultKind kind : {FaultKind::kIoError, FaultKind::kNoSpace, FaultKind::kBitFlip,
                                 FaultKind::kMisdirected, FaultKind::kLostWrite, FaultKind::kTornWrite}) {
      SCOPED_TRACE(::testing::Message() << FaultKindName(kind) << " at write " << index);
      FaultPlan plan;
      plan.seed = index + 1;
      plan.faults = {{kind, IoKind::kWrite, index}};
      const std::vector<Status> errors = Run(plan);
      EXPECT_EQ(n_faults_, 1U);
      // What says so itself is always heard; the rest shows where the clusters are read before they are
      // replaced.
      if (kind == FaultKind::kIoError || kind == FaultKind::kNoSpace) {
        EXPECT_FALSE(errors.empty());
      }
      n_detected += errors.empty() ? 0 : 1;
    }
  }
  EXPECT_GT(n_detected, healthy_.writes * 4);  // most of them
}

TEST_P(ClusterStoreFaults, APowerCutAnywhere) {
  for (uint64_t index = 0; index < healthy_.writes; ++index) {
    SCOPED_TRACE(::testing::Message() << "from write " << index << " on");
    FaultPlan plan;
    plan.faults = {{FaultKind::kLostWrite, IoKind::kWrite, index, UINT64_MAX}};
    const std::vector<Status> errors = Run(plan);
    ASSERT_FALSE(errors.empty());  // the last clusters written are read at the end
    EXPECT_EQ(errors[0].code(), StatusCode::kCorrupt) << errors[0].message();
  }
}

TEST_P(ClusterStoreFaults, AFullDiskAnywhere) {
  for (uint64_t n = 0; n < 10; ++n) {
    SCOPED_TRACE(::testing::Message() << "full after " << n << " tenths");
    FaultPlan plan;
    plan.capacity_bytes = healthy_.written_bytes * n / 10;
    const std::vector<Status> errors = Run(plan);
    ASSERT_FALSE(errors.empty());
    EXPECT_NE(errors[0].message().find("No space left"), std::string::npos) << errors[0].message();
  }
}

TEST_P(ClusterStoreFaults, AtRandom) {
  uint64_t n_faults = 0;
  uint64_t n_good = 0;
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    FaultPlan plan;
    plan.seed = seed;
    plan.probability = seed % 2 == 0 ? 0.02 : 0.1;
    CheckedClusters store(MakeFile(), GetParam(), plan);
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t n) { return static_cast<uint32_t>(random() % n); };
    for (int step = 0; step < 160; ++step) {
      const uint32_t layer = below(CheckedClusters::kLayers);
      const uint32_t stream = below(CheckedClusters::kStreams);
      const uint32_t cluster = below(CheckedClusters::kClusters);
      const uint32_t kept = below(CheckedClusters::kMaxRecords);
      switch (below(8)) {
        case 0: store.Forget(layer, stream, cluster); break;
        case 1: store.Flush(); break;
        case 2:
        case 3:
        case 4:
          store.Write(layer, stream, cluster, kept, 1 + below(CheckedClusters::kMaxRecords - kept));
          break;
        default: {
          std::vector<std::pair<uint32_t, uint32_t>> wanted;
          for (uint32_t c = cluster; c < CheckedClusters::kClusters; c += 1 + below(2))
            wanted.emplace_back(below(CheckedClusters::kStreams), c);
          store.Fetch(layer, wanted, below(3));
        }
      }
    }
    n_faults += store.n_faults();
    n_good += store.n_good_fetches();
  }
  EXPECT_GT(n_faults, 25U);
  EXPECT_GT(n_good, 100U);
}

INSTANTIATE_TEST_SUITE_P(
    All, ClusterStoreFaults,
    ::testing::Values(
        ClusterFaultCase{"direct", IoBackend::kIoUring, DirectIo::kOn, 0, 5000, ClusterLayout::kDualHead},
        ClusterFaultCase{"pages_of_512", IoBackend::kThreads, DirectIo::kOff, 512, 700,
                         ClusterLayout::kDualHead},
        ClusterFaultCase{"bytes", IoBackend::kThreads, DirectIo::kOff, 1, 700, ClusterLayout::kDualHead},
        ClusterFaultCase{"up", IoBackend::kThreads, DirectIo::kOff, 4096, 3000, ClusterLayout::kCluster}),
    [](const ::testing::TestParamInfo<ClusterFaultCase>& test) { return test.param.name; });

}  // namespace
}  // namespace kvrun::testing
