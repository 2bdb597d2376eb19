#include "runtime/kv/replay/reuse_rates.h"

#include <algorithm>
#include <cmath>

#include "platform/base/check.h"

namespace kvrun {

double ReuseRateOf(const ReuseTrace& trace, const ReplacementPolicy& policy, uint32_t n_slots,
                   uint32_t n_warm_up) {
  uint64_t n_chosen = 0;
  uint64_t n_hits = 0;
  for (const auto& steps : trace.streams) {
    uint32_t n_extents = 0;
    for (const auto& chosen : steps) n_extents = std::max(n_extents, chosen.empty() ? 0 : chosen.back() + 1);
    SlotCache slots({.n_slots = n_slots, .max_chosen = trace.n_chosen, .n_extents = n_extents}, &policy);
    for (size_t step = 0; step < steps.size(); ++step) {
      // Pinned groups are chosen in every step: their slots are never given up, and change nothing else.
      const auto first = std::lower_bound(steps[step].begin(), steps[step].end(), trace.n_pinned);
      const SlotCache::PlanResult plan = slots.Plan({first, steps[step].end()});
      if (step < n_warm_up) continue;
      n_chosen += plan.slots.size() + plan.rest.size();
      n_hits += plan.hits;
    }
  }
  return n_chosen == 0 ? 0.0 : static_cast<double>(n_hits) / static_cast<double>(n_chosen);
}

std::vector<ReuseRate> ReuseRatesOf(const ReuseTrace& trace, std::span<const double> factors,
                                    uint32_t n_warm_up) {
  std::vector<uint32_t> capacities;
  for (const double factor : factors) {
    KVRUN_CHECK(factor >= 1.0);
    const auto capacity = static_cast<uint32_t>(std::lround(factor * trace.n_chosen));
    if (capacity > std::max(trace.n_groups, trace.n_chosen)) continue;
    if (capacities.empty() || capacities.back() != capacity) capacities.push_back(capacity);
  }
  std::vector<ReuseRate> rates;
  for (const ReplacementPolicy& policy : ReplacementPolicies()) {
    if (policy.goes_by_changes) continue;  // groups are all alike: it is lfu, but for ties
    for (const uint32_t capacity : capacities) {
      if (policy.needs_equal_capacity && capacity != trace.n_chosen) continue;
      rates.push_back({.policy = std::string(policy.name),
                       .group_tokens = trace.group_tokens,
                       .select_entries = trace.n_chosen * trace.group_tokens,
                       .n_ctx = trace.n_ctx + n_warm_up,
                       .reuse_groups = capacity,
                       .rate = static_cast<float>(ReuseRateOf(trace, policy, capacity, n_warm_up))});
    }
  }
  return rates;
}

}  // namespace kvrun
