// How a chat samples and where its answers end, where nobody said how.
#pragma once

#include <string>

#include "apps/common/api.h"
#include "apps/common/options.h"
#include "apps/kvrun/generation.h"

namespace kvrun::cli {

inline constexpr float kChatTemperature = 0.7F;
inline constexpr float kChatTopP = 0.95F;
inline constexpr uint32_t kChatMaxTokens = 2048;  // of an answer
// Models of fewer parameters repeat themselves without it (docs/chat.md).
inline constexpr uint64_t kSmallModelParameters = 1'000'000'000;
inline constexpr float kSmallModelPenalty = 1.1F;
inline constexpr uint32_t kRepeatLimit = 4;  // kvrun_generate_options.repeat_limit

// Settings that neither the command line nor a variable gives become the model file's (`model_info` as in
// kvrun_model_info_json), else temperature 0.7 and top-p 0.95. The seed becomes a random one where
// none was given, or where that was asked for.
void ChooseSampling(const OptionSet& set, const Json& model_info, GenerationOptions* generation);

// What any answer in a chat form has: an end where it repeats itself (not with --ignore-end), and with a
// small model a penalty for repeated tokens, unless --repeat-penalty says otherwise. ChooseSampling does
// this, too.
void AvoidRepetition(const OptionSet& set, const Json& model_info, GenerationOptions* generation);

// In one line: "sampling temperature 0.7, top-p 0.95, seed 123".
std::string SamplingText(const kvrun_generate_options& values);

}  // namespace kvrun::cli
