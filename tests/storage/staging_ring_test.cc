#include "runtime/store/staging_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

namespace kvrun {
namespace {

TEST(StagingRing, PartsLieSideBySideAndWrapAround) {
  StagingRing ring(100, 10);
  const auto a = ring.Allocate(40);
  const auto b = ring.Allocate(40);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(a->offset, 0U);
  EXPECT_EQ(b->offset, 40U);
  EXPECT_FALSE(ring.Allocate(40));
  ring.Release(a->id);
  const auto c = ring.Allocate(40);  // not in the last 20: in one piece at the beginning
  ASSERT_TRUE(c);
  EXPECT_EQ(c->offset, 0U);
  EXPECT_FALSE(ring.Allocate(1));
  ring.Release(b->id);
  EXPECT_EQ(ring.Allocate(40)->offset, 40U);
}

TEST(StagingRing, RoomIsGivenBackInOrder) {
  StagingRing ring(100, 10);
  const auto a = ring.Allocate(50);
  const auto b = ring.Allocate(50);
  ring.Release(b->id);
  EXPECT_FALSE(ring.Allocate(50));
  ring.Release(a->id);
  EXPECT_EQ(ring.Allocate(100)->offset, 0U);  // all of it
  EXPECT_FALSE(ring.Allocate(1));
}

TEST(StagingRing, ExactlyFullWrapsToTheBeginning) {
  StagingRing ring(100, 10);
  const auto a = ring.Allocate(60);
  const auto b = ring.Allocate(40);
  ring.Release(a->id);
  EXPECT_EQ(ring.Allocate(60)->offset, 0U);
  ring.Release(b->id);
  EXPECT_EQ(ring.Allocate(40)->offset, 60U);
}

TEST(StagingRing, PartsAreLimited) {
  StagingRing ring(100, 2);
  const auto a = ring.Allocate(1);
  ASSERT_TRUE(a && ring.Allocate(1));
  EXPECT_FALSE(ring.Allocate(1));
  ring.Release(a->id);
  EXPECT_TRUE(ring.Allocate(1));
}

// Any order of sizes and releases: parts never overlap, and nothing is lost.
TEST(StagingRing, PartsNeverOverlap) {
  constexpr uint64_t kCapacity = 97;
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    StagingRing ring(kCapacity, 8);
    struct Held {
      StagingRing::Part part;
      uint64_t bytes;
    };
    std::deque<Held> held;
    for (int step = 0; step < 2000; ++step) {
      const uint64_t bytes = 1 + random() % kCapacity;
      const auto part = random() % 2 == 0 ? ring.Allocate(bytes) : std::nullopt;
      if (part) {
        ASSERT_LE(part->offset + bytes, kCapacity);
        for (const Held& other : held) {
          ASSERT_TRUE(part->offset + bytes <= other.part.offset ||
                      other.part.offset + other.bytes <= part->offset)
              << "seed " << seed << ", step " << step;
        }
        held.push_back({*part, bytes});
      } else if (!held.empty()) {
        const size_t i = random() % held.size();
        ring.Release(held[i].part.id);
        held.erase(held.begin() + static_cast<ptrdiff_t>(i));
      }
    }
    for (const Held& rest : held) ring.Release(rest.part.id);
    EXPECT_TRUE(ring.Allocate(kCapacity)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace kvrun
