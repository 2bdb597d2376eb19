// Rates that are measured, held against files of known rates.
#include "offline/storage_probe.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
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

TEST_F(StorageProbe, AKnownRateIsFound) {
  RateLimitedBlockFile file = Limited({.bytes_per_s = 50'000'000});
  for (const uint32_t depth : {1U, 4U, 16U}) {
    const StorageRate rate =
        MeasureRate(file, {64 * 1024, depth}, {.file_bytes = kFileBytes, .seconds = 0.3}).value();
    EXPECT_GT(rate.bytes_per_s, 0.75 * 50e6) << depth;
    EXPECT_LT(rate.bytes_per_s, 1.05 * 50e6) << depth;
    // The disk carries out what came before first.
    EXPECT_GT(rate.latency_us, 0.7 * depth * 65536 / 50.0) << depth;
    EXPECT_LT(rate.latency_us, 1.5 * depth * 65536 / 50.0) << depth;
    EXPECT_GE(rate.latency_p99_us, rate.latency_us);
    EXPECT_EQ(rate.backend, "threads");
    EXPECT_EQ(rate.block_bytes, 65536U);
    EXPECT_EQ(rate.depth, depth);
    EXPECT_EQ(rate.direct, file.mode().direct);
  }
}

TEST_F(StorageProbe, LatencyIsHiddenByDepthAlone) {
  RateLimitedBlockFile file = Limited({.latency_us = 4000});
  const RateLimits limits{.file_bytes = kFileBytes, .seconds = 0.2};
  const StorageRate one = MeasureRate(file, {4096, 1}, limits).value();
  const StorageRate sixteen = MeasureRate(file, {4096, 16}, limits).value();
  EXPECT_GT(one.latency_us, 3900.0);
  EXPECT_LT(one.bytes_per_s, 1.05 * 4096 / 0.004);
  EXPECT_GT(one.bytes_per_s, 0.5 * 4096 / 0.004);
  EXPECT_GT(sixteen.bytes_per_s, 6 * one.bytes_per_s);
}

TEST_F(StorageProbe, APointOfASlowDiskEnds) {
  RateLimitedBlockFile file = Limited({.bytes_per_s = 10'000'000});
  const auto begin = std::chrono::steady_clock::now();
  const StorageRate rate =
      MeasureRate(file, {64 * 1024, 4}, {.file_bytes = kFileBytes, .seconds = 0.001}).value();
  // A handful in each of the runs, and those in flight: some 20 reads of 6.5 ms.
  EXPECT_LT(SecondsSince(begin), 5.0);
  EXPECT_GT(rate.bytes_per_s, 0.6 * 10e6);
  EXPECT_LT(rate.bytes_per_s, 1.3 * 10e6);
  EXPECT_LT(file.counters().reads, 40U);
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
  EXPECT_LT(SecondsSince(begin), 10.0);
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
