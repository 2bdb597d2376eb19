// What is measured of a folder: which ways to its files, and at which points.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "offline/probe.h"
#include "platform/base/units.h"
#include "platform/io/block_file.h"
#include "platform/io/read_rate.h"
#include "tests/storage/storage_fixture.h"
#include "tests/support/program_runner.h"

namespace kvrun::offline {
namespace {

using testing::AlignedMemory;
using testing::DoOne;

class StorageProbe : public ::testing::Test {
 protected:
  StorageProbeOptions Quick() const {
    return {.folder = folder_.Path("kv"), .all_modes = false, .allow_tmpfs = true, .budget_seconds = 0.3};
  }

  TemporaryFolder folder_;
};

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST_F(StorageProbe, EveryModeReadsTheSameFile) {
  auto files = CreateBlockFileModes({.folder = folder_.Path("kv"), .allow_tmpfs = true});
  ASSERT_TRUE(files.ok()) << files.status().message();
  const auto session = CreateBlockFile({.folder = folder_.Path("kv"), .allow_tmpfs = true}).value();
  EXPECT_EQ(files->front()->mode().backend, session->mode().backend);
  EXPECT_EQ(files->front()->mode().direct, session->mode().direct);
  ASSERT_TRUE(FillWithNoise(*files->front(), {.file_bytes = kMiB, .least_bytes = kMiB}, {}).ok());
  const AlignedMemory first(kMiB);
  const AlignedMemory other(kMiB);
  ASSERT_EQ(DoOne(*files->front(), IoKind::kRead, 0, first.span()), 0);
  std::set<std::pair<IoBackend, bool>> modes;
  for (const auto& file : *files) {
    modes.insert({file->mode().backend, file->mode().direct});
    other.Fill(0);
    file->DropCache();
    ASSERT_EQ(DoOne(*file, IoKind::kRead, 0, other.span()), 0);
    EXPECT_TRUE(
        std::equal(first.span().begin(), first.span().end(), other.span().begin(), other.span().end()));
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
