#include "runtime/kv/math/cluster_factors.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/kv/math/cluster_map.h"
#include "runtime/kv/math/key_division.h"
#include "runtime/kv/math/kmeans.h"
#include "runtime/kv/math/prompt_clusters.h"

namespace kvrun {
namespace {

// As a prompt is divided by default.
constexpr uint32_t kMeanEntries = 16;
constexpr uint32_t kMostEntries = 64;
constexpr uint32_t kMeansPasses = 4;
constexpr float kLeastFactor = 1.0F;
constexpr float kLargestFactor = 3.0F;
constexpr uint32_t kHalvings = 6;  // to less than two per cent

class FactorTrial {
 public:
  FactorTrial(std::span<const float> keys, uint32_t dim)
      : keys_(keys),
        dim_(dim),
        n_(static_cast<uint32_t>(keys.size() / dim)),
        shape_({.dim = dim, .max_clusters = n_, .max_entries = kMostEntries, .max_pending = 2}),
        workspace_(shape_),
        first_(DivideFirstHalf()) {}

  // How many entries clusters have on average in the end.
  double MeanEntriesWith(float factor) {
    ClusterMap map(shape_, workspace_);
    Begin(map, factor);
    for (uint32_t i = n_first(); i < n_; ++i) {
      const uint32_t nearest = FindNearest(map, Key(i));
      map.Settle(i, 0, nearest, SquaredDistance(Key(i), Centroid(nearest)));
      Maintain(map, nearest, i);
    }
    return static_cast<double>(n_) / (shape_.max_clusters - map.n_free());
  }

 private:
  uint32_t n_first() const { return n_ / 2; }
  std::span<const float> Key(uint32_t i) const { return keys_.subspan(size_t{i} * dim_, dim_); }
  std::span<float> Centroid(uint32_t cluster) {
    return std::span(centroids_).subspan(size_t{cluster} * dim_, dim_);
  }
  void CopyKeysOf(std::span<const uint32_t> entries, std::span<float> keys) const {
    for (size_t i = 0; i < entries.size(); ++i) {
      const std::span<const float> key = Key(entries[i]);
      std::copy(key.begin(), key.end(), keys.begin() + static_cast<ptrdiff_t>(i * dim_));
    }
  }

  PromptClusters DivideFirstHalf() const {
    KMeans means(dim_, CeilDiv(n_first(), kMeanEntries), n_first(), /*seed=*/0);
    std::vector<float> sample(means.sample().size() * dim_);
    CopyKeysOf(means.sample(), sample);
    means.Start(sample);
    std::vector<float> products(means.n_clusters());
    for (uint32_t pass = 0; pass < kMeansPasses; ++pass) {
      if (pass > 0) means.EndPass();
      means.BeginPass();
      for (uint32_t i = 0; i < n_first(); ++i) {
        for (uint32_t c = 0; c < means.n_clusters(); ++c) {
          products[c] =
              Dot(Key(i), means.centroids().subspan(size_t{c} * dim_, dim_)) - means.half_norms()[c];
        }
        means.Add(i, Key(i), products);
      }
    }
    return FindPromptClusters({.dim = dim_,
                               .n_entries = n_first(),
                               .n_means = means.n_clusters(),
                               .max_entries = kMostEntries,
                               .room = n_first()},
                              means.nearest(), [this](std::span<const uint32_t> of, std::span<float> keys) {
                                CopyKeysOf(of, keys);
                              });
  }

  void Begin(ClusterMap& map, float factor) {
    members_.assign(n_, {});
    centroids_.assign(size_t{n_} * dim_, 0.0F);
    for (uint32_t i = 0; i < first_.n_clusters(); ++i) {
      const std::span<const uint32_t> entries = first_.entries(i);
      const uint32_t id = map.Add(first_.size(i), first_.variances[i], entries.back() + 1);
      members_[id].assign(entries.begin(), entries.end());
      const auto from = first_.centroids.begin() + static_cast<ptrdiff_t>(size_t{i} * dim_);
      std::copy(from, from + dim_, Centroid(id).begin());
    }
    const double sum = std::accumulate(first_.variances.begin(), first_.variances.end(), 0.0);
    map.SetThreshold(factor * static_cast<float>(sum / first_.n_clusters()));
  }

  uint32_t FindNearest(const ClusterMap& map, std::span<const float> key) {
    uint32_t nearest = kNoCluster;
    float least = std::numeric_limits<float>::infinity();
    for (uint32_t cluster = 0; cluster < map.end_used(); ++cluster) {
      if (!map.HasRoom(cluster)) continue;
      const float distance = SquaredDistance(key, Centroid(cluster));
      if (nearest != kNoCluster && !(distance < least)) continue;
      nearest = cluster;
      least = distance;
    }
    return nearest;
  }

  void Maintain(ClusterMap& map, uint32_t cluster, uint32_t entry) {
    std::vector<uint32_t> entries = std::move(members_[cluster]);
    entries.push_back(entry);
    std::vector<float> keys(entries.size() * dim_);
    CopyKeysOf(entries, keys);
    const ClusterMap::Maintained maintained = map.Maintain(cluster, keys, entries);
    std::copy(maintained.centroid.begin(), maintained.centroid.end(), Centroid(cluster).begin());
    members_[cluster].clear();
    if (maintained.other == kNoCluster) {
      members_[cluster] = std::move(entries);
      return;
    }
    members_[maintained.other].clear();
    for (size_t i = 0; i < entries.size(); ++i) {
      members_[maintained.is_second[i] != 0 ? maintained.other : cluster].push_back(entries[i]);
    }
    std::copy(maintained.other_centroid.begin(), maintained.other_centroid.end(),
              Centroid(maintained.other).begin());
  }

  std::span<const float> keys_;
  uint32_t dim_;
  uint32_t n_;
  ClusterMapShape shape_;
  ClusterWorkspace workspace_;
  PromptClusters first_;
  std::vector<std::vector<uint32_t>> members_;  // of each cluster, in the order that its record would have
  std::vector<float> centroids_;                // [n, dim]
};

}  // namespace

float FindClusterFactor(std::span<const float> keys, uint32_t dim) {
  KVRUN_CHECK(dim > 0 && keys.size() % dim == 0 && keys.size() / dim >= kLeastKeysOfFactor);
  FactorTrial trial(keys.first(std::min<size_t>(keys.size(), size_t{kMostKeysOfFactor} * dim)), dim);
  float least = kLeastFactor;
  float largest = kLargestFactor;
  for (uint32_t i = 0; i < kHalvings; ++i) {
    const float middle = std::sqrt(least * largest);
    (trial.MeanEntriesWith(middle) < kMeanEntries ? least : largest) = middle;
  }
  return std::sqrt(least * largest);
}

}  // namespace kvrun
