// Reads which of a model's layers are of which kind. Internal to model_config.cc.
#pragma once

#include <vector>

#include "platform/base/status.h"
#include "runtime/model/architectures.h"
#include "runtime/model/gguf.h"
#include "runtime/model/layer_config.h"

namespace kvrun {

// `n_blocks`: as the file counts them, draft heads included; the first n_layers of them are layers.
Result<std::vector<LayerConfig>> ReadLayerPattern(const GgufFile& file, const Architecture& architecture,
                                                  uint32_t n_blocks, uint32_t n_layers);

}  // namespace kvrun
