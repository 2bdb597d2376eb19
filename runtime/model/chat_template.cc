#include "runtime/model/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "runtime/model/chat_template_reader.h"

namespace kvrun {
namespace {

constexpr std::string_view kTemplateKey = "tokenizer.chat_template";
constexpr std::string_view kDefaultTemplateKey = "tokenizer.chat_template.default";
constexpr std::string_view kTemplateNamesKey = "tokenizer.chat_templates";
constexpr std::string_view kHowToGoOn =
    "run without --chat, or with a GGUF file that carries the model's chat template";

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\n\v\f\r";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

std::string_view WithoutNewlinesBefore(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return text;
}

std::string_view WithoutNewlinesAfter(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

// The template for ordinary chats, of the one or several that the file has.
Result<std::string_view> FindTemplate(const GgufFile& file) {
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
    return Status(StatusCode::kUnsupported,
                  fmt::format("{}: no default chat template ({}), only {} for other purposes; {}",
                              file.name(), kTemplateKey, named, kHowToGoOn));
  }
  return Status(StatusCode::kUnsupported, fmt::format("{}: the model has no chat template ({}); {}",
                                                      file.name(), kTemplateKey, kHowToGoOn));
}

Result<std::string> TokenText(const GgufFile& file, std::string_view key, std::string fallback) {
  if (!file.Has(key) || !file.Has("tokenizer.ggml.tokens")) return fallback;
  KVRUN_ASSIGN_OR_RETURN(const uint32_t id, file.U32(key));
  KVRUN_ASSIGN_OR_RETURN(const std::vector<std::string_view> tokens, file.Strings("tokenizer.ggml.tokens"));
  if (id < tokens.size()) return std::string(tokens[id]);
  return Status(StatusCode::kCorrupt, fmt::format("{}: {} is {}, but the vocabulary has {} tokens",
                                                  file.name(), key, id, tokens.size()));
}

}  // namespace

Result<ChatTemplate> ChatTemplate::Recognize(const GgufFile& file) {
  KVRUN_ASSIGN_OR_RETURN(const std::string_view jinja, FindTemplate(file));
  ChatTokenTexts tokens;
  KVRUN_ASSIGN_OR_RETURN(tokens.bos, TokenText(file, "tokenizer.ggml.bos_token_id", tokens.bos));
  KVRUN_ASSIGN_OR_RETURN(tokens.eos, TokenText(file, "tokenizer.ggml.eos_token_id", tokens.eos));
  Result<ChatTemplate> result = ChatTemplateReader(jinja, std::move(tokens)).Read();
  if (!result.ok()) return result.status().WithContext(file.name());
  return result;
}

Result<ChatTemplate> ChatTemplate::FromSource(std::string_view jinja) {
  return ChatTemplateReader(jinja, {}).Read();
}

std::string_view ChatTemplate::name() const {
  switch (form_) {
    case ChatForm::kChatMl: return "chatml";
    case ChatForm::kLlama2: return "llama-2";
    case ChatForm::kLlama3: return "llama-3";
    case ChatForm::kZephyr: return "zephyr";
    case ChatForm::kMistral: return "mistral";
    case ChatForm::kQwen: return "qwen";
  }
  return "unknown";
}

Result<std::string> ChatTemplate::Apply(const std::vector<ChatMessage>& messages, bool add_assistant,
                                        bool continued) const {
  KVRUN_RETURN_IF_ERROR(CheckOrder(messages, continued));
  // A turn with "[INST]" ends where the answer begins: there is nothing to add.
  if (!is_tagged()) return ApplyInstructed(messages, continued);
  std::string text = ApplyTagged(messages, continued);
  if (add_assistant) text += answer_start_;
  return text;
}

Status ChatTemplate::CheckOrder(const std::vector<ChatMessage>& messages, bool continued) const {
  std::optional<bool> user_next;
  if (!continued) user_next = true;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant") {
      return {StatusCode::kInvalidArgument,
              fmt::format("message {} has the role \"{}\"; known are system, user, assistant", i, role)};
    }
    if (is_tagged() || (role == "system" && i == 0)) continue;
    if (role == "system") {
      return {
          StatusCode::kInvalidArgument,
          fmt::format("message {} is a system message; a {} chat takes one only at its start", i, name())};
    }
    if (user_next.value_or(role == "user") != (role == "user")) {
      return {
          StatusCode::kInvalidArgument,
          fmt::format("message {} is of the {}; in a {} chat user and assistant take turns, the user first",
                      i, role, name())};
    }
    user_next = role != "user";
  }
  const bool only_system = messages.size() == 1 && messages[0].role == "system";
  if (!is_tagged() && only_system) {
    return {StatusCode::kInvalidArgument,
            fmt::format("a {} chat writes the system message into a user's turn, and there is none", name())};
  }
  return Status::Ok();
}

void ChatTemplate::AppendTagged(std::string_view role, std::string_view content, std::string* text) const {
  text->append(before_role_).append(role).append(after_role_).append(content).append(answer_end_);
}

std::string ChatTemplate::ApplyTagged(const std::vector<ChatMessage>& messages, bool continued) const {
  std::string text;
  size_t last_question = messages.size();
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role == "user") last_question = i;
  }
  const bool starts = !continued && !messages.empty();
  if (starts && inserts_system_ && messages[0].role != "system") {
    AppendTagged("system", system_preface_ + default_system_, &text);
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    const std::string_view content =
        trims_content_ ? Trimmed(messages[i].content) : std::string_view(messages[i].content);
    if (role == "assistant" && drops_old_thoughts_) {
      AppendTagged(role, ThoughtfulAnswer(content, i > last_question, i + 1 == messages.size()), &text);
    } else if (role == "system" && i == 0 && starts) {
      AppendTagged(role, system_preface_ + std::string(content), &text);
    } else {
      AppendTagged(role, content, &text);
    }
  }
  return text;
}

std::string ChatTemplate::ThoughtfulAnswer(std::string_view content, bool after_last_question,
                                           bool last) const {
  constexpr std::string_view kStart = "<think>";
  constexpr std::string_view kEnd = "</think>";
  std::string_view answer = content;
  std::string_view thoughts;
  if (const size_t first_end = content.find(kEnd); first_end != std::string_view::npos) {
    thoughts = WithoutNewlinesAfter(content.substr(0, first_end));
    if (const size_t start = thoughts.rfind(kStart); start != std::string_view::npos) {
      thoughts.remove_prefix(start + kStart.size());
    }
    thoughts = WithoutNewlinesBefore(thoughts);
    answer = WithoutNewlinesBefore(content.substr(content.rfind(kEnd) + kEnd.size()));
  }
  if (!writes_last_thoughts_ || !after_last_question || (!last && thoughts.empty()))
    return std::string(answer);
  return fmt::format("{}\n{}\n{}\n\n{}", kStart, thoughts, kEnd, WithoutNewlinesBefore(answer));
}

std::string ChatTemplate::ApplyInstructed(const std::vector<ChatMessage>& messages, bool continued) const {
  size_t first = 0;
  std::string system;
  if (!messages.empty() && messages[0].role == "system") {
    system = system_start_ + messages[0].content + system_end_;
    first = 1;
  } else if (inserts_system_ && !continued) {
    system = system_start_ + default_system_ + system_end_;
  }
  size_t system_turn = messages.size();
  for (size_t i = messages.size(); i-- > first;) {
    if (messages[i].role != "user") continue;
    const bool chosen = system_in_last_turn_ ? i + 1 == messages.size() : true;
    if (chosen) system_turn = i;
  }
  std::string text;
  for (size_t i = first; i < messages.size(); ++i) {
    const std::string& content = messages[i].content;
    if (messages[i].role == "assistant") {
      text.append(answer_prefix_).append(trims_content_ ? Trimmed(content) : content).append(answer_end_);
      continue;
    }
    const std::string turn = i == system_turn ? system + content : content;
    const bool trims = trims_content_ && form_ == ChatForm::kLlama2;
    if (i != first) text += turn_start_;
    text.append(user_start_).append(trims ? Trimmed(turn) : turn).append(user_end_);
  }
  return text;
}

}  // namespace kvrun
