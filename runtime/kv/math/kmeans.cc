#include "runtime/kv/math/kmeans.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "platform/base/check.h"
#include "platform/base/random.h"
#include "runtime/kv/math/key_division.h"

namespace kvrun {
namespace {

constexpr uint32_t kMostFarKeys = 8;  // kept for clusters that are empty

// A sample of `count` of n numbers, ascending (Knuth, volume 2, algorithm S).
std::vector<uint32_t> Sample(uint32_t n, uint32_t count, Random& random) {
  std::vector<uint32_t> taken;
  taken.reserve(count);
  for (uint32_t i = 0; i < n && taken.size() < count; ++i) {
    const auto needed = static_cast<uint32_t>(count - taken.size());
    if (random.Below(n - i) < needed) taken.push_back(i);
  }
  return taken;
}

}  // namespace

KMeans::KMeans(uint32_t dim, uint32_t n_clusters, uint32_t n_keys, uint64_t seed)
    : dim_(dim), n_clusters_(std::min(n_clusters, n_keys)), seed_(seed) {
  KVRUN_CHECK(dim > 0 && n_clusters > 0 && n_keys > 0);
  Random random(seed);
  const uint64_t wanted = uint64_t{n_clusters_} * kSampleOfCluster;
  sample_ = Sample(n_keys, static_cast<uint32_t>(std::min<uint64_t>(wanted, n_keys)), random);
  centroids_.resize(size_t{n_clusters_} * dim);
  half_norms_.resize(n_clusters_);
  sums_.resize(size_t{n_clusters_} * dim);
  counts_.resize(n_clusters_);
  nearest_.resize(n_keys);
}

uint64_t KMeans::MemoryBytes(uint32_t dim, uint32_t n_clusters, uint32_t n_keys) {
  const uint64_t n = std::min(n_clusters, n_keys);
  const uint64_t n_sample = std::min<uint64_t>(n * kSampleOfCluster, n_keys);
  return n * (dim * (sizeof(float) + sizeof(double)) + sizeof(float) + sizeof(uint32_t)) +
         n_sample * (sizeof(uint32_t) + sizeof(float)) + uint64_t{n_keys} * sizeof(uint32_t) +
         uint64_t{kMostFarKeys} * dim * sizeof(float);
}

void KMeans::SetCentroid(uint32_t cluster, std::span<const float> key) {
  std::copy(key.begin(), key.end(), centroids_.begin() + size_t{cluster} * dim_);
  half_norms_[cluster] = Dot(key, key) / 2;
}

// Each further one with a probability that is in proportion to its squared distance to the nearest so far.
void KMeans::Start(std::span<const float> sample_keys) {
  KVRUN_CHECK(sample_keys.size() == sample_.size() * dim_);
  Random random(seed_ + 1);
  const auto key = [&](size_t i) { return sample_keys.subspan(i * dim_, dim_); };
  std::vector<float> distances(sample_.size(), std::numeric_limits<float>::max());
  auto chosen = static_cast<size_t>(random.Below(static_cast<uint32_t>(sample_.size())));
  for (uint32_t cluster = 0; cluster < n_clusters_; ++cluster) {
    SetCentroid(cluster, key(chosen));
    double sum = 0.0;
    for (size_t i = 0; i < distances.size(); ++i) {
      distances[i] = std::min(distances[i], SquaredDistance(key(chosen), key(i)));
      sum += distances[i];
    }
    const double at = sum * static_cast<double>(random.Next() >> 11) * 0x1p-53;
    double before = 0.0;
    size_t last = chosen;  // that has a distance: rounding may leave `at` beyond all
    for (size_t i = 0; i < distances.size() && before <= at; ++i) {
      before += distances[i];
      if (distances[i] > 0.0F) last = i;
    }
    chosen = last;
  }
}

void KMeans::BeginPass() {
  std::fill(sums_.begin(), sums_.end(), 0.0);
  std::fill(counts_.begin(), counts_.end(), 0U);
  far_.clear();
}

void KMeans::NoteFar(float squared_distance, std::span<const float> key) {
  const auto at = std::find_if(far_.begin(), far_.end(), [squared_distance](const FarKey& far) {
    return far.squared_distance < squared_distance;
  });
  if (at == far_.end() && far_.size() == kMostFarKeys) return;
  far_.insert(at, {squared_distance, {key.begin(), key.end()}});
  if (far_.size() > kMostFarKeys) far_.pop_back();
}

void KMeans::Add(uint32_t first, std::span<const float> keys, std::span<const float> products) {
  const size_t n = keys.size() / dim_;
  KVRUN_CHECK(products.size() == n * n_clusters_ && first + n <= nearest_.size());
  for (size_t i = 0; i < n; ++i) {
    const std::span<const float> of_key = products.subspan(i * n_clusters_, n_clusters_);
    uint32_t best = 0;
    float largest = -std::numeric_limits<float>::infinity();
    for (uint32_t cluster = 0; cluster < n_clusters_; ++cluster) {
      if (!(of_key[cluster] > largest)) continue;  // NaNs are none
      best = cluster;
      largest = of_key[cluster];
    }
    const std::span<const float> key = keys.subspan(i * dim_, dim_);
    nearest_[first + i] = best;
    const float squared_distance = Dot(key, key) - 2 * largest;
    if (!std::isfinite(squared_distance)) continue;  // a key that is no number would make its centroid none
    ++counts_[best];
    for (size_t c = 0; c < dim_; ++c) sums_[best * size_t{dim_} + c] += key[c];
    NoteFar(squared_distance, key);
  }
}

void KMeans::EndPass() {
  size_t n_far = 0;
  std::vector<float> mean(dim_);
  for (uint32_t cluster = 0; cluster < n_clusters_; ++cluster) {
    if (counts_[cluster] == 0) {
      if (n_far < far_.size()) SetCentroid(cluster, far_[n_far++].key);
      continue;
    }
    for (size_t c = 0; c < dim_; ++c)
      mean[c] = static_cast<float>(sums_[cluster * size_t{dim_} + c] / counts_[cluster]);
    SetCentroid(cluster, mean);
  }
}

}  // namespace kvrun
