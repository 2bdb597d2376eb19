#include "platform/vulkan/range_allocator.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace kvrun {
namespace {

TEST(RangeAllocator, AlignsAndLeavesTheGapUsable) {
  RangeAllocator ranges(1000);
  EXPECT_EQ(ranges.Allocate(10, 1), 0u);
  EXPECT_EQ(ranges.Allocate(100, 256), 256u);
  EXPECT_EQ(ranges.Allocate(200, 2), 10u);
  EXPECT_EQ(ranges.free_bytes(), 690u);
  EXPECT_EQ(ranges.Allocate(645, 1), std::nullopt);
  EXPECT_EQ(ranges.Allocate(644, 1), 356u);
}

TEST(RangeAllocator, PhaseShiftsTheOffsets) {
  RangeAllocator ranges(1000);
  EXPECT_EQ(ranges.Allocate(10, 256, 64), 64u);
  EXPECT_EQ(ranges.Allocate(10, 256, 64), 320u);
  EXPECT_EQ(ranges.Allocate(64, 1), 0u);
  EXPECT_EQ(ranges.Allocate(400, 256, 64), 576u);
  EXPECT_EQ(ranges.Allocate(300, 256, 64), std::nullopt);
}

TEST(RangeAllocator, FreedNeighboursJoin) {
  RangeAllocator ranges(300);
  ASSERT_EQ(ranges.Allocate(100, 1), 0u);
  ASSERT_EQ(ranges.Allocate(100, 1), 100u);
  ASSERT_EQ(ranges.Allocate(100, 1), 200u);
  ranges.Free(0, 100);
  ranges.Free(200, 100);
  EXPECT_EQ(ranges.Allocate(200, 1), std::nullopt);
  ranges.Free(100, 100);
  EXPECT_TRUE(ranges.empty());
  EXPECT_EQ(ranges.Allocate(300, 1), 0u);
}

TEST(RangeAllocator, RandomRangesNeverOverlap) {
  std::mt19937 random(7);
  RangeAllocator ranges(4096);
  std::vector<bool> used(4096, false);
  std::vector<std::pair<uint64_t, uint64_t>> live;
  for (int step = 0; step < 20000; ++step) {
    if (random() % 2 == 0 || live.empty()) {
      const uint64_t size = 1 + random() % 200;
      const uint64_t alignment = uint64_t{1} << (random() % 7);
      const auto offset = ranges.Allocate(size, alignment);
      if (!offset) continue;
      ASSERT_EQ(*offset % alignment, 0u);
      for (uint64_t i = 0; i < size; ++i) {
        ASSERT_FALSE(used[*offset + i]);
        used[*offset + i] = true;
      }
      live.emplace_back(*offset, size);
    } else {
      const size_t pick = random() % live.size();
      const auto [offset, size] = live[pick];
      ranges.Free(offset, size);
      for (uint64_t i = 0; i < size; ++i) used[offset + i] = false;
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(pick));
    }
  }
  for (const auto& [offset, size] : live) ranges.Free(offset, size);
  EXPECT_TRUE(ranges.empty());
  EXPECT_EQ(ranges.Allocate(4096, 1), 0u);
}

}  // namespace
}  // namespace kvrun
