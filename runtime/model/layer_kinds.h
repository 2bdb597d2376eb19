// Reads what kinds of layers other than a llama's need: windows, delta nets, short convolutions, experts,
// caps. Internal to model_config.cc.
#pragma once

#include "platform/base/status.h"
#include "runtime/model/architectures.h"
#include "runtime/model/model_config.h"
#include "runtime/model/model_keys.h"

namespace kvrun {

// What `config` has already: sizes, heads, and layers of their kinds.
Status ReadLayerKinds(const ModelKeys& keys, const Architecture& architecture, ModelConfig& config);

}  // namespace kvrun
