// A file of sealed units: what it does as a file, what it finds, and what it saves and loads.
#include "runtime/store/sealed_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "platform/io/faulty_block_file.h"
#include "platform/io/seal.h"
#include "runtime/store/sealed_units.h"
#include "tests/storage/allocation_counter.h"
#include "tests/storage/power_cut_io.h"
#include "tests/storage/save_point_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/sanitized.h"
#include "tests/support/seeds.h"

namespace kvrun::testing {
namespace {

constexpr char kSealedName[] = "s";
constexpr uint32_t kSealedUnits = 12;
constexpr uint64_t kSealedBytes = uint64_t{kSealedUnits} * kUnitBytes;
constexpr uint32_t kSealedDepth = 3;

SecretKey KeyNumber(uint64_t number) {
  SecretKey key;
  FillPattern(key.bytes(), 0, number);
  return key;
}

// The first bytes of each unit that is written to a file: of zeros they are what its key and nonce make.
using Streams = std::vector<std::array<std::byte, 16>>;

class WatchedFile final : public WrappingFile {
 public:
  WatchedFile(std::unique_ptr<BlockFile> file, Streams* streams)
      : WrappingFile(std::move(file)), streams_(streams) {}
  Result<size_t> Submit(std::span<const IoRequest> requests) override {
    for (const IoRequest& request : requests) {
      if (request.kind == IoKind::kRead) continue;
      for (const iovec& segment : request.segments) {
        for (size_t at = 0; at < segment.iov_len; at += kUnitBytes) {
          std::memcpy(streams_->emplace_back().data(), static_cast<std::byte*>(segment.iov_base) + at, 16);
        }
      }
    }
    return file_->Submit(requests);
  }

 private:
  Streams* streams_;
};

// A file with save points and one process after another that has it.
class SealedFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!CheckEncryption().ok()) GTEST_SKIP() << CheckEncryption().message();
    Open();
  }

  std::unique_ptr<BlockFile> Below() { return std::make_unique<PowerCutFile>(disk_, kSealedDepth); }
  // Begins, or goes on where the last save point is.
  Status TryOpen(std::unique_ptr<BlockFile> below, const SecretKey& key, uint64_t size_bytes = kSealedBytes,
                 uint32_t number = 0) {
    Close();
    Result<std::unique_ptr<StateFile>> state = StateFile::Open(kSealedName, false, &io_);
    const bool is_new = state.status().code() == StatusCode::kNotFound;
    state_ = OrDie(is_new ? StateFile::Create(kSealedName, &io_) : std::move(state));
    auto kept = OrDie(SavePointFile::Create(std::move(below), size_bytes, kUnitBytes));
    kept_ = kept.get();
    file_ = OrDie(SealedFile::Create(std::move(kept), key, size_bytes, kUnitBytes, number));
    if (is_new) return Status::Ok();
    StateLoader loader(*state_);
    KVRUN_RETURN_IF_ERROR(kept_->VisitState(loader, 0));
    return file_->VisitState(loader);
  }
  void Open() { RunOrDie(TryOpen(Below(), KeyNumber(1))); }
  void Close() {
    file_.reset();
    kept_ = nullptr;
    state_.reset();
  }
  Status TrySave() {
    KVRUN_RETURN_IF_ERROR(file_->Sync());
    KVRUN_RETURN_IF_ERROR(state_->BeginSave());
    StateSaver saver(*state_);
    KVRUN_RETURN_IF_ERROR(kept_->VisitState(saver, 0));
    KVRUN_RETURN_IF_ERROR(file_->VisitState(saver));
    KVRUN_RETURN_IF_ERROR(state_->Commit());
    kept_->EndSave();
    return Status::Ok();
  }
  void Save() { RunOrDie(TrySave()); }
  size_t NumOpenings() const { return *state_->SizeOf({StatePart::kSeals, 0}) / 40; }

  void ChangeDisk(size_t offset, std::byte flip) {
    const size_t begin = offset / PowerCutDisk::kBlockBytes * PowerCutDisk::kBlockBytes;
    std::vector<std::byte> block(
        disk_.bytes().begin() + static_cast<ptrdiff_t>(begin),
        disk_.bytes().begin() + static_cast<ptrdiff_t>(begin + PowerCutDisk::kBlockBytes));
    block[offset - begin] ^= flip;
    disk_.WriteBlock(begin, block);
  }
  std::vector<std::byte> DiskUnit(uint32_t place) const {
    const auto begin = disk_.bytes().begin() + static_cast<ptrdiff_t>(size_t{place} * kUnitBytes);
    return {begin, begin + kUnitBytes};
  }
  void PutDiskUnit(uint32_t place, std::span<const std::byte> bytes) {
    for (size_t at = 0; at < kUnitBytes; at += PowerCutDisk::kBlockBytes)
      disk_.WriteBlock(size_t{place} * kUnitBytes + at, bytes.subspan(at, PowerCutDisk::kBlockBytes));
  }
  // Found, and nothing of it is handed out.
  ::testing::AssertionResult DoesNotOpen(uint32_t unit) {
    const AlignedMemory memory(kUnitBytes);
    const int error = DoOne(*file_, IoKind::kRead, uint64_t{unit} * kUnitBytes, memory.span());
    if (error != EBADMSG) return ::testing::AssertionFailure() << "error " << error;
    if (AreZeros(memory.span())) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "something of it is there";
  }
  static bool AreZeros(std::span<const std::byte> bytes) {
    return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{}; });
  }

  PowerCutIo io_{1};
  PowerCutDisk disk_{2};
  std::unique_ptr<StateFile> state_;
  std::unique_ptr<SealedFile> file_;
  SavePointFile* kept_ = nullptr;
};

TEST_F(SealedFileTest, SaysWhatIsInEffectAndRefusesWhatCannotBeDone) {
  EXPECT_EQ(file_->mode().alignment_bytes, SealedFile::kAlignmentBytes);
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
  for (const uint32_t unit_bytes : {0U, 512U, 4096U + 512}) {
    EXPECT_EQ(SealedFile::Create(Below(), KeyNumber(1), kSealedBytes, unit_bytes).status().code(),
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
    const auto file = OrDie(
        SealedFile::Create(std::make_unique<PowerCutFile>(disk, 8), key, kMany * kUnitBytes, kUnitBytes));
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
  auto units = OrDie(SealedUnits::Create(KeyNumber(1), kSealedUnits, kUnitBytes, 0));
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
  file_ = OrDie(SealedFile::Create(std::move(kept), KeyNumber(1), kSealedBytes, kUnitBytes));
  ASSERT_EQ(WriteUnit(*file_, 0, 1), 0);
  ASSERT_EQ(WriteUnit(*file_, 0, 2, 2), EIO);
  const AlignedMemory memory(2 * kUnitBytes);
  ASSERT_EQ(WriteUnit(*file_, 2, 1), 0);
  EXPECT_FALSE(UnitHolds(*file_, 2, 1)) << "of which the read fails";
  EXPECT_TRUE(UnitHolds(*file_, 2, 1));
  EXPECT_EQ(DoOne(*file_, IoKind::kRead, 0, memory.span()), 0);
  EXPECT_TRUE(AreZeros(memory.span()));
}

TEST_F(SealedFileTest, HoldsInMemoryWhatItSays) {
  constexpr uint64_t kManyBytes = uint64_t{100'000} * kUnitBytes;
  auto below = Below();
  const HeapUse before = CurrentHeapUse();
  const auto file = OrDie(SealedFile::Create(std::move(below), KeyNumber(1), kManyBytes, kUnitBytes));
  const uint64_t held_bytes = CurrentHeapUse().live_bytes - before.live_bytes;
  const uint64_t said_bytes = SealedFile::MemoryBytes(kManyBytes, kUnitBytes, kSealedDepth);
  EXPECT_LE(held_bytes, said_bytes + 256);
  EXPECT_GE(held_bytes + 256, said_bytes);
  EXPECT_GE(said_bytes, 24 * 100'000U);
}

// --- What is loaded.

struct SavedOpening {
  uint32_t number;
  uint32_t cipher = 1;
  std::array<std::byte, kSaltBytes> salt{};
};
struct SavedUnit {
  uint64_t place;
  std::array<std::byte, kTagBytes> tag{};
};

class SealedUnitsTest : public SealedFileTest {
 protected:
  Status Load(const std::vector<SavedOpening>& openings, const std::vector<SavedUnit>& units) {
    RunOrDie(state_->BeginSave());
    RunOrDie(state_->Put({StatePart::kSeals, 0}, std::as_bytes(std::span(openings))));
    RunOrDie(state_->Put({StatePart::kSeals, 1}, std::as_bytes(std::span(units))));
    RunOrDie(state_->Commit());
    loaded_.emplace(OrDie(SealedUnits::Create(KeyNumber(1), kSealedUnits, kUnitBytes, 0)));
    StateLoader loader(*state_);
    return loaded_->VisitState(loader);
  }
  void ExpectRefused(const std::vector<SavedOpening>& openings, const std::vector<SavedUnit>& units,
                     const std::string& part, StatusCode code = StatusCode::kCorrupt) {
    const Status status = Load(openings, units);
    EXPECT_EQ(status.code(), code) << part;
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
  static uint64_t Place(uint64_t opening, uint64_t count) { return opening << 48 | count; }

  std::optional<SealedUnits> loaded_;
};

TEST_F(SealedUnitsTest, WhatContradictsItselfIsRefused) {
  EXPECT_TRUE(Load({{0}, {7}}, {{Place(0, 1)}, {0}, {Place(7, 9)}}).ok());
  ExpectRefused({{1}}, {{Place(0, 1)}}, "unit 0 is of no opening");
  ExpectRefused({{0}}, {{Place(0, 1)}, {Place(1, 1)}}, "unit 1 is of no opening");
  ExpectRefused({{1}}, {{Place(1, 0)}}, "unit 0 is of no opening");
  ExpectRefused({{1}, {1}}, {}, "opening 1 comes late");
  ExpectRefused({{2}, {1}}, {}, "opening 1 comes late");
  ExpectRefused({{65536}}, {}, "opening 65536 comes late, or cannot be");
  ExpectRefused({{0, 257}}, {}, "there is no cipher 257");
  ExpectRefused({{0, 9}}, {}, "cipher 9 is not known", StatusCode::kUnsupported);
  ExpectRefused({{0}}, std::vector<SavedUnit>(kSealedUnits + 1, {Place(0, 1)}), "room for 12",
                StatusCode::kInvalidArgument);
}

// Numbers are used again, until no more openings can be told apart.
TEST_F(SealedUnitsTest, NumbersOfOpeningsDoNotRunOut) {
  std::vector<SavedOpening> openings;
  for (uint32_t number = 0; number < SealedUnits::kMostOpenings; ++number) openings.push_back({number});
  ExpectRefused(openings, {}, "was opened 65536 times");
  openings.erase(openings.begin() + 40'000);
  ASSERT_TRUE(Load(openings, {{Place(65535, 1)}}).ok());
  std::vector<std::byte> bytes(kUnitBytes);
  ASSERT_TRUE(loaded_->Seal(3, bytes, bytes).ok());
  RunOrDie(state_->BeginSave());
  StateSaver saver(*state_);
  RunOrDie(loaded_->VisitState(saver));
  RunOrDie(state_->Commit());
  std::vector<SavedOpening> saved(2);
  ASSERT_EQ(NumOpenings(), 2U) << "all others are needed by none";
  RunOrDie(state_->Read({StatePart::kSeals, 0}, 0, std::as_writable_bytes(std::span(saved))));
  EXPECT_EQ(saved[0].number, 40'000U);
  EXPECT_EQ(saved[1].number, 65'535U);
}

// --- Nonces: units of zeros are sealed to what key and nonce alone make of them. So where a pair is used
// twice, anywhere, two units begin alike.

class NonceHistory : public SealedFileTest {
 public:
  void TestBody() override {}
  // One file, which is written, saved, opened and put back; all that was ever written goes into `all`.
  void Run(uint64_t seed, std::set<std::array<std::byte, 16>>* all, int* n_put_back) {
    Random random(seed);
    Streams streams;
    const SecretKey key = KeyNumber(5);
    const auto open = [&] { return TryOpen(std::make_unique<WatchedFile>(Below(), &streams), key); };
    RunOrDie(open());
    std::vector<std::pair<PowerCutDisk, std::vector<std::byte>>> backups;
    const std::vector<std::byte> zeros(kUnitBytes);
    for (uint32_t n = 4 + random.Below(12); n > 0; --n) {
      const uint32_t kind = random.Below(10);
      if (kind < 6) {
        const AlignedMemory memory(size_t{1 + random.Below(3)} * kUnitBytes);
        memory.Fill(0);
        ASSERT_EQ(DoOne(*file_, IoKind::kWrite, uint64_t{random.Below(8)} * kUnitBytes, memory.span()), 0);
      } else if (kind == 6) {
        if (random.Below(3) == 0) io_.FailAt(random.Below(12), EIO, false);
        (void)TrySave();
        io_.Revive();
        RunOrDie(open());
      } else if (kind == 7) {
        Save();
      } else if (kind == 8) {
        Save();
        Close();
        backups.emplace_back(disk_, io_.Bytes(kSealedName));
        RunOrDie(open());
      } else if (!backups.empty()) {
        Close();
        const auto& [disk, state] = backups[random.Below(static_cast<uint32_t>(backups.size()))];
        disk_ = disk;
        io_.Bytes(kSealedName) = state;
        RunOrDie(open());
        ++*n_put_back;
      }
    }
    for (const auto& stream : streams) EXPECT_TRUE(all->insert(stream).second) << "a nonce is used twice";
    Close();
  }
};

TEST(SealedNonces, NoNonceIsUsedTwice) {
  if (!CheckEncryption().ok()) GTEST_SKIP() << CheckEncryption().message();
  const Seeds seeds = SeedsHere(kIsSanitized ? 200 : 10'000);
  std::set<std::array<std::byte, 16>> all;
  int n_put_back = 0;
  for (uint64_t seed = seeds.first; seed < seeds.end() && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    NonceHistory().Run(seed, &all, &n_put_back);
  }
  if (seeds.n < 200) return;
  EXPECT_GT(all.size(), seeds.n);
  EXPECT_GT(n_put_back, static_cast<int>(seeds.n / 100));
}

// So it would be found.
TEST(SealedNonces, ANonceThatIsUsedTwiceIsSeen) {
  if (!CheckEncryption().ok()) GTEST_SKIP() << CheckEncryption().message();
  Sealer sealer = OrDie(Sealer::Create(PreferredCipher(), KeyNumber(5)));
  std::vector<std::byte> sealed[3];
  std::array<std::byte, kTagBytes> tag;
  for (uint64_t i = 0; i < 3; ++i) {
    sealed[i].resize(kUnitBytes);
    const std::array<std::byte, 1> unit = {static_cast<std::byte>(i)};
    RunOrDie(sealer.Seal(MakeNonce(0, i / 2), unit, std::vector<std::byte>(kUnitBytes), sealed[i], tag));
  }
  EXPECT_TRUE(std::equal(sealed[0].begin(), sealed[0].begin() + 16, sealed[1].begin()));
  EXPECT_FALSE(std::equal(sealed[0].begin(), sealed[0].begin() + 16, sealed[2].begin()));
}

}  // namespace
}  // namespace kvrun::testing
