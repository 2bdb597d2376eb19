// What the columns of an adapter keep of the keys' energy, as a table and as a plot.
#pragma once

#include <string>

#include "apps/common/api.h"
#include "offline/svg_plot.h"

namespace kvrun::cli {

// `adapter`: rank, and layers [{energy: [of columns 0..i, by i]}], as kvrun_calibrate answers.
std::string EnergyTable(const Json& adapter);
// By rank: the mean of all layers, and the layer where it is least.
offline::Plot EnergyPlot(const Json& adapter);

}  // namespace kvrun::cli
