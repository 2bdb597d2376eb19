// The stores, seen in one way: units that are written, read and forgotten, whose bytes follow from their
// place and a version. For tests that all of them have to pass.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <compare>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "platform/base/units.h"
#include "runtime/store/cluster_store.h"
#include "runtime/store/group_store.h"
#include "runtime/store/row_store.h"
#include "runtime/store/spill_file.h"
#include "tests/storage/cluster_fixture.h"
#include "tests/storage/store_fixture.h"

namespace kvrun::testing {

struct Unit {
  uint32_t layer = 0;
  uint32_t stream = 0;
  uint32_t index = 0;
  auto operator<=>(const Unit&) const = default;
};

// What a unit should be: the number of a pattern.
struct WantedUnit {
  Unit unit;
  uint64_t version = 0;
};

class FaultedStore {
 public:
  static constexpr uint32_t kLayers = 2;
  static constexpr uint32_t kStreams = 2;
  static constexpr uint32_t kUnits = 6;  // of a layer's stream

  virtual ~FaultedStore() = default;
  // Units [first.index, first.index + n) of a layer's stream; one at a time where StoreTraits says so.
  virtual Status Write(const Unit& first, uint32_t n, uint64_t version) = 0;
  virtual Status Flush() { return Status::Ok(); }
  // Units of this layer will be read next: what reads ahead begins.
  virtual Status Announce(uint32_t /*layer*/) { return Status::Ok(); }
  // Ascending, of one layer. Without an error a unit that is not what it should be fails the test.
  virtual Status Read(const std::vector<WantedUnit>& wanted) = 0;
  virtual void Forget(const Unit& /*unit*/) {}

 protected:
  static uint64_t PlaceOf(const Unit& unit) { return RecordPlace(unit.layer, unit.stream, unit.index); }
  static void Expect(bool is_right, const Unit& unit) {
    EXPECT_TRUE(is_right) << "WRONG BYTES: layer " << unit.layer << ", stream " << unit.stream << ", unit "
                          << unit.index;
  }
};

// In what stores differ.
struct StoreTraits {
  // What errors are of: layer 1, stream 1, unit 2, alone, that was read or written.
  std::string read_alone;
  std::string changed_alone;
  std::string written_alone;
  std::string whole;               // what is to be computed again
  std::vector<std::string> words;  // of every error
  bool writes_runs = false;        // of several units
  bool forgets = true;
  bool forgets_those_after = false;      // in all layers, too
  bool says_what_is_gone = false;        // a unit that is not there may be asked for
  bool reads_again_after_error = false;  // and not only what differs
  bool reads_together = false;           // units of one Read, and starts no more of them after an error
  // What says that a write has failed: Write or Flush, once, or each Read.
  bool reading_says_what_was_not_written = false;
};

class FaultedGroups final : public FaultedStore {
 public:
  static StoreTraits Traits() {
    const std::string alone = "layer 1, stream 1, group";
    return {.read_alone = alone + "s 2 to 2 of the KV cache",
            .changed_alone = alone + " 2 of the KV cache",
            .written_alone = alone + "s 2 to 2 of the KV cache",
            .whole = "sequence",
            .words = {"layer ", "stream ", "group", "of the KV cache", "computed again"},
            .writes_runs = true,
            .forgets_those_after = true,
            .says_what_is_gone = true,
            .reads_together = true};
  }

  static Result<std::unique_ptr<FaultedStore>> Make(std::unique_ptr<BlockFile> file, uint32_t record_bytes) {
    const uint64_t stride = RoundUp<uint64_t>(record_bytes, file->mode().alignment_bytes);
    KVRUN_ASSIGN_OR_RETURN(
        auto store,
        GroupStore::Create(std::move(file), {kLayers, kStreams, kUnits, record_bytes}, 5 * stride));
    return std::unique_ptr<FaultedStore>(new FaultedGroups(std::move(store), record_bytes));
  }

  Status Write(const Unit& first, uint32_t n, uint64_t version) override {
    return store_->Append(first.layer, first.stream, first.index,
                          MakeRecords(record_bytes_, first.layer, first.stream, first.index, n, version));
  }
  Status Flush() override { return store_->Flush(); }
  // Every other time not aligned.
  Status Read(const std::vector<WantedUnit>& wanted) override {
    memory_.Fill(0xcd);
    is_odd_ = !is_odd_;
    std::vector<GroupFetch> fetches;
    for (const WantedUnit& w : wanted) {
      fetches.push_back({w.unit.stream, w.unit.index,
                         memory_.data() + fetches.size() * (size_t{record_bytes_} + (is_odd_ ? 1 : 0))});
    }
    KVRUN_RETURN_IF_ERROR(store_->Fetch(wanted[0].unit.layer, fetches));
    for (size_t i = 0; i < wanted.size(); ++i) {
      const Unit& u = wanted[i].unit;
      Expect(IsRecord(fetches[i].memory, record_bytes_, u.layer, u.stream, u.index, wanted[i].version), u);
    }
    return Status::Ok();
  }
  void Forget(const Unit& unit) override { EXPECT_TRUE(store_->Truncate(unit.stream, unit.index).ok()); }

 private:
  FaultedGroups(std::unique_ptr<GroupStore> store, uint32_t record_bytes)
      : record_bytes_(record_bytes), store_(std::move(store)) {}

  uint32_t record_bytes_;
  AlignedMemory memory_{size_t{kStreams} * kUnits * (16 * 1024)};
  bool is_odd_ = false;
  std::unique_ptr<GroupStore> store_;
};

class FaultedClusters final : public FaultedStore {
 public:
  static StoreTraits Traits() {
    const std::string alone = "layer 1, stream 1, cluster 2 of the KV cache";
    return {.read_alone = alone,
            .changed_alone = alone,
            .written_alone = alone,
            .whole = "sequence",
            .words = {"layer ", "stream ", "cluster", "of the KV cache", "computed again"},
            .says_what_is_gone = true,
            .reads_together = true};
  }

  static Result<std::unique_ptr<FaultedStore>> Make(std::unique_ptr<BlockFile> file, uint32_t record_bytes,
                                                    ClusterLayout layout) {
    const uint64_t half = RoundUp<uint64_t>(kMaxRecords * record_bytes, file->mode().alignment_bytes);
    KVRUN_ASSIGN_OR_RETURN(
        auto store,
        ClusterStore::Create(std::move(file), {kLayers, kStreams, kUnits, kMaxRecords, record_bytes, layout},
                             3 * half));
    return std::unique_ptr<FaultedStore>(new FaultedClusters(std::move(store), record_bytes));
  }

  // Keeps some of the records, and has new ones after them.
  Status Write(const Unit& unit, uint32_t, uint64_t version) override {
    std::vector<uint64_t>& versions = versions_[unit];
    const auto kept = std::min(versions.size(), static_cast<size_t>(version % (kMaxRecords - 1)));
    const size_t n_new = 1 + version % (kMaxRecords - kept);
    versions.resize(kept);
    versions.resize(kept + n_new, version);
    return store_->Write(unit.layer, unit.stream, unit.index, static_cast<uint32_t>(kept),
                         MakeClusterRecords(record_bytes_, unit.layer, unit.stream, unit.index, versions));
  }
  Status Flush() override { return store_->Flush(); }
  // Not all records, from time to time.
  Status Read(const std::vector<WantedUnit>& wanted) override {
    std::vector<WantedCluster> clusters;
    for (const WantedUnit& w : wanted) {
      const std::vector<uint64_t>& versions = versions_[w.unit];
      clusters.push_back(
          {w.unit.stream, w.unit.index, versions.empty() ? std::vector<uint64_t>{0} : versions});
    }
    const uint32_t layer = wanted[0].unit.layer;
    const ClusterReader reader(record_bytes_, clusters, n_reads_++ % 4);
    KVRUN_RETURN_IF_ERROR(store_->Fetch(layer, reader.fetches()));
    EXPECT_EQ(reader.Wrong(layer), "");
    return Status::Ok();
  }
  void Forget(const Unit& unit) override { store_->Forget(unit.layer, unit.stream, unit.index); }

 private:
  static constexpr uint32_t kMaxRecords = 5;

  FaultedClusters(std::unique_ptr<ClusterStore> store, uint32_t record_bytes)
      : record_bytes_(record_bytes), store_(std::move(store)) {}

  uint32_t record_bytes_;
  std::map<Unit, std::vector<uint64_t>> versions_;  // of each record, as it was handed in last
  uint32_t n_reads_ = 0;
  std::unique_ptr<ClusterStore> store_;
};

class FaultedRows final : public FaultedStore {
 public:
  static StoreTraits Traits() {
    const std::string alone = fmt::format("the index of clusters of layer 1, stream {}", kUnits + 2);
    return {.read_alone = alone,
            .changed_alone = alone,
            .written_alone = alone,
            .whole = "sequence",
            .words = {"the index of clusters of layer ", "stream "},
            .reads_again_after_error = true,
            .reading_says_what_was_not_written = true};
  }

  static Result<std::unique_ptr<FaultedStore>> Make(std::unique_ptr<BlockFile> file) {
    KVRUN_ASSIGN_OR_RETURN(auto store,
                           RowStore::Create(std::move(file), {kLayers, kStreams * kUnits, kListBytes}));
    return std::unique_ptr<FaultedStore>(new FaultedRows(std::move(store)));
  }

  Status Write(const Unit& unit, uint32_t, uint64_t version) override {
    FillPattern(bytes_, PlaceOf(unit), version);
    return store_->Write(unit.layer, List(unit), std::span(bytes_).first(Length(version)));
  }
  Status Flush() override { return store_->Flush(); }
  Status Announce(uint32_t layer) override {
    KVRUN_RETURN_IF_ERROR(End());
    KVRUN_RETURN_IF_ERROR(store_->Begin(layer, 0, kStreams * kUnits));
    has_begun_ = true;
    return Status::Ok();
  }
  // Answers the first error, but goes on as long as it can.
  Status Read(const std::vector<WantedUnit>& wanted) override {
    const uint32_t layer = wanted[0].unit.layer;
    if (!has_begun_ || !store_->HasBegun(layer, 0)) {
      const uint32_t first = List(wanted.front().unit);
      KVRUN_RETURN_IF_ERROR(End());
      KVRUN_RETURN_IF_ERROR(store_->Begin(layer, first, List(wanted.back().unit) - first + 1));
      has_begun_ = true;
    }
    Status status = Status::Ok();
    for (const WantedUnit& w : wanted) {
      const Status copied = Copy(w);
      if (status.ok()) status = copied;
    }
    const Status ended = End();
    return status.ok() ? ended : status;
  }
  void Forget(const Unit& unit) override { store_->Forget(unit.layer, List(unit)); }

 private:
  static constexpr uint64_t kListBytes = 5000;  // no multiple of any alignment

  explicit FaultedRows(std::unique_ptr<RowStore> store) : store_(std::move(store)) {}

  static uint32_t List(const Unit& unit) { return unit.stream * kUnits + unit.index; }
  static uint64_t Length(uint64_t version) { return 1 + version * 1237 % kListBytes; }
  Status Copy(const WantedUnit& w) {
    std::fill(bytes_.begin(), bytes_.end(), std::byte{0x5a});
    KVRUN_ASSIGN_OR_RETURN(const uint64_t length, store_->Copy(w.unit.layer, List(w.unit), bytes_));
    const auto end = bytes_.begin() + static_cast<ptrdiff_t>(Length(w.version));
    Expect(length == Length(w.version) &&
               HoldsPattern(std::span(bytes_).first(length), PlaceOf(w.unit), w.version) &&
               std::all_of(end, bytes_.end(), [](std::byte byte) { return byte == std::byte{0x5a}; }),
           w.unit);
    return Status::Ok();
  }
  Status End() {
    if (!std::exchange(has_begun_, false)) return Status::Ok();
    return store_->End();
  }

  std::vector<std::byte> bytes_ = std::vector<std::byte>(kListBytes);
  bool has_begun_ = false;
  std::unique_ptr<RowStore> store_;
};

class FaultedSpill final : public FaultedStore {
 public:
  static StoreTraits Traits() {
    const std::string alone = fmt::format("{} of a prompt's intermediate results at {}",
                                          FormatBytes(Bytes({1, 1, 2})), Offset({1, 1, 2}));
    return {.read_alone = "cannot read " + alone,
            .changed_alone = alone,
            .written_alone = "cannot write " + alone,
            .whole = "prompt",
            .words = {" of a prompt's intermediate results at "},
            .forgets = false};
  }

  static Result<std::unique_ptr<FaultedStore>> Make(std::unique_ptr<BlockFile> file) {
    KVRUN_ASSIGN_OR_RETURN(auto store,
                           SpillFile::Create(std::move(file), kLayers * kStreams * kUnits * kUnitBytes));
    return std::unique_ptr<FaultedStore>(new FaultedSpill(std::move(store)));
  }

  Status Write(const Unit& unit, uint32_t, uint64_t version) override {
    const std::span<std::byte> bytes = memory_.span().first(Bytes(unit));
    FillPattern(bytes, PlaceOf(unit), version);
    return store_->Write(Offset(unit), bytes);
  }
  Status Read(const std::vector<WantedUnit>& wanted) override {
    Status status = Status::Ok();
    for (const WantedUnit& w : wanted) {
      const std::span<std::byte> bytes = memory_.span().first(Bytes(w.unit));
      memory_.Fill(0xcd);
      const Status read = store_->Read(Offset(w.unit), bytes);
      if (read.ok()) Expect(HoldsPattern(bytes, PlaceOf(w.unit), w.version), w.unit);
      if (status.ok()) status = read;
    }
    return status;
  }

 private:
  static constexpr uint64_t kUnitBytes = 2 * SpillFile::kOffsetAlignment;

  explicit FaultedSpill(std::unique_ptr<SpillFile> store) : store_(std::move(store)) {}

  static uint64_t Offset(const Unit& unit) {
    return ((uint64_t{unit.layer} * kStreams + unit.stream) * kUnits + unit.index) * kUnitBytes;
  }
  // One that has two checksums and goes through the buffer, one that direct I/O takes as it is, short ones.
  static uint64_t Bytes(const Unit& unit) {
    switch (unit.index) {
      case 0: return SpillFile::kOffsetAlignment + 777;
      case 1: return SpillFile::kOffsetAlignment;
      default: return 5000 + unit.index;
    }
  }

  AlignedMemory memory_{kUnitBytes};
  std::unique_ptr<SpillFile> store_;
};

struct StoreCase {
  std::string name;
  IoBackend backend;
  DirectIo direct;
  uint32_t alignment_bytes;  // 0: the file's
  StoreTraits traits;
  std::function<Result<std::unique_ptr<FaultedStore>>(std::unique_ptr<BlockFile>)> make;
};

inline void PrintTo(const StoreCase& c, std::ostream* out) { *out << c.name; }

inline std::vector<StoreCase> StoreCases() {
  using File = std::unique_ptr<BlockFile>;
  const auto groups = [](uint32_t record_bytes) {
    return [=](File file) { return FaultedGroups::Make(std::move(file), record_bytes); };
  };
  const auto clusters = [](uint32_t record_bytes, ClusterLayout layout) {
    return [=](File file) { return FaultedClusters::Make(std::move(file), record_bytes, layout); };
  };
  const auto rows = [](File file) { return FaultedRows::Make(std::move(file)); };
  const auto spill = [](File file) { return FaultedSpill::Make(std::move(file)); };
  constexpr IoBackend kUring = IoBackend::kIoUring;
  constexpr IoBackend kThreads = IoBackend::kThreads;
  constexpr DirectIo kOn = DirectIo::kOn;
  constexpr DirectIo kOff = DirectIo::kOff;
  constexpr ClusterLayout kDual = ClusterLayout::kDualHead;
  constexpr ClusterLayout kUp = ClusterLayout::kCluster;
  return {{"groups_in_place", kUring, kOn, 0, FaultedGroups::Traits(), groups(8192)},
          {"groups_padded", kThreads, kOn, 0, FaultedGroups::Traits(), groups(5000)},
          {"groups_buffered", kThreads, kOff, 0, FaultedGroups::Traits(), groups(700)},
          {"clusters_direct", kUring, kOn, 0, FaultedClusters::Traits(), clusters(5000, kDual)},
          {"clusters_in_pages_of_512", kThreads, kOff, 512, FaultedClusters::Traits(), clusters(700, kDual)},
          {"clusters_in_bytes", kThreads, kOff, 1, FaultedClusters::Traits(), clusters(700, kDual)},
          {"clusters_up", kThreads, kOff, 4096, FaultedClusters::Traits(), clusters(3000, kUp)},
          {"rows_direct", kUring, kOn, 0, FaultedRows::Traits(), rows},
          {"rows_in_pages_of_512", kThreads, kOff, 512, FaultedRows::Traits(), rows},
          {"spill_direct", kUring, kOn, 0, FaultedSpill::Traits(), spill},
          {"spill_buffered", kThreads, kOff, 0, FaultedSpill::Traits(), spill}};
}

}  // namespace kvrun::testing
