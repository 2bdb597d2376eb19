// How many tokens a session's context has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/model_config.h"

namespace kvrun {

// Where neither the user nor the model says more.
inline constexpr uint32_t kDefaultMaxContext = 8192;

// The context that a session gets where `asked` is 0.
uint32_t ChooseContext(uint32_t asked, const ModelConfig& config);

// What to expect of a context beyond what the model was trained with, or beyond its sliding window.
std::vector<std::string> ContextNotes(uint32_t n_ctx, const ModelConfig& config);

}  // namespace kvrun
