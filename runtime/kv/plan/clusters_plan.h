// What a plan has of methods whose extents are clusters.
#pragma once

#include <cstdint>

#include "runtime/kv/math/cluster_map.h"
#include "runtime/kv/plan/family_answers.h"
#include "runtime/store/cluster_store.h"

namespace kvrun {

// Of one stream of one layer.
struct ClustersPlan : FamilyAnswers {
  uint32_t mean_entries = 0;  // of clusters that a prompt is divided into
  uint32_t max_entries = 0;   // of a cluster
  uint32_t n_clusters = 0;    // room
  uint32_t n_sinks = 0;       // the first entries, which are in no cluster, and always attended to
  uint32_t max_pending = 0;   // entries that wait for their cluster
  // Of all layers and heads: a token of a sequence changes so many at most, besides those that must be. What
  // could be changed and is not waits for a later token.
  uint32_t upkeep_clusters = 0;
  // A cluster is divided where its variance exceeds so many times the mean variance of the first clusters.
  float threshold_factor = 0.0F;
  ClusterUpdate update = ClusterUpdate::kAdaptive;
  ClusterLayout layout = ClusterLayout::kDualHead;
  bool rows_on_flash = false;      // of the index: in memory are those of a few layers (ClusterRows)
  uint64_t row_staging_bytes = 0;  // of those on flash, of all layers

  // Entries that lie in memory, in no slot: sinks and those that wait.
  uint32_t n_kept() const { return n_sinks + max_pending; }
  ClusterMapShape map_shape(const KvPlan& plan) const;

  // A cluster is several records; its last one is filled in part.
  uint32_t records_per_extent(const KvPlan& plan) const;
  uint32_t n_extents(const KvPlan& /*plan*/) const { return n_clusters; }
  uint32_t n_choosable(const KvPlan& plan) const;
  uint32_t EntriesOfSlots(const KvPlan& plan, uint32_t n_slots) const;
  uint32_t selected_entries(const KvPlan& plan) const;
  uint32_t sink_entries(const KvPlan& /*plan*/) const { return n_sinks; }
  bool needs_queries() const { return true; }
  bool has_rows_file() const { return rows_on_flash; }
  void AddForm(FamilyForm* form) const;
};

}  // namespace kvrun
