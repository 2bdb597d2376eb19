// What kvrun_model_info_json says about a model.
#pragma once

#include <cstdint>

#include "runtime/capi/border.h"

namespace kvrun::capi {

Json ModelInfo(const kvrun_model& model, uint32_t context);

}  // namespace kvrun::capi
