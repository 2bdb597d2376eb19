#include "runtime/engine/measure/logits_comparison.h"

#include <algorithm>
#include <cmath>

namespace kvrun {
namespace {

double LogSumExp(std::span<const float> row) {
  const double maximum = *std::max_element(row.begin(), row.end());
  double sum = 0.0;
  for (const float value : row) sum += std::exp(value - maximum);
  return maximum + std::log(sum);
}

size_t ArgMax(std::span<const float> row) {
  return static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

}  // namespace

void LogitsComparison::Add(std::span<const float> full, std::span<const float> own,
                           std::optional<TokenId> next) {
  const double log_full = LogSumExp(full);
  const double log_own = LogSumExp(own);
  double kl = 0.0;
  for (size_t i = 0; i < full.size(); ++i) {
    const double log_p = full[i] - log_full;
    kl += std::exp(log_p) * (log_p - (own[i] - log_own));
  }
  const size_t part = std::min(kParts - 1, size_t{n_} * kParts / std::max(n_steps_, 1U));
  kl_sum_ += kl;
  kl_squares_ += kl * kl;
  part_sums_[part] += kl;
  ++part_counts_[part];
  ++n_;
  n_same_ += ArgMax(full) == ArgMax(own) ? 1 : 0;
  if (!next) return;
  nll_ += log_own - own[static_cast<size_t>(*next)];
  nll_full_ += log_full - full[static_cast<size_t>(*next)];
  ++n_next_;
}

double LogitsComparison::kl_mean() const { return kl_sum_ / std::max(n_, 1U); }

double LogitsComparison::kl_error() const {
  if (n_ < 2) return 0.0;
  const double variance = std::max(0.0, kl_squares_ / n_ - kl_mean() * kl_mean());
  return std::sqrt(variance / (n_ - 1));
}

std::array<double, LogitsComparison::kParts> LogitsComparison::kl_parts() const {
  std::array<double, kParts> means = {};
  for (size_t i = 0; i < kParts; ++i) means[i] = part_sums_[i] / std::max(part_counts_[i], 1U);
  return means;
}

double LogitsComparison::top1_agreement() const { return static_cast<double>(n_same_) / std::max(n_, 1U); }

double LogitsComparison::ppl() const { return std::exp(nll_ / std::max(n_next_, 1U)); }

double LogitsComparison::ppl_full() const { return std::exp(nll_full_ / std::max(n_next_, 1U)); }

}  // namespace kvrun
