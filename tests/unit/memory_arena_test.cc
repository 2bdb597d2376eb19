#include "runtime/device/host/memory_arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "platform/base/units.h"

namespace kvrun::host {
namespace {

bool HasOnly(const std::shared_ptr<std::byte>& part, uint64_t size_bytes, std::byte value) {
  return std::all_of(part.get(), part.get() + size_bytes, [value](std::byte byte) { return byte == value; });
}

TEST(MemoryArena, PartsAreZerosAlignedAndApart) {
  MemoryArena arena;
  std::vector<std::pair<std::shared_ptr<std::byte>, uint64_t>> parts;
  for (const uint64_t size_bytes : {uint64_t{1}, uint64_t{4096}, 3 * kMiB, 15 * kMiB, uint64_t{5000},
                                    15 * kMiB, 20 * kMiB, uint64_t{100}}) {
    parts.emplace_back(arena.Allocate(size_bytes), size_bytes);
    ASSERT_NE(parts.back().first, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(parts.back().first.get()) % 4096, 0U);
    EXPECT_TRUE(HasOnly(parts.back().first, size_bytes, std::byte{0}));
    std::fill_n(parts.back().first.get(), size_bytes, static_cast<std::byte>(parts.size()));
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_TRUE(HasOnly(parts[i].first, parts[i].second, static_cast<std::byte>(i + 1))) << "part " << i;
  }
}

TEST(MemoryArena, SmallPartsShareAMapping) {
  MemoryArena arena;
  const std::shared_ptr<std::byte> first = arena.Allocate(100);
  const std::shared_ptr<std::byte> second = arena.Allocate(100);
  EXPECT_EQ(second.get(), first.get() + 4096);
}

TEST(MemoryArena, AMappingStaysAsLongAsAnyOfItsParts) {
  MemoryArena arena;
  std::shared_ptr<std::byte> first = arena.Allocate(kMiB);
  std::shared_ptr<std::byte> second = arena.Allocate(kMiB);
  std::fill_n(second.get(), kMiB, std::byte{7});
  first.reset();
  EXPECT_TRUE(HasOnly(second, kMiB, std::byte{7}));
  const std::weak_ptr<std::byte> mapping = second;
  second.reset();
  EXPECT_TRUE(mapping.expired());
  EXPECT_TRUE(HasOnly(arena.Allocate(2 * kMiB), 2 * kMiB, std::byte{0}));
}

}  // namespace
}  // namespace kvrun::host
