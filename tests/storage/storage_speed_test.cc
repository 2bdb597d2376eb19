// The speed that a default depends on, found of files of known speeds, and kept.
#include "runtime/engine/machine/storage_speed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "platform/base/units.h"
#include "platform/io/faulty_block_file.h"
#include "platform/io/rate_limited_block_file.h"
#include "runtime/engine/machine/storage_speed_file.h"
#include "tests/support/program_runner.h"

namespace kvrun {
namespace {

class StorageSpeedTest : public ::testing::Test {
 protected:
  std::unique_ptr<BlockFile> Fast(uint32_t queue_depth = 32) {
    return CreateBlockFile({.folder = folder_.Path("kv"),
                            .auto_backend = false,
                            .backend = IoBackend::kThreads,
                            .queue_depth = queue_depth,
                            .allow_tmpfs = true})
        .value();
  }
  // Reads of 4 KiB per second; writes are slow in the same way.
  std::unique_ptr<BlockFile> Slow(uint64_t reads_per_s) {
    return std::make_unique<RateLimitedBlockFile>(Fast(), RateLimit{.bytes_per_s = 4096 * reads_per_s});
  }
  SpeedQuestion Question() const {
    return {.folder = folder_.Path("kv"), .version = "0.1.0", .path = folder_.Path("cache/speed.json")};
  }

  TemporaryFolder folder_;
};

TEST_F(StorageSpeedTest, AKnownSpeedIsFound) {
  for (const uint64_t reads_per_s : {5000U, 12000U}) {
    const auto known = static_cast<double>(reads_per_s);
    double best = 0.0;
    // A machine that has much else to do finds less; none ever finds more.
    for (int i = 0; i < 20 && best < 0.8 * known; ++i) {
      const Result<double> found = MeasureReadsPerSecond(*Slow(reads_per_s));
      ASSERT_TRUE(found.ok()) << found.status().message();
      EXPECT_LT(*found, 1.01 * known);
      best = std::max(best, *found);
    }
    EXPECT_GT(best, 0.8 * known);
    EXPECT_EQ(GroupTokensFor(best), 8U);
  }
}

TEST_F(StorageSpeedTest, WhatEachReadTakesIsHiddenByThoseInFlight) {
  RateLimitedBlockFile file(Fast(), {.latency_us = 10000});
  constexpr double kKnown = 16 / 0.01;
  double best = 0.0;
  for (int i = 0; i < 20 && best < 0.25 * kKnown; ++i) {  // as above
    const Result<double> found = MeasureReadsPerSecond(file);
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_LT(*found, 1.01 * kKnown);
    best = std::max(best, *found);
  }
  EXPECT_GT(best, 0.25 * kKnown) << "one at a time would be a sixteenth";
}

TEST_F(StorageSpeedTest, WhatIsMeasuredIsKept) {
  const std::unique_ptr<BlockFile> slow = Slow(8000);
  const std::optional<double> first = ReadsPerSecondOf(*slow, Question());
  ASSERT_TRUE(first.has_value());
  const auto kept = ReadSpeeds(*Question().path);
  ASSERT_TRUE(kept.ok()) << kept.status().message();
  ASSERT_EQ(kept->size(), 1U);
  EXPECT_EQ(kept->front().reads_per_s, *first);
  EXPECT_EQ(kept->front().key, SpeedKeyOf(folder_.Path("kv"), slow->mode(), "0.1.0").value());
  // Of the process, though another number is kept meanwhile: a session gets what its plan said.
  SpeedEntry other = kept->front();
  other.reads_per_s = 77.0;
  ASSERT_TRUE(WriteSpeed(*Question().path, other).ok());
  const uint64_t reads = slow->counters().reads;
  EXPECT_EQ(ReadsPerSecondOf(*slow, Question()), first);
  EXPECT_EQ(slow->counters().reads, reads);
}

TEST_F(StorageSpeedTest, WhatIsKeptIsNotMeasured) {
  const std::unique_ptr<BlockFile> file = Fast();
  const SpeedKey key = SpeedKeyOf(folder_.Path("kv"), file->mode(), "0.1.0").value();
  ASSERT_TRUE(WriteSpeed(*Question().path, {key, 1234.5}).ok());
  const IoCounters before = file->counters();
  EXPECT_EQ(ReadsPerSecondOf(*file, Question()), 1234.5);
  EXPECT_EQ(file->counters().reads, before.reads);
  EXPECT_EQ(file->counters().writes, before.writes);
  // What another version measured does not count.
  SpeedQuestion newer = Question();
  newer.version = "0.2.0";
  EXPECT_NE(ReadsPerSecondOf(*file, newer), 1234.5);
  EXPECT_GT(file->counters().reads, before.reads);
  EXPECT_EQ(ReadSpeeds(*newer.path)->size(), 2U);
}

TEST_F(StorageSpeedTest, NothingIsMeasuredUnlessItMay) {
  SpeedQuestion question = Question();
  question.may_measure = false;
  const std::unique_ptr<BlockFile> file = Fast();
  const IoCounters before = file->counters();
  EXPECT_EQ(ReadsPerSecondOf(*file, question), std::nullopt);
  EXPECT_EQ(file->counters().writes, before.writes);
  EXPECT_EQ(ReadSpeeds(*question.path).status().code(), StatusCode::kNotFound);
}

TEST_F(StorageSpeedTest, WhatCannotBeMeasuredIsNotKnown) {
  FaultPlan plan;
  plan.faults = {{FaultKind::kNoSpace, IoKind::kWrite, 1}};
  FaultyBlockFile full(Fast(), plan);
  EXPECT_EQ(ReadsPerSecondOf(full, Question()), std::nullopt);
  EXPECT_EQ(ReadSpeeds(*Question().path).status().code(), StatusCode::kNotFound);
  SpeedQuestion other = Question();
  other.version = "shallow";
  EXPECT_EQ(ReadsPerSecondOf(*Fast(8), other), std::nullopt) << "no 16 reads at once";
}

TEST_F(StorageSpeedTest, WithoutAPlaceToKeepItAProcessIsToldTheSame) {
  SpeedQuestion question = Question();
  question.path = folder_.Write("file", "") + "/speed.json";
  const std::unique_ptr<BlockFile> slow = Slow(8000);
  const std::optional<double> first = ReadsPerSecondOf(*slow, question);
  EXPECT_TRUE(first.has_value());
  EXPECT_EQ(ReadsPerSecondOf(*Fast(), question), first);
}

}  // namespace
}  // namespace kvrun
