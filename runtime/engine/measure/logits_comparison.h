// How much what a method predicts differs from what full KV does, step by step.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "runtime/model/tokenizer.h"

namespace kvrun {

class LogitsComparison {
 public:
  static constexpr size_t kParts = 8;

  explicit LogitsComparison(uint32_t n_steps) : n_steps_(n_steps) {}

  // Logits of the next step, float [n_vocab] each; `next`: the id that follows in the text.
  void Add(std::span<const float> full, std::span<const float> own, std::optional<TokenId> next);

  // Of the steps so far.
  double kl_mean() const;  // KL(full || method), nats
  // The standard error of kl_mean, as if steps did not depend on each other; 0 of fewer than two.
  double kl_error() const;
  // Means over the first eighth of n_steps, the second, and so on: whether a method drifts away. A part
  // without a step is 0.
  std::array<double, kParts> kl_parts() const;
  double top1_agreement() const;  // the share of steps with the same first choice
  // Perplexity on the ids that follow; 1 where there are none.
  double ppl() const;
  double ppl_full() const;

 private:
  uint32_t n_steps_;
  uint32_t n_ = 0;
  double kl_sum_ = 0.0;
  double kl_squares_ = 0.0;
  std::array<double, kParts> part_sums_ = {};
  std::array<uint32_t, kParts> part_counts_ = {};
  uint32_t n_same_ = 0;
  uint32_t n_next_ = 0;
  double nll_ = 0.0;
  double nll_full_ = 0.0;
};

}  // namespace kvrun
