#include "offline/verify_adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "platform/base/units.h"
#include "runtime/kv/math/slot_cache.h"

namespace kvrun::offline {
namespace {

// Sides lie in the file as f16.
constexpr double kOrthonormalTolerance = 1e-3;
constexpr double kInverseTolerance = 1e-2;
constexpr double kEnergyTolerance = 1e-5;
constexpr double kRateTolerance = 1e-3;

AdapterCheck Passed(std::string name, std::string detail) {
  return {std::move(name), true, std::move(detail)};
}
AdapterCheck Failed(std::string name, std::string detail) {
  return {std::move(name), false, std::move(detail)};
}

AdapterCheck CheckFingerprint(const Adapter& adapter, const AdapterTarget& target) {
  if (adapter.fingerprint == target.fingerprint) return Passed("fingerprint", adapter.fingerprint);
  return Failed("fingerprint",
                fmt::format("the adapter is of another model ({:.40}); this model's fingerprint is {}",
                            adapter.fingerprint, target.fingerprint));
}

AdapterCheck CheckShape(const Adapter& adapter, const AdapterTarget& target) {
  if (adapter.layers.size() != target.n_layers) {
    return Failed("shape", fmt::format("the adapter has {}, and the model has {}",
                                       Counted(adapter.layers.size(), "layer"), target.n_layers));
  }
  for (size_t i = 0; i < adapter.layers.size(); ++i) {
    const LayerAdapter& layer = adapter.layers[i];
    if (layer.key_dim != target.key_dim) {
      return Failed("shape", fmt::format("layer {}: keys of {} elements, and the model's have {}", i,
                                         layer.key_dim, target.key_dim));
    }
    if (layer.rank == 0 || layer.rank > layer.key_dim || layer.rank != adapter.layers.front().rank)
      return Failed("shape",
                    fmt::format("layer {}: its rank {} is not from 1 to {}, or not that of the other layers",
                                i, layer.rank, layer.key_dim));
    const size_t side = size_t{layer.key_dim} * layer.rank;
    if (layer.key_side.size() != side || layer.query_side.size() != side ||
        layer.mean.size() != layer.key_dim || (!layer.energy.empty() && layer.energy.size() != layer.rank)) {
      return Failed("shape", fmt::format("layer {}: its sides, mean or energies have a wrong size", i));
    }
  }
  return Passed("shape", fmt::format("{} layers, keys of {} elements, rank {}", target.n_layers,
                                     target.key_dim, adapter.layers.front().rank));
}

AdapterCheck CheckFinite(const Adapter& adapter) {
  const auto is_wrong = [](float value) { return !std::isfinite(value); };
  for (size_t i = 0; i < adapter.layers.size(); ++i) {
    const LayerAdapter& layer = adapter.layers[i];
    const std::pair<const char*, const std::vector<float>*> parts[] = {{"key side", &layer.key_side},
                                                                       {"query side", &layer.query_side},
                                                                       {"mean", &layer.mean},
                                                                       {"energies", &layer.energy}};
    for (const auto& [name, values] : parts) {
      const auto wrong = std::find_if(values->begin(), values->end(), is_wrong);
      if (wrong != values->end())
        return Failed("finite", fmt::format("layer {}: {} holds {}", i, name, *wrong));
    }
  }
  return Passed("finite", "all values");
}

// The largest element of |key_side^T query_side - 1|. What is not finite counts as infinite.
double DistanceFromIdentity(const LayerAdapter& layer) {
  const size_t rank = layer.rank;
  std::vector<double> product(rank * rank);
  for (size_t row = 0; row < layer.key_dim; ++row) {
    const std::span<const float> keys = std::span(layer.key_side).subspan(row * rank, rank);
    const std::span<const float> queries = std::span(layer.query_side).subspan(row * rank, rank);
    for (size_t i = 0; i < rank; ++i) {
      for (size_t j = 0; j < rank; ++j) product[i * rank + j] += double{keys[i]} * queries[j];
    }
  }
  double distance = 0.0;
  for (size_t i = 0; i < product.size(); ++i) {
    const double off = std::abs(product[i] - (i / rank == i % rank ? 1.0 : 0.0));
    if (!(off <= distance)) distance = std::isnan(off) ? INFINITY : off;
  }
  return distance;
}

AdapterCheck CheckSides(const Adapter& adapter) {
  const bool weighs = SidesDiffer(adapter.kind);
  const std::string name = weighs ? "sides inverse" : "columns orthonormal";
  const double tolerance = weighs ? kInverseTolerance : kOrthonormalTolerance;
  double worst = -1.0;
  size_t worst_layer = 0;
  for (size_t i = 0; i < adapter.layers.size(); ++i) {
    const LayerAdapter& layer = adapter.layers[i];
    if (!weighs && layer.key_side != layer.query_side)
      return Failed(name, fmt::format("layer {}: its sides differ, which those of the kind {} may not", i,
                                      AdapterKindName(adapter.kind)));
    const double distance = DistanceFromIdentity(layer);
    if (distance <= worst) continue;
    worst = distance;
    worst_layer = i;
  }
  return {name, worst <= tolerance,
          fmt::format("off by at most {:.2g}, in layer {} (allowed: {:.2g})", worst, worst_layer, tolerance)};
}

// Of one layer; empty: nothing is wrong. `falls`: no column adds more than the one before.
std::string WrongEnergy(const LayerAdapter& layer, bool falls) {
  double before = 0.0;
  double added_before = 1.0;
  for (size_t i = 0; i < layer.energy.size(); ++i) {
    const double energy = layer.energy[i];
    if (!(energy >= -kEnergyTolerance && energy <= 1.0 + kEnergyTolerance))
      return fmt::format("column {} keeps {:.6f}, which is not from 0 to 1", i, energy);
    const double added = energy - before;
    if (added < -kEnergyTolerance)
      return fmt::format("column {} keeps {:.6f}, less than the {:.6f} before it", i, energy, before);
    if (falls && added > added_before + kEnergyTolerance)
      return fmt::format("column {} adds {:.6f}, more than the {:.6f} of the one before", i, added,
                         added_before);
    before = energy;
    added_before = added;
  }
  if (!layer.energy.empty() && layer.rank == layer.key_dim && before < 1.0 - 10 * kEnergyTolerance)
    return fmt::format("all columns together keep {:.6f}, which is less than 1", before);
  return "";
}

AdapterCheck CheckEnergies(const Adapter& adapter) {
  double least = 1.0;
  size_t least_layer = 0;
  bool has_any = false;
  for (size_t i = 0; i < adapter.layers.size(); ++i) {
    if (const std::string wrong = WrongEnergy(adapter.layers[i], !IsOfHeads(adapter.kind)); !wrong.empty())
      return Failed("energies", fmt::format("layer {}: {}", i, wrong));
    if (adapter.layers[i].energy.empty()) continue;
    has_any = true;
    if (adapter.layers[i].energy.back() >= least) continue;
    least = adapter.layers[i].energy.back();
    least_layer = i;
  }
  if (!has_any) return Passed("energies", "none are given");
  return Passed("energies", fmt::format("nested; all columns keep {:.2f} % or more, the least in layer {}",
                                        100 * least, least_layer));
}

std::string Named(const ReuseRate& row) {
  return fmt::format("{}, groups of {}, {} entries, {} kept", row.policy, row.group_tokens,
                     row.select_entries, row.reuse_groups);
}

std::string WrongRate(const ReuseRate& row) {
  const auto policy = FindReplacementPolicy(row.policy);
  if (!policy.ok()) return policy.status().message();
  if (!(row.rate >= 0.0F && row.rate <= 1.0F))
    return fmt::format("its rate is {}; it must be from 0 to 1", row.rate);
  if (row.group_tokens == 0 || row.select_entries < row.group_tokens) return "its selection is empty";
  const uint32_t n_chosen = row.select_entries / row.group_tokens;
  if (row.reuse_groups < n_chosen) return fmt::format("fewer groups kept than the {} selected", n_chosen);
  if ((*policy)->needs_equal_capacity && row.reuse_groups != n_chosen)
    return fmt::format("more groups kept than the {} selected, which the policy does not do", n_chosen);
  return "";
}

AdapterCheck CheckReuse(const Adapter& adapter) {
  for (const ReuseRate& row : adapter.reuse) {
    if (const std::string wrong = WrongRate(row); !wrong.empty())
      return Failed("reuse rates", fmt::format("{}: {}", Named(row), wrong));
  }
  // With lru, more slots hold all that fewer would.
  for (const ReuseRate& row : adapter.reuse) {
    for (const ReuseRate& more : adapter.reuse) {
      if (row.policy == "lru" && more.policy == "lru" && row.group_tokens == more.group_tokens &&
          row.select_entries == more.select_entries && row.n_ctx == more.n_ctx &&
          more.reuse_groups > row.reuse_groups && more.rate < row.rate - kRateTolerance) {
        return Failed("reuse rates", fmt::format("{}: the rate is {:.4f}, but with {} kept only {:.4f}",
                                                 Named(row), row.rate, more.reuse_groups, more.rate));
      }
    }
  }
  if (adapter.reuse.empty()) return Passed("reuse rates", "none were measured");
  return Passed("reuse rates", fmt::format("{} rows", adapter.reuse.size()));
}

AdapterCheck CheckThresholds(const Adapter& adapter, const AdapterTarget& target) {
  const std::vector<float>& thresholds = adapter.cluster_thresholds;
  if (thresholds.empty()) return Passed("cluster thresholds", "none were measured");
  if (thresholds.size() != size_t{target.n_layers} * target.n_kv_heads) {
    return Failed("cluster thresholds",
                  fmt::format("there are {}, and the model has {} layers of {} KV heads", thresholds.size(),
                              target.n_layers, target.n_kv_heads));
  }
  for (size_t i = 0; i < thresholds.size(); ++i) {
    if (std::isfinite(thresholds[i]) && thresholds[i] >= 0.0F) continue;
    return Failed("cluster thresholds",
                  fmt::format("layer {}, KV head {}: the threshold is {}", i / target.n_kv_heads,
                              i % target.n_kv_heads, thresholds[i]));
  }
  return Passed("cluster thresholds", fmt::format("{} of them", thresholds.size()));
}

AdapterCheck CheckShares(const Adapter& adapter, const AdapterTarget& target) {
  const std::vector<float>& shares = adapter.layer_shares;
  if (shares.empty()) return Passed("shares of layers", "none were measured");
  if (shares.size() != target.n_layers) {
    return Failed("shares of layers",
                  fmt::format("there are {}, and the model has {} layers", shares.size(), target.n_layers));
  }
  const double mean = std::accumulate(shares.begin(), shares.end(), 0.0) / target.n_layers;
  if (std::abs(mean - 1.0) > 1e-3)
    return Failed("shares of layers", fmt::format("their mean is {:.4f}, not 1", mean));
  return Passed("shares of layers", fmt::format("{} of them", shares.size()));
}

}  // namespace

std::vector<AdapterCheck> VerifyAdapter(const Adapter& adapter, const AdapterTarget& target) {
  std::vector<AdapterCheck> checks = {CheckFingerprint(adapter, target), CheckShape(adapter, target)};
  if (!checks.back().ok) return checks;
  checks.push_back(CheckFinite(adapter));
  checks.push_back(CheckSides(adapter));
  checks.push_back(CheckEnergies(adapter));
  checks.push_back(CheckReuse(adapter));
  checks.push_back(CheckThresholds(adapter, target));
  checks.push_back(CheckShares(adapter, target));
  return checks;
}

}  // namespace kvrun::offline
