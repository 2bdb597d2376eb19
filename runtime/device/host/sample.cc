// Draws groups from those that were not chosen: systematic sampling (shaders/shared/sample_params.h).
#include <algorithm>
#include <bit>
#include <cmath>

#include "runtime/device/host/score.h"
#include "shaders/shared/sample_params.h"

namespace kvrun::host {
namespace {

// Calls visit(group) for the groups below n_groups that are not chosen, in order.
template <typename Visit>
void ForOthers(const uint32_t* choice, uint32_t n_groups, const Visit& visit) {
  const uint32_t* next = choice + 1;
  const uint32_t* const end = next + choice[0];
  for (uint32_t group = 0; group < n_groups; ++group) {
    if (next != end && *next == group) {
      ++next;
    } else {
      visit(group);
    }
  }
}

// What probabilities are in proportion to. NaNs count as nothing.
float RootOf(float score) { return std::sqrt(std::max(0.0F, score)); }

// A group's probability is its root times this, where that is less than one.
float FactorOf(const float* scores, uint32_t n_groups, const uint32_t* choice, uint32_t n_sampled) {
  float factor = 0.0F;
  uint32_t n_sure_before = UINT32_MAX;
  for (uint32_t round = 0; round < KVRUN_SAMPLE_ROUNDS; ++round) {
    uint32_t n_sure = 0;
    float rest = 0.0F;
    ForOthers(choice, n_groups, [&](uint32_t group) {
      const float root = RootOf(scores[group]);
      const bool is_sure = root * factor >= 1.0F;
      n_sure += is_sure ? 1 : 0;
      rest += is_sure ? 0.0F : root;
    });
    if (n_sure == n_sure_before || n_sure >= n_sampled || !(rest > 0.0F)) break;
    n_sure_before = n_sure;
    factor = static_cast<float>(n_sampled - n_sure) / rest;
  }
  return factor;
}

uint32_t UnitsOf(float root, float factor) {
  const float units = root * factor * static_cast<float>(KVRUN_SAMPLE_UNIT);
  // Written so that NaN is the least.
  if (!(units >= static_cast<float>(KVRUN_LEAST_SAMPLE_UNITS))) return KVRUN_LEAST_SAMPLE_UNITS;
  return static_cast<uint32_t>(std::min(units, static_cast<float>(KVRUN_SAMPLE_UNIT)));
}

}  // namespace

void SampleGroups(const float* scores, uint32_t n_groups, const ChoiceList& list, uint32_t offset,
                  uint32_t* choice) {
  uint32_t* const sampled = choice + list.sampled_begin();
  uint32_t* const biases = choice + list.biases_begin();
  uint32_t n = 0;
  if (n_groups - choice[0] <= list.n_sampled) {
    ForOthers(choice, n_groups, [&](uint32_t group) {
      sampled[1 + n] = group;
      biases[n++] = std::bit_cast<uint32_t>(0.0F);
    });
    sampled[0] = n;
    return;
  }
  const float factor = FactorOf(scores, n_groups, choice, list.n_sampled);
  uint32_t all = 0;
  ForOthers(choice, n_groups, [&](uint32_t group) { all += UnitsOf(RootOf(scores[group]), factor); });
  // The least probabilities may make the sum too large: all are made smaller then.
  const float wanted = static_cast<float>(list.n_sampled) * static_cast<float>(KVRUN_SAMPLE_UNIT);
  const float share = std::min(1.0F, wanted / static_cast<float>(all));
  uint32_t sum = 0;
  ForOthers(choice, n_groups, [&](uint32_t group) {
    const auto units = std::max(
        1U, static_cast<uint32_t>(static_cast<float>(UnitsOf(RootOf(scores[group]), factor)) * share));
    const uint32_t draws = DrawsBefore(sum, offset);
    sum += units;
    if (DrawsBefore(sum, offset) == draws || n == list.most_sampled()) return;
    sampled[1 + n] = group;
    biases[n++] =
        std::bit_cast<uint32_t>(std::log(static_cast<float>(KVRUN_SAMPLE_UNIT) / static_cast<float>(units)));
  });
  sampled[0] = n;
}

}  // namespace kvrun::host
