// Fits a method's plan into a budget: rows of types, from the best that suits, and within a row what is open
// as large as fits. Internal to the planner.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/plan/kv_plan_input.h"
#include "runtime/kv/planner/kv_family.h"
#include "runtime/kv/planner/kv_plan_sizes.h"
#include "runtime/kv/planner/plan_draft.h"

namespace kvrun {

// "8192 tokens of context in 1 sequence".
std::string ContextText(const KvPlan& plan);

// For one method, which `options` names; they and the model must outlive it.
class Planner {
 public:
  Planner(const KvOptions& options, const KvModelShape& model, uint32_t n_ctx, uint32_t n_sequences,
          uint32_t io_alignment_bytes);

  // The budget is not looked at.
  KvPlan AllInMemory() const;
  // Within the budget.
  Result<KvPlan> Plan();

 private:
  static constexpr double kUsualHide = 0.9;
  // Where a device computes on the cores that read, reads of more than has slots may take so much of a
  // layer's time (docs/measurements/reading.md, "As many entries as pay").
  static constexpr double kShareOfCores = 1.0 / 4;
  // Where keys have more than 4 bits, at least so many entries, or half of a short context: more of them in 4
  // bits are better (docs/measurements/quality.md, "Small contexts").
  static constexpr uint32_t kEnoughForWideTypes = 600;
  // Of an own choice, no more entries than take this share of the multiplications that a layer's weights
  // take, or so many (docs/measurements/reading.md, "As many entries as pay").
  static constexpr double kAttentionShare = 1.0 / 8;
  static constexpr uint32_t kSurelyPaying = 1280;
  static constexpr double kShareOfBudget = 1.0 / 3;  // or this part of the share of all KV that the budget is
  // Groups that a layer reads at least, of those that are chosen, however slow flash is: fewer cost more than
  // they win (docs/measurements/reading.md).
  static constexpr double kLeastReads = 0.04;
  // Of own slots, those whose groups are chosen again in the next step: measured on three texts, 0.7 to 0.8.
  static constexpr double kChosenAgain = 0.75;
  // With more slots than are chosen, what is missed falls by this power of their ratio: measured, 0.15 with a
  // quarter more, 0.075 with twice as many.
  static constexpr double kMissPower = 5.0 / 3;
  static constexpr double kNearlyFilled = 0.92;  // of a budget

  using Row = PlanRow;
  static std::span<const Row> Rows();
  // The smallest budget, and the plan that it is for.
  struct Least {
    uint64_t bytes = UINT64_MAX;
    uint64_t fillable_bytes = UINT64_MAX;  // that decoding can use as well
    KvPlan plan;
  };

  Result<KvPlan> Full() const;
  // Of a method that has a file.
  Result<KvPlan> Partial();
  bool SelectsEnough(const KvPlan& plan) const;
  Status SettleSize(uint32_t size);
  uint32_t MostWorth() const;
  uint32_t SlotsOf(uint32_t entries) const { return family_.SlotsOf(draft_.plan, entries); }
  uint32_t WindowOf(const Row& row) const;
  // Of FitLongestWindow.
  uint32_t LeastWindowGroups() const;
  KvPlan WithWindow(const Row& row, uint32_t n_groups) const;
  KvPlan Shape(const Row& row) const;
  KvPlan Sized(const Row& row, uint32_t n_chosen, uint32_t n_cache_slots) const;
  KvPlan Sized(KvPlan plan, uint32_t n_chosen, uint32_t n_cache_slots) const;
  void SetWindow(uint32_t window_entries, KvPlan& plan) const;
  void SetSpace(KvPlan& plan) const;
  static bool HasTypesOf(const KvPlan& plan, const KvPlan& other);
  static bool Holds(const KvPlan& plan) {
    return std::max(plan.decode_bytes(), plan.prefill_bytes()) <= plan.budget.bytes;
  }
  KvPlan Smallest(const Row& row) const;
  // How many are selected or kept is given, and could be less.
  bool has_count() const { return family_.counts_entries(draft_.plan) && !draft_.fills_budget(); }
  // What is open is how much of it has slots: the rest goes through the pool.
  bool fills_slots() const { return draft_.n_chosen && !draft_.n_cache_slots && !needs_equal_capacity(); }
  bool needs_equal_capacity() const;
  uint64_t SuitableFrom(const Row& row) const;
  template <typename SizedBy>
  std::optional<KvPlan> FitMost(uint32_t least, uint32_t most, const SizedBy& sized_by) const;
  std::optional<KvPlan> Fit(const Row& row) const;
  std::optional<KvPlan> FitMostGroups(const Row& row) const;
  std::optional<KvPlan> FitSelection(const Row& row) const;
  std::optional<KvPlan> FitMostSlots(const Row& row, uint32_t n_chosen) const;
  std::optional<KvPlan> FitClusters(const Row& row) const;
  std::optional<KvPlan> FitHidden(const Row& row, double hide) const;
  std::optional<KvPlan> FitAsRead(const Row& row) const;
  std::optional<KvPlan> FitLongestWindow(const Row& row) const;
  uint32_t EnoughFor(const Row& row) const;
  std::optional<KvPlan> FitBestRow() const;
  Result<std::optional<KvPlan>> FitBestSize();
  Result<std::optional<KvPlan>> FitBest();
  Result<std::optional<KvPlan>> FitAndRead();
  // Nobody has said how much is selected.
  bool reads_as_is_worth() const {
    return draft_.has_budget() && draft_.fills_budget() &&
           draft_.plan.method.defaults.may_select_more_than_slots && !needs_equal_capacity() &&
           !draft_.plan.static_share().by_prompt;
  }
  // And it is known what reading costs.
  bool may_read_more() const { return reads_as_is_worth() && (limits_reading() || hide() == 0.0); }
  double hide() const { return draft_.options.hide.value_or(kUsualHide); }
  bool ReadsTooMuch(const KvPlan& plan) const;
  double HiddenReads(const KvPlan& plan) const;
  void SetPace(KvPlan& plan) const;
  bool limits_reading() const { return draft_.options.flash_times.has_value() && hide() > 0.0; }
  ReadingPlan ReadingOf(const KvPlan& plan) const;
  std::string SelectLess() const;
  uint64_t FillableFrom(const Row& row, uint64_t least_bytes) const;
  Least FindLeast() const;
  Result<Least> FindLeastSize();
  std::string NoteOfRaise(uint64_t asked_bytes, uint64_t least_bytes, const std::string& advice) const;
  Status TooLarge(const Least& least) const;

  PlanDraft draft_;
  const KvFamily& family_;
  KvSizeInput input_;
};

}  // namespace kvrun
