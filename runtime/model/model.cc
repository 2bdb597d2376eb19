#include "runtime/model/model.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/model/fingerprint.h"
#include "runtime/model/gguf_split.h"

namespace kvrun {
namespace {

// A file without a vocabulary, or with one of a kind that is not known, still has logits: the model opens and
// says why text cannot be had. A vocabulary that contradicts itself is a corrupt file.
Status ReadTokenizer(Model* model) {
  auto tokenizer = Tokenizer::Create(*model->file);
  if (!tokenizer.ok()) {
    const StatusCode code = tokenizer.status().code();
    if (code != StatusCode::kNotFound && code != StatusCode::kUnsupported) return tokenizer.status();
    model->tokenizer_status = tokenizer.status();
    return Status::Ok();
  }
  model->tokenizer = std::move(tokenizer).value();
  if (model->tokenizer->n_vocab() > model->config.n_vocab) {
    return Status(
        StatusCode::kCorrupt,
        fmt::format(
            "{}: the vocabulary has {} tokens, but the embedding only {} rows; the file is damaged or "
            "was converted wrongly",
            model->file->name(), model->tokenizer->n_vocab(), model->config.n_vocab));
  }
  return Status::Ok();
}

}  // namespace

Result<std::string> Model::Fingerprint() const {
  const std::lock_guard lock(fingerprint_mutex_);
  if (fingerprint_.empty()) {
    KVRUN_ASSIGN_OR_RETURN(fingerprint_, ModelFingerprint(*file, config));
  }
  return fingerprint_;
}

Result<std::unique_ptr<Model>> OpenModel(const std::string& path) {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, OpenModelFile(path));
  return ReadModel(std::move(file));
}

Result<std::unique_ptr<Model>> ReadModel(std::unique_ptr<GgufFile> file) {
  auto model = std::make_unique<Model>();
  model->file = std::move(file);
  KVRUN_ASSIGN_OR_RETURN(model->config, ReadModelConfig(*model->file));
  KVRUN_ASSIGN_OR_RETURN(model->weights, FindModelWeights(*model->file, model->config));
  KVRUN_RETURN_IF_ERROR(ReadTokenizer(model.get()));
  model->chat_template = ChatTemplate::Recognize(*model->file);
  return model;
}

}  // namespace kvrun
