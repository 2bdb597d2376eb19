#include "runtime/engine/text/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace kvrun {
namespace {

constexpr double kLeast = std::numeric_limits<float>::lowest();

}  // namespace

std::vector<TokenLogprob> LikeliestAnd(std::span<const float> logits, size_t n, TokenId taken) {
  const auto largest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  const double log_sum = largest + std::log(sum);
  const auto logprob_of = [&](TokenId id) {
    // Rounding may leave a little more than 0, and two floats may differ by more than a float holds.
    const double logprob = static_cast<double>(logits[static_cast<size_t>(id)]) - log_sum;
    return TokenLogprob{id, static_cast<float>(std::clamp(logprob, kLeast, 0.0))};
  };
  std::vector<TokenId> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto end = ids.begin() + static_cast<std::ptrdiff_t>(std::min(n, ids.size()));
  std::partial_sort(ids.begin(), end, ids.end(), [&](TokenId a, TokenId b) {
    const float logit_a = logits[static_cast<size_t>(a)];
    const float logit_b = logits[static_cast<size_t>(b)];
    return logit_a > logit_b || (logit_a == logit_b && a < b);
  });
  std::vector<TokenLogprob> likeliest;
  for (auto id = ids.begin(); id != end; ++id) likeliest.push_back(logprob_of(*id));
  likeliest.push_back(logprob_of(taken));
  return likeliest;
}

}  // namespace kvrun
