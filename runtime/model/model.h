// A model file, opened and checked: configuration, tensors, tokenizer. Needs no device.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "platform/base/status.h"
#include "runtime/model/gguf.h"
#include "runtime/model/model_config.h"
#include "runtime/model/tokenizer.h"
#include "runtime/model/weights.h"

namespace kvrun {

// Immutable; safe from several threads.
struct Model {
  std::unique_ptr<GgufFile> file;
  // Why no engine can compute it. Then `config` is what the file says (ReadStatedConfig), and `weights`
  // empty.
  Status computable;
  ModelConfig config;
  // Of the model that this is the first layers of (synthetic_model.h); 0: this is all of it.
  uint32_t n_layers_whole = 0;
  ModelWeights weights;
  std::unique_ptr<Tokenizer> tokenizer;  // null where the file has no vocabulary: `tokenizer_status` says why
  Status tokenizer_status;

  // ModelFingerprint of the file. The first call reads it, those after the first success do not.
  Result<std::string> Fingerprint() const;

 private:
  mutable std::mutex fingerprint_mutex_;
  mutable std::string fingerprint_;  // empty: not read yet
};

// Of a model that is split into several files, any of them is named: the others lie beside it.
Result<std::unique_ptr<Model>> OpenModel(const std::string& path);
// The same, also of a file that no engine can compute, as its architecture is not known, or it is a
// vocabulary alone (Model::computable). One that contradicts itself is refused.
Result<std::unique_ptr<Model>> OpenAnyModel(const std::string& path);
Result<std::unique_ptr<Model>> ReadModel(std::unique_ptr<GgufFile> file);

}  // namespace kvrun
