#include "runtime/chat/chat_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "platform/base/check.h"
#include "runtime/chat/chat_form_names.h"
#include "runtime/chat/chat_form_reader.h"
#include "runtime/chat/chat_source.h"

namespace kvrun {
namespace {

constexpr std::string_view kSpaces = " \t\n\v\f\r";
constexpr std::string_view kThoughtsStart = "<think>";
constexpr std::string_view kThoughtsEnd = "</think>";

std::string_view Trimmed(std::string_view text) {
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

void AddForm(std::string_view text, ChatText* to) { to->push_back({std::string(text), false}); }
void AddContent(std::string_view text, ChatText* to) { to->push_back({std::string(text), true}); }

// White space at both ends, whatever wrote it.
void Trim(ChatText* text) {
  for (ChatSegment& segment : *text) {
    segment.text.erase(0, std::min(segment.text.find_first_not_of(kSpaces), segment.text.size()));
    if (!segment.text.empty()) break;
  }
  for (auto segment = text->rbegin(); segment != text->rend(); ++segment) {
    segment->text.resize(segment->text.find_last_not_of(kSpaces) + 1);
    if (!segment->text.empty()) break;
  }
}

Result<ChatForm> ReadTemplate(std::string_view jinja, ChatTokenTexts tokens) {
  if (jinja.size() <= kMaxTemplateBytes) return ChatFormReader(jinja, std::move(tokens)).Read();
  return Status(StatusCode::kUnsupported,
                fmt::format("the chat template has {} bytes; kvrun reads up to {}, as those of models have a "
                            "few thousand: name one of its forms with --chat-template instead ({})",
                            jinja.size(), kMaxTemplateBytes, ListChatFormNames()));
}

}  // namespace

Result<ChatForm> ChatForm::FromSource(std::string_view jinja, ChatTokenTexts tokens) {
  return ReadTemplate(jinja, std::move(tokens));
}

std::string_view ChatForm::name() const {
  switch (form_) {
    case KnownChatForm::kChatMl: return "chatml";
    case KnownChatForm::kLlama2: return "llama-2";
    case KnownChatForm::kLlama3: return "llama-3";
    case KnownChatForm::kZephyr: return "zephyr";
    case KnownChatForm::kMistral: return "mistral";
    case KnownChatForm::kQwen: return "qwen";
    case KnownChatForm::kDeepSeek: return "deepseek-r1";
  }
  return "unknown";
}

Result<ChatText> ChatForm::Write(const std::vector<ChatMessage>& messages,
                                 const ChatTextOptions& options) const {
  KVRUN_RETURN_IF_ERROR(CheckOrder(messages, options.start));
  KVRUN_RETURN_IF_ERROR(CheckThinking(options.thinking));
  if (options.start != ChatStart::kAnswer) return WriteAll(messages, options);
  // What ends an answer's turn is what is written behind a stand-in for it.
  static const std::string kStandIn = "<answer>";
  std::vector<ChatMessage> all = {{"user", "?"}, {"assistant", kStandIn}};
  all.insert(all.end(), messages.begin(), messages.end());
  ChatText text = WriteAll(all, options);
  const auto answer = std::find_if(text.begin(), text.end(), [](const ChatSegment& segment) {
    return segment.is_content && segment.text == kStandIn;
  });
  KVRUN_CHECK(answer != text.end());
  text.erase(text.begin(), answer + 1);
  return text;
}

Result<std::string> ChatForm::Apply(const std::vector<ChatMessage>& messages, bool add_assistant,
                                    bool continued) const {
  const ChatTextOptions options = {continued ? ChatStart::kMessages : ChatStart::kNothing, add_assistant,
                                   Thinking::kDefault};
  KVRUN_ASSIGN_OR_RETURN(const ChatText text, Write(messages, options));
  std::string whole;
  for (const ChatSegment& segment : text) whole += segment.text;
  return whole;
}

std::vector<std::string> ChatForm::FormTexts() const {
  std::vector<std::string> texts;
  const std::vector<ChatMessage> messages = {
      {"system", "?"}, {"user", "?"}, {"assistant", "<think>?</think>?"}, {"user", "?"}, {"assistant", "?"}};
  for (const Thinking thinking : {Thinking::kDefault, Thinking::kOff}) {
    if (!CheckThinking(thinking).ok()) continue;
    std::string run;
    for (const ChatSegment& segment : WriteAll(messages, {ChatStart::kNothing, true, thinking})) {
      if (!segment.is_content) run += segment.text;
      if (!segment.is_content || run.empty()) continue;
      texts.push_back(std::exchange(run, {}));
    }
    if (!run.empty()) texts.push_back(run);
  }
  if (drops_old_thoughts_)
    texts.insert(texts.end(), {std::string(kThoughtsStart), std::string(kThoughtsEnd)});
  return texts;
}

ChatText ChatForm::WriteAll(const std::vector<ChatMessage>& messages, const ChatTextOptions& options) const {
  ChatText text;
  const bool starts = options.start == ChatStart::kNothing;
  if (!is_tagged()) {
    // A turn with "[INST]" ends where the answer begins: there is nothing to add.
    WriteInstructed(messages, starts, &text);
    return text;
  }
  WriteTagged(messages, starts, &text);
  if (options.add_assistant) {
    AddForm(answer_start_, &text);
    if (options.thinking == Thinking::kOff) AddForm(empty_thoughts_, &text);
  }
  return text;
}

Status ChatForm::CheckThinking(Thinking thinking) const {
  if (thinking == Thinking::kDefault || has_thinking_switch()) return Status::Ok();
  return {StatusCode::kUnsupported, fmt::format("the model's chat template (of the form {}) has no switch "
                                                "for thinking, as Qwen3's has: leave --thinking out",
                                                name())};
}

Status ChatForm::CheckOrder(const std::vector<ChatMessage>& messages, ChatStart start) const {
  std::optional<bool> user_next;
  if (start != ChatStart::kMessages) user_next = true;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant") {
      return {
          StatusCode::kInvalidArgument,
          fmt::format("message {} has the role \"{}\"; a role is one of system, user, assistant", i, role)};
    }
    const bool first_of_all =
        i == 0 && (is_tagged() ? start == ChatStart::kNothing : start != ChatStart::kAnswer);
    if (role == "system" && first_of_all) continue;
    if (is_tagged() && (role != "system" || form_ != KnownChatForm::kDeepSeek)) continue;
    if (role == "system") {
      return {
          StatusCode::kInvalidArgument,
          fmt::format("message {} is a system message; a {} chat takes one only at its start", i, name())};
    }
    if (user_next.value_or(role == "user") != (role == "user")) {
      return {
          StatusCode::kInvalidArgument,
          fmt::format(
              "message {} is from the {}; in a {} chat user and assistant take turns, and the user begins", i,
              role, name())};
    }
    user_next = role != "user";
  }
  const bool only_system = messages.size() == 1 && messages[0].role == "system";
  if (!is_tagged() && only_system) {
    return {
        StatusCode::kInvalidArgument,
        fmt::format("a {} chat writes the system message into a user's message, and there is none: add one",
                    name())};
  }
  return Status::Ok();
}

void ChatForm::WriteTagged(const std::vector<ChatMessage>& messages, bool starts, ChatText* text) const {
  size_t last_question = messages.size();
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role == "user") last_question = i;
  }
  const bool begins = starts && !messages.empty();
  if (begins && inserts_system_ && messages[0].role != "system") {
    AddForm(StartOf("system") + system_preface_ + default_system_ + EndOf("system"), text);
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    const std::string_view content =
        trims_content_ ? Trimmed(messages[i].content) : std::string_view(messages[i].content);
    AddForm(StartOf(role), text);
    if (role == "system" && i == 0 && begins) AddForm(system_preface_, text);
    if (role == "assistant" && drops_old_thoughts_) {
      WriteThoughtful(content, i > last_question, i + 1 == messages.size(), text);
    } else {
      AddContent(content, text);
    }
    AddForm(EndOf(role), text);
  }
}

std::string ChatForm::StartOf(std::string_view role) const {
  if (form_ != KnownChatForm::kDeepSeek) return fmt::format("{}{}{}", before_role_, role, after_role_);
  return role == "user" ? user_start_ : role == "assistant" ? answer_prefix_ : "";
}

std::string ChatForm::EndOf(std::string_view role) const {
  return form_ != KnownChatForm::kDeepSeek || role == "assistant" ? answer_end_ : "";
}

void ChatForm::WriteThoughtful(std::string_view content, bool after_last_question, bool last,
                               ChatText* text) const {
  std::string_view answer = content;
  std::string_view thoughts;
  if (const size_t first_end = content.find(kThoughtsEnd); first_end != std::string_view::npos) {
    thoughts = WithoutNewlinesAfter(content.substr(0, first_end));
    if (const size_t start = thoughts.rfind(kThoughtsStart); start != std::string_view::npos) {
      thoughts.remove_prefix(start + kThoughtsStart.size());
    }
    thoughts = WithoutNewlinesBefore(thoughts);
    answer = content.substr(content.rfind(kThoughtsEnd) + kThoughtsEnd.size());
    if (form_ != KnownChatForm::kDeepSeek) answer = WithoutNewlinesBefore(answer);
  }
  if (!writes_last_thoughts_ || !after_last_question || (!last && thoughts.empty())) {
    AddContent(answer, text);
    return;
  }
  AddForm(fmt::format("{}\n", kThoughtsStart), text);
  AddContent(thoughts, text);
  AddForm(fmt::format("\n{}\n\n", kThoughtsEnd), text);
  AddContent(WithoutNewlinesBefore(answer), text);
}

void ChatForm::WriteInstructed(const std::vector<ChatMessage>& messages, bool starts, ChatText* text) const {
  ChatText system;
  size_t first = 0;
  if (!messages.empty() && messages[0].role == "system") {
    AddForm(system_start_, &system);
    AddContent(messages[0].content, &system);
    AddForm(system_end_, &system);
    first = 1;
  } else if (inserts_system_ && starts) {
    AddForm(system_start_ + default_system_ + system_end_, &system);
  }
  size_t system_turn = messages.size();
  for (size_t i = messages.size(); i-- > first;) {
    if (messages[i].role != "user") continue;
    const bool chosen = system_in_last_turn_ ? i + 1 == messages.size() : true;
    if (chosen) system_turn = i;
  }
  for (size_t i = first; i < messages.size(); ++i) {
    const std::string& content = messages[i].content;
    if (messages[i].role == "assistant") {
      AddForm(answer_prefix_, text);
      AddContent(trims_content_ ? Trimmed(content) : content, text);
      AddForm(answer_end_, text);
      continue;
    }
    ChatText turn;
    if (i == system_turn) turn = system;
    AddContent(content, &turn);
    if (trims_content_ && form_ == KnownChatForm::kLlama2) Trim(&turn);
    if (i != first) AddForm(turn_start_, text);
    AddForm(user_start_, text);
    text->insert(text->end(), turn.begin(), turn.end());
    AddForm(user_end_, text);
  }
}

}  // namespace kvrun
