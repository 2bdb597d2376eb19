// What is said where a budget is too small.
#include <fmt/format.h>

#include <optional>
#include <string>

#include "platform/base/units.h"
#include "runtime/kv/planner/kv_plan_options.h"
#include "runtime/kv/planner/kv_planner.h"

namespace kvrun {

// What of the selection and the reuse buffer would fit; empty: nothing.
std::string Planner::SelectLess() const {
  std::optional<KvPlan> most;
  for (const Row& row : Rows()) {
    if (fills_slots() && draft_.plan.budget.bytes < SuitableFrom(row)) continue;
    const std::optional<KvPlan> fits = FitMostGroups(row);
    if (fits && (!most || fits->choice.n_chosen > most->choice.n_chosen)) most = fits;
  }
  if (!most) return "";
  return family_.AdviseLess(draft_, *most);
}

std::string Planner::NoteOfRaise(uint64_t asked_bytes, uint64_t least_bytes,
                                 const std::string& advice) const {
  std::string note = fmt::format(
      "the KV budget (--kv-budget) is a share of {}, which is too small for the method {} and {}: it is "
      "raised to {}, the least ",
      BytesText(asked_bytes), draft_.plan.method.name, ContextText(draft_.plan), BytesText(least_bytes));
  const bool selects_few = draft_.fills_budget() && family_.selects_from_flash();
  note += selects_few
              ? fmt::format("with which a token attends to about {} entries", family_.LeastEntries(draft_))
              : "that works";
  return note + (advice.empty() ? "" : "; to stay within the share, " + advice);
}

Status Planner::TooLarge(const Least& least) const {
  const KvPlan& plan = least.plan;
  const bool is_prefill = plan.prefill_bytes() > plan.decode_bytes();
  std::string parts;
  for (const KvPart& part : plan.parts) {
    if (is_prefill ? !part.in_prefill : !part.in_decode) continue;
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", part.name, FormatBytes(part.bytes));
  }
  std::string advice;
  if (has_count()) {
    advice = SelectLess();
    if (!advice.empty()) {
      advice += ", ";
    } else {
      advice = fmt::format("no number of {} entries would fit: ",
                           family_.selects_from_flash() ? "selected" : "kept");
    }
  }
  return {
      StatusCode::kOutOfMemory,
      fmt::format("the KV budget of {} is too small: the method {} needs at least {} in {} for {} tokens of "
                  "context in {} ({}); {}raise the budget to that (--kv-budget), or shorten the context",
                  BytesText(plan.budget.bytes), plan.method.name, BytesText(least.bytes),
                  is_prefill ? "prefill" : "decoding", plan.n_ctx, Counted(plan.n_sequences, "sequence"),
                  parts, advice)};
}

}  // namespace kvrun
