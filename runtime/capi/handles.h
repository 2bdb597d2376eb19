// What the opaque handles of kvrun.h hold.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "runtime/capi/border.h"
#include "runtime/chat/chat_template.h"
#include "runtime/chat/reasoning.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/session/session.h"
#include "runtime/include/kvrun/kvrun.h"
#include "runtime/model/model.h"

struct kvrun_model {
  kvrun_model() = default;
  explicit kvrun_model(std::unique_ptr<kvrun::Model> opened) : model(std::move(opened)) {}

  // The file's own, or why it has none. The first call reads it, as few commands need it.
  const kvrun::Result<kvrun::ChatTemplate>& chat_template() const {
    std::call_once(chat_template_once_,
                   [this] { chat_template_ = kvrun::ChatTemplate::OfFile(*model->file); });
    return chat_template_;
  }

  std::unique_ptr<kvrun::Model> model;

 private:
  mutable std::once_flag chat_template_once_;
  mutable kvrun::Result<kvrun::ChatTemplate> chat_template_ =
      kvrun::Status(kvrun::StatusCode::kUnsupported, "not read yet");
};

struct kvrun_engine {
  std::unique_ptr<kvrun::Engine> engine;
  bool profile = false;
  bool exact_activations = false;
};

struct kvrun_session {
  kvrun::Engine* engine = nullptr;
  std::unique_ptr<kvrun::Session> session;
  bool profile = false;
  std::vector<kvrun::OperationTime> operations_before = {};  // totals when the statistics began
};

struct kvrun_reasoning {
  kvrun::ReasoningSplitter splitter;
};

namespace kvrun::capi {

inline Result<const Tokenizer*> GetTokenizer(const kvrun_model* model) {
  KVRUN_RETURN_IF_ERROR(CheckNotNull(model, "model"));
  if (model->model->tokenizer != nullptr) return model->model->tokenizer.get();
  return model->model->tokenizer_status.WithContext("the model has no vocabulary that can be used");
}

}  // namespace kvrun::capi
