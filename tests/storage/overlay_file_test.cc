// A file over another: what is written is read, the base stays as it is, and faults of either are said.
#include "runtime/store/overlay_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "platform/io/block_file.h"
#include "platform/io/faulty_block_file.h"
#include "tests/storage/allocation_counter.h"
#include "tests/storage/save_point_fixture.h"
#include "tests/storage/storage_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"

namespace kvrun::testing {
namespace {

namespace overlay {

constexpr uint32_t kUnits = 24;
constexpr uint64_t kFileBytes = uint64_t{kUnits} * kUnitBytes;
constexpr uint64_t kOfBase = 1;

class OverlayFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    base_ = Nameless();
    for (uint32_t unit = 0; unit < kUnits; ++unit) ASSERT_EQ(WriteUnit(*base_, unit, kOfBase), 0);
  }

  std::unique_ptr<BlockFile> Nameless() const {
    BlockFileOptions options;
    options.folder = folder_.Path("kv");
    options.allow_tmpfs = true;
    options.queue_depth = 4;
    return OrDie(CreateBlockFile(options));
  }

  // What several overlays stand on is one file.
  class Borrowed final : public BlockFile {
   public:
    explicit Borrowed(BlockFile& file) : file_(file) {}
    const IoMode& mode() const override { return file_.mode(); }
    Result<size_t> Submit(std::span<const IoRequest> requests) override {
      for (const IoRequest& request : requests)
        EXPECT_EQ(request.kind, IoKind::kRead) << "the base is written";
      return file_.Submit(requests);
    }
    Result<size_t> Complete(std::span<IoCompletion> completions, size_t at_least) override {
      return file_.Complete(completions, at_least);
    }
    Status Reserve(uint64_t) override { return {StatusCode::kInternal, "the base is to be longer"}; }
    void RegisterMemory(std::span<const iovec> regions) override { file_.RegisterMemory(regions); }
    Status Sync() override { return {StatusCode::kInternal, "the base is synced"}; }
    void Discard(uint64_t, uint64_t) override { ADD_FAILURE() << "of the base"; }
    void DropCache() override { file_.DropCache(); }
    IoCounters counters() const override { return file_.counters(); }

   private:
    BlockFile& file_;
  };

  std::unique_ptr<OverlayFile> Over(const FaultPlan& of_base = {}, const FaultPlan& of_own = {}) {
    return OrDie(
        OverlayFile::Create(std::make_unique<FaultyBlockFile>(std::make_unique<Borrowed>(*base_), of_base),
                            std::make_unique<FaultyBlockFile>(Nameless(), of_own), kFileBytes, kUnitBytes));
  }

  // Every unit, with one request.
  static void ExpectVersions(BlockFile& file, std::span<const uint64_t> versions) {
    const AlignedMemory memory(kFileBytes);
    ASSERT_EQ(DoOne(file, IoKind::kRead, 0, memory.span()), 0);
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      const uint64_t at = uint64_t{unit} * kUnitBytes;
      EXPECT_TRUE(HoldsPattern(memory.span().subspan(at, kUnitBytes), at, versions[unit])) << unit;
    }
  }

  TemporaryFolder folder_;
  std::unique_ptr<BlockFile> base_;
};

FaultPlan Always(FaultKind kind, IoKind request) {
  FaultPlan plan;
  plan.faults = {{kind, request, 0, UINT64_MAX}};
  return plan;
}

TEST_F(OverlayFileTest, EachReadsTheBaseAndWhatItWroteItself) {
  const auto one = Over();
  const auto other = Over();
  std::vector<uint64_t> of_one(kUnits, kOfBase);
  std::vector<uint64_t> of_other(kUnits, kOfBase);
  std::mt19937 random(11);
  for (uint64_t version = 2; version < 40; ++version) {
    const auto unit = static_cast<uint32_t>(random() % kUnits);
    const auto n = static_cast<uint32_t>(1 + random() % std::min(4U, kUnits - unit));
    const bool is_one = random() % 2 == 0;
    ASSERT_EQ(WriteUnit(is_one ? *one : *other, unit, version, n), 0);
    std::fill_n((is_one ? of_one : of_other).begin() + unit, n, version);
    ExpectVersions(*one, of_one);
    ExpectVersions(*other, of_other);
  }
  ASSERT_TRUE(one->Sync().ok());
  ExpectVersions(*base_, std::vector<uint64_t>(kUnits, kOfBase));
}

// Requests begin and end within units, and lie in pieces of memory.
TEST_F(OverlayFileTest, ReadsPartsOfUnitsOfBothFiles) {
  const auto file = Over();
  for (uint32_t unit = 1; unit < kUnits; unit += 3) ASSERT_EQ(WriteUnit(*file, unit, 2), 0);
  const uint32_t block = file->mode().alignment_bytes == 1 ? 512 : file->mode().alignment_bytes;
  const AlignedMemory all(kFileBytes);
  ASSERT_EQ(DoOne(*file, IoKind::kRead, 0, all.span()), 0);
  std::mt19937 random(5);
  for (int i = 0; i < 60; ++i) {
    const uint64_t begin = random() % (kFileBytes / block) * block;
    const uint64_t n = std::min<uint64_t>((1 + random() % 40) * block, kFileBytes - begin);
    const AlignedMemory memory(n);
    std::vector<iovec> segments;
    for (uint64_t at = 0; at < n; at += block) segments.push_back({memory.data() + at, block});
    if (segments.size() > kMaxIoSegments) continue;
    ASSERT_EQ(DoOne(*file, IoKind::kRead, begin, segments).error_number, 0);
    EXPECT_TRUE(std::equal(memory.data(), memory.data() + n, all.data() + begin)) << begin << " " << n;
  }
}

TEST_F(OverlayFileTest, ManyRequestsAtOnceOfBothFiles) {
  const auto file = Over();
  for (uint32_t unit = 0; unit < kUnits; unit += 2) ASSERT_EQ(WriteUnit(*file, unit, 2), 0);
  const AlignedMemory memory(kFileBytes);
  std::vector<iovec> segments;
  std::vector<IoRequest> requests;
  for (uint32_t unit = 0; unit < kUnits; ++unit)
    segments.push_back({memory.data() + uint64_t{unit} * kUnitBytes, kUnitBytes});
  for (uint32_t unit = 0; unit < kUnits; ++unit)
    requests.push_back({IoKind::kRead, uint64_t{unit} * kUnitBytes, {&segments[unit], 1}, unit});
  std::span<const IoRequest> left = requests;
  std::vector<bool> is_done(kUnits);
  IoCompletion done[3];
  for (size_t n_done = 0; n_done < kUnits;) {
    left = left.subspan(OrDie(file->Submit(left)));
    const size_t n = OrDie(file->Complete(done, 1));
    for (const IoCompletion& completion : std::span(done).first(n)) {
      EXPECT_EQ(completion.error_number, 0);
      EXPECT_FALSE(is_done[completion.tag]);
      is_done[completion.tag] = true;
    }
    n_done += n;
  }
  for (uint32_t unit = 0; unit < kUnits; ++unit) {
    const uint64_t at = uint64_t{unit} * kUnitBytes;
    EXPECT_TRUE(HoldsPattern(memory.span().subspan(at, kUnitBytes), at, unit % 2 == 0 ? 2 : 1)) << unit;
  }
}

TEST_F(OverlayFileTest, SaysWhatEitherFileCannotRead) {
  for (const FaultKind kind : {FaultKind::kIoError, FaultKind::kShortRead}) {
    const int error = kind == FaultKind::kIoError ? EIO : ENODATA;
    const auto bad_base = Over(Always(kind, IoKind::kRead));
    ASSERT_EQ(WriteUnit(*bad_base, 3, 2), 0);
    const AlignedMemory memory(3 * kUnitBytes);
    EXPECT_EQ(DoOne(*bad_base, IoKind::kRead, 2 * kUnitBytes, memory.span()), error);
    EXPECT_TRUE(UnitHolds(*bad_base, 3, 2));
    const auto bad_own = Over({}, Always(kind, IoKind::kRead));
    ASSERT_EQ(WriteUnit(*bad_own, 3, 2), 0);
    EXPECT_EQ(DoOne(*bad_own, IoKind::kRead, 2 * kUnitBytes, memory.span()), error);
    EXPECT_TRUE(UnitHolds(*bad_own, 2, kOfBase));
  }
}

// What the base has there is not what was to be there.
TEST_F(OverlayFileTest, AWriteThatFailsLeavesZerosAndMayBeTriedAgain) {
  FaultPlan plan;
  plan.faults = {{FaultKind::kIoError, IoKind::kWrite, 0, 1}};
  const auto file = Over({}, plan);
  EXPECT_EQ(WriteUnit(*file, 5, 2, 2), EIO);
  const AlignedMemory memory(4 * kUnitBytes);
  memory.Fill(9);
  ASSERT_EQ(DoOne(*file, IoKind::kRead, 4 * kUnitBytes, memory.span()), 0);
  EXPECT_TRUE(HoldsPattern(memory.span().first(kUnitBytes), 4 * kUnitBytes, kOfBase));
  EXPECT_TRUE(std::all_of(memory.data() + kUnitBytes, memory.data() + 3 * kUnitBytes,
                          [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_TRUE(HoldsPattern(memory.span().subspan(3 * kUnitBytes), 7 * kUnitBytes, kOfBase));
  EXPECT_EQ(WriteUnit(*file, 5, 3, 2), 0);
  EXPECT_TRUE(UnitHolds(*file, 5, 3, 2));
}

TEST_F(OverlayFileTest, RefusesWhatIsNoWholeUnitAndWhatLiesBehindTheEnd) {
  const auto file = Over();
  const AlignedMemory memory(2 * kUnitBytes);
  EXPECT_EQ(DoOne(*file, IoKind::kWrite, 0, memory.span().first(kUnitBytes / 2)), EINVAL);
  EXPECT_EQ(DoOne(*file, IoKind::kWrite, kUnitBytes / 2, memory.span().first(kUnitBytes)), EINVAL);
  EXPECT_EQ(DoOne(*file, IoKind::kWrite, kFileBytes - kUnitBytes, memory.span()), EINVAL);
  EXPECT_EQ(DoOne(*file, IoKind::kRead, kFileBytes - kUnitBytes, memory.span()), ENODATA);
  EXPECT_TRUE(file->Reserve(kFileBytes).ok());
  EXPECT_EQ(file->Reserve(kFileBytes + 1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(OverlayFile::Create(Nameless(), Nameless(), 0, kUnitBytes).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(OverlayFileTest, WhatIsDiscardedIsTheOwnFilesAlone) {
  const auto file = Over();
  ASSERT_EQ(WriteUnit(*file, 2, 2, 3), 0);
  file->Discard(0, kFileBytes);
  EXPECT_TRUE(UnitHolds(*file, 1, kOfBase));
  ASSERT_EQ(WriteUnit(*file, 3, 4), 0);
  EXPECT_TRUE(UnitHolds(*file, 3, 4));
  ExpectVersions(*base_, std::vector<uint64_t>(kUnits, kOfBase));
}

TEST_F(OverlayFileTest, HoldsInMemoryWhatItSays) {
  constexpr uint64_t kManyBytes = uint64_t{100'000} * kUnitBytes;
  auto base = Nameless();
  auto own = Nameless();
  const uint32_t depth = own->mode().queue_depth;
  const HeapUse before = CurrentHeapUse();
  const auto file = OverlayFile::Create(std::move(base), std::move(own), kManyBytes, kUnitBytes);
  ASSERT_TRUE(file.ok());
  const uint64_t held_bytes = CurrentHeapUse().live_bytes - before.live_bytes;
  const uint64_t said_bytes = OverlayFile::MemoryBytes(kManyBytes, kUnitBytes, depth);
  EXPECT_LE(held_bytes, said_bytes + 256);
  EXPECT_GE(held_bytes + 64, said_bytes);
}

}  // namespace overlay

}  // namespace
}  // namespace kvrun::testing
