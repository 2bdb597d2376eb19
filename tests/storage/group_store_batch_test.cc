// A layer's groups are read in one batch: on a disk of 250 MB/s that answers after 100 us, as eMMC does, it
// takes less time than one read after another.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <random>
#include <vector>

#include "platform/base/units.h"
#include "platform/io/rate_limited_block_file.h"
#include "runtime/store/group_store.h"
#include "tests/storage/store_fixture.h"

namespace kvrun::testing {
namespace {

using Clock = std::chrono::steady_clock;

// prkv's pages of a KV head of 64: 32 entries with 8 bits.
constexpr uint32_t kPageBytes = 32 * (2 * 64 + 4);
constexpr uint32_t kHeads = 3;
constexpr uint32_t kPages = 250;
constexpr uint32_t kChosen = 9;  // of each head
constexpr int kLayers = 30;

class GroupStoreBatch : public ::testing::Test {
 protected:
  void SetUp() override {
    auto slow = std::make_unique<RateLimitedBlockFile>(
        fixture_.MakeFile(IoBackend::kThreads, DirectIo::kOff, 32), RateLimit{250'000'000, 100});
    store_ = GroupStore::Create(std::move(slow), {1, kHeads, kPages, kPageBytes}, 256 * kKiB).value();
    for (uint32_t head = 0; head < kHeads; ++head) {
      ASSERT_TRUE(store_->Append(0, head, 0, MakeRecords(kPageBytes, 0, head, 0, kPages)).ok());
    }
    ASSERT_TRUE(store_->Flush().ok());
  }

  // Pages of a layer that are no neighbours, by head.
  std::vector<GroupFetch> Choose(std::minstd_rand& random) {
    std::vector<GroupFetch> fetches;
    for (uint32_t head = 0; head < kHeads; ++head) {
      const auto offset = static_cast<uint32_t>(random() % (kPages / kChosen));
      for (uint32_t i = 0; i < kChosen; ++i) {
        fetches.push_back(
            {head, i * (kPages / kChosen) + offset, memory_.data() + fetches.size() * kPageBytes});
      }
    }
    return fetches;
  }

  // Bytes per second of the pages of kLayers layers.
  double Rate(bool in_one_batch) {
    std::minstd_rand random(7);
    const Clock::time_point begin = Clock::now();
    uint64_t bytes = 0;
    for (int layer = 0; layer < kLayers; ++layer) {
      const std::vector<GroupFetch> fetches = Choose(random);
      const size_t at_once = in_one_batch ? fetches.size() : 1;
      for (size_t i = 0; i < fetches.size(); i += at_once) {
        EXPECT_TRUE(store_->Fetch(0, std::span(fetches).subspan(i, at_once)).ok());
      }
      for (const GroupFetch& fetch : fetches) {
        EXPECT_TRUE(IsRecord(fetch.memory, kPageBytes, 0, fetch.stream, fetch.group));
      }
      bytes += fetches.size() * kPageBytes;
    }
    return static_cast<double>(bytes) / std::chrono::duration<double>(Clock::now() - begin).count();
  }

  StoreFixture fixture_;
  std::unique_ptr<GroupStore> store_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(kHeads * kChosen * kPageBytes);
};

TEST_F(GroupStoreBatch, IsFasterThanOnePageAfterAnother) {
  const double batch = Rate(true);
  const double single = Rate(false);
  std::printf("one batch per layer: %.1f MB/s; page by page: %.1f MB/s; ratio %.2f\n", batch / 1e6,
              single / 1e6, batch / single);
  EXPECT_GT(batch, 1.3 * single);
}

}  // namespace
}  // namespace kvrun::testing
