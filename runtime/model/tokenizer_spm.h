// SentencePiece-style BPE by scores ("llama"). Internal to the tokenizers.
#pragma once

#include <memory>

#include "runtime/model/tokenizer.h"

namespace kvrun {

Result<std::unique_ptr<Tokenizer>> CreateSpmTokenizer(const GgufFile& file);

}  // namespace kvrun
