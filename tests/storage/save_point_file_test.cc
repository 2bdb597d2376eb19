// A file that keeps what its last save point holds: what it does as a file, what it saves and loads, and what
// faults leave of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "platform/io/faulty_block_file.h"
#include "tests/storage/allocation_counter.h"
#include "tests/storage/save_point_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kUnits = 16;
constexpr uint64_t kFileBytes = uint64_t{kUnits} * kUnitBytes;
constexpr uint32_t kDepth = 4;

class SavePointFileTest : public ::testing::Test {
 protected:
  SavePointFileTest() : state_(OrDie(StateFile::Create(folder_.Path("state")))) { Make(); }

  std::unique_ptr<BlockFile> Below() { return std::make_unique<PowerCutFile>(disk_, kDepth); }
  // Another over the same disk, as in another process.
  void Make(std::unique_ptr<BlockFile> below = nullptr, uint64_t size_bytes = kFileBytes) {
    file_ =
        OrDie(SavePointFile::Create(below != nullptr ? std::move(below) : Below(), size_bytes, kUnitBytes));
  }
  void Reopen() {
    Make();
    RunOrDie(LoadFrom(*file_, *state_));
  }
  StatusCode CodeOfLoading(const std::string& part) {
    Make();
    const Status status = LoadFrom(*file_, *state_);
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    return status.code();
  }
  // A state as nothing saves it.
  void PutState(std::vector<uint32_t> layout, std::vector<uint8_t> there, std::vector<uint32_t> shadows) {
    ASSERT_TRUE(state_->BeginSave().ok());
    ASSERT_TRUE(state_->Put({StatePart::kFile, 0}, std::as_bytes(std::span(layout))).ok());
    ASSERT_TRUE(state_->Put({StatePart::kFile, 1}, std::as_bytes(std::span(there))).ok());
    ASSERT_TRUE(state_->Put({StatePart::kFile, 2}, std::as_bytes(std::span(shadows))).ok());
    ASSERT_TRUE(state_->Commit().ok());
  }
  bool DiskHolds(uint32_t place, uint32_t unit, uint64_t version) {
    const auto bytes = std::span(disk_.bytes()).subspan(size_t{place} * kUnitBytes, kUnitBytes);
    return HoldsPattern(bytes, uint64_t{unit} * kUnitBytes, version);
  }

  TemporaryFolder folder_;
  PowerCutDisk disk_{1};
  std::unique_ptr<StateFile> state_;
  std::unique_ptr<SavePointFile> file_;
};

TEST_F(SavePointFileTest, SaysWhatIsInEffect) {
  EXPECT_EQ(file_->mode().alignment_bytes, SavePointFile::kAlignmentBytes);  // the file below asks for 512
  EXPECT_EQ(file_->mode().queue_depth, kDepth);
  EXPECT_TRUE(file_->Reserve(kFileBytes).ok());
  EXPECT_EQ(file_->Reserve(kFileBytes + 1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(file_->used_bytes(), 0U);
  EXPECT_EQ(SavePointFile::Create(Below(), kFileBytes, 4096 + 512).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(SavePointFile::Create(Below(), kFileBytes, 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(SavePointFile::Create(Below(), 0, kUnitBytes).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(SavePointFile::Create(Below(), UINT64_MAX, kUnitBytes).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(SavePointFileTest, RefusesWhatCannotBeDone) {
  const AlignedMemory memory(3 * kUnitBytes);
  const auto all = memory.span();
  std::vector<iovec> segments(kMaxIoSegments + 1, {memory.data(), kUnitBytes});
  EXPECT_EQ(DoOne(*file_, IoKind::kWrite, 0, segments).error_number, EINVAL);
  EXPECT_EQ(DoOne(*file_, IoKind::kWrite, 4096, all.first(kUnitBytes)), EINVAL);
  EXPECT_EQ(DoOne(*file_, IoKind::kWrite, 0, all.first(4096)), EINVAL);
  EXPECT_EQ(DoOne(*file_, IoKind::kWrite, 0, all.subspan(512, kUnitBytes)), EINVAL);
  EXPECT_EQ(DoOne(*file_, IoKind::kWrite, kFileBytes - kUnitBytes, all.first(2 * kUnitBytes)), EINVAL);
  EXPECT_EQ(DoOne(*file_, IoKind::kWrite, UINT64_MAX / kUnitBytes * kUnitBytes, all), EINVAL);
  EXPECT_EQ(file_->used_bytes(), 0U);
  ASSERT_EQ(WriteUnit(*file_, kUnits - 1, 1), 0);
  EXPECT_EQ(DoOne(*file_, IoKind::kRead, kFileBytes - kUnitBytes, all.first(2 * kUnitBytes)), ENODATA);
  std::memset(all.data(), 0x5a, all.size());
  EXPECT_EQ(DoOne(*file_, IoKind::kRead, 0, all.first(kUnitBytes)), 0);  // never written
  EXPECT_TRUE(
      std::all_of(all.begin(), all.begin() + kUnitBytes, [](std::byte b) { return b == std::byte{}; }));
  EXPECT_EQ(DoOne(*file_, IoKind::kRead, kFileBytes - kUnitBytes, all.first(512)), EINVAL);
  EXPECT_EQ(DoOne(*file_, IoKind::kRead, kFileBytes - 4096, all.first(4096)), 0);  // half a unit
  EXPECT_EQ(DoOne(*file_, IoKind::kRead, 0, std::span<std::byte>()), 0);
  EXPECT_EQ(file_->Submit({}).value(), 0U);
}

TEST_F(SavePointFileTest, WhatASavePointHoldsIsNotOverwritten) {
  ASSERT_EQ(WriteUnit(*file_, 7, 1), 0);
  EXPECT_TRUE(DiskHolds(7, 7, 1));
  ASSERT_TRUE(SaveTo(*file_, *state_).ok());
  ASSERT_EQ(WriteUnit(*file_, 7, 2), 0);
  EXPECT_TRUE(DiskHolds(7, 7, 1));
  EXPECT_TRUE(DiskHolds(kUnits, 7, 2));
  EXPECT_TRUE(UnitHolds(*file_, 7, 2));
  EXPECT_EQ(file_->used_bytes(), 2 * kUnitBytes);
  Reopen();
  EXPECT_TRUE(UnitHolds(*file_, 7, 1));
  ASSERT_EQ(WriteUnit(*file_, 7, 3), 0);
  ASSERT_TRUE(SaveTo(*file_, *state_).ok());
  EXPECT_EQ(file_->used_bytes(), kUnitBytes);
  EXPECT_EQ(disk_.bytes()[7 * kUnitBytes], PowerCutDisk::kRubbish);  // its home was given back
  Reopen();
  EXPECT_TRUE(UnitHolds(*file_, 7, 3));
  ASSERT_EQ(WriteUnit(*file_, 7, 4), 0);
  EXPECT_TRUE(DiskHolds(7, 7, 4));
}

// Units that lie apart, through segments that are cut anywhere; the requests of a full queue at once.
TEST_F(SavePointFileTest, RequestsOfUnitsThatLieApartAreWhole) {
  ASSERT_EQ(WriteUnit(*file_, 0, 1, kUnits), 0);
  EXPECT_EQ(file_->counters().writes, 1U);
  ASSERT_TRUE(SaveTo(*file_, *state_).ok());
  for (const uint32_t unit : {9U, 2U, 5U}) ASSERT_EQ(WriteUnit(*file_, unit, 2), 0);
  const AlignedMemory memory(kFileBytes);
  const AlignedMemory expected(kFileBytes);
  FillPattern(expected.span(), 0, 1);
  for (const uint32_t unit : {9U, 2U, 5U}) {
    FillPattern(expected.span().subspan(size_t{unit} * kUnitBytes, kUnitBytes), uint64_t{unit} * kUnitBytes,
                2);
  }
  std::vector<iovec> segments;
  for (size_t at = 0; at < kFileBytes;) {
    segments.push_back({memory.data() + at, std::min<size_t>(kFileBytes - at, 3 * 4096)});
    segments.push_back({memory.data() + at, 0});
    at += segments[segments.size() - 2].iov_len;
  }
  const uint64_t n_reads = file_->counters().reads;
  ASSERT_EQ(DoOne(*file_, IoKind::kRead, 0, segments).error_number, 0);
  EXPECT_EQ(std::memcmp(memory.data(), expected.data(), kFileBytes), 0);
  EXPECT_EQ(file_->counters().reads - n_reads, 7U);  // 0-1, 2, 3-4, 5, 6-8, 9, 10-15

  std::vector<iovec> quarters;
  std::vector<IoRequest> requests;
  for (size_t i = 0; i < kDepth; ++i) {
    quarters.push_back({expected.data() + i * kFileBytes / kDepth, kFileBytes / kDepth});
  }
  for (size_t i = 0; i < kDepth; ++i) {
    requests.push_back({IoKind::kWrite, i * kFileBytes / kDepth, {&quarters[i], 1}, 100 + i});
  }
  FillPattern(expected.span(), 0, 3);
  requests.push_back(requests.front());
  ASSERT_EQ(file_->Submit(requests).value(), size_t{kDepth});
  ASSERT_EQ(file_->Submit(requests).value(), 0U);
  std::vector<uint64_t> tags;
  for (IoCompletion completion; tags.size() < kDepth;) {
    ASSERT_EQ(file_->Complete({&completion, 1}, 5).value(), 1U);
    EXPECT_EQ(completion.error_number, 0);
    tags.push_back(completion.tag);
  }
  std::sort(tags.begin(), tags.end());
  EXPECT_EQ(tags, (std::vector<uint64_t>{100, 101, 102, 103}));
  EXPECT_TRUE(UnitHolds(*file_, 0, 3, kUnits));
  Reopen();
  EXPECT_TRUE(UnitHolds(*file_, 0, 1, kUnits));
}

TEST_F(SavePointFileTest, DiscardsWholeUnitsOnly) {
  ASSERT_EQ(WriteUnit(*file_, 0, 1, 4), 0);
  ASSERT_TRUE(SaveTo(*file_, *state_).ok());
  file_->Discard(kUnitBytes / 2, 2 * kUnitBytes);  // of which only unit 1 is a whole one
  EXPECT_TRUE(UnitHolds(*file_, 0, 1));
  EXPECT_TRUE(UnitHolds(*file_, 2, 1, 2));
  EXPECT_EQ(disk_.n_discarded_blocks(), 0U);  // the save point holds it
  ASSERT_EQ(WriteUnit(*file_, 1, 2), 0);
  EXPECT_TRUE(UnitHolds(*file_, 1, 2));
  file_->Discard(UINT64_MAX - 5, UINT64_MAX);
  file_->Discard(2 * kUnitBytes, UINT64_MAX);
  Reopen();
  EXPECT_TRUE(UnitHolds(*file_, 0, 1, 4));
  file_->Discard(0, 3 * kUnitBytes);
  ASSERT_TRUE(SaveTo(*file_, *state_).ok());
  EXPECT_EQ(file_->used_bytes(), kUnitBytes);
  EXPECT_EQ(disk_.n_discarded_blocks(), 3 * kUnitBytes / PowerCutDisk::kBlockBytes);
  Reopen();
  EXPECT_FALSE(UnitHolds(*file_, 1, 1));
  EXPECT_TRUE(UnitHolds(*file_, 3, 1));
}

TEST_F(SavePointFileTest, ASaveThatFailsKeepsTheOneBefore) {
  ASSERT_EQ(WriteUnit(*file_, 0, 1), 0);
  ASSERT_TRUE(SaveTo(*file_, *state_).ok());
  for (uint64_t version = 2; version < 6; ++version) {
    ASSERT_EQ(WriteUnit(*file_, 0, version), 0);
    ASSERT_TRUE(file_->Sync().ok());
    ASSERT_TRUE(state_->BeginSave().ok());
    StateSaver saver(*state_);
    ASSERT_TRUE(file_->VisitState(saver, 0).ok());
    ASSERT_EQ(WriteUnit(*file_, 1, version), 0);
  }
  EXPECT_TRUE(DiskHolds(0, 0, 1));
  // Unit 1, which is written in between, goes home, and then to shadows 2 and 4.
  const std::vector<uint32_t> shadows = {0, 1, 3, 5};
  for (uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(DiskHolds(kUnits + shadows[i], 0, 2 + i)) << i;
  EXPECT_TRUE(UnitHolds(*file_, 0, 5));
  ASSERT_TRUE(SaveTo(*file_, *state_).ok());
  EXPECT_EQ(file_->used_bytes(), 2 * kUnitBytes);
  Reopen();
  EXPECT_TRUE(UnitHolds(*file_, 0, 5));
  EXPECT_TRUE(UnitHolds(*file_, 1, 5));
}

TEST_F(SavePointFileTest, AWriteThatFailsLeavesTheSavePoint) {
  for (const FaultKind kind : {FaultKind::kIoError, FaultKind::kNoSpace}) {
    SCOPED_TRACE(FaultKindName(kind));
    // Of the last write, which is of three parts, one fails.
    for (const uint64_t part : {1, 2, 3}) {
      FaultPlan plan;
      plan.faults = {{kind, IoKind::kWrite, part + 2}};
      file_.reset();  // before its disk
      disk_ = PowerCutDisk(part);
      Make(std::make_unique<FaultyBlockFile>(Below(), plan));
      ASSERT_EQ(WriteUnit(*file_, 0, 1, 3), 0);
      ASSERT_TRUE(SaveTo(*file_, *state_).ok());
      ASSERT_EQ(WriteUnit(*file_, 1, 2), 0);
      ASSERT_TRUE(SaveTo(*file_, *state_).ok());
      ASSERT_EQ(WriteUnit(*file_, 2, 2), 0);
      // To shadow 2, home 1, and shadow 1 as before.
      ASSERT_EQ(WriteUnit(*file_, 0, 3, 3), kind == FaultKind::kIoError ? EIO : ENOSPC);
      EXPECT_FALSE(UnitHolds(*file_, 0, 3));
      Reopen();
      EXPECT_TRUE(UnitHolds(*file_, 0, 1));
      EXPECT_TRUE(UnitHolds(*file_, 1, 2));
      EXPECT_TRUE(UnitHolds(*file_, 2, 1));
    }
  }
}

// What a failed write has left is no part of the next save point.
TEST_F(SavePointFileTest, AUnitWhoseWriteFailedIsNotThere) {
  FaultPlan plan;
  plan.capacity_bytes = kUnitBytes;
  Make(std::make_unique<FaultyBlockFile>(Below(), plan));
  ASSERT_EQ(WriteUnit(*file_, 0, 1), 0);
  ASSERT_EQ(WriteUnit(*file_, 9, 1), ENOSPC);
  ASSERT_TRUE(SaveTo(*file_, *state_).ok());
  EXPECT_EQ(file_->used_bytes(), kUnitBytes);
  Reopen();  // the file ends before unit 9
  EXPECT_TRUE(UnitHolds(*file_, 0, 1));
}

TEST_F(SavePointFileTest, AReadThatFailsSaysSo) {
  FaultPlan plan;
  plan.faults = {{FaultKind::kIoError, IoKind::kRead, 1}};
  Make(std::make_unique<FaultyBlockFile>(Below(), plan));
  ASSERT_EQ(WriteUnit(*file_, 0, 1, 3), 0);
  ASSERT_TRUE(SaveTo(*file_, *state_).ok());
  ASSERT_EQ(WriteUnit(*file_, 1, 1), 0);
  const AlignedMemory memory(3 * kUnitBytes);
  EXPECT_EQ(DoOne(*file_, IoKind::kRead, 0, memory.span()), EIO);
  EXPECT_TRUE(UnitHolds(*file_, 0, 1, 3));
}

TEST_F(SavePointFileTest, AllocatesNothingWhereThereAreShadows) {
  auto below = OrDie([this] {
    BlockFileOptions options;
    options.folder = folder_.Path("kv");
    options.auto_backend = false;
    options.backend = IoBackend::kThreads;
    options.allow_tmpfs = true;
    options.queue_depth = kDepth;
    return CreateBlockFile(options);
  }());
  Make(std::move(below));
  const AlignedMemory memory(kFileBytes);
  const iovec segment{memory.data(), memory.size()};
  const IoRequest write{IoKind::kWrite, 0, {&segment, 1}, 0};
  const IoRequest read{IoKind::kRead, 0, {&segment, 1}, 0};
  const auto run = [&](const IoRequest& request) {
    IoCompletion completion{0, EIO};
    return file_->Submit({&request, 1}).value() == 1 && file_->Complete({&completion, 1}, 1).value() == 1 &&
           completion.error_number == 0;
  };
  ASSERT_TRUE(run(write));
  ASSERT_TRUE(SaveTo(*file_, *state_).ok());
  ASSERT_EQ(WriteUnit(*file_, 3, 1), 0);  // the first shadow
  const HeapUse before = CurrentHeapUse();
  bool good = true;
  for (int round = 0; round < 5; ++round) good &= run(write) && run(read);
  EXPECT_EQ(CurrentHeapUse().n_allocations, before.n_allocations);
  EXPECT_TRUE(good);
}

TEST_F(SavePointFileTest, HoldsInMemoryWhatItSays) {
  constexpr uint64_t kManyBytes = uint64_t{100'000} * kUnitBytes;
  auto below = Below();
  const HeapUse before = CurrentHeapUse();
  const auto file = SavePointFile::Create(std::move(below), kManyBytes, kUnitBytes);
  ASSERT_TRUE(file.ok());
  const uint64_t held_bytes = CurrentHeapUse().live_bytes - before.live_bytes;
  const uint64_t said_bytes = SavePointFile::MemoryBytes(kManyBytes, kUnitBytes, kDepth);
  EXPECT_LE(held_bytes, said_bytes + 64);
  EXPECT_GE(held_bytes + 64, said_bytes);
}

TEST_F(SavePointFileTest, TakesWhatHasMoreHomesAndRefusesWhatDoesNotFit) {
  ASSERT_EQ(WriteUnit(*file_, 0, 1, 4), 0);
  ASSERT_TRUE(SaveTo(*file_, *state_).ok());
  ASSERT_EQ(WriteUnit(*file_, 3, 2), 0);
  ASSERT_TRUE(SaveTo(*file_, *state_).ok());
  Make(nullptr, 4 * kUnitBytes);  // of a file of 16 homes: shadows stay behind them
  ASSERT_TRUE(LoadFrom(*file_, *state_).ok());
  EXPECT_TRUE(UnitHolds(*file_, 0, 1, 3));
  EXPECT_TRUE(UnitHolds(*file_, 3, 2));
  EXPECT_EQ(WriteUnit(*file_, 4, 1), EINVAL);
  ASSERT_EQ(WriteUnit(*file_, 0, 3), 0);
  EXPECT_TRUE(DiskHolds(kUnits + 1, 0, 3));
  ASSERT_TRUE(SaveTo(*file_, *state_).ok());
  Reopen();  // with all homes again
  EXPECT_TRUE(UnitHolds(*file_, 0, 3));

  Make(nullptr, 3 * kUnitBytes);
  EXPECT_EQ(LoadFrom(*file_, *state_).code(), StatusCode::kInvalidArgument);
  Make(nullptr, kFileBytes + 1);
  const Status more = LoadFrom(*file_, *state_);
  EXPECT_EQ(more.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(more.message().find("room for 16 units, not 17"), std::string::npos) << more.message();
  file_ = OrDie(SavePointFile::Create(Below(), kFileBytes, 2 * kUnitBytes));
  const Status other = LoadFrom(*file_, *state_);
  EXPECT_EQ(other.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(other.message().find("8192 bytes, not 16384"), std::string::npos) << other.message();
}

TEST_F(SavePointFileTest, WhatContradictsItselfIsRefused) {
  ASSERT_EQ(WriteUnit(*file_, 0, 1, kUnits), 0);
  ASSERT_TRUE(SaveTo(*file_, *state_).ok());
  ASSERT_EQ(WriteUnit(*file_, 0, 2, 4), 0);
  const std::vector<uint32_t> layout = {kUnitBytes, kUnits};
  PutState(layout, {0x0f}, {0, 2, 1, 0, 3, 3});
  Reopen();
  EXPECT_TRUE(UnitHolds(*file_, 2, 1));
  PutState(layout, {0x0f}, {0, 1, 1, 1});
  EXPECT_EQ(CodeOfLoading("unit 1 has shadow 1, as others have"), StatusCode::kCorrupt);
  PutState(layout, {0x0f}, {1, 0, 0, 1});
  EXPECT_EQ(CodeOfLoading("unit 0"), StatusCode::kCorrupt);
  PutState(layout, {0x0f}, {1, 0, 1, 1});
  EXPECT_EQ(CodeOfLoading("unit 1"), StatusCode::kCorrupt);
  PutState(layout, {0x0f}, {4, 0});
  EXPECT_EQ(CodeOfLoading("unit 4"), StatusCode::kCorrupt);
  PutState(layout, {0x0f}, {UINT32_MAX, 0});
  EXPECT_EQ(CodeOfLoading("is not there"), StatusCode::kCorrupt);
  PutState(layout, {0x0f}, {0, UINT32_MAX - kUnits});
  EXPECT_EQ(CodeOfLoading("unit 0 has shadow"), StatusCode::kCorrupt);
  PutState(layout, {0x0f}, {0, 4});  // behind all that was ever written
  EXPECT_EQ(CodeOfLoading("ends before byte 172032"), StatusCode::kCorrupt);
  PutState(layout, {0x0f}, {0, UINT32_MAX - kUnits - 1});
  EXPECT_EQ(CodeOfLoading("ends before"), StatusCode::kCorrupt);
  PutState(layout, {0x0f}, {0, 0, 1, 1, 2, 2, 3, 3, 4, 4});  // more than are there
  EXPECT_EQ(CodeOfLoading("more than 32"), StatusCode::kCorrupt);
  PutState(layout, {0x0f}, {0, 0, 1});
  EXPECT_EQ(CodeOfLoading("no multiple of 8"), StatusCode::kCorrupt);
  PutState(layout, {0, 0, 1}, {});
  EXPECT_EQ(CodeOfLoading("3 bytes, more than 2"), StatusCode::kCorrupt);
  PutState({kUnitBytes, kUnits + 1}, {0, 0, 2}, {});
  EXPECT_EQ(CodeOfLoading("more than the 16 units"), StatusCode::kInvalidArgument);
  PutState({kUnitBytes, UINT32_MAX}, {1}, {});
  EXPECT_EQ(CodeOfLoading("more units than can be"), StatusCode::kCorrupt);
  PutState({kUnitBytes}, {1}, {});
  EXPECT_EQ(CodeOfLoading("4 bytes, not 8"), StatusCode::kCorrupt);
}

TEST_F(SavePointFileTest, ABitBehindTheLastHomeIsRefused) {
  ASSERT_EQ(WriteUnit(*file_, 0, 1, kUnits), 0);
  ASSERT_TRUE(file_->Sync().ok());
  PutState({kUnitBytes, 13}, {0xff, 0x20}, {});
  Make(nullptr, 13 * kUnitBytes);
  const Status status = LoadFrom(*file_, *state_);
  EXPECT_EQ(status.code(), StatusCode::kCorrupt) << status.message();
}

}  // namespace
}  // namespace kvrun::testing
