// What every back end has to do, direct and buffered, and the wrappers that only delay, keep what was saved,
// encrypt, or write elsewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <set>

#include "platform/base/units.h"
#include "platform/io/block_file.h"
#include "platform/io/rate_limited_block_file.h"
#include "platform/io/seal.h"
#include "runtime/store/overlay_file.h"
#include "runtime/store/save_point_file.h"
#include "runtime/store/sealed_file.h"
#include "tests/storage/allocation_counter.h"
#include "tests/storage/storage_fixture.h"
#include "tests/support/program_runner.h"

namespace kvrun::testing {
namespace {

struct Case {
  IoBackend backend;
  DirectIo direct;
  bool rate_limited = false;
  bool keeps = false;
  bool seals = false;
  bool overlays = false;

  bool has_units() const { return keeps || seals || overlays; }  // and so many of them
  bool reserves() const { return !keeps && !overlays; }
};

constexpr uint32_t kQueueDepth = 8;
constexpr size_t kBlock = 64 * 1024;  // a multiple of every alignment

class BlockFileConformance : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    BlockFileOptions options;
    options.folder = folder_.Path("kv");
    options.auto_backend = false;
    options.backend = GetParam().backend;
    options.direct = GetParam().direct;
    options.queue_depth = kQueueDepth;
    options.allow_tmpfs = true;
    auto made = CreateBlockFile(options);
    if (!made.ok()) GTEST_SKIP() << made.status().message();
    file_ = std::move(made).value();
    if (GetParam().seals && !CheckEncryption().ok()) GTEST_SKIP() << CheckEncryption().message();
    if (GetParam().overlays) return MakeOverlay(options);
    if (GetParam().rate_limited) {
      file_ = std::make_unique<RateLimitedBlockFile>(std::move(file_), RateLimit{kGiB, 200});
    }
    if (GetParam().keeps) {
      const uint32_t unit_bytes = std::max(file_->mode().alignment_bytes, SavePointFile::kAlignmentBytes);
      file_ = SavePointFile::Create(std::move(file_), 40 * kBlock, unit_bytes).value();
    }
    if (GetParam().seals) {
      const uint32_t unit_bytes = std::max(file_->mode().alignment_bytes, SealedFile::kAlignmentBytes);
      file_ = Sealed(std::move(file_), unit_bytes);
    }
  }

  static std::unique_ptr<BlockFile> Sealed(std::unique_ptr<BlockFile> file, uint32_t unit_bytes) {
    return SealedFile::Create(std::move(file), SecretKey::Random().value(),
                              {.size_bytes = 40 * kBlock, .unit_bytes = unit_bytes})
        .value();
  }

  // Over a file that is kept, in which nothing was written.
  void MakeOverlay(const BlockFileOptions& options) {
    const uint32_t unit_bytes = std::max(file_->mode().alignment_bytes, SavePointFile::kAlignmentBytes);
    std::unique_ptr<BlockFile> base =
        SavePointFile::Create(CreateBlockFile(options).value(), 40 * kBlock, unit_bytes).value();
    if (GetParam().seals) {
      base = Sealed(std::move(base), unit_bytes);
      file_ = Sealed(std::move(file_), unit_bytes);
    }
    file_ = OverlayFile::Create(std::move(base), std::move(file_), 40 * kBlock, unit_bytes).value();
  }

  // Carries out all requests, as many at once as the queue takes.
  std::vector<IoCompletion> DoAll(std::span<const IoRequest> requests) {
    std::vector<IoCompletion> all;
    IoCompletion some[3];
    const size_t n_requests = requests.size();
    while (all.size() < n_requests) {
      const auto taken = file_->Submit(requests);
      EXPECT_TRUE(taken.ok()) << taken.status().message();
      requests = requests.subspan(taken.value());
      const auto done = file_->Complete(some, 1);
      EXPECT_TRUE(done.ok()) << done.status().message();
      EXPECT_GE(done.value(), 1U);
      all.insert(all.end(), some, some + done.value());
    }
    return all;
  }

  TemporaryFolder folder_;
  std::unique_ptr<BlockFile> file_;
};

TEST_P(BlockFileConformance, SaysWhatIsInEffect) {
  const IoMode& mode = file_->mode();
  EXPECT_EQ(mode.backend, GetParam().backend);
  EXPECT_EQ(mode.direct, GetParam().direct == DirectIo::kOn);
  EXPECT_EQ(mode.queue_depth, kQueueDepth);
  EXPECT_EQ(mode.alignment_bytes == 1, !mode.direct && !GetParam().has_units());
  EXPECT_LE(mode.alignment_bytes, kBlock);
  EXPECT_EQ(file_->counters().reads, 0U);
  EXPECT_EQ(file_->counters().writes, 0U);
}

// Requests of several segments, in any order, more than the queue holds, then read with other cuts.
TEST_P(BlockFileConformance, ReadsWhatWasWritten) {
  constexpr size_t kBlocks = 40;
  const AlignedMemory written(kBlocks * kBlock);
  FillPattern(written.span(), 0);
  const size_t unit = file_->mode().alignment_bytes;
  std::vector<iovec> segments;
  for (size_t b = 0; b < kBlocks; ++b) {
    std::byte* const block = written.data() + b * kBlock;
    segments.push_back({block, unit});
    segments.push_back({block + unit, 2 * unit});
    segments.push_back({block + 3 * unit, kBlock - 3 * unit});
  }
  std::vector<IoRequest> requests;
  for (size_t b = 0; b < kBlocks; ++b) {
    requests.push_back({IoKind::kWrite, b * kBlock, {&segments[3 * b], 3}, 1000 + b});
  }
  std::shuffle(requests.begin(), requests.end(), std::mt19937(7));
  std::set<uint64_t> tags;
  for (const IoCompletion& completion : DoAll(requests)) {
    EXPECT_EQ(completion.error_number, 0);
    tags.insert(completion.tag);
  }
  EXPECT_EQ(tags.size(), kBlocks);
  EXPECT_EQ(*tags.begin(), 1000U);
  EXPECT_EQ(*tags.rbegin(), 1000U + kBlocks - 1);

  // One request over everything, in kMaxIoSegments segments in backward order of memory.
  const AlignedMemory read(kBlocks * kBlock);
  const size_t piece = kBlocks * kBlock / kMaxIoSegments;
  std::vector<iovec> backward;
  for (size_t i = 0; i < kMaxIoSegments; ++i) {
    backward.push_back({read.data() + (kMaxIoSegments - 1 - i) * piece, piece});
  }
  EXPECT_EQ(DoOne(*file_, IoKind::kRead, 0, backward).error_number, 0);
  for (size_t i = 0; i < kMaxIoSegments; ++i) {
    EXPECT_TRUE(HoldsPattern({static_cast<std::byte*>(backward[i].iov_base), piece}, i * piece)) << i;
  }

  const IoCounters counters = file_->counters();
  EXPECT_EQ(counters.writes, kBlocks);
  EXPECT_EQ(counters.written_bytes, kBlocks * kBlock);
  EXPECT_EQ(counters.reads, 1U);
  EXPECT_EQ(counters.read_bytes, kBlocks * kBlock);
}

TEST_P(BlockFileConformance, SmallestUnitsLandWhereTheyShould) {
  const size_t unit = file_->mode().alignment_bytes;
  const AlignedMemory memory(kBlock);
  FillPattern(memory.span(), 0);
  ASSERT_EQ(DoOne(*file_, IoKind::kWrite, 0, memory.span()), 0);
  const AlignedMemory other(unit);
  FillPattern(other.span(), 0, 1);
  ASSERT_EQ(DoOne(*file_, IoKind::kWrite, 3 * unit, other.span()), 0);
  const AlignedMemory read(kBlock);
  ASSERT_EQ(DoOne(*file_, IoKind::kRead, 0, read.span()), 0);
  EXPECT_TRUE(HoldsPattern(read.span().first(3 * unit), 0));
  EXPECT_TRUE(HoldsPattern(read.span().subspan(3 * unit, unit), 0, 1));
  EXPECT_TRUE(HoldsPattern(read.span().subspan(4 * unit), 4 * unit));
}

TEST_P(BlockFileConformance, AFullQueueTakesFewer) {
  const AlignedMemory memory((kQueueDepth + 3) * kBlock);
  std::vector<iovec> segments;
  std::vector<IoRequest> requests;
  for (size_t i = 0; i < kQueueDepth + 3; ++i) segments.push_back({memory.data() + i * kBlock, kBlock});
  for (size_t i = 0; i < kQueueDepth + 3; ++i) {
    requests.push_back({IoKind::kWrite, i * kBlock, {&segments[i], 1}, i});
  }
  const auto taken = file_->Submit(requests);
  ASSERT_TRUE(taken.ok());
  EXPECT_EQ(*taken, kQueueDepth);
  const auto more = file_->Submit(std::span(requests).subspan(kQueueDepth));
  ASSERT_TRUE(more.ok());
  EXPECT_EQ(*more, 0U);  // complete or not: they were not handed out
  IoCompletion completions[kQueueDepth + 3];
  const auto done = file_->Complete(completions, kQueueDepth + 3);  // no more than are in flight
  ASSERT_TRUE(done.ok());
  EXPECT_EQ(*done, kQueueDepth);
  const auto none = file_->Complete(completions, 5);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(*none, 0U);
}

TEST_P(BlockFileConformance, BeyondTheEndThereIsNoData) {
  if (GetParam().has_units()) return;  // zeros up to the last one
  const AlignedMemory memory(2 * kBlock);
  ASSERT_EQ(DoOne(*file_, IoKind::kWrite, 0, memory.span().first(kBlock)), 0);
  EXPECT_EQ(DoOne(*file_, IoKind::kRead, 0, memory.span().first(kBlock)), 0);
  EXPECT_EQ(DoOne(*file_, IoKind::kRead, kBlock, memory.span().first(kBlock)), ENODATA);
  EXPECT_EQ(DoOne(*file_, IoKind::kRead, 0, memory.span()), ENODATA);  // half of it is there
  const uint64_t unit = file_->mode().alignment_bytes;
  EXPECT_EQ(DoOne(*file_, IoKind::kRead, kBlock - unit, memory.span().first(2 * unit)), ENODATA);
}

TEST_P(BlockFileConformance, RefusesWhatCannotBeDone) {
  const AlignedMemory memory(2 * kBlock);
  std::vector<iovec> segments(kMaxIoSegments + 1, {memory.data(), kBlock});
  EXPECT_EQ(DoOne(*file_, IoKind::kWrite, 0, segments).error_number, EINVAL);
  EXPECT_EQ(DoOne(*file_, IoKind::kWrite, UINT64_MAX / kBlock * kBlock, memory.span()), EINVAL);
  if (!file_->mode().direct) return;
  const size_t half = file_->mode().alignment_bytes / 2;
  EXPECT_EQ(DoOne(*file_, IoKind::kWrite, half, memory.span().first(kBlock)), EINVAL);
  EXPECT_EQ(DoOne(*file_, IoKind::kWrite, 0, memory.span().first(half)), EINVAL);
  EXPECT_EQ(DoOne(*file_, IoKind::kWrite, 0, memory.span().subspan(half, kBlock)), EINVAL);
}

TEST_P(BlockFileConformance, NothingToDoIsDone) {
  EXPECT_EQ(DoOne(*file_, IoKind::kRead, 0, std::span<std::byte>()), 0);
  EXPECT_EQ(DoOne(*file_, IoKind::kWrite, 0, std::span<const iovec>()).error_number, 0);
  IoCompletion completion;
  EXPECT_EQ(file_->Complete({&completion, 1}, 0).value(), 0U);
  EXPECT_EQ(file_->Submit({}).value(), 0U);
}

TEST_P(BlockFileConformance, ReservesZeros) {
  if (!GetParam().reserves()) return;
  const uint64_t unit = file_->mode().alignment_bytes;
  ASSERT_TRUE(file_->Reserve(3 * kBlock + 1).ok());
  const AlignedMemory memory(3 * kBlock + unit);
  ASSERT_EQ(DoOne(*file_, IoKind::kRead, 0, memory.span()), 0);
  EXPECT_TRUE(std::all_of(memory.data(), memory.data() + memory.size(),
                          [](std::byte b) { return b == std::byte{0}; }));
  FillPattern(memory.span(), 0);
  ASSERT_EQ(DoOne(*file_, IoKind::kWrite, 0, memory.span()), 0);
  ASSERT_TRUE(file_->Reserve(kBlock).ok());  // at least: it does not shrink
  ASSERT_TRUE(file_->Reserve(8 * kBlock).ok());
  memory.Fill(0);
  ASSERT_EQ(DoOne(*file_, IoKind::kRead, 0, memory.span()), 0);
  EXPECT_TRUE(HoldsPattern(memory.span(), 0));
}

TEST_P(BlockFileConformance, SaysWhatADiskLacks) {
  if (GetParam().has_units()) return;  // no more than it has
  const Status status = file_->Reserve(uint64_t{1} << 60);
  EXPECT_EQ(status.code(), StatusCode::kIo);
  for (const char* part : {"GiB", "kv", "are free", "--kv-dir"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
  EXPECT_TRUE(file_->Reserve(kBlock).ok());
}

TEST_P(BlockFileConformance, AllocatesNothing) {
  const AlignedMemory memory(kQueueDepth * kBlock);
  ASSERT_EQ(DoOne(*file_, IoKind::kWrite, 0, memory.span()), 0);
  iovec segments[kQueueDepth][2];
  IoRequest requests[kQueueDepth];
  IoCompletion completions[kQueueDepth];
  const HeapUse before = CurrentHeapUse();
  bool good = true;
  for (int round = 0; round < 20; ++round) {
    for (size_t i = 0; i < kQueueDepth; ++i) {
      std::byte* const block = memory.data() + i * kBlock;
      segments[i][0] = {block, kBlock / 2};
      segments[i][1] = {block + kBlock / 2, kBlock / 2};
      requests[i] = {round % 2 == 0 ? IoKind::kWrite : IoKind::kRead, i * kBlock, segments[i], i};
    }
    good &= file_->Submit(requests).value() == kQueueDepth;
    good &= file_->Complete(completions, kQueueDepth).value() == kQueueDepth;
    for (const IoCompletion& completion : completions) good &= completion.error_number == 0;
  }
  EXPECT_EQ(CurrentHeapUse().n_allocations, before.n_allocations);
  EXPECT_TRUE(good);
}

TEST_P(BlockFileConformance, RegisteredMemoryIsAsGoodAsOther) {
  const AlignedMemory first(4 * kBlock);
  const AlignedMemory second(2 * kBlock);
  const AlignedMemory other(kBlock);
  const iovec region{first.data(), first.size()};
  file_->RegisterMemory({&region, 1});
  const iovec added{second.data(), second.size()};
  file_->RegisterMemory({&added, 1});
  FillPattern(first.span(), 0);
  FillPattern(second.span(), first.size());
  FillPattern(other.span(), first.size() + second.size());
  uint64_t offset = 0;
  for (const auto& memory :
       {first.span().first(kBlock), first.span().subspan(kBlock), second.span(), other.span()}) {
    ASSERT_EQ(DoOne(*file_, IoKind::kWrite, offset, memory), 0);
    offset += memory.size();
  }
  first.Fill(0);
  second.Fill(0);
  ASSERT_EQ(DoOne(*file_, IoKind::kRead, kBlock, second.span()), 0);
  EXPECT_TRUE(HoldsPattern(second.span(), kBlock));
  ASSERT_EQ(DoOne(*file_, IoKind::kRead, 3 * kBlock, first.span().subspan(0, 2 * kBlock)), 0);
  ASSERT_EQ(DoOne(*file_, IoKind::kRead, 5 * kBlock, first.span().subspan(2 * kBlock)), 0);
  EXPECT_TRUE(HoldsPattern(first.span(), 3 * kBlock));
}

TEST_P(BlockFileConformance, TheEndWaitsForWhatIsInFlight) {
  if (!GetParam().reserves()) return;
  const AlignedMemory memory(kQueueDepth * kBlock);
  ASSERT_TRUE(file_->Reserve(memory.size()).ok());
  std::vector<iovec> segments;
  std::vector<IoRequest> requests;
  for (size_t i = 0; i < kQueueDepth; ++i) segments.push_back({memory.data() + i * kBlock, kBlock});
  for (size_t i = 0; i < kQueueDepth; ++i)
    requests.push_back({IoKind::kRead, i * kBlock, {&segments[i], 1}, i});
  ASSERT_EQ(file_->Submit(requests).value(), kQueueDepth);
  file_.reset();
  // All reads have ended: the memory is zeros, and nothing writes to it any more.
  EXPECT_TRUE(std::all_of(memory.data(), memory.data() + memory.size(),
                          [](std::byte b) { return b == std::byte{0}; }));
}

TEST_P(BlockFileConformance, ACacheThatIsDroppedLosesNothing) {
  const AlignedMemory memory(kBlock);
  FillPattern(memory.span(), 0);
  ASSERT_EQ(DoOne(*file_, IoKind::kWrite, 0, memory.span()), 0);
  file_->DropCache();
  memory.Fill(0);
  ASSERT_EQ(DoOne(*file_, IoKind::kRead, 0, memory.span()), 0);
  EXPECT_TRUE(HoldsPattern(memory.span(), 0));
}

TEST_P(BlockFileConformance, HoldsInMemoryWhatItSays) {
  BlockFileOptions options;
  options.folder = folder_.Path("kv");
  options.auto_backend = false;
  options.backend = GetParam().backend;
  options.direct = GetParam().direct;
  options.allow_tmpfs = true;
  const HeapUse before = CurrentHeapUse();
  const auto file = CreateBlockFile(options);
  const uint64_t held_bytes = CurrentHeapUse().live_bytes - before.live_bytes;
  ASSERT_TRUE(file.ok());
  // Beside the tables: rings and stacks, which are not on the heap, and less than 4 KiB of objects and names.
  const uint64_t said_bytes = BlockFileMemoryBytes((*file)->mode());
  EXPECT_LT(held_bytes, said_bytes + 4096);
  EXPECT_GT(held_bytes, options.queue_depth * kMaxIoSegments * sizeof(iovec));
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const IoBackend backend : {IoBackend::kIoUring, IoBackend::kAio, IoBackend::kThreads}) {
    for (const DirectIo direct : {DirectIo::kOn, DirectIo::kOff}) {
      cases.push_back({backend, direct, false});
      cases.push_back({backend, direct, true});
      cases.push_back({backend, direct, false, true});
      cases.push_back({backend, direct, false, false, true});
      cases.push_back({backend, direct, false, true, true});
      cases.push_back({backend, direct, false, false, false, true});
      cases.push_back({backend, direct, false, false, true, true});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, BlockFileConformance, ::testing::ValuesIn(AllCases()),
                         [](const ::testing::TestParamInfo<Case>& test) {
                           std::string name(IoBackendName(test.param.backend));
                           name += test.param.direct == DirectIo::kOn ? "_direct" : "_buffered";
                           return name + (test.param.rate_limited ? "_limited" : "") +
                                  (test.param.keeps ? "_kept" : "") + (test.param.seals ? "_sealed" : "") +
                                  (test.param.overlays ? "_over" : "");
                         });

}  // namespace
}  // namespace kvrun::testing
