// Byte-level BPE ("gpt2"). Internal to the tokenizers.
#pragma once

#include <memory>

#include "runtime/model/tokenizer.h"

namespace kvrun {

Result<std::unique_ptr<Tokenizer>> CreateBpeTokenizer(const GgufFile& file);

}  // namespace kvrun
