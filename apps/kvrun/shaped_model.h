// Models of a named shape, with random weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/common/api.h"

namespace kvrun::cli {

// The shapes that MakeModel (kvrun_model_make) knows.
std::vector<std::string> ShapeNames();
Model MakeModel(const std::string& shape, uint32_t n_layers);

}  // namespace kvrun::cli
