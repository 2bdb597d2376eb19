// Cases of scoring and choosing groups by an index: inputs, and what a device must answer by the scalar
// reference.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/device/self_test_run.h"
#include "shaders/shared/step_params.h"
#include "tests/support/index_reference.h"

namespace kvrun::testing {

inline constexpr uint32_t kLargestWeight = 7;
inline constexpr HeadReduction kReductions[] = {HeadReduction::kSum, HeadReduction::kSoftmax,
                                                HeadReduction::kGqa, HeadReduction::kPerKvHead};

struct ScoreCase {
  IndexShape index;
  uint32_t n_heads = 0;
  uint32_t n_kv_heads = 0;
  uint32_t head_dim = 0;
  HeadReduction reduction = HeadReduction::kSoftmax;
  uint32_t window_tokens = 0;
  uint32_t n_pinned = 0;
  uint32_t n_chosen = 0;
  bool norms = false;
  bool halves = false;
  bool rotates_all = false;  // of a head; else half of it
  ChoiceRule rule = {};      // by weight: without a buffer, groups weigh 0 to kLargestWeight, by chance
  uint32_t most_chosen = 0;  // of the step, where it is less than n_chosen; 0: no less
  QueryForm query_form = QueryForm::kProjected;
  float score_scale = 0.0F;    // as in AttentionArgs
  uint32_t distinct_rows = 0;  // index rows repeat after so many; 0: they do not
  std::vector<StepToken> tokens;

  uint32_t rotary_dim() const { return rotates_all ? head_dim : head_dim / 4 * 2; }
  size_t query_side_rows() const {
    return size_t{n_kv_heads} * head_dim + (query_form == QueryForm::kAffine ? 1 : 0);
  }
  size_t lists_of_token() const { return reduction == HeadReduction::kPerKvHead ? n_kv_heads : 1; }
  size_t n_lists() const { return tokens.size() * lists_of_token(); }
  uint32_t n_wanted() const { return most_chosen == 0 ? n_chosen : std::min(most_chosen, n_chosen); }
  ChoiceList choice_list() const { return ChoiceListOf(rule, n_chosen); }
};

template <typename T>
std::vector<T> Download(SelfTestRun& run, const Buffer* buffer, size_t count) {
  std::vector<T> values(count);
  const std::vector<std::byte> bytes = run.Bytes(buffer, count * sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// Inputs of a case, on the host and on the device.
struct ScoreInputs {
  ScoreInputs(SelfTestRun& run, const ScoreCase& c);

  // Of a list's groups.
  std::span<const uint32_t> WeightsOf(const ScoreCase& c, size_t list) const {
    const size_t per_token = c.lists_of_token();
    const size_t of_sequence = c.tokens[list / per_token].sequence * per_token + list % per_token;
    return std::span(weights).subspan(of_sequence * c.index.n_groups, c.index.n_groups);
  }

  std::vector<float> query;
  std::vector<float> angles;
  std::vector<float> norms;
  std::vector<float> query_side;
  std::vector<float> scales;
  std::vector<uint32_t> index;
  std::vector<uint32_t> weights;  // as ChooseByWeight::weights
  ScoreReferenceArgs reference;
  ScoreArgs args;
  size_t scratch_words = 0;
};

// The lists that were chosen, and the scores they follow from where a device keeps them.
void ExpectChoice(SelfTestRun& run, const ScoreCase& c, const ScoreInputs& inputs);

// Runs a case once, and expects its choice.
void CheckScore(Device& device, const ScoreCase& c);

// The CPU's choice with one thread is that with several.
void ExpectSameForAnyThreads(const ScoreCase& c);

}  // namespace kvrun::testing
