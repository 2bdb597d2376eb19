// Which model a file holds: a cheap, stable identity, for what is computed from a model and kept beside it.
#pragma once

#include <string>

#include "platform/base/status.h"
#include "runtime/model/gguf.h"
#include "runtime/model/model_config.h"

namespace kvrun {

// 32 hexadecimal digits: XXH3 (128 bits) over the hyper-parameters, each tensor's name, type and shape, and
// the first, middle and last 64 bytes of its data. Names of the model and of the file, the vocabulary and the
// order of keys do not count. Another quantisation of the same model is another model. Reads the file: ask a
// Model for its own (runtime/model/model.h).
Result<std::string> ModelFingerprint(const GgufFile& file, const ModelConfig& config);

}  // namespace kvrun
