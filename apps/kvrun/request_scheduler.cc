#include "apps/kvrun/request_scheduler.h"

#include <vector>

namespace kvrun::cli {

Scheduler MakeScheduler(const LoadedEngine& loaded, const SessionPlan& plan,
                        kvrun_scheduler_options options) {
  const std::vector<kvrun_option> kv_options = plan.kv.values();
  options.n_ctx = plan.n_ctx;
  options.kv_options = kv_options.data();
  options.n_kv_options = kv_options.size();
  return ExplainingAdapter(plan, [&] {
    kvrun_scheduler* scheduler = nullptr;
    Check(kvrun_scheduler_create(loaded.engine.get(), &options, &scheduler));
    return Scheduler(scheduler);
  });
}

Json SchedulerReport(const Scheduler& scheduler) {
  char* json = nullptr;
  Check(kvrun_scheduler_json(scheduler.get(), &json));
  return TakeJson(json);
}

}  // namespace kvrun::cli
