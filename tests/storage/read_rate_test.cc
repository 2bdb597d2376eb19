// Rates that are measured, held against files of known rates.
#include "platform/io/read_rate.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <set>

#include "platform/base/units.h"
#include "platform/io/faulty_block_file.h"
#include "platform/io/rate_limited_block_file.h"
#include "tests/storage/storage_fixture.h"
#include "tests/support/program_runner.h"

namespace kvrun {
namespace {

using testing::AlignedMemory;
using testing::DoOne;

constexpr uint64_t kFileBytes = 8 * kMiB;

class ReadRateTest : public ::testing::Test {
 protected:
  std::unique_ptr<BlockFile> Inner() {
    return CreateBlockFile({.folder = folder_.Path("kv"),
                            .auto_backend = false,
                            .backend = IoBackend::kThreads,
                            .queue_depth = 16,
                            .allow_tmpfs = true})
        .value();
  }
  // Written at full speed.
  RateLimitedBlockFile Limited(const RateLimit& limit) {
    std::unique_ptr<BlockFile> file = Inner();
    EXPECT_EQ(FillWithNoise(*file, {.file_bytes = kFileBytes, .least_bytes = kFileBytes}, {}).value(),
              kFileBytes);
    return {std::move(file), limit};
  }

  TemporaryFolder folder_;
};

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST_F(ReadRateTest, AKnownRateIsFound) {
  RateLimitedBlockFile file = Limited({.bytes_per_s = 50'000'000});
  for (const uint32_t depth : {1U, 4U, 16U}) {
    const ReadRate rate =
        MeasureReadRate(file, {64 * 1024, depth}, {.file_bytes = kFileBytes, .seconds = 0.3}).value();
    EXPECT_GT(rate.bytes_per_s, 0.75 * 50e6) << depth;
    EXPECT_LT(rate.bytes_per_s, 1.05 * 50e6) << depth;
    // The disk carries out what came before first.
    EXPECT_GT(rate.latency_us, 0.7 * depth * 65536 / 50.0) << depth;
    EXPECT_LT(rate.latency_us, 1.5 * depth * 65536 / 50.0) << depth;
    EXPECT_GE(rate.latency_p99_us, rate.latency_us);
  }
}

TEST_F(ReadRateTest, LatencyIsHiddenByDepthAlone) {
  RateLimitedBlockFile file = Limited({.latency_us = 4000});
  const RateLimits limits{.file_bytes = kFileBytes, .seconds = 0.2};
  const ReadRate one = MeasureReadRate(file, {4096, 1}, limits).value();
  const ReadRate sixteen = MeasureReadRate(file, {4096, 16}, limits).value();
  EXPECT_GT(one.latency_us, 3900.0);
  EXPECT_LT(one.bytes_per_s, 1.05 * 4096 / 0.004);
  EXPECT_GT(one.bytes_per_s, 0.5 * 4096 / 0.004);
  EXPECT_GT(sixteen.bytes_per_s, 6 * one.bytes_per_s);
}

TEST_F(ReadRateTest, APointOfASlowDiskEnds) {
  RateLimitedBlockFile file = Limited({.bytes_per_s = 10'000'000});
  const auto begin = std::chrono::steady_clock::now();
  const ReadRate rate =
      MeasureReadRate(file, {64 * 1024, 4}, {.file_bytes = kFileBytes, .seconds = 0.001}).value();
  // A handful in each of the runs, and those in flight: some 20 reads of 6.5 ms.
  EXPECT_LT(SecondsSince(begin), 5.0);
  EXPECT_GT(rate.bytes_per_s, 0.6 * 10e6);
  EXPECT_LT(rate.bytes_per_s, 1.3 * 10e6);
  EXPECT_LT(file.counters().reads, 40U);
}

TEST_F(ReadRateTest, APageCacheLearnsAPartOfTheFileOnly) {
  RateLimitedBlockFile file = Limited({});
  const uint64_t before = file.counters().read_bytes;
  ASSERT_TRUE(
      MeasureReadRate(file, {4096, 4}, {.file_bytes = kFileBytes, .seconds = 100.0, .max_bytes = 256 * kKiB})
          .ok());
  EXPECT_LT(file.counters().read_bytes - before, 320 * kKiB);
}

TEST_F(ReadRateTest, WhatIsWrittenCannotBeCompressed) {
  std::unique_ptr<BlockFile> file = Inner();
  ASSERT_EQ(FillWithNoise(*file, {.file_bytes = 2 * kMiB, .least_bytes = 2 * kMiB}, {}).value(), 2 * kMiB);
  const AlignedMemory memory(2 * kMiB);
  ASSERT_EQ(DoOne(*file, IoKind::kRead, 0, memory.span()), 0);
  std::set<uint64_t> values;
  const size_t n_values = memory.size() / sizeof(uint64_t);
  for (size_t i = 0; i < n_values; ++i) {
    uint64_t value = 0;
    std::memcpy(&value, memory.data() + i * sizeof value, sizeof value);
    values.insert(value);
  }
  EXPECT_EQ(values.size(), n_values);
}

TEST_F(ReadRateTest, WritingEndsInTimeToo) {
  RateLimitedBlockFile file(Inner(), {.bytes_per_s = 100'000'000});
  const uint64_t written =
      FillWithNoise(file, {.file_bytes = 256 * kMiB, .least_bytes = 4 * kMiB, .seconds = 0.0}, {}).value();
  EXPECT_EQ(written, 4 * kMiB);
}

TEST_F(ReadRateTest, FaultsAreSaid) {
  std::unique_ptr<BlockFile> filled = Inner();
  ASSERT_TRUE(FillWithNoise(*filled, {.file_bytes = kFileBytes, .least_bytes = kFileBytes}, {}).ok());
  FaultPlan plan;
  plan.faults = {{FaultKind::kIoError, IoKind::kRead, 20}};
  FaultyBlockFile bad_read(std::move(filled), plan);
  const auto rate = MeasureReadRate(bad_read, {4096, 4}, {.file_bytes = kFileBytes, .seconds = 0.2});
  EXPECT_EQ(rate.status().code(), StatusCode::kIo);
  EXPECT_NE(rate.status().message().find("Input/output error"), std::string::npos);
  plan.faults = {{FaultKind::kNoSpace, IoKind::kWrite, 2}};
  FaultyBlockFile full(Inner(), plan);
  const auto written = FillWithNoise(full, {.file_bytes = kFileBytes, .least_bytes = kFileBytes}, {});
  EXPECT_NE(written.status().message().find("No space left"), std::string::npos)
      << written.status().message();
}

TEST_F(ReadRateTest, PointsThatCannotBeAreRefused) {
  RateLimitedBlockFile file = Limited({});
  for (const RatePoint point : {RatePoint{0, 1}, {4096, 0}, {4096, 17}, {uint32_t{1} << 30, 1}}) {
    EXPECT_EQ(MeasureReadRate(file, point, {.file_bytes = kFileBytes}).status().code(),
              StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace kvrun
