// How much is selected where it is known how fast flash is read.
#include <algorithm>
#include <cmath>
#include <utility>

#include "platform/base/units.h"
#include "runtime/kv/planner/kv_planner.h"

namespace kvrun {

// Of a layer, as is expected. What is drawn at random is in no slot.
ReadingPlan Planner::ReadingOf(const KvPlan& plan) const {
  const auto unpinned = [&](uint32_t n) {
    return static_cast<double>(n - std::min(n, plan.choice.n_pinned));
  };
  const double chosen = unpinned(plan.choice.n_chosen);
  double hits = kChosenAgain * unpinned(std::min(plan.slots.n_cache_slots, plan.choice.n_chosen));
  if (plan.slots.n_cache_slots > plan.choice.n_chosen && plan.choice.n_chosen > plan.choice.n_pinned) {
    const double share = chosen / unpinned(plan.slots.n_cache_slots);
    hits = chosen * (1.0 - (1.0 - kChosenAgain) * std::pow(share, kMissPower));
  }
  ReadingPlan reading;
  reading.hide = hide();
  reading.reads = plan.n_streams * (chosen - hits + plan.choice.n_sampled);
  if (plan.limits_reads())
    reading.reads = std::min(reading.reads, plan.n_streams * plan.slots.reads_per_layer);
  reading.is_limited_by_time = limits_reading();
  if (!draft_.options.flash_times) return reading;
  const uint64_t bytes = RoundUp(plan.record.size_bytes(), uint64_t{input_.io_alignment_bytes});
  reading.read_us = reading.reads * draft_.options.flash_times->ReadMicroseconds(bytes, plan.n_seal_helpers);
  reading.layer_us = draft_.options.flash_times->layer_us;
  if (draft_.options.flash_times->share_cores && !draft_.options.hide) reading.layer_share = kShareOfCores;
  return reading;
}

// Whether a layer reads longer than it computes, though nothing but what has slots is selected.
bool Planner::ReadsTooMuch(const KvPlan& plan) const {
  const bool may_be_less = may_read_more() && limits_reading() && !draft_.adapts() &&
                           !draft_.options.reads_per_layer && plan.slots.n_pool_slots == 0 &&
                           plan.choice.n_sampled == 0 && plan.choice.heads != HeadReduction::kSum &&
                           plan.choice.n_chosen < plan.n_choosable();
  if (!may_be_less) return false;
  const ReadingPlan reading = ReadingOf(plan);
  return reading.read_us * hide() > reading.layer_us;
}

// Of a stream, what is read while a layer computes.
double Planner::HiddenReads(const KvPlan& plan) const {
  const ReadingPlan reading = ReadingOf(plan);
  const double hidden = reading.reads * reading.layer_us / (reading.read_us * hide()) / plan.n_streams;
  // Tenths, as the note has it: what is said again as an option is the same.
  return std::round(std::max(hidden, kLeastReads * (plan.choice.n_chosen - plan.choice.n_pinned)) * 10.0) /
         10.0;
}

// As much as is read while a layer computes, for a share of its time: more than has slots, through the pool.
std::optional<KvPlan> Planner::FitHidden(const Row& row, double hide) const {
  std::optional<KvPlan> best = FitSelection(row);
  if (!best) return best;
  if (draft_.reads_per_layer > 0.0 || best->choice.is_limited_by_attention) {
    if (limits_reading() && !draft_.options.reads_per_layer) best->SetReading(ReadingOf(*best));
    return best;
  }
  const auto fit = [&](uint32_t n_chosen) -> std::optional<KvPlan> {
    std::optional<KvPlan> plan = FitMostSlots(row, n_chosen);
    if (!plan) return plan;
    const ReadingPlan reading = ReadingOf(*plan);
    plan->SetReading(reading);
    const bool is_hidden =
        !limits_reading() || reading.read_us * hide <= reading.layer_us * reading.layer_share;
    return is_hidden ? plan : std::nullopt;
  };
  uint32_t fits = best->n_total();
  const uint32_t most = hide > 0.0 ? std::max(fits, MostWorth()) : draft_.plan.n_choosable();
  uint32_t end = most + 1;
  while (end - fits > 1) {
    const uint32_t middle = fits + (end - fits) / 2;
    if (std::optional<KvPlan> plan = fit(middle)) {
      fits = middle;
      best = std::move(plan);
    } else {
      end = middle;
    }
  }
  if (best->reading() != nullptr && end == most + 1) {
    ReadingPlan reading = *best->reading();
    reading.is_limited_by_time = false;
    best->SetReading(reading);
    best->choice.is_limited_by_attention = most < draft_.plan.n_choosable();
  }
  return best;
}

// Where that may change while decoding, with room for twice the reading.
std::optional<KvPlan> Planner::FitAsRead(const Row& row) const {
  std::optional<KvPlan> usual = FitHidden(row, hide());
  if (!usual || usual->reading() == nullptr || !draft_.adapts()) return usual;
  std::optional<KvPlan> most = FitHidden(row, hide() / 2.0);
  if (!most) return usual;
  most->SetReading(*usual->reading());
  most->choice.n_usual = std::min(usual->choice.n_chosen, most->choice.n_chosen);
  return most;
}

// Where the number is given, it is the most.
void Planner::SetPace(KvPlan& plan) const {
  plan.choice.hide = hide();
  if (plan.choice.n_usual == 0 && plan.slots.n_pool_slots > 0) plan.choice.n_usual = plan.choice.n_chosen;
}

}  // namespace kvrun
