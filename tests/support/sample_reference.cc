#include "tests/support/sample_reference.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvrun::testing {
namespace {

constexpr double kLeast = 1.0 / 1024;
constexpr double kUnit = 0x1p-18;    // probabilities are whole numbers of it
constexpr double kTolerance = 1e-4;  // of sums in floats, relative

double SumOf(std::span<const double> values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum;
}

// sum of min(1, factor * root) = n, as near as that goes.
double FactorOf(std::span<const double> roots, double n) {
  double low = 0.0;
  double high = 1e12;
  for (int i = 0; i < 200; ++i) {
    const double middle = i < 100 && low > 0.0 ? std::sqrt(low * high) : (low + high) / 2;
    double sum = 0.0;
    for (const double root : roots) sum += std::min(1.0, middle * root);
    (sum < n ? low : high) = middle;
  }
  return high;
}

}  // namespace

std::vector<double> SampleProbabilities(std::span<const double> scores, std::span<const uint32_t> chosen,
                                        uint32_t n_sampled) {
  std::vector<double> roots;
  for (size_t g = 0; g < scores.size(); ++g) {
    const bool is_chosen = std::binary_search(chosen.begin(), chosen.end(), static_cast<uint32_t>(g));
    roots.push_back(is_chosen ? -1.0 : std::sqrt(std::max(scores[g], 0.0)));
  }
  const auto n_others = scores.size() - chosen.size();
  std::vector<double> others;
  for (const double root : roots) {
    if (root >= 0.0) others.push_back(root);
  }
  const double factor = FactorOf(others, n_sampled);
  std::vector<double> probabilities(roots.size());
  for (size_t g = 0; g < roots.size(); ++g) {
    if (roots[g] < 0.0) continue;
    probabilities[g] = n_others <= n_sampled ? 1.0 : std::clamp(factor * roots[g], kLeast, 1.0);
  }
  const double sum = SumOf(probabilities);
  if (n_others > n_sampled && sum > n_sampled) {
    for (double& probability : probabilities) probability *= n_sampled / sum;
  }
  return probabilities;
}

::testing::AssertionResult IsSample(std::span<const double> scores, const ChoiceList& shape, double offset,
                                    std::span<const uint32_t> list) {
  const auto fail = [] { return ::testing::AssertionFailure(); };
  const std::vector<double> expected = SampleProbabilities(scores, list.subspan(1, list[0]), shape.n_sampled);
  const std::span<const uint32_t> sampled = list.subspan(shape.sampled_begin());
  const std::span<const uint32_t> biases = list.subspan(shape.biases_begin());
  if (sampled[0] > shape.most_sampled()) return fail() << sampled[0] << " groups are too many";
  std::vector<double> sums;  // after each group
  for (const double probability : expected) sums.push_back((sums.empty() ? 0.0 : sums.back()) + probability);
  const bool takes_all = scores.size() - list[0] <= shape.n_sampled;
  if (takes_all) offset = 0.0;
  const auto tolerance = [&](size_t group) {
    return 2 * kUnit * static_cast<double>(group + 1) + kTolerance * sums[group];
  };
  for (uint32_t i = 0; i < sampled[0]; ++i) {
    const uint32_t group = sampled[1 + i];
    if (group >= scores.size() || (i > 0 && group <= sampled[i])) return fail() << "group " << group;
    if (expected[group] == 0.0) return fail() << "group " << group << " is chosen";
    const double found = std::exp(-std::bit_cast<float>(biases[i]));
    if (!(std::abs(found - expected[group]) <= 2 * kUnit + kTolerance * expected[group])) {
      return fail() << "group " << group << " has the probability " << found << ", not " << expected[group];
    }
    const double cut = offset + i;
    const double before = sums[group] - expected[group];
    if (cut < before - tolerance(group) || cut > sums[group] + tolerance(group)) {
      return fail() << "draw " << i << " at " << cut << " is group " << group << ", from " << before << " to "
                    << sums[group];
    }
  }
  if (scores.empty()) {
    return sampled[0] == 0 ? ::testing::AssertionSuccess() : fail() << sampled[0] << " groups of none";
  }
  // The next cut is beyond the end.
  if (offset + sampled[0] < sums.back() - tolerance(scores.size() - 1)) {
    return fail() << sampled[0] << " groups are too few for a sum of " << sums.back();
  }
  return ::testing::AssertionSuccess();
}

}  // namespace kvrun::testing
