// K-means over a stream's keys, in passes over tiles of them. Pure and deterministic. Source of the start:
// K-means++ (Arthur and Vassilvitskii 2007).
//
// The work, products of keys with centroids, is the caller's: a device multiplies tiles of keys.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvrun {

class KMeans {
 public:
  static constexpr uint32_t kSampleOfCluster = 4;  // keys that Start looks at, at most

  // n_clusters and n_keys: at least 1. As many clusters as keys, where those are fewer.
  KMeans(uint32_t dim, uint32_t n_clusters, uint32_t n_keys, uint64_t seed);
  static uint64_t MemoryBytes(uint32_t dim, uint32_t n_clusters, uint32_t n_keys);

  uint32_t n_clusters() const { return n_clusters_; }
  // Keys that Start wants to look at, ascending: four for each cluster, or all.
  std::span<const uint32_t> sample() const { return sample_; }

  // sample_keys: float [sample().size(), dim]. Centroids that lie apart, by chance.
  void Start(std::span<const float> sample_keys);

  // --- A pass: BeginPass, then each key in exactly one tile, then EndPass.
  // float [n_clusters, dim].
  std::span<const float> centroids() const { return centroids_; }
  // Half of each one's squared norm, float [n_clusters].
  std::span<const float> half_norms() const { return half_norms_; }
  void BeginPass();
  // keys: float [n, dim], of keys `first` on; products: float [n, n_clusters], key . centroid - half norm.
  void Add(uint32_t first, std::span<const float> keys, std::span<const float> products);
  // Centroids become the means of what was nearest to them. One that nothing was nearest to takes the place
  // of a key that is far from its own, or, beyond eight in a pass, stays. Keys that are not finite are in
  // some cluster, and change no centroid.
  void EndPass();

  // The cluster of each key in the last pass, [n_keys].
  std::span<const uint32_t> nearest() const { return nearest_; }

 private:
  struct FarKey {
    float squared_distance = -1.0F;
    std::vector<float> key;
  };

  void SetCentroid(uint32_t cluster, std::span<const float> key);
  void NoteFar(float squared_distance, std::span<const float> key);

  uint32_t dim_;
  uint32_t n_clusters_;
  uint64_t seed_;
  std::vector<uint32_t> sample_;
  std::vector<float> centroids_;
  std::vector<float> half_norms_;
  std::vector<double> sums_;      // [n_clusters, dim]
  std::vector<uint32_t> counts_;  // [n_clusters]
  std::vector<uint32_t> nearest_;
  std::vector<FarKey> far_;  // of a pass, farthest first
};

}  // namespace kvrun
