// What the columns of an adapter keep of the keys' energy, as a table.
#pragma once

#include <string>

#include "apps/common/api.h"

namespace kvrun::cli {

// `adapter`: rank, and layers [{energy: [of columns 0..i, by i]}], as kvrun_calibrate answers.
std::string EnergyTable(const Json& adapter);

}  // namespace kvrun::cli
