// What a model thinks, told from what it answers.
#include <vector>

#include "runtime/capi/border.h"
#include "runtime/capi/handles.h"

using kvrun::Status;
using kvrun::TokenId;
using kvrun::capi::CheckNotNull;
using kvrun::capi::Guard;

namespace {

void HandOn(const kvrun::ReasoningPieces& pieces, kvrun_reasoning_fn part, void* user) {
  for (const kvrun::ReasoningPiece& piece : pieces) {
    part(user, piece.is_reasoning ? 1 : 0, piece.text.data(), piece.text.size());
  }
}

}  // namespace

extern "C" {

kvrun_status kvrun_reasoning_begin(const kvrun_model* model, const int32_t* ids, size_t count,
                                   kvrun_reasoning** reasoning) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(reasoning, "reasoning"));
    *reasoning = nullptr;
    if (count > 0) KVRUN_RETURN_IF_ERROR(CheckNotNull(ids, "ids"));
    KVRUN_ASSIGN_OR_RETURN(const kvrun::Tokenizer* tokenizer, kvrun::capi::GetTokenizer(model));
    const std::vector<TokenId> prompt(ids, ids + count);
    *reasoning = new kvrun_reasoning{kvrun::ReasoningSplitter(*tokenizer, prompt)};
    return Status::Ok();
  });
}

kvrun_status kvrun_reasoning_next(kvrun_reasoning* reasoning, int32_t token, const char* text,
                                  size_t text_bytes, kvrun_reasoning_fn part, void* user) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(reasoning, "reasoning"));
    KVRUN_RETURN_IF_ERROR(CheckNotNull(reinterpret_cast<const void*>(part), "part"));
    if (text_bytes > 0) KVRUN_RETURN_IF_ERROR(CheckNotNull(text, "text"));
    HandOn(reasoning->splitter.Next(token, {text, text_bytes}), part, user);
    return Status::Ok();
  });
}

kvrun_status kvrun_reasoning_end(kvrun_reasoning* reasoning, kvrun_reasoning_fn part, void* user) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(reasoning, "reasoning"));
    KVRUN_RETURN_IF_ERROR(CheckNotNull(reinterpret_cast<const void*>(part), "part"));
    HandOn(reasoning->splitter.End(), part, user);
    return Status::Ok();
  });
}

void kvrun_reasoning_close(kvrun_reasoning* reasoning) { delete reasoning; }

}  // extern "C"
