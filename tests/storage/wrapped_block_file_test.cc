// The files that tests and benchmarks wrap around others: they do what they are told to.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>

#include "platform/io/faulty_block_file.h"
#include "platform/io/rate_limited_block_file.h"
#include "tests/storage/storage_fixture.h"
#include "tests/support/program_runner.h"

namespace kvrun::testing {
namespace {

constexpr size_t kBlock = 64 * 1024;

class WrappedBlockFile : public ::testing::Test {
 protected:
  std::unique_ptr<BlockFile> Inner() {
    BlockFileOptions options;
    options.folder = folder_.Path("kv");
    options.auto_backend = false;
    options.backend = IoBackend::kThreads;
    options.allow_tmpfs = true;
    options.queue_depth = 4;
    return CreateBlockFile(options).value();
  }

  // Four blocks of pattern, written as four writes to a file with one fault; then read in one.
  void Write(FaultyBlockFile& file) {
    ASSERT_TRUE(file.Reserve(4 * kBlock).ok());
    for (size_t b = 0; b < 4; ++b) {
      FillPattern(memory_.span().first(kBlock), b * kBlock);
      write_errors_.push_back(DoOne(file, IoKind::kWrite, b * kBlock, memory_.span().first(kBlock)));
      EXPECT_TRUE(HoldsPattern(memory_.span().first(kBlock), b * kBlock));  // the caller's memory stays
    }
  }
  int Read(FaultyBlockFile& file) { return DoOne(file, IoKind::kRead, 0, memory_.span()); }
  bool Good(size_t block) {
    return HoldsPattern(memory_.span().subspan(block * kBlock, kBlock), block * kBlock);
  }

  TemporaryFolder folder_;
  AlignedMemory memory_{4 * kBlock};
  std::vector<int> write_errors_;
};

FaultPlan OneFault(FaultKind kind, IoKind request, uint64_t index) {
  FaultPlan plan;
  plan.faults = {{kind, request, index}};
  return plan;
}

TEST_F(WrappedBlockFile, WithoutFaultsNothingChanges) {
  FaultyBlockFile file(Inner(), {});
  Write(file);
  EXPECT_EQ(write_errors_, std::vector<int>(4, 0));
  EXPECT_EQ(Read(file), 0);
  EXPECT_TRUE(HoldsPattern(memory_.span(), 0));
  EXPECT_EQ(file.n_faults(), 0U);
  EXPECT_EQ(file.counters().writes, 4U);
  EXPECT_EQ(file.counters().written_bytes, 4 * kBlock);
  EXPECT_EQ(file.counters().reads, 1U);
}

TEST_F(WrappedBlockFile, WriteFaultsHitTheWriteThatWasMeant) {
  struct {
    FaultKind kind;
    int error_number;
  } const cases[] = {{FaultKind::kIoError, EIO},   {FaultKind::kNoSpace, ENOSPC}, {FaultKind::kBitFlip, 0},
                     {FaultKind::kMisdirected, 0}, {FaultKind::kLostWrite, 0},    {FaultKind::kTornWrite, 0}};
  for (const auto& c : cases) {
    SCOPED_TRACE(FaultKindName(c.kind));
    write_errors_.clear();
    FaultyBlockFile file(Inner(), OneFault(c.kind, IoKind::kWrite, 3));
    Write(file);
    EXPECT_EQ(write_errors_, (std::vector<int>{0, 0, 0, c.error_number}));
    EXPECT_EQ(Read(file), 0);
    EXPECT_FALSE(Good(3));
    EXPECT_EQ(Good(0) && Good(1) && Good(2), c.kind != FaultKind::kMisdirected);
    EXPECT_EQ(file.n_faults(), 1U);
  }
}

TEST_F(WrappedBlockFile, ReadFaultsHitTheReadThatWasMeant) {
  struct {
    FaultKind kind;
    int error_number;
  } const cases[] = {{FaultKind::kIoError, EIO},
                     {FaultKind::kShortRead, ENODATA},
                     {FaultKind::kBitFlip, 0},
                     {FaultKind::kStaleData, 0}};
  for (const auto& c : cases) {
    SCOPED_TRACE(FaultKindName(c.kind));
    FaultyBlockFile file(Inner(), OneFault(c.kind, IoKind::kRead, 1));
    Write(file);
    EXPECT_EQ(Read(file), 0);
    EXPECT_TRUE(HoldsPattern(memory_.span(), 0));
    EXPECT_EQ(Read(file), c.error_number);
    EXPECT_FALSE(HoldsPattern(memory_.span(), 0));
    EXPECT_EQ(Read(file), 0);
    EXPECT_TRUE(HoldsPattern(memory_.span(), 0));
  }
}

TEST_F(WrappedBlockFile, AFlipIsOneBit) {
  FaultyBlockFile file(Inner(), OneFault(FaultKind::kBitFlip, IoKind::kWrite, 2));
  Write(file);
  ASSERT_EQ(Read(file), 0);
  int n_bits = 0;
  for (size_t i = 0; i < memory_.size(); ++i) {
    n_bits += std::popcount(std::to_integer<unsigned>(memory_.data()[i] ^ PatternByte(i, 0)));
  }
  EXPECT_EQ(n_bits, 1);
}

TEST_F(WrappedBlockFile, AMisdirectedReadIsOfAnotherPlace) {
  FaultyBlockFile file(Inner(), OneFault(FaultKind::kMisdirected, IoKind::kRead, 0));
  Write(file);
  const auto block = memory_.span().first(kBlock);
  ASSERT_EQ(DoOne(file, IoKind::kRead, kBlock, block), 0);
  EXPECT_TRUE(HoldsPattern(block, 0) || HoldsPattern(block, 2 * kBlock) || HoldsPattern(block, 3 * kBlock));
}

TEST_F(WrappedBlockFile, StaleDataIsWhatLayThereBefore) {
  FaultyBlockFile file(Inner(), OneFault(FaultKind::kStaleData, IoKind::kRead, 0));
  Write(file);
  const auto block = memory_.span().first(kBlock);
  FillPattern(block, 0, 1);
  ASSERT_EQ(DoOne(file, IoKind::kWrite, 0, block), 0);
  ASSERT_EQ(DoOne(file, IoKind::kRead, 0, block), 0);
  EXPECT_TRUE(HoldsPattern(block, 0, 0));
  ASSERT_EQ(DoOne(file, IoKind::kRead, 0, block), 0);
  EXPECT_TRUE(HoldsPattern(block, 0, 1));
}

TEST_F(WrappedBlockFile, AFullDiskStaysFull) {
  FaultPlan plan;
  plan.capacity_bytes = 2 * kBlock + 100;
  FaultyBlockFile file(Inner(), plan);
  Write(file);
  EXPECT_EQ(write_errors_, (std::vector<int>{0, 0, ENOSPC, ENOSPC}));
}

TEST_F(WrappedBlockFile, APowerCutLosesAllFromThereOn) {
  FaultPlan plan;
  plan.faults = {{FaultKind::kLostWrite, IoKind::kWrite, 1, UINT64_MAX}};
  FaultyBlockFile file(Inner(), plan);
  Write(file);
  EXPECT_EQ(write_errors_, std::vector<int>(4, 0));
  ASSERT_EQ(Read(file), 0);
  EXPECT_TRUE(Good(0));
  EXPECT_FALSE(Good(1) || Good(2) || Good(3));
}

TEST_F(WrappedBlockFile, ASeedAlwaysGivesTheSameFaults) {
  std::vector<std::vector<int>> runs;
  for (const uint64_t seed : {1U, 1U, 2U, 3U}) {
    FaultPlan plan;
    plan.probability = 0.5;
    plan.seed = seed;
    plan.random_kinds = {FaultKind::kIoError, FaultKind::kShortRead};
    FaultyBlockFile file(Inner(), plan);
    write_errors_.clear();
    Write(file);
    for (int i = 0; i < 20; ++i) write_errors_.push_back(Read(file));
    runs.push_back(write_errors_);
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_FALSE(runs[0] == runs[2] && runs[0] == runs[3]);
  EXPECT_GT(std::count(runs[0].begin(), runs[0].end(), 0), 0);
  EXPECT_GT(std::count(runs[0].begin(), runs[0].end(), ENODATA), 0);
}

double MillisecondsOf(BlockFile& file, std::span<const IoRequest> requests) {
  std::vector<IoCompletion> completions(requests.size());
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(file.Submit(requests).value(), requests.size());
  EXPECT_EQ(file.Complete(completions, completions.size()).value(), requests.size());
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

// Only lower bounds: a busy machine may take longer.
TEST_F(WrappedBlockFile, ALimitedFileTakesItsTime) {
  iovec segments[4];
  IoRequest requests[4];
  for (size_t i = 0; i < 4; ++i) segments[i] = {memory_.data() + i * kBlock, kBlock};
  for (size_t i = 0; i < 4; ++i) requests[i] = {IoKind::kWrite, i * kBlock, {&segments[i], 1}, i};
  RateLimitedBlockFile slow(Inner(), {4 * kBlock * 20, 0});  // all four in 50 ms
  EXPECT_GE(MillisecondsOf(slow, requests), 50.0);
  EXPECT_GE(MillisecondsOf(slow, std::span(requests).first(1)), 12.5);
  RateLimitedBlockFile late(Inner(), {0, 20000});
  EXPECT_GE(MillisecondsOf(late, requests), 20.0);

  IoCompletion completion;
  ASSERT_EQ(late.Submit({requests, 1}).value(), 1U);
  EXPECT_EQ(late.Complete({&completion, 1}, 0).value(), 0U);  // does not wait
  EXPECT_EQ(late.Complete({&completion, 1}, 1).value(), 1U);
}

}  // namespace
}  // namespace kvrun::testing
