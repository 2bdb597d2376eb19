#include "runtime/model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/capi/border.h"
#include "runtime/capi/handles.h"
#include "runtime/capi/model_info.h"

using kvrun::Status;
using kvrun::StatusCode;
using kvrun::TokenId;
using kvrun::Tokenizer;
using kvrun::capi::CheckNotNull;
using kvrun::capi::CopyIfRoom;
using kvrun::capi::CopyOut;
using kvrun::capi::GetTokenizer;
using kvrun::capi::Guard;

namespace {

kvrun::Result<kvrun::EncodeOptions> ReadFlags(uint32_t flags, std::string_view function) {
  constexpr uint32_t kKnown = KVRUN_ENCODE_ADD_BOS | KVRUN_ENCODE_PARSE_SPECIAL | KVRUN_ENCODE_BOS_IF_ASKED;
  if ((flags & ~kKnown) != 0) {
    return Status(StatusCode::kInvalidArgument, fmt::format("{}: unknown flags {:#x}", function, flags));
  }
  kvrun::EncodeOptions options;
  options.parse_special = (flags & KVRUN_ENCODE_PARSE_SPECIAL) != 0;
  return options;
}

kvrun::Result<std::vector<TokenId>> Encode(const Tokenizer& tokenizer, std::string_view text,
                                           uint32_t flags) {
  KVRUN_ASSIGN_OR_RETURN(const kvrun::EncodeOptions options, ReadFlags(flags, "kvrun_tokenize"));
  KVRUN_ASSIGN_OR_RETURN(std::vector<TokenId> ids, tokenizer.Encode(text, options));
  const bool wants_bos = (flags & KVRUN_ENCODE_ADD_BOS) != 0 ||
                         ((flags & KVRUN_ENCODE_BOS_IF_ASKED) != 0 && tokenizer.adds_bos());
  if (wants_bos && tokenizer.bos() >= 0) ids.insert(ids.begin(), tokenizer.bos());
  return ids;
}

using OpenFile = kvrun::Result<std::unique_ptr<kvrun::Model>>(const std::string& path);

kvrun_status Open(const char* path, OpenFile* open, kvrun_model** model) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(model, "model"));
    *model = nullptr;
    KVRUN_RETURN_IF_ERROR(CheckNotNull(path, "path"));
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<kvrun::Model> opened, open(path));
    *model = new kvrun_model(std::move(opened));
    return Status::Ok();
  });
}

}  // namespace

extern "C" {

kvrun_status kvrun_model_open(const char* path, kvrun_model** model) {
  return Open(path, kvrun::OpenModel, model);
}

kvrun_status kvrun_model_open_any(const char* path, kvrun_model** model) {
  return Open(path, kvrun::OpenAnyModel, model);
}

void kvrun_model_close(kvrun_model* model) { delete model; }

kvrun_status kvrun_model_info_json(const kvrun_model* model, uint32_t context, char** json) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(json, "json"));
    *json = nullptr;
    KVRUN_RETURN_IF_ERROR(CheckNotNull(model, "model"));
    return CopyOut(kvrun::capi::ModelInfo(*model, context), json);
  });
}

uint32_t kvrun_model_vocab_size(const kvrun_model* model) {
  return model == nullptr ? 0 : model->model->config.n_vocab;
}

uint32_t kvrun_model_context_train(const kvrun_model* model) {
  return model == nullptr ? 0 : model->model->config.n_ctx_train;
}

int kvrun_model_adds_bos(const kvrun_model* model) {
  return model != nullptr && model->model->tokenizer != nullptr && model->model->tokenizer->adds_bos() ? 1
                                                                                                       : 0;
}

int kvrun_model_is_end_of_generation(const kvrun_model* model, int32_t token) {
  return model != nullptr && model->model->tokenizer != nullptr &&
                 model->model->tokenizer->IsEndOfGeneration(token)
             ? 1
             : 0;
}

kvrun_status kvrun_tokenize(const kvrun_model* model, const char* text, size_t text_bytes, uint32_t flags,
                            int32_t* ids, size_t* count) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(count, "count"));
    KVRUN_ASSIGN_OR_RETURN(const Tokenizer* tokenizer, GetTokenizer(model));
    if (text_bytes > 0) KVRUN_RETURN_IF_ERROR(CheckNotNull(text, "text"));
    if (*count > 0) KVRUN_RETURN_IF_ERROR(CheckNotNull(ids, "ids"));
    const std::string_view view = text_bytes > 0 ? std::string_view(text, text_bytes) : std::string_view();
    KVRUN_ASSIGN_OR_RETURN(const std::vector<TokenId> encoded, Encode(*tokenizer, view, flags));
    CopyIfRoom(encoded, ids, count);
    return Status::Ok();
  });
}

kvrun_status kvrun_count_lost_bytes(const kvrun_model* model, const char* text, size_t text_bytes,
                                    uint32_t flags, uint64_t* lost_bytes) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(lost_bytes, "lost_bytes"));
    KVRUN_ASSIGN_OR_RETURN(const Tokenizer* tokenizer, GetTokenizer(model));
    if (text_bytes > 0) KVRUN_RETURN_IF_ERROR(CheckNotNull(text, "text"));
    const std::string_view view = text_bytes > 0 ? std::string_view(text, text_bytes) : std::string_view();
    KVRUN_ASSIGN_OR_RETURN(const kvrun::EncodeOptions options, ReadFlags(flags, "kvrun_count_lost_bytes"));
    KVRUN_ASSIGN_OR_RETURN(*lost_bytes, tokenizer->CountLostBytes(view, options));
    return Status::Ok();
  });
}

kvrun_status kvrun_detokenize(const kvrun_model* model, const int32_t* ids, size_t count, char* text,
                              size_t* bytes) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(bytes, "bytes"));
    KVRUN_ASSIGN_OR_RETURN(const Tokenizer* tokenizer, GetTokenizer(model));
    if (count > 0) KVRUN_RETURN_IF_ERROR(CheckNotNull(ids, "ids"));
    if (*bytes > 0) KVRUN_RETURN_IF_ERROR(CheckNotNull(text, "text"));
    const std::vector<TokenId> list =
        count > 0 ? std::vector<TokenId>(ids, ids + count) : std::vector<TokenId>();
    CopyIfRoom(tokenizer->Decode(list), text, bytes);
    return Status::Ok();
  });
}

}  // extern "C"
