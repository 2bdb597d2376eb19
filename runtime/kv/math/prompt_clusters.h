// A prompt's clusters: what K-means found, cut to the size that a cluster may have. Pure and deterministic.
//
// Example: clusters have 4 entries at most. K-means assigned 3 entries to its first cluster, none to its
// second, and 7 to its third: the first stays, the second vanishes, the third is divided into two that are
// alike.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace kvrun {

struct PromptClusterShape {
  uint32_t dim = 0;          // of a key
  uint32_t n_entries = 0;    // of the prompt
  uint32_t n_means = 0;      // clusters of K-means
  uint32_t max_entries = 0;  // of a cluster
  uint32_t room = 0;         // clusters at most: room * max_entries >= n_entries
};

// Which entry is in which cluster. A cluster's entries lie together in `order`, ascending; none is empty.
struct PromptClusters {
  std::vector<uint32_t> order;       // [n_entries]
  std::vector<uint32_t> begin;       // [n_clusters + 1]: cluster i has order[begin[i]] to order[begin[i + 1]]
  std::vector<uint32_t> cluster_of;  // [n_entries]
  std::vector<float> centroids;      // [n_clusters, dim]
  std::vector<float> variances;      // [n_clusters]; of keys that are no numbers, neither is this
  bool is_filled_up = false;         // there was no room to divide what is too large: see FindPromptClusters

  uint32_t n_clusters() const { return static_cast<uint32_t>(variances.size()); }
  uint32_t size(uint32_t cluster) const { return begin[cluster + 1] - begin[cluster]; }
  std::span<const uint32_t> entries(uint32_t cluster) const {
    return std::span(order).subspan(begin[cluster], size(cluster));
  }
};

// Copies the keys of some entries, ascending: float [entries.size(), dim].
using CopyKeys = std::function<void(std::span<const uint32_t> entries, std::span<float> keys)>;

// nearest [n_entries]: each one's cluster of K-means (KMeans::nearest), less than n_means. What is larger
// than max_entries is divided by KeyDivision; what is larger than twice that is cut before, into pieces of
// entries that follow each other, as nearly equal as may be. Where there would be more clusters than there is
// room for, they are filled up instead: max_entries each, in the order of K-means' clusters. Copies at most
// 2 * max_entries keys at a time, and each at most twice.
PromptClusters FindPromptClusters(const PromptClusterShape& shape, std::span<const uint32_t> nearest,
                                  const CopyKeys& copy_keys);
// While it works, and of the answer.
uint64_t FindPromptClustersBytes(const PromptClusterShape& shape);

}  // namespace kvrun
