// From logits to a token.
//
// Order: biases, repetition penalty, presence and frequency penalties, then with temperature 0 the largest
// logit (the lowest id of equals); else top-k, softmax at the temperature, top-p of what top-k left, min-p,
// and one draw.
//
// The draw is a pure function of seed, stream and position (a counter-based generator), so the same seed
// gives the same text however generation is split into calls, and each sequence of a batch has its own
// stream. Candidates are walked in one defined order and sums are in double precision, so that machines
// agree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/model/tokenizer.h"

namespace kvrun {

struct LogitBias {
  TokenId id = 0;
  float bias = 0.0F;  // -100 to 100, added to its logit
};

struct SamplerOptions {
  float temperature = 0.0F;  // 0: greedy
  uint32_t top_k = 0;        // 0: off
  float top_p = 1.0F;        // 1: off; 0 keeps the most likely token
  float min_p = 0.0F;        // 0: off; keeps what has at least this share of the most likely's probability
  float repetition_penalty = 1.0F;  // 1: off; divides positive logits, multiplies negative ones
  uint32_t repetition_window = 64;  // tokens of the sequence that count as said, for all penalties
  uint64_t seed = 0;
  // Taken off the logit of a token that was generated, not fed: once, and for each time.
  float presence_penalty = 0.0F;   // 0: off
  float frequency_penalty = 0.0F;  // 0: off
  std::vector<LogitBias> logit_bias = {};
};

// Names the option that is out of range and its range.
Status CheckSamplerOptions(const SamplerOptions& options);

// Uniform in [0, 1), independent for each seed, stream and position.
double UniformAt(uint64_t seed, uint64_t stream, uint64_t position);

// kDevice where one is not: what the device or the model computes wrongly says nothing.
Status CheckFinite(std::span<const float> logits);

// Serves any number of sequences, one thread at a time. Allocates for the first token only.
class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options) : options_(options) {}

  // Of what is sampled from here on.
  void SetOptions(const SamplerOptions& options) { options_ = options; }

  // history: the sequence's tokens so far, prompt included, of which the last n_generated were generated.
  // logits is scratch afterwards. kDevice if a logit is not finite.
  Result<TokenId> Sample(std::span<float> logits, std::span<const TokenId> history, uint32_t stream,
                         size_t n_generated = 0);

 private:
  struct Candidate {
    double weight = 0.0;
    float logit = 0.0F;
    TokenId id = 0;
  };

  static bool ComesFirst(const Candidate& a, const Candidate& b);
  // Begins a walk over tokens: none is marked.
  void ClearMarks(size_t n_vocab);
  // False where the token was marked in this walk, or is none.
  bool Mark(TokenId id, size_t n_vocab);
  void AddBiases(std::span<float> logits) const;
  void PenalizeRepetition(std::span<float> logits, std::span<const TokenId> said);
  void PenalizeGenerated(std::span<float> logits, std::span<const TokenId> generated);
  void CollectCandidates(std::span<const float> logits);
  void KeepTopK();
  void Weigh();
  void KeepTopP();
  void KeepMinP();
  TokenId Draw(double uniform) const;

  SamplerOptions options_;
  std::vector<Candidate> candidates_;
  size_t n_sorted_ = 0;              // candidates_ up to here are in order, and before all others
  std::vector<uint32_t> marked_at_;  // [n_vocab]: the last walk that met the token
  uint32_t walk_ = 0;
};

}  // namespace kvrun
