// What a session over KV in records can say of it: for statistics.
#pragma once

#include <optional>

#include "platform/io/block_file.h"
#include "runtime/kv/plan/cluster_report.h"
#include "runtime/kv/plan/kept_report.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/plan/kv_step.h"
#include "runtime/store/group_store.h"

namespace kvrun {

// Of the static set, which the plan describes.
struct StaticReport {
  uint64_t n_chosen_again = 0;  // times, while decoding
  double milliseconds = 0.0;    // that took
  uint64_t repaged_bytes = 0;   // written for pages that were laid anew (StaticPages)
};

// Prompts after a text that was there, which is read for them (LaterPrompts).
struct LaterPromptsReport {
  uint64_t n_exact = 0;     // that attended to all of it
  uint64_t n_selected = 0;  // to what their rows chose
  double share_sum = 0.0;   // of these, how much that was of what lay before the window

  void Note(std::optional<double> selected_share) {
    n_exact += selected_share ? 0 : 1;
    n_selected += selected_share ? 1 : 0;
    share_sum += selected_share.value_or(0.0);
  }
};

struct KvReport {
  KvPlan plan;
  KvStats stats;             // of decode steps
  GroupStoreStats store;     // of prefill and decode; zeros where nothing lies on flash
  std::optional<IoMode> io;  // nothing where nothing lies on flash
  std::optional<ClusterReport> clusters = {};
  std::optional<KeptReport> kept = {};
  std::optional<StaticReport> statics = {};
  LaterPromptsReport later_prompts = {};
};

}  // namespace kvrun
