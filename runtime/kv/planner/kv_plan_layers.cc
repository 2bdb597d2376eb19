#include "runtime/kv/planner/kv_plan_layers.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace kvrun {
namespace {

constexpr int kRounds = 16;

// By shares, none above `most`: what that takes from some goes to the others, by their shares.
std::vector<double> Shared(std::span<const float> shares, double total, double most) {
  double scale = total / std::accumulate(shares.begin(), shares.end(), 0.0);
  for (int round = 0; round < kRounds; ++round) {
    double capped = 0.0;
    double open = 0.0;
    for (const float share : shares) {
      const bool is_capped = scale * share >= most;
      (is_capped ? capped : open) += is_capped ? most : share;
    }
    if (open <= 0.0) break;
    scale = std::max(total - capped, 0.0) / open;
  }
  std::vector<double> counts;
  for (const float share : shares) counts.push_back(std::min(scale * share, most));
  return counts;
}

// At least 1 each, and together no more than `total`, which is at least one for each.
std::vector<int64_t> Rounded(std::span<const double> counts, int64_t total) {
  std::vector<int64_t> rounded;
  double sum = 0.0;
  int64_t given = 0;
  int64_t all = 0;
  for (const double count : counts) {
    sum += count;
    const int64_t up_to_here = static_cast<int64_t>(std::floor(sum + 1e-6));
    rounded.push_back(std::max<int64_t>(up_to_here - given, 1));
    given = up_to_here;
    all += rounded.back();
  }
  for (; all > total; --all) --*std::max_element(rounded.begin(), rounded.end());
  return rounded;
}

}  // namespace

void ShareAmongLayers(std::span<const float> shares, KvPlan& plan) {
  const uint32_t n_least = std::min(plan.choice.n_chosen, plan.slots.n_cache_slots);
  const int64_t n_free = n_least - std::min(n_least, plan.choice.n_pinned);
  const int64_t room =
      plan.n_choosable() - std::max(plan.choice.n_chosen, plan.slots.n_cache_slots);  // of a layer
  if (shares.empty() || n_free < 2 || room <= 0) return;
  const auto total = n_free * static_cast<int64_t>(shares.size());
  const std::vector<double> counts =
      Shared(shares, static_cast<double>(total), static_cast<double>(n_free + room));
  const std::vector<int64_t> free = Rounded(counts, total);
  for (size_t layer = 0; layer < free.size(); ++layer) {
    const int64_t more = std::min(free[layer], n_free + room) - n_free;  // or fewer
    plan.layers[layer] = {static_cast<uint32_t>(plan.choice.n_chosen + more),
                          static_cast<uint32_t>(plan.slots.n_cache_slots + more)};
  }
  plan.has_layer_shares = true;
}

void CutOneLayer(uint32_t layer, KvPlan& plan) {
  const uint32_t n_chosen = plan.choice.n_chosen;
  const uint32_t n_cache_slots = plan.slots.n_cache_slots;
  const uint32_t more = plan.n_choosable() - n_chosen;
  plan.layers.assign(plan.layers.size(), {n_chosen + more, n_cache_slots + more});
  if (layer < plan.layers.size()) plan.layers[layer] = {n_chosen, n_cache_slots};
  plan.has_layer_shares = true;
}

}  // namespace kvrun
