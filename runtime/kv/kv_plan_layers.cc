#include "runtime/kv/kv_plan_layers.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace kvrun {
namespace {

constexpr int kRounds = 16;

// By shares, none above `most`: what that takes from some goes to the others, by their shares.
std::vector<double> Shared(std::span<const float> shares, double mean, double most) {
  const double total = mean * static_cast<double>(shares.size());
  std::vector<double> counts(shares.size());
  double scale = mean;
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
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = std::min(scale * shares[i], most);
  return counts;
}

}  // namespace

void ShareAmongLayers(std::span<const float> shares, KvPlan& plan) {
  const uint32_t n_free = plan.n_cache_slots - std::min(plan.n_cache_slots, plan.n_pinned);
  const uint32_t room = plan.n_choosable() - plan.n_chosen;  // of a layer
  if (shares.empty() || n_free < 2 || room == 0) return;
  const std::vector<double> counts = Shared(shares, n_free, double{1.0} * n_free + room);
  plan.layer_extra.resize(shares.size());
  // Rounded so that their sum never is more than that of what they are rounded from.
  double sum = 0.0;
  int64_t given = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    sum += counts[i];
    const int64_t count = std::max<int64_t>(static_cast<int64_t>(std::floor(sum + 1e-6)) - given, 1);
    given += count;
    plan.layer_extra[i] = static_cast<int32_t>(std::min<int64_t>(count, n_free + room) - n_free);
  }
}

void CutOneLayer(uint32_t layer, uint32_t n_layers, KvPlan& plan) {
  plan.layer_extra.assign(n_layers, static_cast<int32_t>(plan.n_choosable() - plan.n_chosen));
  if (layer < n_layers) plan.layer_extra[layer] = 0;
}

}  // namespace kvrun
