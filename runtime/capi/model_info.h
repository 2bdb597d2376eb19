// What kvrun_model_info_json says about a model.
#pragma once

#include <cstdint>

#include "runtime/capi/border.h"
#include "runtime/model/model.h"

namespace kvrun::capi {

Json ModelInfo(const Model& model, uint32_t context);

}  // namespace kvrun::capi
