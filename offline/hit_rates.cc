#include "offline/hit_rates.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "runtime/kv/math/slot_cache.h"

namespace kvrun::offline {
namespace {

// Of English texts on SmolLM2-135M (docs/measurements/kvswap-settings.md): misses at C = M, and how they fall
// as C grows.
constexpr double kUsualMisses = 0.22;
constexpr double kUsualFall = 0.8;
constexpr double kFewestMisses = 1e-3;

// At `x` between the points of a map by ascending logarithm of the key; beyond its ends the last value.
double Interpolate(const std::map<double, double>& points, double x) {
  const auto above = points.lower_bound(x);
  if (above == points.begin()) return above->second;
  if (above == points.end()) return std::prev(above)->second;
  const auto below = std::prev(above);
  const double share =
      (std::log(x) - std::log(below->first)) / (std::log(above->first) - std::log(below->first));
  return (1 - share) * below->second + share * above->second;
}

// What a table of rates is asked for.
struct Capacity {
  double of_slots = 1.0;        // slots for each group that can have one
  double with_slots = 1.0;      // of what a step needs: at most so much can have slots
  uint32_t select_entries = 0;  // of those
};

Capacity CapacityOf(const SizedCandidate& candidate) {
  const KvPlan& plan = candidate.plan;
  const double n_slots = FreeSlots(plan);
  const uint32_t needed = candidate.grouped_entries();
  const double n_groups = std::max(needed / plan.record.group_tokens, 1U);
  const double share = n_slots / n_groups;
  if (share >= 1.0) return {share, 1.0, needed};
  return {1.0, share, static_cast<uint32_t>(share * needed)};
}

}  // namespace

double RepeatedShare(const SizedCandidate& candidate, double hit_rate) {
  const double with_slots = CapacityOf(candidate).with_slots;
  return with_slots > 0.0 ? std::min(hit_rate / with_slots, 1.0) : 0.0;
}

HitRates::HitRates(std::span<const ReuseRate> table) {
  for (const ReuseRate& row : table) {
    if (row.group_tokens == 0 || row.select_entries < row.group_tokens || row.reuse_groups == 0) continue;
    auto curves = std::find_if(curves_.begin(), curves_.end(), [&](const Curves& one) {
      return one.policy == row.policy && one.group_tokens == row.group_tokens;
    });
    if (curves == curves_.end()) curves = curves_.insert(curves_.end(), {row.policy, row.group_tokens, {}});
    const double n_chosen = static_cast<double>(row.select_entries) / row.group_tokens;
    curves->by_select[row.select_entries][row.reuse_groups / n_chosen] = static_cast<double>(row.rate);
  }
}

double HitRates::Table(uint32_t group_tokens, uint32_t select_entries, double capacity_share,
                       const std::string& policy) const {
  double nearest = std::numeric_limits<double>::infinity();
  const Curves* curves = nullptr;
  for (const Curves& one : curves_) {
    if (one.policy != policy) continue;
    const double distance = std::abs(std::log2(double{1.0} * one.group_tokens / group_tokens));
    if (distance >= nearest) continue;
    nearest = distance;
    curves = &one;
  }
  if (curves == nullptr) return 1.0 - kUsualMisses * std::pow(capacity_share, -kUsualFall);
  std::map<double, double> at_share;
  for (const auto& [select, rates] : curves->by_select) at_share[select] = Interpolate(rates, capacity_share);
  return Interpolate(at_share, std::max(select_entries, 1U));
}

double HitRates::Rate(const SizedCandidate& candidate, const std::string& policy) const {
  const KvPlan& plan = candidate.plan;
  if (plan.slots.n_cache_slots >= plan.n_groups()) return 1.0;
  const Capacity capacity = CapacityOf(candidate);
  const double misses =
      1.0 - Table(plan.record.group_tokens, capacity.select_entries, capacity.of_slots, policy);
  const double rate =
      capacity.with_slots * (1.0 - std::clamp(misses * std::exp(log_miss_correction_), kFewestMisses, 1.0));
  if (!plan.limits_reads() || FreeGroups(plan) == 0) return rate;
  return std::max(rate, 1.0 - plan.slots.reads_per_layer / FreeGroups(plan));
}

void HitRates::Correct(const SizedCandidate& candidate, double measured_rate) {
  // A limit of reads says nothing of the text.
  if (candidate.plan.slots.n_cache_slots >= candidate.plan.n_groups() || candidate.plan.limits_reads())
    return;
  const double with_slots = CapacityOf(candidate).with_slots;
  if (with_slots <= 0.0) return;
  const auto misses = [&](double rate) { return std::clamp(1.0 - rate / with_slots, kFewestMisses, 1.0); };
  const double error = std::log(misses(measured_rate) / misses(Rate(candidate, candidate.candidate.policy)));
  // The mean of what each measurement asks for.
  ++n_corrections_;
  log_miss_correction_ += error / n_corrections_;
}

std::string HitRates::BestPolicy(const SizedCandidate& candidate) const {
  std::string best = candidate.candidate.policy;
  double best_rate = Rate(candidate, best);
  for (const ReplacementPolicy& policy : ReplacementPolicies()) {
    const KvPlan& plan = candidate.plan;
    const bool has_equal_capacity =
        plan.choice.n_chosen == plan.slots.n_cache_slots && plan.slots.n_pool_slots == 0;
    if (policy.needs_equal_capacity && !has_equal_capacity) continue;
    // They take memory that the plan has not counted.
    if (policy.goes_by_frequency || policy.goes_by_changes) continue;
    const std::string name(policy.name);
    const bool is_known = std::any_of(curves_.begin(), curves_.end(),
                                      [&](const Curves& curves) { return curves.policy == name; });
    if (!is_known) continue;
    const double rate = Rate(candidate, name);
    if (rate <= best_rate) continue;
    best_rate = rate;
    best = name;
  }
  return best;
}

}  // namespace kvrun::offline
