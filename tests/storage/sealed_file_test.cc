// A file of sealed units: what it does as a file, and what it finds.
#include "runtime/store/sealed_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "platform/io/faulty_block_file.h"
#include "runtime/store/group_store.h"
#include "runtime/store/sealed_units.h"
#include "runtime/store/spill_file.h"
#include "tests/storage/allocation_counter.h"
#include "tests/storage/sealed_fixture.h"

namespace kvrun::testing {
namespace {

TEST_F(SealedFileTest, SaysWhatIsInEffectAndRefusesWhatCannotBeDone) {
  EXPECT_EQ(file_->mode().alignment_bytes, SavePointFile::kAlignmentBytes);
  EXPECT_EQ(file_->mode().queue_depth, kSealedDepth);
  EXPECT_TRUE(file_->Reserve(kSealedBytes).ok());
  EXPECT_EQ(file_->Reserve(kSealedBytes + 1).code(), StatusCode::kInvalidArgument);
  const AlignedMemory memory(3 * kUnitBytes);
  const auto all = memory.span();
  EXPECT_EQ(DoOne(*file_, IoKind::kWrite, 4096, all.first(kUnitBytes)), EINVAL);
  EXPECT_EQ(DoOne(*file_, IoKind::kWrite, 0, all.first(4096)), EINVAL);
  EXPECT_EQ(DoOne(*file_, IoKind::kRead, 0, all.first(4096)), EINVAL) << "half a unit does not open";
  EXPECT_EQ(DoOne(*file_, IoKind::kRead, 0, all.subspan(512, kUnitBytes)), EINVAL);
  EXPECT_EQ(DoOne(*file_, IoKind::kWrite, kSealedBytes - kUnitBytes, all.first(2 * kUnitBytes)), EINVAL);
  EXPECT_EQ(DoOne(*file_, IoKind::kRead, kSealedBytes - kUnitBytes, all.first(2 * kUnitBytes)), ENODATA);
  EXPECT_EQ(DoOne(*file_, IoKind::kRead, 0, all), 0);
  EXPECT_TRUE(AreZeros(all)) << "never written";
  for (const uint32_t unit_bytes : {0U, 100U, 4096U + 100}) {
    EXPECT_EQ(SealedFile::Create(Below(), KeyNumber(1), ShapeOf(kSealedBytes, unit_bytes)).status().code(),
              StatusCode::kInvalidArgument);
  }
}

// Any cuts of memory, and more than there are buffers for.
TEST_F(SealedFileTest, WhatIsWrittenIsReadThroughAnySegments) {
  constexpr uint32_t kMany = 100;  // more than a buffer holds
  const auto key = KeyNumber(1);
  Random random(7);
  for (int round = 0; round < 20; ++round) {
    PowerCutDisk disk(static_cast<uint64_t>(round));
    const auto file =
        OrDie(SealedFile::Create(std::make_unique<PowerCutFile>(disk, 8), key, ShapeOf(kMany * kUnitBytes)));
    const AlignedMemory written(kMany * kUnitBytes);
    FillPattern(written.span(), 0, static_cast<uint64_t>(round));
    const auto cut = [&](const AlignedMemory& memory) {
      std::vector<iovec> segments;
      for (size_t at = 0; at < memory.size();) {
        size_t n = (1 + random.Below(20)) * PowerCutDisk::kBlockBytes;
        if (segments.size() + 1 == kMaxIoSegments) n = memory.size();
        segments.push_back({memory.data() + at, std::min(n, memory.size() - at)});
        at += segments.back().iov_len;
      }
      return segments;
    };
    ASSERT_EQ(DoOne(*file, IoKind::kWrite, 0, cut(written)).error_number, 0);
    const AlignedMemory read(kMany * kUnitBytes);
    ASSERT_EQ(DoOne(*file, IoKind::kRead, 0, cut(read)).error_number, 0);
    ASSERT_TRUE(HoldsPattern(read.span(), 0, static_cast<uint64_t>(round))) << round;
    ASSERT_TRUE(HoldsPattern(written.span(), 0, static_cast<uint64_t>(round))) << "the caller's memory stays";
  }
}

TEST_F(SealedFileTest, ThePlainTextIsNowhere) {
  for (uint32_t unit = 0; unit < kSealedUnits; ++unit) ASSERT_EQ(WriteUnit(*file_, unit, 1), 0);
  Save();
  ASSERT_EQ(WriteUnit(*file_, 3, 2), 0);
  Save();
  std::set<std::string> plain;
  AlignedMemory memory(kUnitBytes);
  const auto pieces = [&](std::span<const std::byte> bytes, size_t step, const auto& visit) {
    for (size_t at = 0; at + 16 <= bytes.size(); at += step)
      visit(std::string(reinterpret_cast<const char*>(bytes.data()) + at, 16));
  };
  for (uint32_t unit = 0; unit < kSealedUnits; ++unit) {
    ASSERT_EQ(DoOne(*file_, IoKind::kRead, uint64_t{unit} * kUnitBytes, memory.span()), 0);
    pieces(memory.span(), 16, [&](std::string piece) { plain.insert(std::move(piece)); });
  }
  size_t n_found = 0;
  size_t n_looked_at = 0;
  for (const std::span<const std::byte> held :
       {std::span<const std::byte>(disk_.bytes()), std::span<const std::byte>(io_.Bytes(kSealedName))}) {
    pieces(held, 1, [&](const std::string& piece) {
      n_found += plain.count(piece);
      ++n_looked_at;
    });
  }
  EXPECT_EQ(n_found, 0U);
  EXPECT_GT(n_looked_at, kSealedBytes);
  n_found = 0;
  pieces(memory.span(), 1, [&](const std::string& piece) { n_found += plain.count(piece); });
  EXPECT_GT(n_found, 0U) << "where it is plain it is found";
}

TEST_F(SealedFileTest, AFlippedBitIsFound) {
  ASSERT_EQ(WriteUnit(*file_, 0, 1, 3), 0);
  for (size_t at = kUnitBytes; at < 2 * kUnitBytes; at += 1 + at % 5) {
    const std::byte flip = std::byte{1} << (at % 8);
    ChangeDisk(at, flip);
    ASSERT_TRUE(DoesNotOpen(1)) << at;
    ChangeDisk(at, flip);
  }
  EXPECT_TRUE(UnitHolds(*file_, 0, 1, 3));
  ChangeDisk(kUnitBytes + 5, std::byte{1});
  // Those beside it are what they are.
  const AlignedMemory memory(3 * kUnitBytes);
  EXPECT_EQ(DoOne(*file_, IoKind::kRead, 0, memory.span()), EBADMSG);
  EXPECT_TRUE(HoldsPattern(memory.span().first(kUnitBytes), 0, 1));
  EXPECT_TRUE(AreZeros(memory.span().subspan(kUnitBytes, kUnitBytes)));
  EXPECT_TRUE(HoldsPattern(memory.span().subspan(2 * kUnitBytes), 2 * kUnitBytes, 1));
}

TEST_F(SealedFileTest, AUnitOfAnotherPlaceTimeOrFileIsFound) {
  ASSERT_EQ(WriteUnit(*file_, 0, 1, 4), 0);
  const auto second = DiskUnit(1);
  const auto third = DiskUnit(2);
  PutDiskUnit(1, third);
  PutDiskUnit(2, second);
  EXPECT_TRUE(DoesNotOpen(1));
  EXPECT_TRUE(DoesNotOpen(2));
  EXPECT_TRUE(UnitHolds(*file_, 3, 1));
  PutDiskUnit(1, second);
  PutDiskUnit(2, third);
  ASSERT_EQ(WriteUnit(*file_, 1, 1), 0);
  EXPECT_NE(DiskUnit(1), second) << "the same bytes are sealed otherwise each time";
  PutDiskUnit(1, second);
  EXPECT_TRUE(DoesNotOpen(1)) << "what it was before";
  ASSERT_EQ(WriteUnit(*file_, 1, 1), 0);
  Save();
  EXPECT_EQ(TryOpen(Below(), KeyNumber(1), kSealedBytes, 1).code(), StatusCode::kCorrupt)
      << "of the file with another number nothing is saved";
  ASSERT_TRUE(TryOpen(Below(), KeyNumber(2)).ok());
  EXPECT_TRUE(DoesNotOpen(0)) << "under another key";
}

TEST_F(SealedFileTest, UnitsOfEarlierOpeningsOpen) {
  ASSERT_EQ(WriteUnit(*file_, 0, 1, 4), 0);
  Save();
  EXPECT_EQ(NumOpenings(), 1U);
  for (uint32_t i = 0; i < 4; ++i) {
    Open();
    for (uint32_t before = 0; before < i; ++before) EXPECT_TRUE(UnitHolds(*file_, 4 + before, 2 + before));
    ASSERT_EQ(WriteUnit(*file_, 4 + i, 2 + i), 0);
    Save();
    EXPECT_EQ(NumOpenings(), 2U + i);
  }
  Open();
  EXPECT_TRUE(UnitHolds(*file_, 0, 1, 4));
  EXPECT_TRUE(UnitHolds(*file_, 7, 5));
  EXPECT_TRUE(UnitHolds(*file_, 4, 2)) << "back to the opening before";
  Save();
  EXPECT_EQ(NumOpenings(), 5U) << "one that wrote nothing is not kept";
  // Of those that no unit needs any more the numbers are free.
  ASSERT_EQ(WriteUnit(*file_, 0, 9, 4), 0);
  file_->Discard(5 * kUnitBytes, 2 * kUnitBytes);
  Save();
  EXPECT_EQ(NumOpenings(), 3U);
  Open();
  EXPECT_TRUE(UnitHolds(*file_, 0, 9, 4));
  ASSERT_EQ(WriteUnit(*file_, 6, 1), 0);
  Save();
  Open();
  EXPECT_TRUE(UnitHolds(*file_, 0, 9, 4));
  EXPECT_TRUE(UnitHolds(*file_, 4, 2));
  EXPECT_TRUE(UnitHolds(*file_, 6, 1));
  EXPECT_TRUE(UnitHolds(*file_, 7, 5));
}

// Nothing is allocated for units of other openings either.
TEST_F(SealedFileTest, OpeningUnitsOfOtherOpeningsAllocatesNothing) {
  ASSERT_EQ(WriteUnit(*file_, 0, 1), 0);
  Save();
  Open();
  ASSERT_EQ(WriteUnit(*file_, 1, 2), 0);
  Save();
  auto units = OrDie(SealedUnits::Create(KeyNumber(1), ShapeOf(kSealedBytes), 0));
  StateLoader loader(*state_);
  RunOrDie(units.VisitState(loader));
  std::vector<std::byte> sealed[2] = {DiskUnit(0), DiskUnit(1)};
  const HeapUse before = CurrentHeapUse();
  EXPECT_TRUE(units.Open(0, sealed[0]).ok() && units.Open(1, sealed[1]).ok());
  EXPECT_TRUE(units.Seal(5, sealed[0], sealed[1]).ok());
  EXPECT_EQ(CurrentHeapUse().n_allocations, before.n_allocations);
  EXPECT_TRUE(HoldsPattern(sealed[0], 0, 1));
}

// Two processes go on from one state, as where a backup is put back: both are right, and none knows what the
// other wrote.
TEST_F(SealedFileTest, AFileThatIsPutBackGoesOn) {
  ASSERT_EQ(WriteUnit(*file_, 0, 1, 4), 0);
  Save();
  Close();
  const PowerCutDisk disk = disk_;
  const auto state = io_.Bytes(kSealedName);
  std::vector<std::vector<std::byte>> written;
  for (int branch = 0; branch < 2; ++branch) {
    Close();
    disk_ = disk;
    io_.Bytes(kSealedName) = state;
    Open();
    EXPECT_TRUE(UnitHolds(*file_, 0, 1, 4));
    ASSERT_EQ(WriteUnit(*file_, 5, 2), 0);
    written.push_back(DiskUnit(5));
    Save();
    Open();
    EXPECT_TRUE(UnitHolds(*file_, 0, 1, 4));
    EXPECT_TRUE(UnitHolds(*file_, 5, 2));
  }
  EXPECT_NE(written[0], written[1]);
  PutDiskUnit(5, written[0]);
  EXPECT_TRUE(DoesNotOpen(5)) << "of the other branch";
}

TEST_F(SealedFileTest, AWriteThatFailsLeavesUnitsThatWereNeverWritten) {
  FaultPlan plan;
  plan.faults = {{FaultKind::kIoError, IoKind::kWrite, 1}, {FaultKind::kIoError, IoKind::kRead, 0}};
  Close();
  disk_ = PowerCutDisk(3);
  io_.Bytes(kSealedName).clear();
  auto kept = OrDie(
      SavePointFile::Create(std::make_unique<FaultyBlockFile>(Below(), plan), kSealedBytes, kUnitBytes));
  file_ = OrDie(SealedFile::Create(std::move(kept), KeyNumber(1), ShapeOf(kSealedBytes)));
  ASSERT_EQ(WriteUnit(*file_, 0, 1), 0);
  ASSERT_EQ(WriteUnit(*file_, 0, 2, 2), EIO);
  const AlignedMemory memory(2 * kUnitBytes);
  ASSERT_EQ(WriteUnit(*file_, 2, 1), 0);
  EXPECT_FALSE(UnitHolds(*file_, 2, 1)) << "of which the read fails";
  EXPECT_TRUE(UnitHolds(*file_, 2, 1));
  EXPECT_EQ(DoOne(*file_, IoKind::kRead, 0, memory.span()), 0);
  EXPECT_TRUE(AreZeros(memory.span()));
}

// What a store keeps there, and bits that flip on the disk: read once more, and then an error that says what.
TEST_F(SealedFileTest, StoresSayWhatDoesNotOpen) {
  constexpr uint32_t kRecordBytes = 8000;  // padded to a unit
  const GroupStoreShape shape{.n_layers = 1, .n_streams = 1, .n_groups = 8, .record_bytes = kRecordBytes};
  disk_ = PowerCutDisk(5);
  auto file = OrDie(SealedFile::Create(Below(), KeyNumber(1), ShapeOf(kUnitBytes)));
  const auto store = OrDie(GroupStore::Create(std::move(file), shape, 4 * kUnitBytes));
  std::vector<std::byte> records(8 * kRecordBytes);
  FillPattern(records, 0, 1);
  RunOrDie(store->Append(0, 0, 0, records));
  RunOrDie(store->Flush());
  std::vector<std::byte> read(records.size());
  std::vector<GroupFetch> fetches;
  for (uint32_t group = 0; group < 8; ++group)
    fetches.push_back({.stream = 0, .group = group, .memory = read.data() + group * kRecordBytes});
  RunOrDie(store->Fetch(0, fetches));
  EXPECT_EQ(read, records);
  ChangeDisk(5 * kUnitBytes + 17, std::byte{4});
  const Status status = store->Fetch(0, fetches);
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_NE(status.message().find("group 5 of the KV cache came back changed from flash, twice"),
            std::string::npos)
      << status.message();
  EXPECT_EQ(store->stats().records_read_again, 1U);
  ChangeDisk(5 * kUnitBytes + 17, std::byte{4});
  RunOrDie(store->Fetch(0, fetches));
  EXPECT_EQ(read, records);
}

// The same of what a prompt puts aside, which knows its size late.
TEST_F(SealedFileTest, SpillFilesGrowAndSayWhatDoesNotOpen) {
  disk_ = PowerCutDisk(6);
  auto file = OrDie(SealedFile::Create(Below(), KeyNumber(1), ShapeOf(4096, 4096)));
  const auto spill = OrDie(SpillFile::Create(std::move(file), 300'000));
  std::vector<std::byte> bytes(200'001);
  FillPattern(bytes, 0, 1);
  RunOrDie(spill->Write(SpillFile::kOffsetAlignment, bytes));
  std::vector<std::byte> read(bytes.size());
  RunOrDie(spill->Read(SpillFile::kOffsetAlignment, read));
  EXPECT_EQ(read, bytes);
  ChangeDisk(2 * SpillFile::kOffsetAlignment + 17, std::byte{4});
  EXPECT_EQ(spill->Read(SpillFile::kOffsetAlignment, read).code(), StatusCode::kCorrupt);
}

// Many reads at once, of which some do not open, by one thread and by several: the same answers.
TEST_F(SealedFileTest, HelpersOpenWhatOneThreadWould) {
  constexpr uint32_t kMany = 64;
  constexpr uint32_t kDepth = 16;
  constexpr uint32_t kRounds = 30;
  for (const uint32_t n_helpers : {0U, 1U, 3U}) {
    SCOPED_TRACE(n_helpers);
    disk_ = PowerCutDisk(7);
    SealedShape shape = ShapeOf(kMany * kUnitBytes);
    if (n_helpers == 1) shape.used_bytes = kUnitBytes - kTagBytes;
    const auto file = OrDie(
        SealedFile::Create(std::make_unique<PowerCutFile>(disk_, kDepth), KeyNumber(1), shape, 0, n_helpers));
    const AlignedMemory written(kMany * kUnitBytes);
    FillPattern(written.span(), 0, 1);
    ASSERT_EQ(DoOne(*file, IoKind::kWrite, 0, written.span()), 0);
    for (const uint32_t unit : {3U, 40U}) ChangeDisk(size_t{unit} * kUnitBytes + 9, std::byte{2});
    const AlignedMemory read(kMany * kUnitBytes);
    for (uint32_t round = 0; round < kRounds; ++round) {
      read.Fill(1);
      std::vector<iovec> segments(kMany / 2);
      std::vector<IoRequest> requests;
      for (uint32_t i = 0; i < kMany / 2; ++i) {
        const size_t at = size_t{2} * i * kUnitBytes;
        segments[i] = {read.data() + at, 2 * kUnitBytes};
        requests.push_back({IoKind::kRead, at, {&segments[i], 1}, i});
      }
      std::span<const IoRequest> left = requests;
      uint32_t n_done = 0;
      std::vector<IoCompletion> completions(kDepth);
      const uint64_t n_before = CurrentHeapUse().n_allocations;
      while (n_done < requests.size()) {
        left = left.subspan(file->Submit(left).value());
        const size_t n = file->Complete(completions, 1).value();
        for (const IoCompletion& one : std::span(completions).first(n)) {
          ASSERT_EQ(one.error_number, one.tag == 1 || one.tag == 20 ? EBADMSG : 0) << one.tag;
        }
        n_done += static_cast<uint32_t>(n);
      }
      if (n_before == CurrentHeapUse().n_allocations) continue;
      // Two messages of errors.
      EXPECT_LE(CurrentHeapUse().n_allocations - n_before, 8U);
    }
    for (uint32_t unit = 0; unit < kMany; ++unit) {
      const auto bytes = read.span().subspan(size_t{unit} * kUnitBytes,
                                             shape.used_bytes > 0 ? shape.used_bytes : kUnitBytes);
      const bool is_changed = unit == 3 || unit == 40;
      ASSERT_TRUE(is_changed ? AreZeros(bytes) : HoldsPattern(bytes, size_t{unit} * kUnitBytes, 1)) << unit;
    }
  }
}

TEST_F(SealedFileTest, HoldsInMemoryWhatItSays) {
  constexpr uint64_t kManyBytes = uint64_t{100'000} * kUnitBytes;
  const SealedShape shape = ShapeOf(kManyBytes);
  auto below = Below();
  const HeapUse before = CurrentHeapUse();
  const auto file = OrDie(SealedFile::Create(std::move(below), KeyNumber(1), shape));
  const uint64_t held_bytes = CurrentHeapUse().live_bytes - before.live_bytes;
  const uint64_t said_bytes = SealedFile::MemoryBytes(shape, kSealedDepth);
  EXPECT_LE(held_bytes, said_bytes + 256);
  EXPECT_GE(held_bytes + 256, said_bytes);
  EXPECT_GE(said_bytes, 24 * 100'000U);
}

}  // namespace
}  // namespace kvrun::testing
