// Why a solution is what it is: what bounds it, and why its neighbours were not taken. Pure.
#pragma once

#include <functional>

#include "offline/tune.h"

namespace kvrun::offline {

// `quality`: of those that were measured, else null.
using PredictTime = std::function<PredictedTime(const SizedCandidate& candidate, const SearchSetting& setting,
                                                const Quality* quality)>;

// Sets twice_budget_ms, bound and rejected, from the solution's other fields. KLs that were not measured are
// guessed from those that were.
void ExplainSolution(const PredictTime& predict, TuneSolution* solution);

}  // namespace kvrun::offline
