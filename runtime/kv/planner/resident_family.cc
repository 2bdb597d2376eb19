// All KV in memory: as it is, or in records of fewer bits. Nothing is searched for (Planner::Full).
#include "runtime/kv/planner/kv_family.h"
#include "runtime/kv/planner/settle.h"

namespace kvrun {
namespace {

class Resident final : public KvFamily {
 public:
  void Begin(KvPlan& plan) const override { plan.family = ResidentPlan{}; }

  Status Settle(PlanDraft& /*draft*/) const override { return Status::Ok(); }

  uint32_t SlotsOf(const KvPlan& plan, uint32_t /*entries*/) const override { return plan.n_groups(); }
  uint32_t LeastEntries(const PlanDraft& draft) const override { return draft.plan.n_ctx; }
  uint32_t LeastChosen(const PlanDraft& draft) const override { return draft.plan.n_groups(); }
  bool counts_entries(const KvPlan& /*plan*/) const override { return false; }
  bool selects_from_flash() const override { return false; }

  void SetCounts(const PlanDraft& /*draft*/, uint32_t /*n_chosen*/, uint32_t /*n_cache_slots*/,
                 KvPlan& plan) const override {
    plan.SetCounts(plan.n_groups(), plan.n_groups());
  }
  void SetExactGroups(KvPlan& plan) const override {
    plan.window.n_exact_groups = plan.window.n_exact_chosen = UsualSinkGroups(plan);
  }

  bool has_file() const override { return false; }
  void SizeParts(const KvSizeInput& input, KvPlan& plan) const override { SizeResident(input, plan); }

  std::string Describe(const KvPlan& /*plan*/) const override { return ""; }
};

}  // namespace

const KvFamily& ResidentFamily() {
  static const Resident family;
  return family;
}

}  // namespace kvrun
