#include "runtime/engine/session/context_length.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvrun {

std::vector<std::string> ContextNotes(uint32_t n_ctx, const ModelConfig& config) {
  std::vector<std::string> notes;
  if (config.n_ctx_stated != 0 && n_ctx > config.n_ctx_stated) {
    notes.push_back(fmt::format(
        "the context of {0} tokens is longer than the {1} that the model was trained with: expect "
        "worse text, and in the end none that makes sense, beyond {1} tokens",
        n_ctx, config.n_ctx_stated));
  }
  if (config.is_uniform() && config.sliding_window != 0 && n_ctx > config.sliding_window) {
    notes.push_back(fmt::format(
        "the model was trained to attend to the last {1} tokens only (its sliding window), and kvrun attends "
        "to all of the {0} tokens of context: expect other, and mostly worse, text beyond {1} tokens",
        n_ctx, config.sliding_window));
  }
  return notes;
}

uint32_t ChooseContext(uint32_t asked, const ModelConfig& config) {
  if (asked != 0) return asked;
  return config.n_ctx_train == 0 ? kDefaultMaxContext : std::min(config.n_ctx_train, kDefaultMaxContext);
}

}  // namespace kvrun
