#include "runtime/kv/planner/plan_kv.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>

#include "platform/base/check.h"
#include "runtime/kv/plan/kv_method.h"
#include "runtime/kv/planner/kv_family.h"
#include "runtime/kv/planner/kv_option_table.h"
#include "runtime/kv/planner/kv_plan_options.h"
#include "runtime/kv/planner/kv_planner.h"

namespace kvrun {
namespace {

uint64_t NeededBytes(const KvPlan& plan) { return std::max(plan.prefill_bytes(), plan.decode_bytes()); }

KvOptions WithMethod(KvOptions options, const KvMethod& method) {
  options.method = method.name;
  return options;
}

// What is said, but for options that full does not have. `unused` has the names of those.
KvOptions OptionsOfFull(const KvOptions& given, std::string* unused) {
  const KvMethod& method = MethodWithoutBudget();
  KvOptions full = WithMethod(given, method);
  // What full has may depend on the types, and on nothing else that is said.
  KvOptions types;
  types.k_type = given.k_type;
  types.v_type = given.v_type;
  for (const KvOptionRow& row : KvOptionRows()) {
    const KvOptionField& field = row.field;
    if (field.is_given == nullptr || !field.is_given(given)) continue;
    if (field.WhatLacks(method, types).empty()) continue;
    *unused += fmt::format("{}{}", unused->empty() ? "" : ", ", row.name);
    field.leave_out(&full);
  }
  return full;
}

// Where a budget is given, and no method.
class MethodChoice {
 public:
  MethodChoice(const KvOptions& options, const KvModelShape& model, uint32_t n_ctx, uint32_t n_sequences)
      : options_(options),
        model_(model),
        full_options_(OptionsOfFull(options, &unused_)),
        resident_(Planner(full_options_, model, n_ctx, n_sequences, 1).AllInMemory()) {}

  bool HoldsAll() const { return NeededBytes(resident_) <= resident_.budget.bytes; }

  Result<KvPlan> Plan(uint32_t io_alignment_bytes) const {
    if (HoldsAll()) return Resident();
    const KvOptions on_flash = WithMethod(options_, MethodOfBudget());
    Result<KvPlan> plan = PlanOnFlash(on_flash, io_alignment_bytes);
    if (plan.ok()) return plan->budget.is_raised && !IsLess(*plan) ? Resident() : plan;
    if (plan.status().code() != StatusCode::kOutOfMemory) return plan;
    // As a share it would be raised to the least that kvswap takes.
    KvOptions share = on_flash;
    share.budget_bytes.reset();
    share.budget_fraction =
        static_cast<double>(resident_.budget.bytes) / static_cast<double>(resident_.budget.full_bytes);
    const Result<KvPlan> least = PlanOnFlash(share, io_alignment_bytes);
    return !least.ok() || IsLess(*least) ? plan : Refuse();
  }

 private:
  Result<KvPlan> PlanOnFlash(const KvOptions& options, uint32_t io_alignment_bytes) const {
    return Planner(options, model_, resident_.n_ctx, resident_.n_sequences, io_alignment_bytes).Plan();
  }
  bool IsLess(const KvPlan& plan) const { return plan.budget.bytes < NeededBytes(resident_); }

  KvPlan Resident() const {
    KvPlan plan = resident_;
    const uint64_t needed = NeededBytes(plan);
    std::string note;
    if (HoldsAll()) {
      note = fmt::format("the KV budget of {} (--kv-budget) holds all KV of {}, which takes {}",
                         BytesText(plan.budget.bytes), ContextText(plan), BytesText(needed));
    } else {
      note = fmt::format(
          "the KV budget (--kv-budget) is a share of {}, which is too small for {}: it is raised to {}, the "
          "least that works, which holds all their KV",
          BytesText(plan.budget.bytes), ContextText(plan), BytesText(needed));
      plan.budget.is_raised = true;
      plan.budget.bytes = needed;
    }
    note += ": the KV stays in memory (method full)";
    if (!unused_.empty()) note += fmt::format(", which has no use for the KV options {}", unused_);
    plan.notes.for_people.push_back(note);
    return plan;
  }

  Status Refuse() const {
    return {
        StatusCode::kOutOfMemory,
        fmt::format("the KV budget of {} is too small: all KV of {} needs {}, and the method kvswap needs no "
                    "less for so few tokens; raise the budget to that (--kv-budget), or shorten the context",
                    BytesText(resident_.budget.bytes), ContextText(resident_),
                    BytesText(NeededBytes(resident_)))};
  }

  const KvOptions& options_;
  const KvModelShape& model_;
  std::string unused_;
  KvOptions full_options_;
  KvPlan resident_;
};

bool HasBudget(const KvOptions& options) { return options.budget_bytes || options.budget_fraction; }

const KvMethod& DefaultMethod(const KvOptions& options) {
  return HasBudget(options) ? MethodOfBudget() : MethodWithoutBudget();
}

// What is refused whatever the method turns out to be.
Status CheckInput(const KvOptions& options, const KvModelShape& model, uint32_t n_ctx, uint32_t n_sequences) {
  if (!options.method.empty()) KVRUN_RETURN_IF_ERROR(FindKvMethod(options.method).status());
  KVRUN_RETURN_IF_ERROR(CheckSizes(model, n_ctx, n_sequences));
  if (!options.method.empty()) return CheckKvOptions(options, model);
  return CheckKvOptions(WithMethod(options, DefaultMethod(options)), model);
}

Result<KvPlan> PlanGrowing(const KvOptions& options, const KvModelShape& model, uint32_t n_ctx,
                           uint32_t n_sequences, uint32_t io_alignment_bytes) {
  if (options.method.empty() && HasBudget(options)) {
    return MethodChoice(options, model, n_ctx, n_sequences).Plan(io_alignment_bytes);
  }
  const KvMethod method = options.method.empty() ? MethodWithoutBudget() : *FindKvMethod(options.method);
  const KvOptions named = WithMethod(options, method);
  Planner planner(named, model, n_ctx, n_sequences, io_alignment_bytes);
  return planner.Plan();
}

// What is left of a budget in bytes for KV that grows; a share is of that alone.
Result<KvOptions> WithoutStates(const KvOptions& options, uint64_t state_bytes) {
  KvOptions growing = options;
  if (!options.budget_bytes || state_bytes == 0) return growing;
  if (*options.budget_bytes <= state_bytes) {
    return Status(
        StatusCode::kOutOfMemory,
        fmt::format("the KV budget of {} is too small: layers that do not attend to the whole text keep {}, "
                    "whatever its length; raise the budget (--kv-budget)",
                    BytesText(*options.budget_bytes), BytesText(state_bytes)));
  }
  growing.budget_bytes = *options.budget_bytes - state_bytes;
  return growing;
}

// With the least copies. Where a static set is chosen again while decoding, with one more for that, if the
// budget has room for it: else prompts alone choose the set.
Result<KvPlan> PlanWithLeast(const KvOptions& options, const KvModelShape& model, uint32_t n_ctx,
                             uint32_t n_sequences, uint32_t io_alignment_bytes, KvOptions* growing) {
  StatesPlan states = StatesPlan::Least(model.state_bytes);
  KVRUN_ASSIGN_OR_RETURN(*growing, WithoutStates(options, states.bytes(n_sequences)));
  Result<KvPlan> plan = PlanGrowing(*growing, model, n_ctx, n_sequences, io_alignment_bytes);
  if (!plan.ok()) {
    if (model.state_bytes == 0) return plan;
    return plan.status().WithContext(fmt::format("beside the {} that layers without growing KV keep",
                                                 BytesText(states.bytes(n_sequences))));
  }
  plan->states = states;
  if (model.state_bytes == 0 || plan->static_steps() == 0) return plan;
  states.has_aside = true;
  const Result<KvOptions> smaller = WithoutStates(options, states.bytes(n_sequences));
  if (!smaller.ok()) return plan;
  Result<KvPlan> with_aside = PlanGrowing(*smaller, model, n_ctx, n_sequences, io_alignment_bytes);
  if (!with_aside.ok()) return plan;
  with_aside->states = states;
  *growing = *smaller;
  return with_aside;
}

// `plan` with a budget that is smaller by so many bytes; nothing where that is too small.
std::optional<KvPlan> PlanWithLess(const KvPlan& plan, uint64_t bytes, const KvOptions& growing,
                                   const KvModelShape& model, uint32_t io_alignment_bytes) {
  KvOptions smaller = growing;
  const uint64_t left_bytes = plan.budget.bytes - bytes;
  if (growing.budget_bytes) smaller.budget_bytes = left_bytes;
  if (growing.budget_fraction) {
    smaller.budget_fraction = static_cast<double>(left_bytes) / static_cast<double>(plan.budget.full_bytes);
  }
  Result<KvPlan> made = PlanGrowing(smaller, model, plan.n_ctx, plan.n_sequences, io_alignment_bytes);
  if (!made.ok() || made->budget.is_raised) return std::nullopt;
  made->budget.bytes = left_bytes;
  made->states = plan.states;
  return std::move(made).value();
}

// `plan` has the least copies. More of them where a part of the budget pays: what the plan leaves of it, and
// where KV lies on flash, room of the selection. No plan is raised or refused for their sake, and none that
// holds all KV goes to flash.
KvPlan WithMoreCopies(KvPlan plan, const KvOptions& growing, const KvModelShape& model,
                      uint32_t io_alignment_bytes) {
  if (plan.budget.is_raised) return plan;
  const uint64_t each_bytes = plan.n_sequences * model.state_bytes;  // one more copy of each sequence
  const uint64_t most = StatesPlan::MostCopies(plan.n_ctx) - plan.states.n_copies;
  const auto affordable = [&](uint64_t bytes) { return std::min(bytes / each_bytes, most); };
  if (plan.budget.bytes == UINT64_MAX) {
    plan.states.n_copies += static_cast<uint32_t>(affordable(plan.budget.full_bytes / kStateCopiesShare));
    return plan;
  }
  const uint64_t wanted = affordable(plan.budget.bytes / kStateCopiesShare);
  const uint64_t idle = affordable(plan.budget.bytes - std::min(NeededBytes(plan), plan.budget.bytes));
  const uint64_t n_more = std::min(wanted, idle);
  if (wanted > idle && FamilyOf(plan.method).has_file()) {
    std::optional<KvPlan> with_room =
        PlanWithLess(plan, wanted * each_bytes, growing, model, io_alignment_bytes);
    if (with_room) {
      with_room->states.n_copies += static_cast<uint32_t>(wanted);
      return *std::move(with_room);
    }
  }
  plan.states.n_copies += static_cast<uint32_t>(n_more);
  plan.budget.bytes -= n_more * each_bytes;
  return plan;
}

}  // namespace

bool IsSurelyResident(const KvOptions& options, const KvModelShape& model, uint32_t n_ctx,
                      uint32_t n_sequences) {
  if (!CheckInput(options, model, n_ctx, n_sequences).ok()) return false;
  if (!options.method.empty()) return !FamilyOf(*FindKvMethod(options.method)).has_file();
  if (!HasBudget(options)) return true;
  const Result<KvOptions> growing =
      WithoutStates(options, StatesPlan::Least(model.state_bytes).bytes(n_sequences));
  return growing.ok() && MethodChoice(*growing, model, n_ctx, n_sequences).HoldsAll();
}

Result<KvPlan> PlanKv(const KvOptions& options, const KvModelShape& model, uint32_t n_ctx,
                      uint32_t n_sequences, uint32_t io_alignment_bytes) {
  KVRUN_CHECK(std::has_single_bit(io_alignment_bytes));
  KVRUN_RETURN_IF_ERROR(CheckInput(options, model, n_ctx, n_sequences));
  KvOptions growing;
  KVRUN_ASSIGN_OR_RETURN(KvPlan plan,
                         PlanWithLeast(options, model, n_ctx, n_sequences, io_alignment_bytes, &growing));
  if (model.state_bytes == 0) return plan;
  plan = WithMoreCopies(std::move(plan), growing, model, io_alignment_bytes);
  const uint64_t state_bytes = plan.states.bytes(n_sequences);
  plan.parts.push_back({"states", state_bytes, true, true});
  plan.budget.full_bytes += state_bytes;
  if (plan.budget.bytes != UINT64_MAX) plan.budget.bytes += state_bytes;
  return plan;
}

}  // namespace kvrun
