// Reads how a model rotates its queries and keys. Internal to model_config.cc.
#pragma once

#include <cstdint>
#include <string_view>

#include "platform/base/status.h"
#include "runtime/model/gguf.h"
#include "runtime/model/model_config.h"

namespace kvrun {

// `n_ctx_train` stands in where a yarn model does not say its original context.
Result<RopeConfig> ReadRopeConfig(const GgufFile& file, std::string_view architecture, RopePairing pairing,
                                  uint32_t head_dim, uint32_t n_ctx_train);

// Of windowed layers, where they rotate in their own way.
Result<float> ReadWindowedRopeBase(const GgufFile& file, std::string_view architecture);

}  // namespace kvrun
