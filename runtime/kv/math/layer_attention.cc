#include "runtime/kv/math/layer_attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "platform/base/check.h"

namespace kvrun {
namespace {

// Sums and powers of weights are floats, so a fourth central moment, a small difference of large ones, is
// not known where weights hardly differ: with a variance of a hundredth of the mean square it is off by some
// percent, with less soon by more than it is.
constexpr double kLeastSpread = 0.01;
// Nor is it known where fourth powers are so small that devices take them for 0 (below 2^-126). The sum of
// those of up to 10,000 weights is right to a tenth from here on.
constexpr double kLeastFourthPowers = 1e-33;

struct KeyMoments {
  double variance = 0.0;
  double kurtosis = 0.0;
};

// Of n weights of one key. sums: of their first to fourth powers; what is no number has no moments.
KeyMoments MomentsOfKey(const std::array<double, 4>& sums, double n) {
  if (!std::all_of(sums.begin(), sums.end(), [](double sum) { return std::isfinite(sum); })) return {};
  const double mean = sums[0] / n;
  const double mean_square = sums[1] / n;
  KeyMoments moments = {.variance = std::max(mean_square - mean * mean, 0.0)};
  if (moments.variance <= kLeastSpread * mean_square || sums[3] < kLeastFourthPowers) return moments;
  const double fourth =
      sums[3] / n - 4.0 * mean * sums[2] / n + mean * mean * (6.0 * mean_square - 3.0 * mean * mean);
  // It is never less than 1.
  moments.kurtosis = std::max(fourth / (moments.variance * moments.variance), 1.0);
  return moments;
}

// The share of all weights that each key has; empty where there are none, or what is no number.
std::vector<double> KeyShares(std::span<const float> mass, uint32_t n_heads) {
  KVRUN_CHECK(n_heads > 0 && mass.size() % n_heads == 0);
  const size_t n_entries = mass.size() / n_heads;
  std::vector<double> shares(n_entries);
  double sum = 0.0;
  for (size_t i = 0; i < mass.size(); ++i) {
    shares[i % n_entries] += mass[i];
    sum += mass[i];
  }
  if (!std::isfinite(sum) || sum <= 0.0) return {};
  for (double& share : shares) share /= sum;
  return shares;
}

double EntropyOf(std::span<const double> shares) {
  double entropy = 0.0;
  for (const double share : shares) {
    if (share > 0.0) entropy -= share * std::log(share);
  }
  return std::max(entropy, 0.0);
}

double Root(double factor, double degree) {
  KVRUN_CHECK(degree > 0.0);
  return factor > 0.0 ? std::pow(factor, 1.0 / degree) : 0.0;
}

uint32_t OriginalsOf(double original_share, uint32_t entries) {
  KVRUN_CHECK(original_share >= 0.0 && original_share <= 1.0);
  return static_cast<uint32_t>(std::llround(original_share * entries));
}

}  // namespace

LayerAttention AttentionOverKeys(std::span<const float> mass, uint32_t n_heads) {
  const std::vector<double> shares = KeyShares(mass, n_heads);
  if (shares.empty()) return {};
  const auto n = static_cast<double>(shares.size());
  double squares = 0.0;
  double fourth_powers = 0.0;
  for (const double share : shares) {
    const double square = (share - 1.0 / n) * (share - 1.0 / n);  // their mean: they add up to 1
    squares += square;
    fourth_powers += square * square;
  }
  const double variance = squares / n;
  return {.entropy = EntropyOf(shares),
          .variance = variance,
          .kurtosis = variance > 0.0 ? fourth_powers / n / (variance * variance) : 0.0};
}

LayerAttention AttentionOverRows(std::span<const float> moments, uint32_t n_heads, uint32_t n_rows) {
  KVRUN_CHECK(n_heads > 0 && moments.size() % (4 * size_t{n_heads}) == 0);
  const size_t moment_size = moments.size() / 4;
  const size_t n_entries = moment_size / n_heads;
  const std::vector<double> shares = KeyShares(moments.first(moment_size), n_heads);
  if (shares.empty() || n_rows == 0) return {};
  LayerAttention layer = {.entropy = EntropyOf(shares)};
  for (size_t key = 0; key < n_entries; ++key) {
    std::array<double, 4> sums = {};
    for (size_t power = 0; power < sums.size(); ++power) {
      for (size_t i = key; i < moment_size; i += n_entries) sums[power] += moments[power * moment_size + i];
    }
    const KeyMoments of_key = MomentsOfKey(sums, static_cast<double>(n_heads) * n_rows);
    layer.variance += of_key.variance;
    layer.kurtosis += of_key.kurtosis;
  }
  return layer;
}

double OriginalScore(const LayerAttention& layer, const ArkvConstants& constants) {
  return Root(layer.entropy, constants.tau_entropy) * Root(layer.variance, constants.tau_variance) *
         Root(layer.kurtosis, constants.tau_kurtosis);
}

std::vector<double> OriginalShares(std::span<const LayerAttention> layers, const ArkvConstants& constants) {
  std::vector<double> shares;
  double largest = 0.0;
  for (const LayerAttention& layer : layers) {
    shares.push_back(OriginalScore(layer, constants));
    largest = std::max(largest, shares.back());
  }
  for (double& share : shares) share = largest > 0.0 ? share / largest : 1.0;
  return shares;
}

double HeavyHitterScore(double sum, double square_sum, uint32_t n, double gamma) {
  if (n == 0) return 0.0;
  const double mean = sum / n;
  // Rounding alone makes a variance negative.
  return mean + gamma * std::max(square_sum / n - mean * mean, 0.0);
}

PrecisionShares SharesOfEntries(double original_share, uint32_t entries) {
  const uint32_t n_original = OriginalsOf(original_share, entries);
  return {.n_original = n_original, .n_quantised = entries - n_original};
}

PrecisionShares SharesOfBytes(double original_share, uint32_t entries, uint64_t original_bytes,
                              uint64_t quantised_bytes) {
  constexpr uint64_t kMost = std::numeric_limits<uint32_t>::max();
  KVRUN_CHECK(quantised_bytes > 0 && original_bytes > 0 && original_bytes <= kMost);
  const uint32_t n_original = OriginalsOf(original_share, entries);
  const uint64_t n_quantised = (entries - n_original) * original_bytes / quantised_bytes;
  KVRUN_CHECK(n_quantised <= kMost);
  return {.n_original = n_original, .n_quantised = static_cast<uint32_t>(n_quantised)};
}

}  // namespace kvrun
