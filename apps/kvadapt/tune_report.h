// What `kvadapt tune` says of its result: text, JSON, plots. Pure.
#pragma once

#include <string>

#include "apps/common/api.h"
#include "offline/svg_plot.h"
#include "offline/tune.h"

namespace kvrun::cli {

// Each solution: the chosen point, what bounds it, kvrun's own choice, and the neighbours with why they were
// not taken. With `pareto` also the front of each solution's measured points.
std::string TuneText(const offline::TuneResult& result, bool pareto);
Json TuneJson(const offline::TuneResult& result);
// Time and KL of the measured points, a front per solution.
offline::Plot ParetoPlot(const offline::TuneResult& result);

}  // namespace kvrun::cli
