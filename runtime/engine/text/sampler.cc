#include "runtime/engine/text/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvrun {
namespace {

constexpr float kMinPenalty = 0.01F;
constexpr float kMaxPenalty = 100.0F;
constexpr float kMostTakenOff = 100.0F;  // of a logit; negative: added

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014), whose k-th output is Mix(state + k * kGolden).
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15U;
constexpr uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

bool InRange(float value, float low, float high) { return value >= low && value <= high; }  // false for NaN

Status OutOfRange(const char* option, float value, const char* range) {
  return Status(StatusCode::kInvalidArgument, fmt::format("{} is {}; it must be {}", option, value, range));
}

// Finite, whatever was done to it.
float Bounded(float logit) {
  const float most = std::numeric_limits<float>::max();
  return std::clamp(logit, -most, most);
}

TokenId ArgMax(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace

Status CheckFinite(std::span<const float> logits) {
  const auto bad = std::find_if_not(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); });
  if (bad == logits.end()) return Status::Ok();
  return Status(
      StatusCode::kDevice,
      fmt::format("the device computed {} as the logit of token {}: the model file is damaged or the "
                  "driver computes wrongly; `kvrun doctor` tests the device",
                  *bad, bad - logits.begin()));
}

Status CheckSamplerOptions(const SamplerOptions& options) {
  const float most = std::numeric_limits<float>::max();
  if (!InRange(options.temperature, 0.0F, most)) {
    return OutOfRange("temperature", options.temperature, "0 (greedy) or more");
  }
  if (!InRange(options.top_p, 0.0F, 1.0F)) return OutOfRange("top_p", options.top_p, "from 0 to 1 (off)");
  if (!InRange(options.min_p, 0.0F, 1.0F)) return OutOfRange("min_p", options.min_p, "from 0 (off) to 1");
  if (!InRange(options.repetition_penalty, kMinPenalty, kMaxPenalty)) {
    return OutOfRange("repetition_penalty", options.repetition_penalty, "from 0.01 to 100; 1 is off");
  }
  if (!InRange(options.presence_penalty, -kMostTakenOff, kMostTakenOff)) {
    return OutOfRange("presence_penalty", options.presence_penalty, "from -100 to 100; 0 is off");
  }
  if (!InRange(options.frequency_penalty, -kMostTakenOff, kMostTakenOff)) {
    return OutOfRange("frequency_penalty", options.frequency_penalty, "from -100 to 100; 0 is off");
  }
  for (const LogitBias& one : options.logit_bias) {
    if (!InRange(one.bias, -kMostTakenOff, kMostTakenOff))
      return OutOfRange("logit_bias", one.bias, "from -100 to 100; 0 is off");
  }
  return Status::Ok();
}

double UniformAt(uint64_t seed, uint64_t stream, uint64_t position) {
  const uint64_t state = Mix(Mix(seed + kGolden) + (stream + 1) * 0xD1342543DE82EF95U);
  return static_cast<double>(Mix(state + (position + 1) * kGolden) >> 11) * 0x1.0p-53;
}

Result<TokenId> Sampler::Sample(std::span<float> logits, std::span<const TokenId> history, uint32_t stream,
                                size_t n_generated) {
  KVRUN_RETURN_IF_ERROR(CheckFinite(logits));
  if (!options_.logit_bias.empty()) AddBiases(logits);
  const auto said = history.last(std::min<size_t>(options_.repetition_window, history.size()));
  if (options_.repetition_penalty != 1.0F) PenalizeRepetition(logits, said);
  if (options_.presence_penalty != 0.0F || options_.frequency_penalty != 0.0F) {
    PenalizeGenerated(logits, said.last(std::min(n_generated, said.size())));
  }
  if (options_.temperature == 0.0F) return ArgMax(logits);
  CollectCandidates(logits);
  KeepTopK();
  Weigh();
  if (options_.top_p < 1.0F) KeepTopP();
  KeepMinP();
  return Draw(UniformAt(options_.seed, stream, history.size()));
}

bool Sampler::ComesFirst(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

void Sampler::ClearMarks(size_t n_vocab) {
  if (marked_at_.size() < n_vocab) marked_at_.resize(n_vocab, 0);
  if (++walk_ != 0) return;
  std::fill(marked_at_.begin(), marked_at_.end(), 0U);  // wrapped: old marks would look new
  walk_ = 1;
}

bool Sampler::Mark(TokenId id, size_t n_vocab) {
  const auto index = static_cast<size_t>(id);
  if (id < 0 || index >= n_vocab || marked_at_[index] == walk_) return false;
  marked_at_[index] = walk_;
  return true;
}

void Sampler::AddBiases(std::span<float> logits) const {
  for (const auto& [id, bias] : options_.logit_bias) {
    if (id < 0 || static_cast<size_t>(id) >= logits.size()) continue;
    float& logit = logits[static_cast<size_t>(id)];
    logit = Bounded(logit + bias);
  }
}

void Sampler::PenalizeRepetition(std::span<float> logits, std::span<const TokenId> said) {
  ClearMarks(logits.size());
  for (const TokenId id : said) {
    if (!Mark(id, logits.size())) continue;
    float& logit = logits[static_cast<size_t>(id)];
    const float penalty = options_.repetition_penalty;
    logit = Bounded(logit > 0.0F ? logit / penalty : logit * penalty);
  }
}

void Sampler::PenalizeGenerated(std::span<float> logits, std::span<const TokenId> generated) {
  ClearMarks(logits.size());
  for (const TokenId id : generated) {
    if (id < 0 || static_cast<size_t>(id) >= logits.size()) continue;
    const float once = Mark(id, logits.size()) ? options_.presence_penalty : 0.0F;
    float& logit = logits[static_cast<size_t>(id)];
    logit = Bounded(logit - once - options_.frequency_penalty);
  }
}

void Sampler::CollectCandidates(std::span<const float> logits) {
  candidates_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) candidates_[i] = {0.0, logits[i], static_cast<TokenId>(i)};
  n_sorted_ = 0;
}

void Sampler::KeepTopK() {
  if (options_.top_k == 0 || options_.top_k >= candidates_.size()) return;
  n_sorted_ = options_.top_k;
  const auto end_of_kept = candidates_.begin() + static_cast<std::ptrdiff_t>(n_sorted_);
  std::partial_sort(candidates_.begin(), end_of_kept, candidates_.end(), ComesFirst);
  candidates_.resize(n_sorted_);
}

// The largest weight is 1.
void Sampler::Weigh() {
  float largest = candidates_.front().logit;
  for (const Candidate& candidate : candidates_) largest = std::max(largest, candidate.logit);
  const double scale = 1.0 / static_cast<double>(options_.temperature);
  for (Candidate& candidate : candidates_) {
    const double below = static_cast<double>(candidate.logit) - static_cast<double>(largest);
    candidate.weight = below == 0.0 ? 1.0 : std::exp(below * scale);
  }
}

// Keeps the shortest prefix, in order, that holds top_p of the weight. Sorts only as far as it looks.
void Sampler::KeepTopP() {
  double total = 0.0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  const double needed = total * static_cast<double>(options_.top_p);
  double mass = 0.0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (i == n_sorted_) {
      n_sorted_ = std::min(candidates_.size(), std::max<size_t>(64, 4 * n_sorted_));
      std::partial_sort(candidates_.begin() + static_cast<std::ptrdiff_t>(i),
                        candidates_.begin() + static_cast<std::ptrdiff_t>(n_sorted_), candidates_.end(),
                        ComesFirst);
    }
    mass += candidates_[i].weight;
    if (mass >= needed) {
      candidates_.resize(i + 1);
      return;
    }
  }
}

void Sampler::KeepMinP() {
  if (options_.min_p == 0.0F) return;
  const auto least = static_cast<double>(options_.min_p);
  std::erase_if(candidates_, [least](const Candidate& candidate) { return candidate.weight < least; });
}

TokenId Sampler::Draw(double uniform) const {
  double total = 0.0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  const double target = uniform * total;
  double mass = 0.0;
  TokenId last_possible = candidates_.front().id;
  for (const Candidate& candidate : candidates_) {
    mass += candidate.weight;
    if (mass > target) return candidate.id;
    if (candidate.weight > 0.0) last_possible = candidate.id;
  }
  return last_possible;  // the product above was rounded up to the total
}

}  // namespace kvrun
