// What clusters take of a budget. Internal to the planner.
#pragma once

#include <cstdint>

#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/planner/kv_plan_sizes.h"

namespace kvrun {

// From plan.clusters: a row for each cluster of each stream.
IndexShape CentroidIndexShape(const KvPlan& plan);

// Bytes, of all layers and sequences.
// Beside scales: rows that lie in memory, what each cluster weighs, the sides of queries, keys whose cluster
// is sought.
uint64_t CentroidIndexBytes(const KvSizeInput& input, const KvPlan& plan);
// What rows on flash are read and written through.
uint64_t RowStagingBytes(const KvSizeInput& input, const KvPlan& plan);
// Which clusters there are (ClusterMap), and what one is maintained in.
uint64_t ClusterBytes(const KvSizeInput& input, const KvPlan& plan);
// Entries that lie in memory beside slots and window, with their mapping tables.
uint64_t KeptBytes(const KvSizeInput& input, const KvPlan& plan);
// Of one layer at a time: the records of what was chosen.
uint64_t ClusterListBytes(const KvPlan& plan);
// In prefill, while a layer is computed: earlier entries in order.
uint64_t ClusterImageBytes(const KvPlan& plan);
// In prefill: queries that clusters are placed by.
uint64_t ClusterQueryBytes(const KvSizeInput& input, const KvPlan& plan);
// In prefill, when a layer is computed: the entries of one of its streams, and their division into clusters.
uint64_t ClusterPromptBytes(const KvPlan& plan);

}  // namespace kvrun
