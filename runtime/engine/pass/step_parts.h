// Divides a step into what a device computes at once.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/engine/pass/forward_step.h"

namespace kvrun {

// One prompt, or rows that each attend by themselves, of different sequences.
struct StepPart {
  bool is_prompt = false;
  std::span<const StepRow> rows;
  size_t n_before = 0;   // rows of the step in parts before this one
  size_t n_of_step = 0;  // rows of all parts
};

class StepParts {
 public:
  // Computes a part; logits: float [outputs.size(), n_vocab], of the part's rows that `outputs` lists.
  using Compute =
      std::function<Status(const StepPart& part, std::span<const uint32_t> outputs, std::span<float> logits)>;

  explicit StepParts(uint32_t n_vocab) : n_vocab_(n_vocab) {}

  // Prompts first, in their order; then the first rows of all other spans, their second ones, and so on. Ends
  // with the first error. Nothing is copied where there is one part. `outputs` are rows of the step.
  Status Run(const ForwardStep& step, std::span<const uint32_t> outputs, std::span<float> logits,
             const Compute& compute);

 private:
  Status RunPart(const StepPart& part, std::span<const uint32_t> outputs, std::span<float> logits,
                 const Compute& compute);
  bool GatherRound(const ForwardStep& step, uint32_t round);

  uint32_t n_vocab_;
  // Of a part.
  std::vector<StepRow> rows_;
  std::vector<uint32_t> numbers_;  // of its rows in the step, ascending
  std::vector<uint32_t> outputs_;
  std::vector<size_t> places_;  // of its outputs among all
  std::vector<float> logits_;
};

}  // namespace kvrun
