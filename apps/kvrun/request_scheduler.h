// The library's scheduler, as the commands use it that answer many requests.
#pragma once

#include <kvrun/scheduler.h>

#include <memory>

#include "apps/common/session_plan.h"

namespace kvrun::cli {

struct SchedulerDestroyer {
  void operator()(kvrun_scheduler* scheduler) const { kvrun_scheduler_destroy(scheduler); }
};
using Scheduler = std::unique_ptr<kvrun_scheduler, SchedulerDestroyer>;

// options: all but the context and the options of the KV cache, which are the plan's. The engine outlives it.
Scheduler MakeScheduler(const LoadedEngine& loaded, const SessionPlan& plan, kvrun_scheduler_options options);

Json SchedulerReport(const Scheduler& scheduler);

}  // namespace kvrun::cli
