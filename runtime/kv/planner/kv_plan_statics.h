// How a selection and its static set share a budget (StaticPlan), and what the set takes of it. Internal to
// kv_plan.cc and RecordCache.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/planner/kv_plan_sizes.h"

namespace kvrun {

// Of n_total groups' entries, pinned groups among them, `share` is the static set's in whole groups, but for
// one selected group that there always is; sets n_chosen. Where n_total is all groups, all are selected, and
// the set, which is of no use then, has its share of them where `is_asked`.
void ShareWithStatics(uint32_t n_total, double share, bool is_asked, KvPlan& plan);
// The plan's share becomes `share`: as much is attended to, in no more memory than the parts say. Where the
// first prompt says it (StaticShare::by_prompt).
void ChangeStaticShare(double share, KvPlan& plan);

// What DescribePlan says of it.
std::string DescribeStatics(const KvPlan& plan);

// Adds the parts of the set, of all layers and sequences.
void AddStaticParts(const KvSizeInput& input, KvPlan& plan);
// Parts that have room for any share, of the parts where the share is 0 and where it is 1.
std::vector<KvPart> PartsOfAnyShare(const std::vector<KvPart>& none, const std::vector<KvPart>& all);
// In prefill, when a layer is computed: what its entries have received.
uint64_t StaticPromptBytes(const KvSizeInput& input, const KvPlan& plan);

}  // namespace kvrun
