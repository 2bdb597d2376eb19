// Shares of the slots among layers (KvPlan::layers): layers whose cut costs most get more of them.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/kv/plan/kv_plan.h"

namespace kvrun {

// Of a plan whose layers are even: own slots that are not of pinned groups, by `shares` (one of each layer,
// above 0), so that all layers together have as many as before, or a few less. What is read into the pool
// stays even: each layer reads while one layer computes; where there are more slots than groups are chosen,
// so do those. No layer is left without a group of its own.
void ShareAmongLayers(std::span<const float> shares, KvPlan& plan);
// Of one layer as many as there are; of all others everything: to measure what its cut costs.
void CutOneLayer(uint32_t layer, KvPlan& plan);

}  // namespace kvrun
