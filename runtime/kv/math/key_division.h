// What stands for keys that are alike, and the division of keys into two parts. Pure and deterministic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvrun {

float Dot(std::span<const float> a, std::span<const float> b);
float SquaredDistance(std::span<const float> a, std::span<const float> b);

// keys: float [n, mean.size()], at least one. Sets their mean, and answers their variance: the mean of their
// squared distances to it.
float FindSpread(std::span<const float> keys, std::span<float> mean);

// Divides keys by 2-means that start from two which lie far apart. Source: DynaKV, section 4.2 (SplitCluster,
// which leaves open how). Divide allocates nothing.
class KeyDivision {
 public:
  // Parts have at most `most` keys.
  KeyDivision(uint32_t dim, uint32_t most);
  static uint64_t MemoryBytes(uint32_t dim, uint32_t most);

  // keys: float [n, dim], 2 <= n <= 2 * most. is_second [n] says which are of the second part. Both parts
  // have one at least.
  void Divide(std::span<const float> keys, std::span<uint8_t> is_second);

 private:
  std::span<const float> Key(std::span<const float> keys, size_t i) const {
    return keys.subspan(i * dim_, dim_);
  }
  uint32_t FarthestFrom(std::span<const float> keys, std::span<const float> key) const;
  bool Assign(std::span<const float> keys, std::span<const float> first, std::span<const float> second,
              std::span<uint8_t> is_second);
  void FindMean(std::span<const float> keys, std::span<const uint8_t> is_second, uint8_t part,
                std::span<float> mean) const;

  uint32_t dim_;
  uint32_t most_;
  std::vector<float> first_;        // [dim]: the parts' means
  std::vector<float> second_;       // [dim]
  std::vector<float> preferences_;  // [2 * most]
  std::vector<uint32_t> order_;     // [2 * most]
};

}  // namespace kvrun
