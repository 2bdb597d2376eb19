// What layers are told apart by, on examples by hand and beside two passes over the weights themselves.
#include "runtime/kv/math/layer_attention.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "platform/base/random.h"

namespace kvrun {
namespace {

constexpr double kLn2 = 0.6931471805599453;

// Weights of rows, [n_heads, n_rows, n_keys], as a few attentions would give them: most next to nothing.
struct WeightsOfRows {
  uint32_t n_heads = 3;
  uint32_t n_rows = 32;
  uint32_t n_keys = 50;
  std::vector<double> weights;

  explicit WeightsOfRows(uint64_t seed) {
    Random random(seed);
    for (uint32_t i = 0; i < n_heads * n_rows * n_keys; ++i) {
      weights.push_back(std::exp(-3.0 - 3.0 * random.Symmetric()));
    }
  }
  double at(uint32_t head, uint32_t row, uint32_t key) const {
    return weights[(size_t{head} * n_rows + row) * n_keys + key];
  }
  // Sums of powers over rows, [4, n_heads, n_keys], as a device adds them up.
  std::vector<float> Moments() const {
    std::vector<float> moments(size_t{4} * n_heads * n_keys);
    for (uint32_t head = 0; head < n_heads; ++head) {
      for (uint32_t row = 0; row < n_rows; ++row) {
        for (uint32_t key = 0; key < n_keys; ++key) {
          float power = 1.0F;
          for (uint32_t moment = 0; moment < 4; ++moment) {
            power *= static_cast<float>(at(head, row, key));
            moments[(size_t{moment} * n_heads + head) * n_keys + key] += power;
          }
        }
      }
    }
    return moments;
  }
  std::vector<double> OfKey(uint32_t key) const {
    std::vector<double> of_key;
    for (uint32_t head = 0; head < n_heads; ++head) {
      for (uint32_t row = 0; row < n_rows; ++row) of_key.push_back(at(head, row, key));
    }
    return of_key;
  }
};

struct TwoPasses {
  double mean = 0.0;
  double variance = 0.0;
  double kurtosis = 0.0;

  explicit TwoPasses(const std::vector<double>& values) {
    const auto n = static_cast<double>(values.size());
    for (const double value : values) mean += value / n;
    double fourth = 0.0;
    for (const double value : values) {
      variance += std::pow(value - mean, 2) / n;
      fourth += std::pow(value - mean, 4) / n;
    }
    kurtosis = fourth / variance / variance;
  }
};

// Heads together: 4, 2, 1 and 1 of 8. Entropy 1/2 ln 2 + 1/4 ln 4 + 2/8 ln 8 = 1.75 ln 2. About the mean,
// 1/4: 1/4, 0, -1/8 and -1/8; squares 8/128 and 2/128, over four 3/128; fourth powers 18/4096, over four
// 9/8192; 9/8192 / (9/16384) = 2.
TEST(LayerAttention, OverKeysByHand) {
  const LayerAttention layer = AttentionOverKeys(std::vector<float>{3, 2, 0, 1, /**/ 1, 0, 1, 0}, 2);
  EXPECT_NEAR(layer.entropy, 1.75 * kLn2, 1e-12);
  EXPECT_NEAR(layer.variance, 3.0 / 128, 1e-12);
  EXPECT_NEAR(layer.kurtosis, 2.0, 1e-12);
}

TEST(LayerAttention, OfAUniformDistribution) {
  for (const size_t n : {1U, 3U, 49U, 1000U}) {
    const LayerAttention layer = AttentionOverKeys(std::vector<float>(2 * n, 0.1F), 2);
    EXPECT_NEAR(layer.entropy, std::log(static_cast<double>(n)), 1e-9) << n;
    EXPECT_EQ(layer.variance, 0.0) << n;
    EXPECT_EQ(layer.kurtosis, 0.0) << n;
  }
}

// Two values, one for a part q of all: kurtosis (1 - 3 q (1 - q)) / (q (1 - q)), whatever the values. One in
// four: (1 - 9/16) / (3/16) = 7/3; one in a hundred: 0.9703 / 0.0099.
TEST(LayerAttention, KurtosisOfTwoValues) {
  EXPECT_NEAR(AttentionOverKeys(std::vector<float>{1, 1, 5, 1}, 1).kurtosis, 7.0 / 3, 1e-9);
  std::vector<float> mass(200, 0.25F);
  mass[17] = mass[90] = 0.5F;
  EXPECT_NEAR(AttentionOverKeys(mass, 1).kurtosis, 0.9703 / 0.0099, 1e-6);
}

TEST(LayerAttention, OverKeysAsTwoPassesSay) {
  const WeightsOfRows rows(5);
  std::vector<double> of_keys;
  double sum = 0.0;
  for (uint32_t key = 0; key < rows.n_keys; ++key) {
    of_keys.push_back(0.0);
    for (const double weight : rows.OfKey(key)) of_keys.back() += weight;
    sum += of_keys.back();
  }
  double entropy = 0.0;
  for (double& share : of_keys) {
    share /= sum;
    entropy -= share * std::log(share);
  }
  const TwoPasses expected(of_keys);
  const std::vector<float> moments = rows.Moments();
  const auto mass = std::span(moments).first(moments.size() / 4);
  const LayerAttention layer = AttentionOverKeys(mass, rows.n_heads);
  EXPECT_NEAR(layer.entropy, entropy, 1e-6 * entropy);
  EXPECT_NEAR(layer.variance, expected.variance, 1e-4 * expected.variance);
  EXPECT_NEAR(layer.kurtosis, expected.kurtosis, 1e-4 * expected.kurtosis);
  EXPECT_NEAR(AttentionOverRows(moments, rows.n_heads, rows.n_rows).entropy, entropy, 1e-6 * entropy);
}

// One key has weights 0, 0, 0 and 0.4 over two heads and two rows: variance 0.16 * 3/16 = 0.03, kurtosis 7/3.
// The other has 0.2, 0.2, 0.4 and 0.4: variance 0.01, kurtosis 1.
TEST(LayerAttention, OverRowsByHand) {
  const std::vector<float> moments = {0.0F, 0.4F,    /**/ 0.4F,    0.8F,    //
                                      0.0F, 0.08F,   /**/ 0.16F,   0.32F,   //
                                      0.0F, 0.016F,  /**/ 0.064F,  0.128F,  //
                                      0.0F, 0.0032F, /**/ 0.0256F, 0.0512F};
  const LayerAttention layer = AttentionOverRows(moments, 2, 2);
  EXPECT_NEAR(layer.variance, 0.03 + 0.01, 1e-7);
  EXPECT_NEAR(layer.kurtosis, 7.0 / 3 + 1, 1e-4);
  // Shares of 0.4 and 1.2 in 1.6.
  EXPECT_NEAR(layer.entropy, 0.25 * std::log(4) + 0.75 * std::log(4.0 / 3), 1e-7);
}

TEST(LayerAttention, OverRowsAsTwoPassesSay) {
  for (const uint64_t seed : {6U, 7U, 8U}) {
    const WeightsOfRows rows(seed);
    double variance = 0.0;
    double kurtosis = 0.0;
    for (uint32_t key = 0; key < rows.n_keys; ++key) {
      const TwoPasses of_key(rows.OfKey(key));
      variance += of_key.variance;
      kurtosis += of_key.kurtosis;
    }
    const LayerAttention layer = AttentionOverRows(rows.Moments(), rows.n_heads, rows.n_rows);
    EXPECT_NEAR(layer.variance, variance, 1e-5 * variance);
    EXPECT_NEAR(layer.kurtosis, kurtosis, 1e-5 * kurtosis);
  }
}

// Fourth moments that rounding makes up, or takes away, are no peaks.
TEST(LayerAttention, WeightsThatFloatsCannotTellApartHaveNoKurtosis) {
  for (const float scale : {1.0F, 0.37F, 1e-6F, 1e-9F, 1e-12F, 1e-30F}) {
    WeightsOfRows rows(9);
    for (size_t i = 0; i < rows.weights.size(); ++i) {
      rows.weights[i] = scale * (1.0 + 1e-4 * static_cast<double>(i % 7));
    }
    const LayerAttention layer = AttentionOverRows(rows.Moments(), rows.n_heads, rows.n_rows);
    EXPECT_EQ(layer.kurtosis, 0.0) << scale;
    EXPECT_LE(layer.variance, 1e-5 * scale * scale * rows.n_keys) << scale;
  }
  // A quarter of the weights is the largest: 7/3 for each key, as long as floats tell.
  for (const float scale : {1.0F, 1e-4F, 1e-7F, 1e-9F, 1e-10F, 1e-12F}) {
    WeightsOfRows rows(9);
    for (uint32_t i = 0; i < rows.weights.size(); ++i) {
      rows.weights[i] = i / rows.n_keys % 4 == 0 ? scale : 0.0;
    }
    const double expected = scale > 5e-9F ? rows.n_keys * 7.0 / 3 : 0.0;
    EXPECT_NEAR(AttentionOverRows(rows.Moments(), rows.n_heads, rows.n_rows).kurtosis, expected, 0.01)
        << scale;
  }
}

TEST(LayerAttention, NothingHasNoAttention) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::vector<float>& mass :
       {std::vector<float>{}, std::vector<float>(8), std::vector<float>{1, std::nanf(""), 0, 1},
        std::vector<float>{infinity, 1, 1, 1}}) {
    for (const LayerAttention& layer : {AttentionOverKeys(mass, 2), AttentionOverRows(mass, 1, 4)}) {
      EXPECT_EQ(layer.entropy, 0.0);
      EXPECT_EQ(layer.variance, 0.0);
      EXPECT_EQ(layer.kurtosis, 0.0);
    }
  }
  EXPECT_EQ(AttentionOverRows(std::vector<float>(4, 1.0F), 1, 0).variance, 0.0);
  const LayerAttention broken = AttentionOverRows(std::vector<float>{1, infinity, 1, std::nanf("")}, 1, 2);
  EXPECT_EQ(broken.variance, 0.0);
  EXPECT_EQ(broken.kurtosis, 0.0);
  EXPECT_DEATH((void)AttentionOverKeys(std::vector<float>(6), 4), "n_heads");
  EXPECT_DEATH((void)AttentionOverKeys(std::vector<float>(6), 0), "n_heads");
  EXPECT_DEATH((void)AttentionOverRows(std::vector<float>(12), 2, 3), "n_heads");
}

// Roots that are whole: 2, 3 and 5.
TEST(LayerAttention, OriginalScoreByHand) {
  const LayerAttention layer = {std::pow(2.0, 7.774), std::pow(3.0, 5.407), std::pow(5.0, 5.528)};
  EXPECT_NEAR(OriginalScore(layer, {}), 30.0, 1e-9);
  EXPECT_EQ(OriginalScore({.entropy = 0.0, .variance = 1.0, .kurtosis = 1.0}, {}), 0.0);
  EXPECT_EQ(OriginalScore({.entropy = 1.0, .variance = 0.0, .kurtosis = 1.0}, {}), 0.0);
  EXPECT_EQ(OriginalScore({.entropy = 1.0, .variance = 1.0, .kurtosis = 0.0}, {}), 0.0);
  EXPECT_DEATH((void)OriginalScore(layer, {.tau_variance = 0.0}), "degree");
}

// Temperatures of 1, so that scores are products: 6, 12 and 0.
TEST(LayerAttention, OriginalSharesAreOfTheLargestScore) {
  const ArkvConstants plain = {.tau_entropy = 1.0, .tau_variance = 1.0, .tau_kurtosis = 1.0};
  const std::vector<LayerAttention> layers = {{1.0, 2.0, 3.0}, {2.0, 2.0, 3.0}, {2.0, 0.0, 3.0}};
  EXPECT_EQ(OriginalShares(layers, plain), (std::vector<double>{0.5, 1.0, 0.0}));
  EXPECT_EQ(OriginalShares(std::vector<LayerAttention>(2), plain), (std::vector<double>{1.0, 1.0}));
  EXPECT_TRUE(OriginalShares({}, plain).empty());
}

// 0.1, 0.2 and 0.6: mean 0.3, mean square 0.41 / 3, variance 0.14 / 3.
TEST(LayerAttention, HeavyHitterScoreByHand) {
  EXPECT_NEAR(HeavyHitterScore(0.9, 0.41, 3, 10.0), 0.3 + 1.4 / 3, 1e-12);
  EXPECT_NEAR(HeavyHitterScore(0.9, 0.41, 3, 0.0), 0.3, 1e-12);
  EXPECT_EQ(HeavyHitterScore(0.9, 0.41, 0, 10.0), 0.0);
  // Squares of a third, rounded down.
  EXPECT_EQ(HeavyHitterScore(1.0, 0.3333, 3, 1000.0), 1.0 / 3);
}

TEST(LayerAttention, SharesOfEntriesAddUp) {
  const auto shares = [](double share, uint32_t entries) {
    const PrecisionShares found = SharesOfEntries(share, entries);
    EXPECT_EQ(found.n_original + found.n_quantised, entries);
    return found.n_original;
  };
  EXPECT_EQ(shares(0.3, 10), 3U);
  EXPECT_EQ(shares(0.26, 10), 3U);
  EXPECT_EQ(shares(0.24, 10), 2U);
  EXPECT_EQ(shares(0.0, 10), 0U);
  EXPECT_EQ(shares(1.0, 4294967295U), 4294967295U);
  EXPECT_EQ(shares(0.5, 0), 0U);
  EXPECT_DEATH((void)SharesOfEntries(1.01, 10), "original_share");
  EXPECT_DEATH((void)SharesOfEntries(std::nan(""), 10), "original_share");
}

// Half of 100 entries of 256 bytes: 50, and 12,800 bytes for others of 130: 98.
TEST(LayerAttention, SharesOfBytesFillTheMemory) {
  const PrecisionShares half = SharesOfBytes(0.5, 100, 256, 130);
  EXPECT_EQ(half.n_original, 50U);
  EXPECT_EQ(half.n_quantised, 98U);
  EXPECT_EQ(SharesOfBytes(0.0, 100, 256, 130).n_quantised, 196U);
  EXPECT_EQ(SharesOfBytes(1.0, 100, 256, 130).n_quantised, 0U);
  Random random(4);
  for (int round = 0; round < 200; ++round) {
    const uint32_t entries = random.Below(5000);
    const uint64_t original = 64 + random.Below(4000);
    const uint64_t quantised = 34 + random.Below(4000);
    const double share = random.Below(1001) / 1000.0;
    const PrecisionShares found = SharesOfBytes(share, entries, original, quantised);
    const uint64_t used = found.n_original * original + found.n_quantised * quantised;
    EXPECT_LE(used, entries * original);
    EXPECT_GT(used + quantised, entries * original);
    EXPECT_NEAR(found.n_original, share * entries, 0.5 + 1e-6);
  }
  EXPECT_DEATH((void)SharesOfBytes(0.5, 10, 256, 0), "quantised_bytes");
}

}  // namespace
}  // namespace kvrun
