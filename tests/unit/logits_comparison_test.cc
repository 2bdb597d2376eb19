#include "runtime/engine/measure/logits_comparison.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <vector>

namespace kvrun {
namespace {

// Two ids: their probabilities are p and 1 - p.
std::vector<float> Logits(double p) {
  return {static_cast<float>(std::log(p)), static_cast<float>(std::log(1 - p))};
}

double Kl(double p, double q) { return p * std::log(p / q) + (1 - p) * std::log((1 - p) / (1 - q)); }

TEST(LogitsComparison, TheSameIsNoDifference) {
  LogitsComparison comparison(2);
  for (int step = 0; step < 2; ++step) comparison.Add(Logits(0.25), Logits(0.25), 0);
  EXPECT_NEAR(comparison.kl_mean(), 0.0, 1e-7);
  EXPECT_NEAR(comparison.kl_error(), 0.0, 1e-7);
  EXPECT_EQ(comparison.top1_agreement(), 1.0);
  EXPECT_NEAR(comparison.ppl(), 4.0, 1e-5);
  EXPECT_NEAR(comparison.ppl_full(), 4.0, 1e-5);
}

// Sums of logits do not matter; means, their error and the parts follow from the definitions.
TEST(LogitsComparison, AsByDefinition) {
  LogitsComparison comparison(16);
  std::vector<double> kls;
  for (int step = 0; step < 16; ++step) {
    const double q = 0.2 + 0.04 * step;
    std::vector<float> own = Logits(q);
    for (float& value : own) value += 3.0F;
    comparison.Add(Logits(0.4), own, step < 15 ? std::optional<TokenId>(1) : std::nullopt);
    kls.push_back(Kl(0.4, q));
  }
  double mean = 0.0;
  for (const double kl : kls) mean += kl / 16;
  double squares = 0.0;
  for (const double kl : kls) squares += (kl - mean) * (kl - mean);
  EXPECT_NEAR(comparison.kl_mean(), mean, 1e-6);
  EXPECT_NEAR(comparison.kl_error(), std::sqrt(squares / (16.0 * 15.0)), 1e-6);
  for (size_t part = 0; part < 8; ++part) {
    EXPECT_NEAR(comparison.kl_parts()[part], (kls[2 * part] + kls[2 * part + 1]) / 2, 1e-6);
  }
  EXPECT_EQ(comparison.top1_agreement(), 0.5);  // q is below a half in 8 steps
  EXPECT_NEAR(comparison.ppl_full(), 1 / 0.6, 1e-5);
}

TEST(LogitsComparison, WithoutStepsThereIsNothing) {
  const LogitsComparison comparison(0);
  EXPECT_EQ(comparison.kl_mean(), 0.0);
  EXPECT_EQ(comparison.kl_error(), 0.0);
  EXPECT_EQ(comparison.ppl(), 1.0);
  EXPECT_EQ(comparison.kl_parts()[7], 0.0);
}

}  // namespace
}  // namespace kvrun
