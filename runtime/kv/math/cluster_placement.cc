#include "runtime/kv/math/cluster_placement.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "platform/base/check.h"
#include "runtime/kv/math/key_division.h"

namespace kvrun {
namespace {

// Two clusters that are to adjoin.
struct ClusterPair {
  uint32_t first = 0;
  uint32_t second = 0;
};

// Two clusters and their weight in a number, so that a greater one goes before: the greater weight, then the
// lower ids.
constexpr uint32_t kIdBits = 24;
constexpr uint64_t kIdMask = (uint64_t{1} << kIdBits) - 1;

uint64_t Packed(uint32_t weight, uint32_t first, uint32_t second) {
  return uint64_t{weight} << 2 * kIdBits | (kIdMask - first) << kIdBits | (kIdMask - second);
}

// All but one cluster, or two where their number is even, which have no neighbour.
size_t PairsOf(uint32_t n_clusters) { return n_clusters == 0 ? 0 : (n_clusters - 1) / 2; }

// Of a pair that was selected together so many times, at a squared distance in units of the mean one.
constexpr float kNearDistance = 0.2F;

float Weight(uint32_t count, float distance) {
  return (static_cast<float>(count) + 1.0F) / (distance + kNearDistance);
}

// Pairs whose weight is greater go before.
std::vector<uint64_t> SortedPairs(const CoRetrieval& together, std::span<const float> centroids) {
  const uint32_t n = together.n_clusters();
  const size_t dim = centroids.size() / std::max(n, 1U);
  float mean_distance = 0.0F;
  uint32_t most = 0;
  if (!centroids.empty() && n > 1) {
    std::vector<float> middle(dim);
    mean_distance = 2.0F * FindSpread(centroids, middle) * static_cast<float>(n) / static_cast<float>(n - 1);
    for (uint32_t second = 1; second < n; ++second) {
      for (uint32_t first = 0; first < second; ++first) most = std::max(most, together.Count(first, second));
    }
  }
  const bool by_distance = mean_distance > 0.0F;
  const float scale = static_cast<float>(std::numeric_limits<uint16_t>::max()) / Weight(most, 0.0F);
  const auto centroid = [&](uint32_t id) { return centroids.subspan(id * dim, dim); };
  std::vector<uint64_t> found;
  found.reserve(by_distance ? size_t{n} * (n - 1) / 2 : together.n_different());
  for (uint32_t second = 1; second < n; ++second) {
    for (uint32_t first = 0; first < second; ++first) {
      uint32_t weight = together.Count(first, second);
      if (by_distance) {
        const float distance = SquaredDistance(centroid(first), centroid(second)) / mean_distance;
        weight = static_cast<uint32_t>(scale * Weight(weight, distance));
      }
      if (weight > 0) found.push_back(Packed(weight, first, second));
    }
  }
  std::sort(found.begin(), found.end(), std::greater<>());
  return found;
}

// The heaviest pair of which neither is in a pair yet, over and over; those that are never selected with
// another that is left, by their ids. Answers the pairs; `is_paired` says who is left.
std::vector<ClusterPair> MatchHeaviest(const CoRetrieval& together, std::span<const float> centroids,
                                       std::vector<bool>& is_paired) {
  const size_t n_pairs = PairsOf(together.n_clusters());
  std::vector<ClusterPair> pairs;
  pairs.reserve(n_pairs);
  const auto pair_up = [&](uint32_t first, uint32_t second) {
    pairs.push_back({first, second});
    is_paired[first] = is_paired[second] = true;
  };
  for (const uint64_t packed : SortedPairs(together, centroids)) {
    if (pairs.size() == n_pairs) break;
    const auto first = static_cast<uint32_t>(kIdMask - (packed >> kIdBits & kIdMask));
    const auto second = static_cast<uint32_t>(kIdMask - (packed & kIdMask));
    if (!is_paired[first] && !is_paired[second]) pair_up(first, second);
  }
  uint32_t next = 0;
  const auto take_next = [&] {
    while (is_paired[next]) ++next;
    return next++;
  };
  while (pairs.size() < n_pairs) {
    const uint32_t first = take_next();
    pair_up(first, take_next());
  }
  return pairs;
}

uint32_t InCommon(const CoRetrieval& together, const ClusterPair& a, const ClusterPair& b) {
  return together.Count(a.first, b.first) + together.Count(a.first, b.second) +
         together.Count(a.second, b.first) + together.Count(a.second, b.second);
}

// After each pair the one that has most in common with it, the earlier of those; turned so that what has more
// in common with the cluster before comes first.
void Chain(const CoRetrieval& together, std::span<ClusterPair> pairs) {
  for (size_t i = 1; i < pairs.size(); ++i) {
    size_t best = i;
    uint32_t most = 0;
    for (size_t j = i; j < pairs.size(); ++j) {
      const uint32_t in_common = InCommon(together, pairs[i - 1], pairs[j]);
      if (in_common <= most) continue;
      best = j;
      most = in_common;
    }
    std::rotate(pairs.begin() + static_cast<std::ptrdiff_t>(i),
                pairs.begin() + static_cast<std::ptrdiff_t>(best),
                pairs.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    const uint32_t before = pairs[i - 1].second;
    if (together.Count(before, pairs[i].second) > together.Count(before, pairs[i].first)) {
      std::swap(pairs[i].first, pairs[i].second);
    }
  }
}

}  // namespace

CoRetrieval::CoRetrieval(uint32_t n_clusters)
    : n_clusters_(n_clusters), counts_(MemoryBytes(n_clusters) / sizeof(uint16_t)) {}

uint64_t CoRetrieval::MemoryBytes(uint32_t n_clusters) {
  return n_clusters == 0 ? 0 : uint64_t{n_clusters} * (n_clusters - uint64_t{1}) / 2 * sizeof(uint16_t);
}

void CoRetrieval::Add(std::span<const uint32_t> selected) {
  for (size_t i = 0; i < selected.size(); ++i) {
    KVRUN_CHECK(selected[i] < n_clusters_ && (i == 0 || selected[i - 1] < selected[i]));
    for (size_t j = 0; j < i; ++j) {
      uint16_t& count = counts_[At(selected[j], selected[i])];
      n_different_ += count == 0 ? 1 : 0;
      if (count < std::numeric_limits<uint16_t>::max()) ++count;
    }
  }
}

std::vector<uint32_t> PlaceClusters(const CoRetrieval& together, std::span<const float> centroids) {
  const uint32_t n = together.n_clusters();
  KVRUN_CHECK(n <= kIdMask);
  std::vector<bool> is_paired(n);
  std::vector<ClusterPair> pairs = MatchHeaviest(together, centroids, is_paired);
  Chain(together, pairs);
  // Before the pairs the lower one of those that are left, after them the other, if there is one.
  std::vector<uint32_t> left;
  for (uint32_t id = 0; id < n; ++id) {
    if (!is_paired[id]) left.push_back(id);
  }
  std::vector<uint32_t> order(left.begin(), left.begin() + std::min<std::ptrdiff_t>(n, 1));
  order.reserve(n);
  for (const ClusterPair& pair : pairs) order.insert(order.end(), {pair.first, pair.second});
  if (left.size() > 1) order.push_back(left[1]);
  return order;
}

uint64_t PlaceClustersBytes(uint32_t n_clusters, uint32_t dim) {
  const uint64_t n = n_clusters;
  const uint64_t n_pairs = CoRetrieval::MemoryBytes(n_clusters) / sizeof(uint16_t);
  return n_pairs * sizeof(uint64_t) + PairsOf(n_clusters) * sizeof(ClusterPair) + n * sizeof(uint32_t) +
         (n + 7) / 8 + dim * sizeof(float);
}

}  // namespace kvrun
