// What ARKV tells layers apart by: how spread out a layer's attention is, and what follows for the precision
// of its entries. Pure functions. Source: ARKV, sections IV-C to IV-F, with its published constants.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvrun {

// The published constants: temperatures (Eq. 6) and the weight of the variance (Eq. 9), observed rows, and
// the share of entries that stays when there is no room (Eq. 10).
struct ArkvConstants {
  double tau_entropy = 7.774;
  double tau_variance = 5.407;
  double tau_kurtosis = 5.528;
  double gamma = 263.81;
  uint32_t observed_rows = 32;
  double slack = 0.75;
};

struct LayerAttention {
  double entropy = 0.0;   // Eq. 3, in nats
  double variance = 0.0;  // Eq. 4
  double kurtosis = 0.0;  // Eq. 5; 0 where the variance is
};

// Heads and rows are pooled first, and moments are taken over keys: the paper's equations. mass: first
// moments of one layer's entries, [n_heads, n_entries], added up over rows. All 0 where there are none, or
// what is no number.
LayerAttention AttentionOverKeys(std::span<const float> mass, uint32_t n_heads);
// The authors' code: variance and kurtosis of each key's weights over rows and heads, added up over keys.
// moments: sums of the first to fourth powers of the weights, [4, n_heads, n_entries], over n_rows rows each.
// The entropy is as above. Floats leave no kurtosis of keys whose weights hardly differ or are all next to 0
// (below 1e-8 or so): these add 0.
LayerAttention AttentionOverRows(std::span<const float> moments, uint32_t n_heads, uint32_t n_rows);

// Eq. 6; 0 where a factor is.
double OriginalScore(const LayerAttention& layer, const ArkvConstants& constants);
// Eq. 7: each layer's share of entries that keep their precision, 0 to 1. All 1 where all scores are 0.
std::vector<double> OriginalShares(std::span<const LayerAttention> layers, const ArkvConstants& constants);

// Eq. 9: mean + gamma * variance of an entry's weights, of sums over n weights of them and of their squares.
// 0 where n is.
double HeavyHitterScore(double sum, double square_sum, uint32_t n, double gamma);

// How many entries of a layer keep their precision and how many have 8 bits, of a memory for `entries`
// entries of original_bytes, or of `entries` entries in all.
struct PrecisionShares {
  uint32_t n_original = 0;
  uint32_t n_quantised = 0;
};
// As the paper counts: `entries` in all, Eq. 8; originals to the nearest whole number, as below.
PrecisionShares SharesOfEntries(double original_share, uint32_t entries);
// In the same bytes: original_share of the memory for originals, the rest for as many of 8 bits as fit.
// original_bytes: less than 2^32.
PrecisionShares SharesOfBytes(double original_share, uint32_t entries, uint64_t original_bytes,
                              uint64_t quantised_bytes);

}  // namespace kvrun
