// What the tests of files share: memory that direct I/O takes, bytes that depend on their place, and requests
// that are carried out one after another.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "platform/io/block_file.h"
#include "platform/io/wrapping_file.h"

namespace kvrun::testing {

class AlignedMemory {
 public:
  static constexpr std::align_val_t kAlignment{64 * 1024};

  explicit AlignedMemory(size_t bytes) : data_(new (kAlignment) std::byte[bytes]), bytes_(bytes) {
    Fill(0xcd);
  }

  std::byte* data() const { return data_.get(); }
  size_t size() const { return bytes_; }
  std::span<std::byte> span() const { return {data_.get(), bytes_}; }
  void Fill(uint8_t value) const { std::fill_n(data_.get(), bytes_, std::byte{value}); }

 private:
  struct Delete {
    void operator()(std::byte* memory) const { operator delete[](memory, kAlignment); }
  };
  std::unique_ptr<std::byte[], Delete> data_;
  size_t bytes_;
};

// Any two places and versions differ in nearly every byte.
inline std::byte PatternByte(uint64_t place, uint64_t version) {
  uint64_t x = place * 0x9e3779b97f4a7c15U + version * 0xbf58476d1ce4e5b9U;
  x ^= x >> 29;
  x *= 0x94d049bb133111ebU;
  return static_cast<std::byte>(x >> 56);
}

inline void FillPattern(std::span<std::byte> memory, uint64_t first_place, uint64_t version = 0) {
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = PatternByte(first_place + i, version);
}

inline bool HoldsPattern(std::span<const std::byte> memory, uint64_t first_place, uint64_t version = 0) {
  for (size_t i = 0; i < memory.size(); ++i) {
    if (memory[i] != PatternByte(first_place + i, version)) return false;
  }
  return true;
}

inline IoCompletion DoOne(BlockFile& file, IoKind kind, uint64_t offset, std::span<const iovec> segments) {
  const IoRequest request{kind, offset, segments, 77};
  IoCompletion completion;
  const auto taken = file.Submit({&request, 1});
  EXPECT_TRUE(taken.ok()) << taken.status().message();
  EXPECT_EQ(*taken, 1U);
  const auto done = file.Complete({&completion, 1}, 1);
  EXPECT_TRUE(done.ok()) << done.status().message();
  EXPECT_EQ(*done, 1U);
  EXPECT_EQ(completion.tag, 77U);
  return completion;
}

inline int DoOne(BlockFile& file, IoKind kind, uint64_t offset, std::span<std::byte> memory) {
  const iovec segment{memory.data(), memory.size()};
  return DoOne(file, kind, offset, {&segment, 1}).error_number;
}

}  // namespace kvrun::testing
