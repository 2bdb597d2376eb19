// What host_bench and kernel_bench time of attention's mass, at SmolLM2-135M's shape and a depth of 8,000: a
// decoded token over entries that are kept one by one, and a prompt's last rows. What comes of both is
// compared with the scalar references.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/device/device.h"

namespace kvrun::testing {

using BufferMaker = std::function<std::unique_ptr<Buffer>(uint64_t size_bytes, BufferUse use)>;

inline constexpr uint32_t kMassHeads = 9;
inline constexpr uint32_t kMassKvHeads = 3;
inline constexpr uint32_t kMassHeadDim = 64;
inline constexpr uint32_t kMassEntries = 8000;
inline constexpr uint32_t kMassRows = 32;
// So many layers of KV, 92 MiB, do not stay in a last-level cache: they lie where a model's lie.
inline constexpr uint32_t kMassLayers = 15;

// K and V of one layer's entries, in bytes.
inline constexpr uint64_t kMassLayerBytes = uint64_t{kMassEntries} * kMassKvHeads * 2 * kMassHeadDim * 2;

// One token over kMassEntries entries of each KV head: in slots that all lists share, as KeptLists makes them
// after a prompt, and the same entries in memory as full attention has them. All layers hold the same.
class SlotMassCase {
 public:
  explicit SlotMassCase(const BufferMaker& make);

  // n_moments: 0 for no mass. Scratch memory is the caller's to name.
  SlotAttentionArgs Slots(uint32_t layer, uint32_t n_moments) const;
  AttentionArgs Memory(uint32_t layer) const;
  // Fails unless `attend`, which attends once over layer 0's slots, makes the output and the mass that the
  // references make.
  void Check(uint32_t n_moments, const std::function<void(const SlotAttentionArgs&)>& attend) const;

 private:
  struct Layer {
    std::unique_ptr<Buffer> slots;
    std::unique_ptr<Buffer> table;
    std::unique_ptr<Buffer> mass;    // of two moments
    std::unique_ptr<Buffer> memory;  // KvShape
  };

  SlotShape shape_;
  std::unique_ptr<Buffer> qkv_;
  std::unique_ptr<Buffer> step_;
  std::unique_ptr<Buffer> output_;
  std::vector<Layer> layers_;
};

// The last kMassRows rows of a prompt over all of its entries in one tile.
class RowMassCase {
 public:
  explicit RowMassCase(const BufferMaker& make);

  RowMassArgs Args(uint32_t n_moments) const;
  // Fails unless `run`, SumWeights and AttentionMass, makes what the references make.
  void Check(uint32_t n_moments, const std::function<void(const RowMassArgs&)>& run) const;
  // Of SumWeights, and of AttentionMass: products of queries and keys.
  static double Flops() { return 2.0 * kMassRows * kMassHeads * kMassEntries * kMassHeadDim; }

 private:
  std::unique_ptr<Buffer> queries_;
  std::unique_ptr<Buffer> step_;
  std::unique_ptr<Buffer> kv_;
  std::unique_ptr<Buffer> sums_;
  std::unique_ptr<Buffer> mass_;  // of four moments
};

// How one quantity stands to another that was measured in turn with it: the median of the ratios of pairs,
// and an interval that holds it with a probability of 90 % or more, between two of the ratios in order.
struct PairedRatio {
  double median = 0.0;
  double low = 0.0;
  double high = 0.0;
};
PairedRatio ComparePairs(std::span<const double> of, std::span<const double> to);
double Median(std::vector<double> values);
// "1.013 (1.009 to 1.020)".
std::string Text(const PairedRatio& ratio);

}  // namespace kvrun::testing
