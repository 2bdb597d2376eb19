#include "offline/quality_model.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace kvrun::offline {
namespace {

// What is believed before anything is measured: how much log KL changes with a term, and how sure that is.
// From measurements on SmolLM2-135M at 1/13 and 1/34 (docs/measurements/kvswap-settings.md).
struct Belief {
  double mean;
  double deviation;
};
constexpr std::array kBeliefs = {
    Belief{-3.0, 3.0},   // constant
    Belief{-0.6, 0.3},   // per doubling of the entries
    Belief{0.2, 0.2},    // per doubling of the group
    Belief{-0.4, 0.3},   // per doubling of the rank
    Belief{-0.03, 0.1},  // int8 index, over int4
    Belief{-0.03, 0.1},  // f16 index
    Belief{-0.3, 0.3},   // each KV head its own groups
    Belief{-0.05, 0.1},  // per doubling of the window
    Belief{0.05, 0.1},   // K int8, over f16
    Belief{0.1, 0.15},   // K fp8
    Belief{0.3, 0.3},    // K int4
    Belief{0.05, 0.1},   // V int8
    Belief{0.1, 0.15},   // V fp8
    Belief{0.2, 0.3},    // V int4
    Belief{0.05, 0.15},  // adapters from a file
    Belief{-0.2, 0.2},   // a static set of a quarter
    Belief{-0.3, 0.2},   // a sample in place of 0.4 of what is selected
    Belief{0.3, 0.3},    // fewer are selected where reads are late
    Belief{0.1, 0.15},   // half the reads of the quarter of the selection that a step misses
};
constexpr size_t kTerms = kBeliefs.size();
// Of a measured log KL around the sum.
constexpr double kNoise = 0.06;

uint32_t AttendedEntries(const KvPlan& plan) {
  return plan.selected_entries() + plan.choice.n_sampled * plan.record.group_tokens;
}

std::array<double, kTerms> Terms(const SizedCandidate& sized) {
  const Candidate& c = sized.candidate;
  const auto is = [](bool value) { return value ? 1.0 : 0.0; };
  return {1.0,
          std::log2(std::max(AttendedEntries(sized.plan), 1U) / 256.0),
          std::log2(c.group_tokens / 4.0),
          std::log2(c.rank / 16.0),
          is(c.index_type == KvType::kInt8),
          is(c.index_type == KvType::kF16),
          is(c.heads == HeadReduction::kPerKvHead),
          std::log2(c.window_entries / 48.0),
          is(c.k_type == KvType::kInt8),
          is(c.k_type == KvType::kFp8),
          is(c.k_type == KvType::kInt4),
          is(c.v_type == KvType::kInt8),
          is(c.v_type == KvType::kFp8),
          is(c.v_type == KvType::kInt4),
          is(!c.adapter.empty()),
          is(c.static_share > 0.0),
          is(c.sampled_share > 0.0),
          is(c.adapts),
          c.reads_percent < 100 ? std::log2(25.0 / std::max(c.reads_percent, 1U)) : 0.0};
}

// L of a positive definite L L^T, in its place; solves with it.
void Decompose(std::vector<double>* matrix) {
  std::vector<double>& a = *matrix;
  for (size_t j = 0; j < kTerms; ++j) {
    for (size_t k = 0; k < j; ++k) a[j * kTerms + j] -= a[j * kTerms + k] * a[j * kTerms + k];
    a[j * kTerms + j] = std::sqrt(a[j * kTerms + j]);
    for (size_t i = j + 1; i < kTerms; ++i) {
      for (size_t k = 0; k < j; ++k) a[i * kTerms + j] -= a[i * kTerms + k] * a[j * kTerms + k];
      a[i * kTerms + j] /= a[j * kTerms + j];
    }
  }
}

// L^-1 b.
std::array<double, kTerms> Forward(const std::vector<double>& lower, const double* b) {
  std::array<double, kTerms> x{};
  for (size_t i = 0; i < kTerms; ++i) {
    x[i] = b[i];
    for (size_t k = 0; k < i; ++k) x[i] -= lower[i * kTerms + k] * x[k];
    x[i] /= lower[i * kTerms + i];
  }
  return x;
}

}  // namespace

QualityModel::QualityModel() : precision_(kTerms * kTerms), shift_(kTerms), mean_(kTerms) {
  for (size_t i = 0; i < kTerms; ++i) {
    const double precision = 1.0 / (kBeliefs[i].deviation * kBeliefs[i].deviation);
    precision_[i * kTerms + i] = precision;
    shift_[i] = precision * kBeliefs[i].mean;
  }
  Solve();
}

void QualityModel::Solve() {
  cholesky_ = precision_;
  Decompose(&cholesky_);
  const std::array<double, kTerms> half = Forward(cholesky_, shift_.data());
  for (size_t i = kTerms; i-- > 0;) {
    mean_[i] = half[i];
    for (size_t k = i + 1; k < kTerms; ++k) mean_[i] -= cholesky_[k * kTerms + i] * mean_[k];
    mean_[i] /= cholesky_[i * kTerms + i];
  }
}

void QualityModel::Add(const SizedCandidate& candidate, double kl) {
  const std::array<double, kTerms> terms = Terms(candidate);
  const double value = std::log(std::max(kl, 1e-9));
  for (size_t i = 0; i < kTerms; ++i) {
    shift_[i] += terms[i] * value / (kNoise * kNoise);
    for (size_t j = 0; j < kTerms; ++j) precision_[i * kTerms + j] += terms[i] * terms[j] / (kNoise * kNoise);
  }
  Solve();
}

GuessedKl QualityModel::Guess(const SizedCandidate& candidate) const {
  const std::array<double, kTerms> terms = Terms(candidate);
  GuessedKl guess;
  for (size_t i = 0; i < kTerms; ++i) guess.log_mean += terms[i] * mean_[i];
  const std::array<double, kTerms> half = Forward(cholesky_, terms.data());
  double variance = kNoise * kNoise;
  for (const double value : half) variance += value * value;
  guess.log_deviation = std::sqrt(variance);
  return guess;
}

}  // namespace kvrun::offline
