#include "runtime/kv/math/prompt_clusters.h"

#include <algorithm>
#include <utility>

#include "platform/base/check.h"
#include "runtime/kv/math/key_division.h"

namespace kvrun {
namespace {

uint32_t MostEntries(const PromptClusterShape& shape) { return std::min(shape.max_entries, shape.n_entries); }
uint32_t MostClusters(const PromptClusterShape& shape) { return std::min(shape.room, shape.n_entries); }

// Places in `order`, from begin to end.
struct Piece {
  uint32_t begin = 0;
  uint32_t end = 0;

  uint32_t size() const { return end - begin; }
};

class Finder {
 public:
  Finder(const PromptClusterShape& shape, const CopyKeys& copy_keys)
      : shape_(shape),
        copy_keys_(copy_keys),
        most_(MostEntries(shape)),
        division_(shape.dim, most_),
        keys_(size_t{2} * most_ * shape.dim),
        is_second_(size_t{2} * most_),
        second_(size_t{2} * most_),
        ends_(shape.n_means) {
    found_.order.resize(shape.n_entries);
    found_.begin.reserve(size_t{MostClusters(shape)} + 1);
    found_.begin.push_back(0);
  }

  PromptClusters Find(std::span<const uint32_t> nearest) {
    Sort(nearest);
    uint64_t n_clusters = 0;
    ForEachPiece([&](const Piece& piece) { n_clusters += piece.size() > most_ ? 2 : 1; });
    found_.is_filled_up = n_clusters > shape_.room;
    if (found_.is_filled_up) {
      FillUp();
    } else {
      ForEachPiece([this](const Piece& piece) { Take(piece); });
    }
    Describe();
    return std::move(found_);
  }

 private:
  // `order` by K-means' clusters, ascending in each; ends_ says where each of them ends.
  void Sort(std::span<const uint32_t> nearest) {
    for (const uint32_t mean : nearest) {
      KVRUN_CHECK(mean < shape_.n_means);
      ++ends_[mean];
    }
    uint32_t begin = 0;
    for (uint32_t& place : ends_) begin += std::exchange(place, begin);
    for (uint32_t entry = 0; entry < shape_.n_entries; ++entry) found_.order[ends_[nearest[entry]]++] = entry;
  }

  // Of each of K-means' clusters that has entries: pieces of at most 2 * most_, which differ by one at most.
  template <typename Function>
  void ForEachPiece(const Function& function) const {
    uint32_t begin = 0;
    for (const uint32_t end : ends_) {
      const uint64_t size = end - begin;
      const uint64_t n_pieces = (size + 2 * uint64_t{most_} - 1) / (2 * uint64_t{most_});
      for (uint64_t i = 0; i < n_pieces; ++i) {
        function(Piece{begin + static_cast<uint32_t>(size * i / n_pieces),
                       begin + static_cast<uint32_t>(size * (i + 1) / n_pieces)});
      }
      begin = end;
    }
  }

  std::span<float> KeysOf(const Piece& piece) {
    const std::span<float> keys = std::span(keys_).first(size_t{piece.size()} * shape_.dim);
    copy_keys_(std::span(found_.order).subspan(piece.begin, piece.size()), keys);
    return keys;
  }

  // A cluster, or two, from a piece that follows the ones before.
  void Take(const Piece& piece) {
    if (piece.size() > most_) {
      const std::span<uint8_t> is_second = std::span(is_second_).first(piece.size());
      division_.Divide(KeysOf(piece), is_second);
      found_.begin.push_back(Separate(piece));
    }
    found_.begin.push_back(piece.end);
  }

  // The entries of the second part go behind those of the first; answers where they begin.
  uint32_t Separate(const Piece& piece) {
    uint32_t first_end = piece.begin;
    uint32_t n_second = 0;
    for (uint32_t i = 0; i < piece.size(); ++i) {
      const uint32_t entry = found_.order[piece.begin + i];
      (is_second_[i] == 0 ? found_.order[first_end++] : second_[n_second++]) = entry;
    }
    std::copy(second_.begin(), second_.begin() + n_second, found_.order.begin() + first_end);
    return first_end;
  }

  void FillUp() {
    for (uint32_t begin = 0; begin < shape_.n_entries;) {
      const uint32_t end = begin + std::min(most_, shape_.n_entries - begin);
      std::sort(found_.order.begin() + begin, found_.order.begin() + end);
      found_.begin.push_back(end);
      begin = end;
    }
  }

  void Describe() {
    const auto n_clusters = static_cast<uint32_t>(found_.begin.size() - 1);
    found_.cluster_of.resize(shape_.n_entries);
    found_.centroids.resize(size_t{n_clusters} * shape_.dim);
    found_.variances.resize(n_clusters);
    for (uint32_t cluster = 0; cluster < n_clusters; ++cluster) {
      for (const uint32_t entry : found_.entries(cluster)) found_.cluster_of[entry] = cluster;
      const Piece piece = {found_.begin[cluster], found_.begin[cluster + 1]};
      found_.variances[cluster] = FindSpread(
          KeysOf(piece), std::span(found_.centroids).subspan(size_t{cluster} * shape_.dim, shape_.dim));
    }
  }

  PromptClusterShape shape_;
  const CopyKeys& copy_keys_;
  uint32_t most_;  // entries of a cluster
  KeyDivision division_;
  std::vector<float> keys_;         // [2 * most_, dim]
  std::vector<uint8_t> is_second_;  // [2 * most_]
  std::vector<uint32_t> second_;    // [2 * most_]
  std::vector<uint32_t> ends_;      // [n_means]
  PromptClusters found_;
};

}  // namespace

PromptClusters FindPromptClusters(const PromptClusterShape& shape, std::span<const uint32_t> nearest,
                                  const CopyKeys& copy_keys) {
  KVRUN_CHECK(shape.dim > 0 && shape.n_entries > 0 && shape.max_entries > 0);
  KVRUN_CHECK(uint64_t{shape.room} * shape.max_entries >= shape.n_entries);
  KVRUN_CHECK(nearest.size() == shape.n_entries);
  return Finder(shape, copy_keys).Find(nearest);
}

uint64_t FindPromptClustersBytes(const PromptClusterShape& shape) {
  const uint64_t most = MostEntries(shape);
  const uint64_t n_clusters = MostClusters(shape);
  const uint64_t of_answer = 2 * uint64_t{shape.n_entries} * sizeof(uint32_t) +
                             (n_clusters + 1) * sizeof(uint32_t) +
                             n_clusters * (uint64_t{shape.dim} + 1) * sizeof(float);
  const uint64_t of_pieces =
      2 * most * (uint64_t{shape.dim} * sizeof(float) + sizeof(uint8_t) + sizeof(uint32_t));
  return of_answer + of_pieces + KeyDivision::MemoryBytes(shape.dim, MostEntries(shape)) +
         uint64_t{shape.n_means} * sizeof(uint32_t);
}

}  // namespace kvrun
