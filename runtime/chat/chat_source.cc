#include "runtime/chat/chat_source.h"

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

namespace kvrun {
namespace {

constexpr std::string_view kTemplateKey = "tokenizer.chat_template";
constexpr std::string_view kDefaultTemplateKey = "tokenizer.chat_template.default";
constexpr std::string_view kTemplateNamesKey = "tokenizer.chat_templates";
constexpr std::string_view kHowToGoOn =
    "name its form with --chat-template, or take a GGUF file that carries the model's chat template";

Result<std::string> TokenText(const GgufFile& file, std::string_view key, std::string fallback) {
  if (!file.Has(key) || !file.Has("tokenizer.ggml.tokens")) return fallback;
  KVRUN_ASSIGN_OR_RETURN(const uint32_t id, file.U32(key));
  KVRUN_ASSIGN_OR_RETURN(const std::vector<std::string_view> tokens, file.Strings("tokenizer.ggml.tokens"));
  if (id < tokens.size()) return std::string(tokens[id]);
  return Status(StatusCode::kCorrupt, fmt::format("{}: {} is {}, but the vocabulary has {} tokens",
                                                  file.name(), key, id, tokens.size()));
}

}  // namespace

Result<std::string_view> FindChatTemplate(const GgufFile& file) {
  for (const std::string_view key : {kTemplateKey, kDefaultTemplateKey}) {
    if (file.Has(key)) return file.String(key);
  }
  std::string named;
  if (file.Has(kTemplateNamesKey)) {
    KVRUN_ASSIGN_OR_RETURN(const std::vector<std::string_view> names, file.Strings(kTemplateNamesKey));
    for (const std::string_view name : names)
      named += fmt::format("{}\"{}\"", named.empty() ? "" : ", ", name);
  }
  if (!named.empty()) {
    return Status(
        StatusCode::kUnsupported,
        fmt::format("{}: the model has no default chat template ({}), only {} for other purposes; {}",
                    file.name(), kTemplateKey, named, kHowToGoOn));
  }
  return Status(StatusCode::kUnsupported, fmt::format("{}: the model has no chat template ({}); {}",
                                                      file.name(), kTemplateKey, kHowToGoOn));
}

Result<ChatTokenTexts> ReadChatTokenTexts(const GgufFile& file) {
  ChatTokenTexts tokens;
  KVRUN_ASSIGN_OR_RETURN(tokens.bos, TokenText(file, "tokenizer.ggml.bos_token_id", tokens.bos));
  KVRUN_ASSIGN_OR_RETURN(tokens.eos, TokenText(file, "tokenizer.ggml.eos_token_id", tokens.eos));
  return tokens;
}

}  // namespace kvrun
