// In which order a prompt's clusters lie on flash: those that are selected together lie side by side. Pure
// and deterministic. Source: DynaKV, section 5.1 with equation 8, and the layout of section 5.2.
//
// Cluster `id` lies in pool id / 2: an even one at the front, an odd one at the end, with the pool's free
// room between them. So 2i + 1 and 2i + 2, at the end of a pool and the front of the next one, adjoin without
// a gap, and are read at once.
//
//   pool 0             pool 1             pool 2
//   |0 ->       <- 1|  |2 ->       <- 3|  |4 ->
//                 adjoining          adjoining
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvrun {

// How often two clusters were selected together. Equation 8's probabilities are these, divided by their sum.
class CoRetrieval {
 public:
  explicit CoRetrieval(uint32_t n_clusters);
  static uint64_t MemoryBytes(uint32_t n_clusters);  // 2 for each pair

  uint32_t n_clusters() const { return n_clusters_; }
  size_t n_different() const { return n_different_; }  // pairs that were selected together at all
  // A query's: ascending, distinct.
  void Add(std::span<const uint32_t> selected);
  // Of two different ones; 65,535 at most.
  uint32_t Count(uint32_t a, uint32_t b) const { return a < b ? counts_[At(a, b)] : counts_[At(b, a)]; }

 private:
  // Rows of a triangle: those less than `greater`.
  static size_t At(uint32_t less, uint32_t greater) {
    return size_t{greater} * (greater - size_t{1}) / 2 + less;
  }

  uint32_t n_clusters_;
  size_t n_different_ = 0;
  std::vector<uint16_t> counts_;
};

// Which cluster gets each id: [n_clusters], a permutation. The pairs that are selected together most often
// adjoin, each cluster being in one pair; pairs follow each other by what they have in common. Takes
// O(n^2 log n).
//
// A prompt's queries are few, and others come. So with `centroids`, float [n_clusters, dim], pairs whose
// centroids are near go before others that were selected together as often: by (count + 1) / (d + 0.2), d
// being their squared distance, in units of the mean one.
std::vector<uint32_t> PlaceClusters(const CoRetrieval& together, std::span<const float> centroids = {});
// While it works, and of the answer; fewer than 2^24 clusters.
uint64_t PlaceClustersBytes(uint32_t n_clusters, uint32_t dim);

}  // namespace kvrun
