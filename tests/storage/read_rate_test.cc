// Rates that are measured, held against files of known rates.
#include "platform/io/read_rate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
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

// A disk that carries out one read after another, in time of its own: what the machine does meanwhile is of
// no matter. Every `slow_every`th read takes ten times as long.
class SimulatedDisk final : public BlockFile {
 public:
  explicit SimulatedDisk(double bytes_per_s, double latency_s = 0.0, uint64_t slow_every = UINT64_MAX)
      : bytes_per_s_(bytes_per_s), latency_s_(latency_s), slow_every_(slow_every) {
    mode_.queue_depth = 32;
  }
  double now_s() const { return now_s_; }
  const IoMode& mode() const override { return mode_; }
  Result<size_t> Submit(std::span<const IoRequest> requests) override {
    for (const IoRequest& request : requests) {
      EXPECT_LE(request.offset + request.segments.front().iov_len, kFileBytes);
      const auto bytes = static_cast<double>(request.segments.front().iov_len);
      const double factor = ++counters_.reads % slow_every_ == 0 ? 10.0 : 1.0;
      busy_until_s_ = std::max(busy_until_s_, now_s_) + factor * bytes / bytes_per_s_;
      in_flight_.push_back({busy_until_s_ + latency_s_, request.tag});
    }
    EXPECT_LE(in_flight_.size(), mode_.queue_depth);
    return requests.size();
  }
  Result<size_t> Complete(std::span<IoCompletion> completions, size_t at_least) override {
    if (at_least > 0) now_s_ = std::max(now_s_, in_flight_.front().due_s);
    size_t n = 0;
    while (n < completions.size() && !in_flight_.empty() && in_flight_.front().due_s <= now_s_) {
      completions[n++] = {in_flight_.front().tag, 0};
      in_flight_.pop_front();
    }
    return n;
  }
  Status Reserve(uint64_t) override { return Status::Ok(); }
  void RegisterMemory(std::span<const iovec>) override {}
  Status Sync() override { return Status::Ok(); }
  void DropCache() override {}
  IoCounters counters() const override { return counters_; }
  size_t n_in_flight() const { return in_flight_.size(); }

 private:
  struct Read {
    double due_s = 0.0;
    uint64_t tag = 0;
  };
  IoMode mode_;
  IoCounters counters_;
  double bytes_per_s_;
  double latency_s_;
  uint64_t slow_every_;
  double now_s_ = 0.0;
  double busy_until_s_ = 0.0;
  std::deque<Read> in_flight_;
};

ReadRate RateOf(SimulatedDisk& disk, const RatePoint& point, double seconds) {
  const RateLimits limits{
      .file_bytes = kFileBytes, .seconds = seconds, .now_s = [&] { return disk.now_s(); }};
  const ReadRate rate = MeasureReadRate(disk, point, limits).value();
  EXPECT_EQ(disk.n_in_flight(), 0U);
  return rate;
}

TEST(SimulatedReadRate, AKnownRateIsFound) {
  for (const double bytes_per_s : {25e6, 250e6, 3e9}) {
    for (const uint32_t depth : {1U, 4U, 32U}) {
      SimulatedDisk disk(bytes_per_s);
      const ReadRate rate = RateOf(disk, {65536, depth}, 0.1);
      EXPECT_NEAR(rate.bytes_per_s, bytes_per_s, 1e-3 * bytes_per_s) << depth;
      // The disk carries out what came before first.
      EXPECT_NEAR(rate.latency_us, depth * 65536e6 / bytes_per_s, 1.0) << depth;
    }
  }
}

TEST(SimulatedReadRate, LatencyIsHiddenByDepthAlone) {
  SimulatedDisk disk(1e9, 0.004);
  const ReadRate one = RateOf(disk, {4096, 1}, 0.2);
  const ReadRate sixteen = RateOf(disk, {4096, 16}, 0.2);
  EXPECT_NEAR(one.latency_us, 4004.1, 1.0);
  EXPECT_NEAR(one.bytes_per_s, 4096 / 0.0040041, 0.01 * one.bytes_per_s);
  EXPECT_NEAR(sixteen.bytes_per_s, 16 * one.bytes_per_s, 0.1 * sixteen.bytes_per_s);
}

TEST(SimulatedReadRate, WhatIsSeldomIsInTheTail) {
  SimulatedDisk disk(100e6, 0.0, 50);
  const ReadRate rate = RateOf(disk, {65536, 1}, 1.0);
  EXPECT_NEAR(rate.latency_us, 655.4, 1.0);
  EXPECT_NEAR(rate.latency_p99_us, 6553.6, 1.0);
}

TEST(SimulatedReadRate, APointOfASlowDiskEnds) {
  SimulatedDisk disk(1e6);
  const ReadRate rate = RateOf(disk, {1 << 20, 4}, 0.001);
  EXPECT_NEAR(rate.bytes_per_s, 1e6, 1e3);
  // The first, a handful in each of the runs, and those that are still in flight.
  EXPECT_LE(disk.counters().reads, 1U + 3U * 5U + 4U);
  // Another is bounded by time: it reads for 0.1 seconds and no longer.
  SimulatedDisk fast(1e9);
  RateOf(fast, {4096, 32}, 0.1);
  EXPECT_NEAR(fast.now_s(), 0.1, 0.01);
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
