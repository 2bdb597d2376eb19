// Random numbers that are the same everywhere, for benchmarks.
#pragma once

#include <cstdint>

namespace kvrun {

// SplitMix64 (Steele, Lea, Flood 2014). Seeds next to each other give unrelated numbers.
class Random {
 public:
  // Random(seed + n * kStep) goes on where Random(seed) is after n numbers.
  static constexpr uint64_t kStep = 0x9e3779b97f4a7c15;

  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = state_ += kStep;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // In [0, end), end > 0; some values are rarer than others by 1 in 2^32 / end.
  uint32_t Below(uint32_t end) { return static_cast<uint32_t>((Next() >> 32) * end >> 32); }
  // In [-1, 1).
  float Symmetric() { return static_cast<float>(static_cast<int64_t>(Next()) >> 40) * 0x1p-23F; }

 private:
  uint64_t state_;
};

}  // namespace kvrun
