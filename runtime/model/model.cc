#include "runtime/model/model.h"

#include <fmt/format.h>

#include <utility>

#include "platform/base/units.h"
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
  if (!model->computable.ok()) {
    model->config.n_vocab = std::max(model->config.n_vocab, model->tokenizer->n_vocab());
    return Status::Ok();
  }
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

Status ReadShapes(Model* model) {
  const GgufFile& file = *model->file;
  if (file.tensors().empty() && file.unknown_tensors().empty()) {
    return {StatusCode::kUnsupported,
            fmt::format("{}: it holds no tensors, but a vocabulary at most, which kvrun tokenize takes: name "
                        "the file with the model's weights",
                        file.name())};
  }
  KVRUN_ASSIGN_OR_RETURN(model->config, ReadModelConfig(file));
  KVRUN_RETURN_IF_ERROR(file.CheckTypes());
  KVRUN_ASSIGN_OR_RETURN(model->weights, FindModelWeights(file, model->config));
  return Status::Ok();
}

enum class Accept : uint8_t { kComputable, kAny };

Result<std::unique_ptr<Model>> ReadFile(std::unique_ptr<GgufFile> file, Accept accept) {
  auto model = std::make_unique<Model>();
  model->file = std::move(file);
  model->computable = ReadShapes(model.get());
  if (!model->computable.ok()) {
    const StatusCode code = model->computable.code();
    const bool contradicts = code != StatusCode::kUnsupported && code != StatusCode::kNotFound;
    if (accept == Accept::kComputable || contradicts) return model->computable;
    model->config = ReadStatedConfig(*model->file);
  }
  // Most who open a model then load it: the disk need not wait until its vocabulary is made.
  constexpr uint64_t kFirstBytes = 32 * kMiB;
  if (model->computable.ok()) model->file->WillNeed(*model->weights.token_embedding, 0, kFirstBytes);
  KVRUN_RETURN_IF_ERROR(ReadTokenizer(model.get()));
  return model;
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
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, OpenModelFile(path, GgufTypes::kAny));
  return ReadModel(std::move(file));
}

Result<std::unique_ptr<Model>> OpenAnyModel(const std::string& path) {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, OpenModelFile(path, GgufTypes::kAny));
  return ReadFile(std::move(file), Accept::kAny);
}

Result<std::unique_ptr<Model>> ReadModel(std::unique_ptr<GgufFile> file) {
  return ReadFile(std::move(file), Accept::kComputable);
}

}  // namespace kvrun
