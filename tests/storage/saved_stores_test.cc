// Stores of clusters and of rows of their index: what is saved of them is found again by another store over a
// copy of the file, and what is damaged is an error, never more.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "platform/base/random.h"
#include "platform/base/units.h"
#include "runtime/kv/clusters/sequence_clusters.h"
#include "runtime/kv/math/cluster_records.h"
#include "runtime/store/cluster_store.h"
#include "runtime/store/row_store.h"
#include "runtime/store/state_visitor.h"
#include "tests/storage/cluster_fixture.h"
#include "tests/storage/state_file_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/shared_memory_file.h"

namespace kvrun::testing {
namespace {

namespace saved_stores {

constexpr uint32_t kLayers = 2;
constexpr uint32_t kStreams = 3;
constexpr uint32_t kClusters = 7;
constexpr uint32_t kMost = 9;  // records of a cluster
constexpr uint32_t kBytes = 700;

SharedBytes CopyOf(const SharedBytes& bytes) { return std::make_shared<std::vector<std::byte>>(*bytes); }

// Whoever reads what was given up gets something else.
class SpoilingFile final : public WrappingFile {
 public:
  SpoilingFile(SharedBytes bytes, uint32_t alignment_bytes)
      : WrappingFile(std::make_unique<SharedMemoryFile>(bytes, alignment_bytes)), bytes_(std::move(bytes)) {}
  void Discard(uint64_t offset_bytes, uint64_t size_bytes) override {
    ASSERT_LE(offset_bytes + size_bytes, bytes_->size());
    std::fill_n(bytes_->begin() + static_cast<ptrdiff_t>(offset_bytes), size_bytes, std::byte{0xee});
  }

 private:
  SharedBytes bytes_;
};

class SavedStores : public ::testing::Test {
 protected:
  template <typename Store>
  StateModel Saved(Store& store) {
    const auto file = OrDie(StateFile::Create(folder_.Path("saved")));
    RunOrDie(file->BeginSave());
    StateSaver saver(*file);
    RunOrDie(store.VisitState(saver));
    RunOrDie(file->Commit());
    return OrDie(LoadState(*file));
  }
  template <typename Store>
  Status Load(const StateModel& model, Store& store) {
    const auto file = OrDie(StateFile::Create(folder_.Path("loaded")));
    RunOrDie(SaveState(*file, model));
    StateLoader loader(*file);
    return store.VisitState(loader);
  }
  // With a change in an item of this number, of the first layer and stream: `change` gets its bytes.
  template <typename Make, typename Change>
  StatusCode LoadChanged(StateModel model, uint16_t item, const Make& make, const Change& change) {
    const auto found = model.find({StatePart::kStore, item, 0, 0});
    EXPECT_NE(found, model.end()) << item;
    if (found == model.end()) return StatusCode::kOk;
    change(found->second);
    return Load(model, *make()).code();
  }
  // Whatever the bytes are, it is loaded or it is an error.
  template <typename Make, typename Use>
  void ExpectNoHarm(const StateModel& model, const Make& make, const Use& use) {
    Random random(11);
    uint32_t n_loaded = 0;
    for (uint32_t round = 0; round < 300; ++round) {
      StateModel changed = model;
      auto at = changed.begin();
      std::advance(at, random.Below(static_cast<uint32_t>(changed.size())));
      const uint32_t kind = random.Below(4);
      StateBytes& bytes = at->second;
      if (kind == 0) {
        changed.erase(at);
      } else if (kind == 1 || bytes.empty()) {
        bytes.resize(random.Below(static_cast<uint32_t>(bytes.size()) * 2 + 9), std::byte{1});
      } else {
        const size_t i = random.Below(static_cast<uint32_t>(bytes.size()));
        bytes[i] ^= std::byte{static_cast<uint8_t>(1U << random.Below(8))};
      }
      const auto store = make();
      if (!Load(changed, *store).ok()) continue;
      ++n_loaded;
      use(*store);
    }
    EXPECT_LT(n_loaded, 290U);
  }

  TemporaryFolder folder_;
};

void PutWord(StateBytes& bytes, size_t nth, uint32_t value) {
  ASSERT_LE((nth + 1) * sizeof(value), bytes.size());
  std::memcpy(bytes.data() + nth * sizeof(value), &value, sizeof(value));
}
uint32_t Word(const StateBytes& bytes, size_t nth) {
  uint32_t value = 0;
  std::memcpy(&value, bytes.data() + nth * sizeof(value), sizeof(value));
  return value;
}

// --- ClusterStore.

std::unique_ptr<ClusterStore> MakeClusters(const SharedBytes& bytes, ClusterLayout layout,
                                           uint32_t alignment_bytes, uint32_t n_clusters = kClusters,
                                           uint32_t lane = 0) {
  const ClusterStoreShape shape{kLayers, kStreams, n_clusters, kMost, kBytes, layout, lane};
  return OrDie(
      ClusterStore::Create(std::make_unique<SpoilingFile>(bytes, alignment_bytes), shape, 64 * kKiB));
}

// What a store should hold: versions of a cluster's records; none: it is not there.
class HeldClusters {
 public:
  void ChangeSome(Random& random, std::vector<ClusterStore*> stores) {
    const uint32_t layer = random.Below(kLayers);
    const uint32_t stream = random.Below(kStreams);
    const uint32_t cluster = random.Below(kClusters);
    std::vector<uint64_t>& versions = At(layer, stream, cluster);
    if (random.Below(5) == 0) {
      versions.clear();
      for (ClusterStore* store : stores) store->Forget(layer, stream, cluster);
      return;
    }
    const uint32_t first = random.Below(static_cast<uint32_t>(versions.size()) + 1);
    versions.resize(std::max(1U, first + random.Below(kMost + 1 - first)));
    for (uint32_t i = first; i < versions.size(); ++i) versions[i] = ++version_;
    const auto records = MakeClusterRecords(kBytes, layer, stream, cluster, versions);
    const uint32_t first_changed = std::min(first, static_cast<uint32_t>(versions.size()));
    for (ClusterStore* store : stores) {
      RunOrDie(store->Write(layer, stream, cluster, first_changed, records));
    }
  }
  void ExpectIn(ClusterStore& store) {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      std::vector<WantedCluster> wanted;
      for (uint32_t stream = 0; stream < kStreams; ++stream) {
        for (uint32_t cluster = 0; cluster < kClusters; ++cluster) {
          const std::vector<uint64_t>& versions = At(layer, stream, cluster);
          if (!versions.empty()) {
            wanted.push_back({stream, cluster, versions});
            continue;
          }
          const ClusterReader none(kBytes, {{stream, cluster, {1}}});
          EXPECT_EQ(store.Fetch(layer, none.fetches()).code(), StatusCode::kIo) << "it is not there";
        }
      }
      const ClusterReader reader(kBytes, wanted);
      RunOrDie(store.Fetch(layer, reader.fetches()));
      EXPECT_EQ(reader.Wrong(layer), "");
    }
  }

 private:
  std::vector<uint64_t>& At(uint32_t layer, uint32_t stream, uint32_t cluster) {
    return held_[(layer * kStreams + stream) * kClusters + cluster];
  }
  std::vector<uint64_t> held_[kLayers * kStreams * kClusters];
  uint64_t version_ = 0;
};

TEST_F(SavedStores, ClustersAreFoundAgain) {
  for (const ClusterLayout layout : {ClusterLayout::kDualHead, ClusterLayout::kCluster}) {
    for (const uint32_t alignment : {1U, 4096U}) {
      const auto bytes = std::make_shared<std::vector<std::byte>>();
      const auto store = MakeClusters(bytes, layout, alignment);
      HeldClusters held;
      Random random(alignment);
      for (uint32_t save = 0; save < 5; ++save) {
        for (uint32_t i = 0; i < 60; ++i) held.ChangeSome(random, {store.get()});
        RunOrDie(store->Flush());
        const auto loaded = MakeClusters(CopyOf(bytes), layout, alignment);
        RunOrDie(Load(Saved(*store), *loaded));
        held.ExpectIn(*loaded);
        HeldClusters both = held;
        for (uint32_t i = 0; i < 60; ++i) both.ChangeSome(random, {loaded.get()});
        both.ExpectIn(*loaded);
        held.ExpectIn(*store);
      }
    }
  }
}

// A longer context has room for more clusters in the same lanes.
TEST_F(SavedStores, ClustersAreFoundAgainByStoresOfTheSameLanes) {
  constexpr uint32_t kLane = 11;
  const auto bytes = std::make_shared<std::vector<std::byte>>();
  const auto store = MakeClusters(bytes, ClusterLayout::kDualHead, 4096, kClusters, kLane);
  EXPECT_EQ(bytes->size(), kLayers * kStreams * (kLane + 1) * 2 * 4096);
  HeldClusters held;
  Random random(3);
  for (uint32_t i = 0; i < 100; ++i) held.ChangeSome(random, {store.get()});
  RunOrDie(store->Flush());
  const StateModel saved = Saved(*store);
  const auto longer = MakeClusters(CopyOf(bytes), ClusterLayout::kDualHead, 4096, kLane, kLane);
  RunOrDie(Load(saved, *longer));
  held.ExpectIn(*longer);
  const auto shorter = MakeClusters(CopyOf(bytes), ClusterLayout::kDualHead, 4096, 2, kLane);
  EXPECT_EQ(Load(saved, *shorter).code(), StatusCode::kInvalidArgument);
  const auto elsewhere = MakeClusters(CopyOf(bytes), ClusterLayout::kDualHead, 4096, kClusters, kLane + 1);
  EXPECT_EQ(Load(saved, *elsewhere).code(), StatusCode::kInvalidArgument);
  const auto upwards = MakeClusters(CopyOf(bytes), ClusterLayout::kCluster, 4096, kClusters, kLane);
  EXPECT_EQ(Load(saved, *upwards).code(), StatusCode::kInvalidArgument);
}

TEST_F(SavedStores, DamagedClustersAreAnError) {
  const auto bytes = std::make_shared<std::vector<std::byte>>();
  const auto make = [&] { return MakeClusters(CopyOf(bytes), ClusterLayout::kDualHead, 1); };
  const auto store = MakeClusters(bytes, ClusterLayout::kDualHead, 1);
  for (const uint32_t cluster : {0U, 1U, 3U}) {
    RunOrDie(store->Write(0, 0, cluster, 0, MakeClusterRecords(kBytes, 0, 0, cluster, {1, 2})));
  }
  RunOrDie(store->Flush());
  const StateModel saved = Saved(*store);
  constexpr uint16_t kItem = 11;
  const auto code = [&](const auto& change) { return LoadChanged(saved, kItem, make, change); };
  EXPECT_EQ(code([](StateBytes&) {}), StatusCode::kOk);
  EXPECT_EQ(code([](StateBytes& item) { item.pop_back(); }), StatusCode::kCorrupt);
  EXPECT_EQ(code([](StateBytes& item) { item.resize(8 * (kClusters + 1)); }), StatusCode::kCorrupt);
  EXPECT_EQ(code([](StateBytes& item) { PutWord(item, 1, kMost + 1); }), StatusCode::kCorrupt);
  EXPECT_EQ(code([](StateBytes& item) { PutWord(item, 1, 0); }), StatusCode::kCorrupt);
  EXPECT_EQ(code([](StateBytes& item) { PutWord(item, 2 * 3, 0); }), StatusCode::kCorrupt);
  EXPECT_EQ(code([](StateBytes& item) { PutWord(item, 2 * 2, 5); }), StatusCode::kCorrupt);
  // One that nothing contradicts but the file itself.
  const auto loaded = make();
  StateModel wrong = saved;
  StateBytes& item = wrong.at({StatePart::kStore, kItem, 0, 0});
  PutWord(item, 0, Word(item, 0) ^ 1);
  RunOrDie(Load(wrong, *loaded));
  EXPECT_EQ(loaded->Fetch(0, ClusterReader(kBytes, {{0, 0, {1, 2}}}).fetches()).code(), StatusCode::kCorrupt);
  ExpectNoHarm(saved, make, [](ClusterStore& of) {
    for (const uint32_t cluster : {0U, 1U, 2U, 3U}) {
      const ClusterReader reader(kBytes, {{0, cluster, {1, 2}}});
      EXPECT_EQ(of.Fetch(0, reader.fetches()).ok() ? reader.Wrong(0) : "", "");
    }
  });
}

// --- RowStore.

constexpr uint64_t kListBytes = 5000;

std::unique_ptr<RowStore> MakeRows(const SharedBytes& bytes, uint32_t alignment_bytes,
                                   uint64_t list_bytes = kListBytes, uint64_t lane_bytes = 0) {
  return OrDie(RowStore::Create(std::make_unique<SharedMemoryFile>(bytes, alignment_bytes),
                                {kLayers, kStreams, list_bytes, lane_bytes}));
}

// Empty: the list is not there.
std::vector<std::byte> ReadList(RowStore& store, uint32_t layer, uint32_t list,
                                uint64_t list_bytes = kListBytes) {
  if (!store.IsWritten(layer, list)) return {};
  std::vector<std::byte> bytes(list_bytes);
  RunOrDie(store.Begin(layer, list, 1));
  bytes.resize(OrDie(store.Copy(layer, list, bytes)));
  RunOrDie(store.End());
  return bytes;
}

TEST_F(SavedStores, RowsAreFoundAgain) {
  for (const uint32_t alignment : {1U, 4096U}) {
    const auto bytes = std::make_shared<std::vector<std::byte>>();
    const auto store = MakeRows(bytes, alignment, kListBytes, 2 * kListBytes);
    Random random(alignment);
    std::vector<std::byte> held[kLayers * kStreams];
    for (uint32_t save = 0; save < 8; ++save) {
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t place = random.Below(kLayers * kStreams);
        held[place] = random.Below(4) == 0 ? StateBytes() : StatePattern(1 + random.Below(kListBytes), i);
        if (held[place].empty()) {
          store->Forget(place / kStreams, place % kStreams);
        } else {
          RunOrDie(store->Write(place / kStreams, place % kStreams, held[place]));
        }
      }
      RunOrDie(store->Flush());
      const StateModel saved = Saved(*store);
      const auto loaded = MakeRows(CopyOf(bytes), alignment, kListBytes, 2 * kListBytes);
      RunOrDie(Load(saved, *loaded));
      const auto longer = MakeRows(CopyOf(bytes), alignment, 2 * kListBytes, 2 * kListBytes);
      RunOrDie(Load(saved, *longer));
      for (uint32_t place = 0; place < kLayers * kStreams; ++place) {
        EXPECT_EQ(ReadList(*loaded, place / kStreams, place % kStreams), held[place]);
        EXPECT_EQ(ReadList(*longer, place / kStreams, place % kStreams, 2 * kListBytes), held[place]);
      }
      EXPECT_EQ(Load(saved, *MakeRows(CopyOf(bytes), alignment)).code(), StatusCode::kInvalidArgument);
    }
  }
}

TEST_F(SavedStores, DamagedRowsAreAnError) {
  const auto bytes = std::make_shared<std::vector<std::byte>>();
  const auto make = [&] { return MakeRows(CopyOf(bytes), 1); };
  const auto store = MakeRows(bytes, 1);
  RunOrDie(store->Write(0, 0, StatePattern(kListBytes, 1)));
  RunOrDie(store->Write(1, 2, StatePattern(17, 1)));
  RunOrDie(store->Flush());
  const StateModel saved = Saved(*store);
  constexpr uint16_t kChecksums = 21;
  constexpr uint16_t kLengths = 22;
  const auto code = [&](uint16_t item, const auto& change) { return LoadChanged(saved, item, make, change); };
  EXPECT_EQ(code(kLengths, [](StateBytes&) {}), StatusCode::kOk);
  EXPECT_EQ(code(kLengths, [](StateBytes& item) { item.pop_back(); }), StatusCode::kCorrupt);
  EXPECT_EQ(code(kChecksums, [](StateBytes& item) { item.resize(item.size() + 4); }), StatusCode::kCorrupt);
  EXPECT_EQ(code(kLengths, [](StateBytes& item) { PutWord(item, 0, kListBytes + 1); }), StatusCode::kCorrupt);
  EXPECT_EQ(code(kLengths, [](StateBytes& item) { PutWord(item, 0, 0); }), StatusCode::kCorrupt);
  EXPECT_EQ(code(kChecksums, [](StateBytes& item) { PutWord(item, 0, 1); }), StatusCode::kCorrupt) << "lost";
  EXPECT_EQ(code(kChecksums, [](StateBytes& item) { PutWord(item, 1, 77); }), StatusCode::kCorrupt);
  ExpectNoHarm(saved, make, [](RowStore& of) {
    std::vector<std::byte> list(kListBytes);
    for (uint32_t place = 0; place < kLayers * kStreams; ++place) {
      if (!of.IsWritten(place / kStreams, place % kStreams)) continue;
      RunOrDie(of.Begin(place / kStreams, place % kStreams, 1));
      const auto length = of.Copy(place / kStreams, place % kStreams, list);
      RunOrDie(of.End());
      EXPECT_TRUE(!length.ok() || HoldsPattern(std::span(list).first(*length), 0, 1));
    }
  });
}

// --- SequenceClusters.

KvPlan PlanInSequence() {
  KvPlan plan;
  plan.n_ctx = 100;
  plan.n_streams = 2;
  plan.record = {
      .k_type = KvType::kFp8, .v_type = KvType::kFp8, .n_heads = 1, .head_dim = 20, .group_tokens = 1};
  plan.slots.record = plan.record;
  plan.slots.record.group_tokens = 4;
  plan.slots.record.has_positions = true;
  plan.choice.n_chosen = 60;
  plan.family = ClustersPlan{};
  plan.of_clusters().n_clusters = 30;
  plan.of_clusters().max_entries = 16;
  plan.staging_bytes = 256 * kKiB;
  return plan;
}

class InSequence {
 public:
  explicit InSequence(SharedBytes bytes)
      : plan_(PlanInSequence()),
        store_(OrDie(SequenceClusters::Create(std::make_unique<SharedMemoryFile>(std::move(bytes), 1), plan_,
                                              kLayers))) {}

  Status VisitState(StateVisitor& visitor) { return store_->VisitState(visitor); }
  // An entry's bytes follow from its position.
  void Write(uint32_t stream, uint32_t cluster, const std::vector<uint32_t>& positions) {
    RunOrDie(store_->Write(1, stream, cluster, 0, Records(positions)));
  }
  void Forget(uint32_t stream, uint32_t cluster) { store_->Forget(1, stream, cluster); }
  Result<std::vector<std::byte>> Read(uint32_t stream, uint32_t cluster, uint32_t n_entries) {
    const uint32_t n = CeilDiv(n_entries, plan_.slots.record.group_tokens);
    std::vector<std::byte> records(n * plan_.slots.record.size_bytes());
    std::vector<std::byte*> memory;
    for (uint32_t i = 0; i < n; ++i) memory.push_back(records.data() + i * plan_.slots.record.size_bytes());
    const ClusterFetch fetch{stream, cluster, n, memory};
    KVRUN_RETURN_IF_ERROR(store_->Fetch(1, {&fetch, 1}));
    return records;
  }
  Status Flush() { return store_->Flush(); }
  std::vector<std::byte> Records(const std::vector<uint32_t>& positions) const {
    const KvRecordShape& shape = plan_.slots.record;
    const auto n = CeilDiv(static_cast<uint32_t>(positions.size()), shape.group_tokens);
    std::vector<std::byte> records(n * shape.size_bytes());
    for (uint32_t i = 0; i < positions.size(); ++i) {
      const auto record =
          std::span(records).subspan(i / shape.group_tokens * shape.size_bytes(), shape.size_bytes());
      std::vector<std::byte> entry(plan_.record.size_bytes());
      FillPattern(entry, 1000 * positions[i]);
      CopyEntry(plan_.record, entry, 0, shape, record, i % shape.group_tokens);
      SetPosition(shape, record, i % shape.group_tokens, positions[i]);
    }
    for (auto i = static_cast<uint32_t>(positions.size()); i < n * shape.group_tokens; ++i) {
      const auto last = std::span(records).last(shape.size_bytes());
      SetPosition(shape, last, i % shape.group_tokens, kNoPosition);
    }
    return records;
  }
  // Of a cluster whose entries fill its records.
  bool Holds(uint32_t stream, uint32_t cluster, const std::vector<uint32_t>& positions) {
    const auto read = Read(stream, cluster, static_cast<uint32_t>(positions.size()));
    return read.ok() && *read == Records(positions);
  }

 private:
  KvPlan plan_;
  std::unique_ptr<SequenceClusters> store_;
};

TEST_F(SavedStores, EntriesInTheOrderOfTheTextAreFoundAgain) {
  const auto bytes = std::make_shared<std::vector<std::byte>>();
  InSequence store(bytes);
  store.Write(0, 3, {4, 5, 9, 12});
  store.Write(0, 0, {6, 7, 20, 21});
  store.Write(1, 29, {99, 98, 97, 0});
  store.Write(1, 1, {50, 51, 52, 53});
  store.Write(0, 8, {20, 5, 6, 9});  // of two that were divided
  store.Write(0, 3, {4, 12, 13, 14});
  store.Write(0, 0, {7, 21, 22, 23});
  store.Forget(1, 1);
  RunOrDie(store.Flush());
  InSequence loaded(CopyOf(bytes));
  RunOrDie(Load(Saved(store), loaded));
  for (InSequence* const of : {&store, &loaded}) {
    EXPECT_TRUE(of->Holds(0, 3, {4, 12, 13, 14}));
    EXPECT_TRUE(of->Holds(0, 8, {20, 5, 6, 9}));
    EXPECT_TRUE(of->Holds(1, 29, {99, 98, 97, 0}));
    EXPECT_FALSE(of->Read(1, 1, 4).ok());
    // Entries stay where they are, and those that come are written.
    of->Write(0, 0, {7, 21, 30, 31});
    of->Write(1, 2, {98, 0, 51, 1});
    of->Write(1, 29, {99, 97, 2, 3});
    EXPECT_TRUE(of->Holds(0, 0, {7, 21, 30, 31}));
    EXPECT_TRUE(of->Holds(1, 2, {98, 0, 51, 1}));
    EXPECT_TRUE(of->Holds(1, 29, {99, 97, 2, 3}));
  }
}

TEST_F(SavedStores, DamagedEntriesInTheOrderOfTheTextAreAnError) {
  const auto bytes = std::make_shared<std::vector<std::byte>>();
  const auto make = [&] { return std::make_unique<InSequence>(CopyOf(bytes)); };
  InSequence store(bytes);
  for (const uint32_t stream : {0U, 1U}) {
    store.Write(stream, 0, {4, 5, 9, 12});
    store.Write(stream, 2, {6, 7, 20, 21});
  }
  RunOrDie(store.Flush());
  const StateModel saved = Saved(store);
  const auto code = [&](uint16_t item, const auto& change) {
    StateModel model = saved;
    change(model.at({StatePart::kStore, item, 1, 0}));
    return Load(model, *make()).code();
  };
  constexpr uint16_t kOwners = 10;
  constexpr uint16_t kNext = 11;
  constexpr uint16_t kOfClusters = 12;  // first, n_entries
  EXPECT_EQ(code(kNext, [](StateBytes&) {}), StatusCode::kOk);
  EXPECT_EQ(code(kOwners, [](StateBytes& item) { item.resize(4 * 101); }), StatusCode::kCorrupt);
  EXPECT_EQ(code(kOwners, [](StateBytes& item) { item.resize(item.size() + 4); }), StatusCode::kCorrupt);
  EXPECT_EQ(code(kOwners, [](StateBytes& item) { PutWord(item, 5, 1); }), StatusCode::kCorrupt);
  EXPECT_EQ(code(kOwners, [](StateBytes& item) { PutWord(item, 3, 77); }), StatusCode::kCorrupt);
  EXPECT_EQ(code(kNext, [](StateBytes& item) { PutWord(item, 5, 4); }), StatusCode::kCorrupt) << "a circle";
  EXPECT_EQ(code(kNext, [](StateBytes& item) { PutWord(item, 5, 4000000000); }), StatusCode::kCorrupt);
  EXPECT_EQ(code(kOfClusters, [](StateBytes& item) { PutWord(item, 1, 4000000000); }), StatusCode::kCorrupt);
  EXPECT_EQ(code(kOfClusters, [](StateBytes& item) { PutWord(item, 1, 3); }), StatusCode::kCorrupt);
  EXPECT_EQ(code(kOfClusters, [](StateBytes& item) { PutWord(item, 0, 100); }), StatusCode::kCorrupt);
  ExpectNoHarm(saved, make, [](InSequence& of) {
    for (const uint32_t stream : {0U, 1U}) {
      for (const uint32_t cluster : {0U, 1U, 2U}) {
        (void)of.Read(stream, cluster, 4).ok();
      }
      of.Forget(stream, 0);
    }
  });
}

}  // namespace saved_stores
}  // namespace
}  // namespace kvrun::testing
