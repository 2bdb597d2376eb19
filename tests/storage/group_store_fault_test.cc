// The store over a disk that fails: whatever happens, a Fetch gives the right bytes or an error. Every read
// and every write of a scenario is made to fail in every way, one after another; then at random.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

#include "platform/base/units.h"
#include "platform/io/faulty_block_file.h"
#include "runtime/store/group_store.h"
#include "tests/storage/store_fixture.h"

namespace kvrun::testing {
namespace {

struct Case {
  const char* name;
  IoBackend backend;
  DirectIo direct;
  uint32_t record_bytes;
};

// What a caller knows of the records, and what the store told it.
class Checked {
 public:
  static constexpr uint32_t kLayers = 2;
  static constexpr uint32_t kStreams = 2;
  static constexpr uint32_t kGroups = 12;

  Checked(std::unique_ptr<BlockFile> file, uint32_t record_bytes, FaultPlan plan, bool refuses_memory = false)
      : record_bytes_(record_bytes) {
    if (refuses_memory) plan.refused_memory = {memory_.data(), memory_.size()};
    const uint64_t stride = RoundUp<uint64_t>(record_bytes, file->mode().alignment_bytes);
    auto faulty = std::make_unique<FaultyBlockFile>(std::move(file), plan);
    faulty_ = faulty.get();
    auto made = GroupStore::Create(std::move(faulty), {kLayers, kStreams, kGroups, record_bytes}, 5 * stride);
    EXPECT_TRUE(made.ok()) << made.status().message();
    store_ = std::move(made).value();
  }

  void Append(uint32_t layer, uint32_t stream, uint32_t first, uint32_t n) {
    ++version_;
    const Status status =
        store_->Append(layer, stream, first, MakeRecords(record_bytes_, layer, stream, first, n, version_));
    for (uint32_t g = first; g < first + n; ++g) newest_[{layer, stream, g}] = status.ok() ? version_ : kGone;
    Note(status);
  }

  void Truncate(uint32_t stream, uint32_t n_groups) {
    EXPECT_TRUE(store_->Truncate(stream, n_groups).ok());
    for (auto& [place, version] : newest_) {
      if (std::get<1>(place) == stream && std::get<2>(place) >= n_groups) version = kGone;
    }
  }

  void Flush() { Note(store_->Flush()); }

  // `gap_bytes` apart, so that memory is aligned or not.
  void Fetch(uint32_t layer, uint32_t stream, const std::vector<uint32_t>& groups, size_t gap_bytes = 0) {
    const size_t step = record_bytes_ + gap_bytes;
    memory_.Fill(0xcd);
    std::vector<GroupFetch> fetches;
    bool all_there = true;
    for (const uint32_t group : groups) {
      fetches.push_back({stream, group, memory_.data() + fetches.size() * step});
      all_there &= Newest(layer, stream, group) != kGone;
    }
    const Status status = store_->Fetch(layer, fetches);
    Note(status);
    if (!status.ok()) return;
    EXPECT_TRUE(all_there) << "a record that is not there was handed out";
    for (const GroupFetch& fetch : fetches) {
      ASSERT_TRUE(IsRecord(fetch.memory, record_bytes_, layer, stream, fetch.group,
                           Newest(layer, stream, fetch.group)))
          << "WRONG BYTES: layer " << layer << ", stream " << stream << ", group " << fetch.group;
    }
    ++n_good_fetches_;
  }

  // A prompt, some tokens, a conversation that is cut back and goes on; records are read in between.
  void RunScenario() {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      Append(layer, 0, 0, 8);
      Append(layer, 1, 0, 5);
      Fetch(layer, 0, {0, 1, 2, 5, 7});
    }
    Append(0, 0, 8, 1);
    Fetch(0, 0, {7, 8});
    Fetch(1, 1, {0, 2, 3, 4}, 1);
    Truncate(0, 3);
    Append(0, 0, 3, 4);
    Append(1, 0, 3, 2);
    Fetch(0, 0, {1, 2, 3, 4, 6});
    Flush();
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      Fetch(layer, 0, {0, 1, 2, 3, 4}, 1);
      Fetch(layer, 1, {0, 1, 2, 3, 4});
    }
  }

  const std::vector<Status>& errors() const { return errors_; }
  uint64_t n_good_fetches() const { return n_good_fetches_; }
  uint64_t n_faults() const { return faulty_->n_faults(); }
  IoCounters counters() const { return faulty_->counters(); }
  const GroupStoreStats& stats() const { return store_->stats(); }
  const IoMode& mode() const { return store_->mode(); }

 private:
  static constexpr uint64_t kGone = 0;

  uint64_t Newest(uint32_t layer, uint32_t stream, uint32_t group) const {
    const auto found = newest_.find({layer, stream, group});
    return found == newest_.end() ? kGone : found->second;
  }

  void Note(const Status& status) {
    if (status.ok()) return;
    errors_.push_back(status);
    EXPECT_TRUE(status.code() == StatusCode::kIo || status.code() == StatusCode::kCorrupt);
    for (const char* part : {"layer ", "stream ", "group", "computed again"}) {
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    }
  }

  uint32_t record_bytes_;
  FaultyBlockFile* faulty_ = nullptr;
  std::unique_ptr<GroupStore> store_;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, uint64_t> newest_;  // version; kGone
  uint64_t version_ = kGone;
  std::vector<Status> errors_;
  uint64_t n_good_fetches_ = 0;
  AlignedMemory memory_{size_t{kGroups} * (64 * 1024 + 1)};
};

class GroupStoreFaults : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (MakeFile() == nullptr) GTEST_SKIP() << fixture_.reason;
    Checked healthy(MakeFile(), GetParam().record_bytes, {});
    healthy.RunScenario();
    ASSERT_TRUE(healthy.errors().empty());
    ASSERT_EQ(healthy.n_good_fetches(), 9U);
    healthy_ = healthy.counters();
    healthy_notes_ = healthy.mode().notes.size();
  }

  std::unique_ptr<BlockFile> MakeFile() {
    return fixture_.MakeFile(GetParam().backend, GetParam().direct, 4);
  }

  // The scenario with one fault, or several. Answers the errors that it met.
  std::vector<Status> Run(const FaultPlan& plan) {
    Checked store(MakeFile(), GetParam().record_bytes, plan);
    store.RunScenario();
    n_faults_ = store.n_faults();
    n_read_again_ = store.stats().records_read_again;
    return store.errors();
  }

  StoreFixture fixture_;
  IoCounters healthy_;
  size_t healthy_notes_ = 0;
  uint64_t n_faults_ = 0;
  uint64_t n_read_again_ = 0;
};

TEST_P(GroupStoreFaults, EveryReadInEveryWay) {
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

// Memory that disks cannot reach is filled by a copy, and somebody is told.
TEST_P(GroupStoreFaults, MemoryThatTakesNoReads) {
  Checked store(MakeFile(), GetParam().record_bytes, {}, true);
  store.RunScenario();
  EXPECT_TRUE(store.errors().empty());
  EXPECT_EQ(store.n_good_fetches(), 9U);
  const bool padded = GetParam().record_bytes % store.mode().alignment_bytes != 0;
  EXPECT_EQ(store.mode().notes.size(), healthy_notes_ + (padded ? 0U : 1U));
}

// All reads from one on: the second look does not help.
TEST_P(GroupStoreFaults, EveryReadFromOneOn) {
  for (uint64_t index = 0; index < healthy_.reads; index += 3) {
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

TEST_P(GroupStoreFaults, EveryWriteInEveryWay) {
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
      // What says so itself is always heard; the rest shows where the records are read before they are
      // replaced.
      if (kind == FaultKind::kIoError || kind == FaultKind::kNoSpace) {
        EXPECT_FALSE(errors.empty());
      }
      n_detected += errors.empty() ? 0 : 1;
    }
  }
  EXPECT_GT(n_detected, healthy_.writes * 4);  // most of them
}

TEST_P(GroupStoreFaults, APowerCutAnywhere) {
  for (uint64_t index = 0; index < healthy_.writes; ++index) {
    SCOPED_TRACE(::testing::Message() << "from write " << index << " on");
    FaultPlan plan;
    plan.faults = {{FaultKind::kLostWrite, IoKind::kWrite, index, UINT64_MAX}};
    const std::vector<Status> errors = Run(plan);
    ASSERT_FALSE(errors.empty());  // the last records written are read at the end
    EXPECT_EQ(errors[0].code(), StatusCode::kCorrupt) << errors[0].message();
  }
}

TEST_P(GroupStoreFaults, AFullDiskAnywhere) {
  for (uint64_t n = 0; n < 10; ++n) {
    SCOPED_TRACE(::testing::Message() << "full after " << n << " tenths");
    FaultPlan plan;
    plan.capacity_bytes = healthy_.written_bytes * n / 10;
    const std::vector<Status> errors = Run(plan);
    ASSERT_FALSE(errors.empty());
    EXPECT_NE(errors[0].message().find("No space left"), std::string::npos) << errors[0].message();
  }
}

TEST_P(GroupStoreFaults, AtRandom) {
  uint64_t n_faults = 0;
  uint64_t n_good = 0;
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    FaultPlan plan;
    plan.seed = seed;
    plan.probability = seed % 2 == 0 ? 0.02 : 0.1;
    Checked store(MakeFile(), GetParam().record_bytes, plan);
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t n) { return static_cast<uint32_t>(random() % n); };
    for (int step = 0; step < 120; ++step) {
      const uint32_t layer = below(Checked::kLayers);
      const uint32_t stream = below(Checked::kStreams);
      const uint32_t first = below(Checked::kGroups);
      switch (below(8)) {
        case 0: store.Truncate(stream, first); break;
        case 1: store.Flush(); break;
        case 2:
        case 3:
        case 4: store.Append(layer, stream, first, 1 + below(Checked::kGroups - first)); break;
        default: {
          std::vector<uint32_t> groups;
          for (uint32_t g = first; g < Checked::kGroups; g += 1 + below(2)) groups.push_back(g);
          store.Fetch(layer, stream, groups, below(2));
        }
      }
    }
    n_faults += store.n_faults();
    n_good += store.n_good_fetches();
  }
  EXPECT_GT(n_faults, 25U);
  EXPECT_GT(n_good, 100U);
}

INSTANTIATE_TEST_SUITE_P(All, GroupStoreFaults,
                         ::testing::Values(Case{"direct_in_place", IoBackend::kIoUring, DirectIo::kOn, 8192},
                                           Case{"direct_padded", IoBackend::kThreads, DirectIo::kOn, 5000},
                                           Case{"buffered", IoBackend::kThreads, DirectIo::kOff, 700}),
                         [](const ::testing::TestParamInfo<Case>& test) { return test.param.name; });

}  // namespace
}  // namespace kvrun::testing
