// Rates that are measured, held against files of known rates.
#include "offline/storage_probe.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "offline/probe.h"
#include "platform/base/units.h"
#include "platform/io/faulty_block_file.h"
#include "platform/io/rate_limited_block_file.h"
#include "tests/storage/storage_fixture.h"
#include "tests/support/program_runner.h"

namespace kvrun::offline {
namespace {

using testing::AlignedMemory;
using testing::DoOne;

constexpr uint64_t kFileBytes = 8 * kMiB;

class StorageProbe : public ::testing::Test {
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
    EXPECT_EQ(FillRandomly(*file, {.file_bytes = kFileBytes, .least_bytes = kFileBytes}, {}).value(),
              kFileBytes);
    return {std::move(file), limit};
  }
  StorageProbeOptions Quick() const {
    return {.folder = folder_.Path("kv"), .all_modes = false, .allow_tmpfs = true, .budget_seconds = 0.3};
  }

  TemporaryFolder folder_;
};

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

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

StorageRate RateOf(SimulatedDisk& disk, const RatePoint& point, double seconds) {
  const RateLimits limits{
      .file_bytes = kFileBytes, .seconds = seconds, .now_s = [&] { return disk.now_s(); }};
  const StorageRate rate = MeasureRate(disk, point, limits).value();
  EXPECT_EQ(disk.n_in_flight(), 0U);
  return rate;
}

TEST(StorageRates, AKnownRateIsFound) {
  for (const double bytes_per_s : {25e6, 250e6, 3e9}) {
    for (const uint32_t depth : {1U, 4U, 32U}) {
      SimulatedDisk disk(bytes_per_s);
      const StorageRate rate = RateOf(disk, {65536, depth}, 0.1);
      EXPECT_NEAR(rate.bytes_per_s, bytes_per_s, 1e-3 * bytes_per_s) << depth;
      // The disk carries out what came before first.
      EXPECT_NEAR(rate.latency_us, depth * 65536e6 / bytes_per_s, 1.0) << depth;
    }
  }
}

TEST(StorageRates, LatencyIsHiddenByDepthAlone) {
  SimulatedDisk disk(1e9, 0.004);
  const StorageRate one = RateOf(disk, {4096, 1}, 0.2);
  const StorageRate sixteen = RateOf(disk, {4096, 16}, 0.2);
  EXPECT_NEAR(one.latency_us, 4004.1, 1.0);
  EXPECT_NEAR(one.bytes_per_s, 4096 / 0.0040041, 0.01 * one.bytes_per_s);
  EXPECT_NEAR(sixteen.bytes_per_s, 16 * one.bytes_per_s, 0.1 * sixteen.bytes_per_s);
}

TEST(StorageRates, WhatIsSeldomIsInTheTail) {
  SimulatedDisk disk(100e6, 0.0, 50);
  const StorageRate rate = RateOf(disk, {65536, 1}, 1.0);
  EXPECT_NEAR(rate.latency_us, 655.4, 1.0);
  EXPECT_NEAR(rate.latency_p99_us, 6553.6, 1.0);
}

TEST(StorageRates, APointOfASlowDiskEnds) {
  SimulatedDisk disk(1e6);
  const StorageRate rate = RateOf(disk, {1 << 20, 4}, 0.001);
  EXPECT_NEAR(rate.bytes_per_s, 1e6, 1e3);
  // The first, a handful in each of the runs, and those that are still in flight.
  EXPECT_LE(disk.counters().reads, 1U + 3U * 5U + 4U);
  // Another is bounded by time: it reads for 0.1 seconds and no longer.
  SimulatedDisk fast(1e9);
  RateOf(fast, {4096, 32}, 0.1);
  EXPECT_NEAR(fast.now_s(), 0.1, 0.01);
}

// In real time. Whatever else the machine does makes it slower, never faster: once it must come close.
TEST_F(StorageProbe, ARateLimitedFileIsMeasured) {
  constexpr double kRate = 20e6;
  RateLimitedBlockFile file = Limited({.bytes_per_s = static_cast<uint64_t>(kRate)});
  for (const uint32_t depth : {1U, 16U}) {
    double best = 0;
    for (int attempt = 0; attempt < 20 && best < 0.75 * kRate; ++attempt) {
      const StorageRate rate =
          MeasureRate(file, {64 * 1024, depth}, {.file_bytes = kFileBytes, .seconds = 0.15}).value();
      // A run may begin with what was held up before it: the queue, at most.
      EXPECT_LT(rate.bytes_per_s, 1.6 * kRate) << depth;
      EXPECT_GE(rate.latency_p99_us, rate.latency_us);
      EXPECT_EQ(rate.backend, "threads");
      EXPECT_EQ(rate.block_bytes, 65536U);
      EXPECT_EQ(rate.depth, depth);
      EXPECT_EQ(rate.direct, file.mode().direct);
      best = std::max(best, rate.bytes_per_s);
    }
    EXPECT_GT(best, 0.75 * kRate) << depth;
  }
}

TEST_F(StorageProbe, APageCacheLearnsAPartOfTheFileOnly) {
  RateLimitedBlockFile file = Limited({});
  const uint64_t before = file.counters().read_bytes;
  ASSERT_TRUE(
      MeasureRate(file, {4096, 4}, {.file_bytes = kFileBytes, .seconds = 100.0, .max_bytes = 256 * kKiB})
          .ok());
  EXPECT_LT(file.counters().read_bytes - before, 320 * kKiB);
}

TEST_F(StorageProbe, WhatIsWrittenCannotBeCompressed) {
  std::unique_ptr<BlockFile> file = Inner();
  ASSERT_EQ(FillRandomly(*file, {.file_bytes = 2 * kMiB, .least_bytes = 2 * kMiB}, {}).value(), 2 * kMiB);
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

TEST_F(StorageProbe, WritingEndsInTimeToo) {
  RateLimitedBlockFile file(Inner(), {.bytes_per_s = 100'000'000});
  const uint64_t written =
      FillRandomly(file, {.file_bytes = 256 * kMiB, .least_bytes = 4 * kMiB, .seconds = 0.0}, {}).value();
  EXPECT_EQ(written, 4 * kMiB);
}

TEST_F(StorageProbe, FaultsAreSaid) {
  std::unique_ptr<BlockFile> filled = Inner();
  ASSERT_TRUE(FillRandomly(*filled, {.file_bytes = kFileBytes, .least_bytes = kFileBytes}, {}).ok());
  FaultPlan plan;
  plan.faults = {{FaultKind::kIoError, IoKind::kRead, 20}};
  FaultyBlockFile bad_read(std::move(filled), plan);
  const auto rate = MeasureRate(bad_read, {4096, 4}, {.file_bytes = kFileBytes, .seconds = 0.2});
  EXPECT_EQ(rate.status().code(), StatusCode::kIo);
  EXPECT_NE(rate.status().message().find("Input/output error"), std::string::npos);
  plan.faults = {{FaultKind::kNoSpace, IoKind::kWrite, 2}};
  FaultyBlockFile full(Inner(), plan);
  const auto written = FillRandomly(full, {.file_bytes = kFileBytes, .least_bytes = kFileBytes}, {});
  EXPECT_NE(written.status().message().find("No space left"), std::string::npos)
      << written.status().message();
}

TEST_F(StorageProbe, PointsThatCannotBeAreRefused) {
  RateLimitedBlockFile file = Limited({});
  for (const RatePoint point : {RatePoint{0, 1}, {4096, 0}, {4096, 17}, {uint32_t{1} << 30, 1}}) {
    EXPECT_EQ(MeasureRate(file, point, {.file_bytes = kFileBytes}).status().code(),
              StatusCode::kInvalidArgument);
  }
}

TEST_F(StorageProbe, EveryModeReadsTheSameFile) {
  auto files = CreateBlockFileModes({.folder = folder_.Path("kv"), .allow_tmpfs = true});
  ASSERT_TRUE(files.ok()) << files.status().message();
  const auto session = CreateBlockFile({.folder = folder_.Path("kv"), .allow_tmpfs = true}).value();
  EXPECT_EQ(files->front()->mode().backend, session->mode().backend);
  EXPECT_EQ(files->front()->mode().direct, session->mode().direct);
  ASSERT_TRUE(FillRandomly(*files->front(), {.file_bytes = kMiB, .least_bytes = kMiB}, {}).ok());
  const AlignedMemory first(kMiB);
  const AlignedMemory other(kMiB);
  ASSERT_EQ(DoOne(*files->front(), IoKind::kRead, 0, first.span()), 0);
  std::set<std::pair<IoBackend, bool>> modes;
  for (const auto& file : *files) {
    modes.insert({file->mode().backend, file->mode().direct});
    other.Fill(0);
    file->DropCache();
    ASSERT_EQ(DoOne(*file, IoKind::kRead, 0, other.span()), 0);
    EXPECT_TRUE(std::ranges::equal(first.span(), other.span()));
  }
  EXPECT_EQ(modes.size(), files->size());
  EXPECT_TRUE(modes.contains({IoBackend::kThreads, false}));
  EXPECT_EQ(modes.contains({IoBackend::kThreads, true}), session->mode().direct);
  const auto named = CreateBlockFileModes({.folder = folder_.Path("kv"),
                                           .auto_backend = false,
                                           .backend = IoBackend::kThreads,
                                           .allow_tmpfs = true});
  EXPECT_EQ(named.value().front()->mode().backend, IoBackend::kThreads);
}

TEST_F(StorageProbe, TheCheapPartIsTheSessionsModeAlone) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<uint64_t> done;
  const auto profile = ProbeStorage(Quick(), [&](const std::string& what, uint64_t n, uint64_t total) {
    EXPECT_EQ(what, "storage");
    EXPECT_LE(n, total);
    done.push_back(n);
    return false;
  });
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_LT(SecondsSince(begin), 30.0) << "0.3, on a machine that does nothing else";
  std::set<uint32_t> depths;
  std::set<uint32_t> blocks;
  for (const StorageRate& rate : profile->rates) {
    EXPECT_EQ(rate.backend, profile->rates.front().backend);
    EXPECT_EQ(rate.direct, profile->rates.front().direct);
    EXPECT_GT(rate.bytes_per_s, 0.0);
    EXPECT_GT(rate.latency_us, 0.0);
    depths.insert(rate.depth);
    blocks.insert(rate.block_bytes);
  }
  EXPECT_EQ(depths, (std::set<uint32_t>{1, 16}));
  EXPECT_EQ(*blocks.rbegin(), 65536U);
  EXPECT_EQ(profile->rates.size(), depths.size() * blocks.size());
  EXPECT_EQ(*blocks.begin(), std::max(512U, profile->alignment_bytes));
  EXPECT_EQ(done.back(), profile->rates.size());
  EXPECT_TRUE(std::filesystem::is_empty(folder_.Path("kv")));
  DeviceProfile whole;
  whole.storage = *profile;
  EXPECT_EQ(ProfileFromJson(ProfileToJson(whole)).value(), whole);
}

TEST_F(StorageProbe, AllModesAreMeasured) {
  StorageProbeOptions options = Quick();
  options.all_modes = true;
  options.file_bytes = 4 * kMiB;
  options.backend = "threads";
  const auto profile = ProbeStorage(options, {});
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_EQ(profile->rates.front().backend, "threads") << "the one that was asked for comes first";
  std::set<uint32_t> depths;
  std::set<bool> direct;
  for (const StorageRate& rate : profile->rates) {
    depths.insert(rate.depth);
    direct.insert(rate.direct);
  }
  EXPECT_EQ(depths, (std::set<uint32_t>{1, 4, 16, 32}));
  EXPECT_TRUE(direct.contains(false));
}

TEST_F(StorageProbe, WhatCannotBeMeasuredIsSaid) {
  const auto message = [](const StorageProbeOptions& options) {
    return ProbeStorage(options, {}).status().message();
  };
  StorageProbeOptions options = Quick();
  options.backend = "floppy";
  EXPECT_NE(message(options).find("\"floppy\""), std::string::npos);
  options = Quick();
  options.folder = folder_.Path("none/of/these");
  EXPECT_NE(message(options).find("--kv-dir"), std::string::npos);
  options = Quick();
  options.file_bytes = uint64_t{1} << 60;
  EXPECT_NE(message(options).find("of free space in " + options.folder), std::string::npos)
      << message(options);
  if (std::filesystem::exists("/dev/shm")) {
    options = Quick();
    options.folder = "/dev/shm";
    options.allow_tmpfs = false;
    EXPECT_NE(message(options).find("tmpfs"), std::string::npos);
  }
  if (geteuid() != 0) {
    options = Quick();
    options.folder = "/usr";
    EXPECT_NE(message(options).find("/usr"), std::string::npos);
  }
}

TEST_F(StorageProbe, ProgressCancels) {
  for (const uint64_t last : {0U, 3U}) {
    const auto profile =
        ProbeStorage(Quick(), [&](const std::string&, uint64_t done, uint64_t) { return done >= last; });
    EXPECT_EQ(profile.status().code(), StatusCode::kCancelled);
  }
}

}  // namespace
}  // namespace kvrun::offline
