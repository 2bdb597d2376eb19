// A model file, opened and checked: configuration, tensors, tokenizer, chat form. Needs no device.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "platform/base/status.h"
#include "runtime/model/chat_template.h"
#include "runtime/model/gguf.h"
#include "runtime/model/model_config.h"
#include "runtime/model/tokenizer.h"
#include "runtime/model/weights.h"

namespace kvrun {

// Immutable; safe from several threads.
struct Model {
  std::unique_ptr<GgufFile> file;
  ModelConfig config;
  // Of the model that this is the first layers of (synthetic_model.h); 0: this is all of it.
  uint32_t n_layers_whole = 0;
  ModelWeights weights;
  std::unique_ptr<Tokenizer> tokenizer;  // null where the file has no vocabulary: `tokenizer_status` says why
  Status tokenizer_status;
  Result<ChatTemplate> chat_template = Status(StatusCode::kUnsupported, "not read yet");

  // ModelFingerprint of the file. The first call reads it, those after the first success do not.
  Result<std::string> Fingerprint() const;

 private:
  mutable std::mutex fingerprint_mutex_;
  mutable std::string fingerprint_;  // empty: not read yet
};

// Of a model that is split into several files, any of them is named: the others lie beside it.
Result<std::unique_ptr<Model>> OpenModel(const std::string& path);
Result<std::unique_ptr<Model>> ReadModel(std::unique_ptr<GgufFile> file);

}  // namespace kvrun
