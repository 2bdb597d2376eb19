// A model that is split into several GGUF files, as gguf-split of llama.cpp does it: each says in its keys
// which part of how many it is, and is called NAME-00001-of-00003.gguf. The first holds the model's keys.
#pragma once

#include <memory>
#include <string>

#include "platform/base/status.h"
#include "runtime/model/gguf.h"

namespace kvrun {

// The file, or where it is a part of a split model, whichever, that model. kNotFound where a part is missing,
// kCorrupt where one is of another model, or there twice; the message names it.
Result<std::unique_ptr<GgufFile>> OpenModelFile(const std::string& path, GgufTypes types = GgufTypes::kKnown);

}  // namespace kvrun
