// BPE whose symbols are characters, not bytes ("gemma4"). Internal to the tokenizers.
#pragma once

#include <memory>

#include "runtime/model/tokenizer.h"

namespace kvrun {

Result<std::unique_ptr<Tokenizer>> CreateCharacterBpeTokenizer(const GgufFile& file);

}  // namespace kvrun
