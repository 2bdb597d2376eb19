#include "runtime/kv/math/key_division.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "platform/base/check.h"

namespace kvrun {
namespace {

constexpr uint32_t kPasses = 8;
constexpr size_t kLanes = 8;

// In lanes, which a compiler adds up with vectors: a single sum has an order that it must keep.
template <typename Term>
float SumOf(size_t n, const Term& term) {
  float sums[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += term(i + lane);
  }
  for (; i < n; ++i) sums[0] += term(i);
  float sum = 0.0F;
  for (const float of_lane : sums) sum += of_lane;
  return sum;
}

}  // namespace

float Dot(std::span<const float> a, std::span<const float> b) {
  return SumOf(a.size(), [&](size_t i) { return a[i] * b[i]; });
}

float SquaredDistance(std::span<const float> a, std::span<const float> b) {
  return SumOf(a.size(), [&](size_t i) { return (a[i] - b[i]) * (a[i] - b[i]); });
}

float FindSpread(std::span<const float> keys, std::span<float> mean) {
  const size_t n = keys.size() / mean.size();
  KVRUN_CHECK(n > 0);
  for (size_t c = 0; c < mean.size(); ++c) {
    double sum = 0.0;
    for (size_t i = c; i < keys.size(); i += mean.size()) sum += keys[i];
    mean[c] = static_cast<float>(sum / static_cast<double>(n));
  }
  double squares = 0.0;
  for (size_t i = 0; i < n; ++i) squares += SquaredDistance(mean, keys.subspan(i * mean.size(), mean.size()));
  return static_cast<float>(squares / static_cast<double>(n));
}

KeyDivision::KeyDivision(uint32_t dim, uint32_t most)
    : dim_(dim),
      most_(most),
      first_(dim),
      second_(dim),
      preferences_(size_t{2} * most),
      order_(size_t{2} * most) {
  KVRUN_CHECK(dim > 0 && most > 0);
}

uint64_t KeyDivision::MemoryBytes(uint32_t dim, uint32_t most) {
  return uint64_t{2} * dim * sizeof(float) + uint64_t{2} * most * (sizeof(float) + sizeof(uint32_t));
}

uint32_t KeyDivision::FarthestFrom(std::span<const float> keys, std::span<const float> key) const {
  uint32_t farthest = 0;
  float largest = -1.0F;
  for (size_t i = 0; i < keys.size() / dim_; ++i) {
    const float distance = SquaredDistance(key, Key(keys, i));
    if (distance > largest) {
      largest = distance;
      farthest = static_cast<uint32_t>(i);
    }
  }
  return farthest;
}

// The keys that are nearest to `second`, in relation to `first`, become its: all that are nearer to it,
// within what both parts have room for. Answers whether that changes anything.
bool KeyDivision::Assign(std::span<const float> keys, std::span<const float> first,
                         std::span<const float> second, std::span<uint8_t> is_second) {
  const size_t n = is_second.size();
  size_t n_nearer = 0;
  for (size_t i = 0; i < n; ++i) {
    const float preference = SquaredDistance(Key(keys, i), first) - SquaredDistance(Key(keys, i), second);
    preferences_[i] = std::isnan(preference) ? 0.0F : preference;  // which has no order
    n_nearer += preferences_[i] > 0.0F ? 1 : 0;
    order_[i] = static_cast<uint32_t>(i);
  }
  std::sort(order_.begin(), order_.begin() + n, [this](uint32_t a, uint32_t b) {
    return preferences_[a] != preferences_[b] ? preferences_[a] > preferences_[b] : a < b;
  });
  if (n_nearer == 0 || n_nearer == n) n_nearer = n / 2;  // keys are alike
  const size_t least = n > most_ ? n - most_ : 1;
  const size_t n_second = std::clamp<size_t>(n_nearer, least, std::min<size_t>(n - 1, most_));
  bool changes = false;
  for (size_t i = 0; i < n; ++i) {
    const uint8_t part = i < n_second ? 1 : 0;
    changes = changes || is_second[order_[i]] != part;
    is_second[order_[i]] = part;
  }
  return changes;
}

void KeyDivision::FindMean(std::span<const float> keys, std::span<const uint8_t> is_second, uint8_t part,
                           std::span<float> mean) const {
  std::fill(mean.begin(), mean.end(), 0.0F);
  float n = 0.0F;
  for (size_t i = 0; i < is_second.size(); ++i) {
    if (is_second[i] != part) continue;
    const std::span<const float> key = Key(keys, i);
    n += 1.0F;
    for (size_t c = 0; c < dim_; ++c) mean[c] += key[c];
  }
  for (float& value : mean) value /= n;
}

void KeyDivision::Divide(std::span<const float> keys, std::span<uint8_t> is_second) {
  const size_t n = is_second.size();
  KVRUN_CHECK(keys.size() == n * dim_ && n >= 2 && n <= size_t{2} * most_);
  std::fill(is_second.begin(), is_second.end(), uint8_t{0});
  FindMean(keys, is_second, 0, first_);
  const uint32_t one = FarthestFrom(keys, first_);
  const uint32_t other = FarthestFrom(keys, Key(keys, one));
  Assign(keys, Key(keys, one), Key(keys, other), is_second);
  for (uint32_t pass = 0; pass < kPasses; ++pass) {
    FindMean(keys, is_second, 0, first_);
    FindMean(keys, is_second, 1, second_);
    if (!Assign(keys, first_, second_, is_second)) return;
  }
}

}  // namespace kvrun
