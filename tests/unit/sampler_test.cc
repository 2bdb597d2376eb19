#include "runtime/engine/text/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "runtime/engine/text/logprobs.h"

namespace kvrun {
namespace {

using Logits = std::vector<float>;

TokenId SampleOne(const SamplerOptions& options, Logits logits, const std::vector<TokenId>& history = {},
                  uint32_t stream = 0) {
  Sampler sampler(options);
  const auto id = sampler.Sample(logits, history, stream);
  EXPECT_TRUE(id.ok()) << id.status().message();
  return id.ok() ? *id : -1;
}

// How often each token is drawn over n positions.
std::vector<double> Frequencies(const SamplerOptions& options, const Logits& logits, int n) {
  Sampler sampler(options);
  std::vector<double> counts(logits.size(), 0.0);
  std::vector<TokenId> history;
  for (int i = 0; i < n; ++i) {
    Logits scratch = logits;
    const auto id = sampler.Sample(scratch, history, 0);
    EXPECT_TRUE(id.ok());
    counts[static_cast<size_t>(*id)] += 1.0;
    history.push_back(*id);
  }
  return counts;
}

std::vector<double> Softmax(const Logits& logits, double temperature) {
  std::vector<double> p;
  for (const float logit : logits) p.push_back(std::exp(static_cast<double>(logit) / temperature));
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= total;
  return p;
}

double ChiSquare(const std::vector<double>& counts, const std::vector<double>& p) {
  const double n = std::accumulate(counts.begin(), counts.end(), 0.0);
  double sum = 0.0;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] > 0.0) sum += (counts[i] - n * p[i]) * (counts[i] - n * p[i]) / (n * p[i]);
  }
  return sum;
}

TokenId Greedy(const SamplerOptions& options, Logits logits, const std::vector<TokenId>& history,
               size_t n_generated) {
  Sampler sampler(options);
  return sampler.Sample(logits, history, 0, n_generated).value();
}

// What is left of the logits after the penalties.
Logits Penalized(const SamplerOptions& options, Logits logits, const std::vector<TokenId>& history,
                 size_t n_generated) {
  Sampler sampler(options);
  EXPECT_TRUE(sampler.Sample(logits, history, 0, n_generated).ok());
  return logits;
}

TEST(SamplerPenalties, PresenceCountsOnceAndFrequencyEachTime) {
  SamplerOptions options;
  options.presence_penalty = 0.5F;
  options.frequency_penalty = 0.25F;
  const std::vector<TokenId> history = {0, 1, 2, 1, 1, 3};
  EXPECT_EQ(Penalized(options, {4, 4, 4, -4}, history, 4), Logits({4, 4 - 0.5F - 0.5F, 4 - 0.75F, -4.75F}))
      << "the first two tokens were fed";
  EXPECT_EQ(Penalized(options, {4, 4, 4, -4}, history, 0), Logits({4, 4, 4, -4}));
  options.repetition_window = 2;
  EXPECT_EQ(Penalized(options, {4, 4, 4, -4}, history, 6), Logits({4, 3.25F, 4, -4.75F})) << "of the window";
  options.repetition_window = 0;
  EXPECT_EQ(Penalized(options, {4, 4, 4, -4}, history, 6), Logits({4, 4, 4, -4}));
}

TEST(SamplerPenalties, NegativeOnesAddAndAllComeAfterTheRepetitionPenalty) {
  SamplerOptions options;
  options.presence_penalty = -1.0F;
  EXPECT_EQ(Greedy(options, {3, 2.5F}, {1}, 1), 1);
  options.presence_penalty = 1.0F;
  options.repetition_penalty = 2.0F;
  EXPECT_EQ(Penalized(options, {3, 2}, {0, 1}, 1), Logits({1.5F, 0})) << "the prompt counts for repetition";
  options.frequency_penalty = 100.0F;
  const float least = std::numeric_limits<float>::lowest();
  EXPECT_EQ(Penalized(options, {1, least}, {1, 1}, 2)[1], least) << "it stays finite";
}

TEST(SamplerPenalties, OutOfRangeIsNamed) {
  for (const float bad : {100.5F, -101.0F, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    SamplerOptions options;
    options.presence_penalty = bad;
    EXPECT_NE(CheckSamplerOptions(options).message().find("presence_penalty"), std::string::npos);
    options = {};
    options.frequency_penalty = bad;
    EXPECT_NE(CheckSamplerOptions(options).message().find("frequency_penalty"), std::string::npos);
  }
}

TEST(Logprobs, AreOfTheRawLogitsLikeliestFirst) {
  const Logits logits = {1.0F, 3.0F, -2.0F, 3.0F};
  const std::vector<double> p = Softmax(logits, 1.0);
  const std::vector<TokenLogprob> top = LikeliestAnd(logits, 3, 2);
  ASSERT_EQ(top.size(), 4U);
  const TokenId expected[] = {1, 3, 0, 2};  // of equal ones the lower id; then the one that was taken
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(top[i].id, expected[i]);
    EXPECT_NEAR(top[i].logprob, std::log(p[static_cast<size_t>(expected[i])]), 1e-6);
  }
  EXPECT_EQ(LikeliestAnd(logits, 20, 0).size(), 5U) << "no more than there are";
  const std::vector<TokenLogprob> sure = LikeliestAnd(Logits{3e38F, -3e38F}, 2, 0);
  EXPECT_EQ(sure[0].logprob, 0.0F);
  EXPECT_TRUE(std::isfinite(sure[1].logprob));
}

// The tokens that can be drawn at all.
std::set<TokenId> Support(const SamplerOptions& options, const Logits& logits) {
  const std::vector<double> counts = Frequencies(options, logits, 3000);
  std::set<TokenId> support;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0.0) support.insert(static_cast<TokenId>(i));
  }
  return support;
}

Logits LogitsOf(const std::vector<double>& probabilities) {
  Logits logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

TEST(Sampler, GreedyTakesTheLowestIdOfTheLargest) {
  EXPECT_EQ(SampleOne({}, {1.0F, 5.0F, -2.0F, 5.0F}), 1);
  EXPECT_EQ(SampleOne({}, {-3.0F, -1.0F}), 1);
}

TEST(Sampler, TemperatureGivesTheSoftmax) {
  const Logits logits = {1.0F, 0.0F, 2.0F, -1.0F};
  for (const float temperature : {0.5F, 1.0F, 2.0F}) {
    SamplerOptions options;
    options.temperature = temperature;
    options.seed = 7;
    const std::vector<double> p = Softmax(logits, static_cast<double>(temperature));
    EXPECT_LT(ChiSquare(Frequencies(options, logits, 20000), p), 16.3) << temperature;  // 0.1 %, 3 degrees
  }
}

TEST(Sampler, TinyTemperatureIsGreedy) {
  SamplerOptions options;
  options.temperature = 1e-30F;
  EXPECT_EQ(Support(options, {1.0F, 1.5F, -4.0F}), (std::set<TokenId>{1}));
}

TEST(Sampler, TopKKeepsTheKLargestAndTheirRatios) {
  SamplerOptions options;
  options.temperature = 1.0F;
  options.top_k = 2;
  const Logits logits = LogitsOf({0.1, 0.4, 0.3, 0.2});
  const std::vector<double> counts = Frequencies(options, logits, 20000);
  EXPECT_LT(ChiSquare(counts, {0.0, 4.0 / 7, 3.0 / 7, 0.0}), 10.8);
  EXPECT_EQ(counts[0] + counts[3], 0.0);
  options.top_k = 1;
  EXPECT_EQ(Support(options, logits), (std::set<TokenId>{1}));
  options.top_k = 100;  // more than there are
  EXPECT_EQ(Support(options, logits).size(), 4U);
}

TEST(Sampler, TopKOfEqualsKeepsTheLowestIds) {
  SamplerOptions options;
  options.temperature = 1.0F;
  options.top_k = 2;
  EXPECT_EQ(Support(options, {1.0F, 1.0F, 1.0F, 1.0F}), (std::set<TokenId>{0, 1}));
}

TEST(Sampler, TopPKeepsTheShortestPrefixThatHoldsTheMass) {
  SamplerOptions options;
  options.temperature = 1.0F;
  const Logits logits = LogitsOf({0.1, 0.5, 0.25, 0.15});
  options.top_p = 0.6F;
  EXPECT_EQ(Support(options, logits), (std::set<TokenId>{1, 2}));
  options.top_p = 0.4F;
  EXPECT_EQ(Support(options, logits), (std::set<TokenId>{1}));
  options.top_p = 0.8F;
  EXPECT_EQ(Support(options, logits), (std::set<TokenId>{1, 2, 3}));
  options.top_p = 0.0F;
  EXPECT_EQ(Support(options, logits), (std::set<TokenId>{1}));
}

TEST(Sampler, TopPLooksBeyondTheFirstSortedPart) {
  SamplerOptions options;
  options.temperature = 1.0F;
  options.top_p = 0.5F;
  Logits logits(1000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = 1e-6F * static_cast<float>(i);  // nearly uniform
  const std::set<TokenId> support = Support(options, logits);
  EXPECT_GT(support.size(), 400U);
  EXPECT_GE(*support.begin(), 499);  // the 500 largest
}

TEST(Sampler, TopPIsOfWhatTopKLeft) {
  SamplerOptions options;
  options.temperature = 1.0F;
  options.top_k = 2;
  options.top_p = 0.65F;  // of {0.4, 0.2} the first is 0.67
  EXPECT_EQ(Support(options, LogitsOf({0.4, 0.2, 0.2, 0.2})), (std::set<TokenId>{0}));
}

TEST(Sampler, MinPIsRelativeToTheMostLikely) {
  SamplerOptions options;
  options.temperature = 1.0F;
  const Logits logits = LogitsOf({0.1, 0.5, 0.3, 0.1});
  options.min_p = 0.5F;
  EXPECT_EQ(Support(options, logits), (std::set<TokenId>{1, 2}));
  options.min_p = 1.0F;
  EXPECT_EQ(Support(options, logits), (std::set<TokenId>{1}));
  options.min_p = 0.1F;
  EXPECT_EQ(Support(options, logits).size(), 4U);
}

TEST(Sampler, PenaltyCountsATokenOnceAndOnlyInTheWindow) {
  SamplerOptions options;
  options.repetition_penalty = 2.0F;
  options.repetition_window = 2;
  const Logits logits = {3.0F, 2.0F, 1.0F};
  EXPECT_EQ(SampleOne(options, logits, {}), 0);
  EXPECT_EQ(SampleOne(options, logits, {0}), 1);           // 1.5, 2, 1
  EXPECT_EQ(SampleOne(options, logits, {0, 2, 2}), 0);     // 0 is out of the window
  EXPECT_EQ(SampleOne(options, {3.9F, 1.0F}, {0, 0}), 0);  // 1.95, not 0.975
  EXPECT_EQ(SampleOne(options, {-1.0F, -1.5F}, {0}), 1);   // a negative logit falls, too: -2
  options.repetition_window = 0;
  EXPECT_EQ(SampleOne(options, logits, {0}), 0);
}

TEST(Sampler, PenaltyOfOneCallDoesNotReachTheNext) {
  SamplerOptions options;
  options.repetition_penalty = 2.0F;
  Sampler sampler(options);
  const std::vector<TokenId> said = {0};
  for (int i = 0; i < 3; ++i) {
    Logits logits = {3.0F, 2.0F};
    EXPECT_EQ(*sampler.Sample(logits, said, 0), 1);
    logits = {3.0F, 2.0F};
    EXPECT_EQ(*sampler.Sample(logits, {}, 0), 0);
  }
}

TEST(Sampler, SameSeedSameTokensOtherSeedOrStreamOthers) {
  SamplerOptions options;
  options.temperature = 1.0F;
  const auto draw = [](SamplerOptions sampler_options, uint32_t stream) {
    std::vector<TokenId> ids;
    for (int i = 0; i < 40; ++i) ids.push_back(SampleOne(sampler_options, Logits(50, 0.0F), ids, stream));
    return ids;
  };
  options.seed = 1;
  const auto first = draw(options, 0);
  EXPECT_EQ(first, draw(options, 0));
  EXPECT_NE(first, draw(options, 1));
  options.seed = 2;
  EXPECT_NE(first, draw(options, 0));
}

TEST(Sampler, DrawsAreTheSameOnEveryMachine) {
  EXPECT_EQ(UniformAt(42, 3, 7), 0.3901323464672538);
  SamplerOptions options;
  options.temperature = 0.8F;
  options.top_k = 20;
  options.top_p = 0.95F;
  options.seed = 42;
  Logits logits(100);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>((i * 37) % 100) / 16.0F;
  std::vector<TokenId> ids;
  for (int i = 0; i < 8; ++i) ids.push_back(SampleOne(options, logits, ids));
  EXPECT_EQ(ids, (std::vector<TokenId>{62, 89, 81, 35, 97, 5, 62, 62}));
}

TEST(Sampler, UniformsAreUniformAndIndependentOfTheirNeighbours) {
  constexpr int kBins = 16;
  for (const bool across_streams : {false, true}) {
    std::vector<double> counts(kBins * kBins, 0.0);
    double before = 0.5;
    for (uint64_t i = 0; i < 100000; ++i) {
      const double u = across_streams ? UniformAt(3, i, 5) : UniformAt(3, 5, i);
      ASSERT_GE(u, 0.0);
      ASSERT_LT(u, 1.0);
      counts[static_cast<size_t>(before * kBins) * kBins + static_cast<size_t>(u * kBins)] += 1.0;
      before = u;
    }
    const std::vector<double> p(counts.size(), 1.0 / static_cast<double>(counts.size()));
    EXPECT_LT(ChiSquare(counts, p), 330.5);  // 0.1 %, 255 degrees
  }
}

TEST(Sampler, LogitsThatAreNotFiniteAreADeviceError) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    Sampler sampler({});
    Logits logits = {0.0F, bad, 1.0F};
    const auto id = sampler.Sample(logits, {}, 0);
    ASSERT_FALSE(id.ok());
    EXPECT_EQ(id.status().code(), StatusCode::kDevice);
    EXPECT_NE(id.status().message().find("token 1"), std::string::npos) << id.status().message();
  }
}

TEST(Sampler, LargeFiniteLogitsDoNotOverflow) {
  SamplerOptions options;
  options.temperature = 1.0F;
  options.repetition_penalty = 100.0F;
  const std::vector<TokenId> said = {0};
  EXPECT_EQ(SampleOne(options, {-3e38F, 3e38F}, said), 1);
}

TEST(Sampler, OptionsOutOfRangeAreNamed) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto message = [](auto change) {
    SamplerOptions options;
    change(options);
    const Status status = CheckSamplerOptions(options);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_NE(message([](auto& o) { o.temperature = -1.0F; }).find("temperature"), std::string::npos);
  EXPECT_NE(message([=](auto& o) { o.temperature = nan; }).find("temperature"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.top_p = 1.5F; }).find("top_p"), std::string::npos);
  EXPECT_NE(message([=](auto& o) { o.min_p = nan; }).find("min_p"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.repetition_penalty = 0.0F; }).find("repetition_penalty"),
            std::string::npos);
  EXPECT_TRUE(CheckSamplerOptions({}).ok());
}

}  // namespace
}  // namespace kvrun
