#include "runtime/chat/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/chat/chat_form_names.h"
#include "runtime/chat/chat_source.h"
#include "runtime/chat/reasoning.h"

namespace kvrun {
namespace {

using Json = nlohmann::ordered_json;

// No template or model writes this by itself.
constexpr std::string_view kStandIn = "kvrun:stand-in";

// Variables by which templates switch thinking on and off, the most usual first.
constexpr auto kThinkingSwitches = std::to_array<std::string_view>({"enable_thinking", "thinking"});
// The fields of an assistant's message that templates read its thoughts from.
constexpr auto kThoughtFields =
    std::to_array<std::string_view>({"reasoning_content", "thinking", "reasoning"});

// `.field`, ['field'] or ["field"].
bool NamesField(std::string_view source, std::string_view field) {
  constexpr std::string_view kWord = "_abcdefghijklmnopqrstuvwxyz";
  for (size_t at = source.find(field); at != std::string_view::npos; at = source.find(field, at + 1)) {
    const std::string_view before = source.substr(0, at);
    const std::string_view after = source.substr(at + field.size());
    if (before.ends_with('.') && (after.empty() || kWord.find(after[0]) == std::string_view::npos))
      return true;
    if ((before.ends_with("['") && after.starts_with("']")) ||
        (before.ends_with("[\"") && after.starts_with("\"]")))
      return true;
  }
  return false;
}

bool Holds(const ChatText& text, std::string_view content) {
  return std::any_of(text.begin(), text.end(), [&](const ChatSegment& segment) {
    return segment.text.find(content) != std::string::npos;
  });
}

// Behind the last place of the stand-in.
Result<ChatText> TextBehindStandIn(ChatText text) {
  for (size_t i = text.size(); i-- > 0;) {
    const size_t at = text[i].text.rfind(kStandIn);
    if (at == std::string::npos) continue;
    text[i].text.erase(0, at + kStandIn.size());
    text.erase(text.begin(), text.begin() + static_cast<ptrdiff_t>(text[i].text.empty() ? i + 1 : i));
    return text;
  }
  return Status(StatusCode::kUnsupported,
                "the chat template does not write earlier answers as they are: give the whole conversation");
}

std::string TextOfContent(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  if (!content.is_array()) return text;
  for (const Json& part : content) {
    if (part.is_object() && part.contains("text") && part["text"].is_string())
      text += part["text"].get<std::string>();
  }
  return text;
}

Status CheckMessages(const Json& messages) {
  if (!messages.is_array()) return {StatusCode::kInvalidArgument, "the messages are not a JSON array"};
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    const std::string where = fmt::format("message {}", i + 1);
    if (!message.is_object()) return {StatusCode::kInvalidArgument, where + " is not a JSON object"};
    if (!message.contains("role") || !message["role"].is_string())
      return {StatusCode::kInvalidArgument, where + " has no \"role\", which is a text"};
    const Json content = message.value("content", Json());
    if (!content.is_string() && !content.is_array() && !content.is_null()) {
      return {StatusCode::kInvalidArgument,
              where + ": its \"content\" is neither a text nor a list of parts nor null"};
    }
  }
  return Status::Ok();
}

// A form takes roles and texts.
Result<std::vector<ChatMessage>> PlainMessages(const Json& messages) {
  std::vector<ChatMessage> plain;
  for (const Json& message : messages) {
    if (message.contains("tool_calls")) {
      return Status(StatusCode::kUnsupported,
                    "calls of tools need the model's own chat template: this known form has none");
    }
    std::string content = TextOfContent(message.value("content", Json()));
    if (const std::string thoughts = TextOfContent(message.value("reasoning_content", Json()));
        !thoughts.empty())
      content = fmt::format("<think>\n{}\n</think>\n\n{}", thoughts, content);
    plain.push_back({message["role"].get<std::string>(), std::move(content)});
  }
  return plain;
}

}  // namespace

Result<ChatTemplate> ChatTemplate::OfFile(const GgufFile& file) {
  KVRUN_ASSIGN_OR_RETURN(const std::string_view jinja, FindChatTemplate(file));
  KVRUN_ASSIGN_OR_RETURN(ChatTokenTexts tokens, ReadChatTokenTexts(file));
  Result<ChatTemplate> result = Create(jinja, std::move(tokens));
  if (!result.ok()) return result.status().WithContext(file.name());
  return result;
}

ChatTemplate ChatTemplate::OfForm(ChatForm form) {
  ChatTemplate result({});
  result.form_ = std::move(form);
  return result;
}

Result<ChatTemplate> ChatTemplate::Choose(const GgufFile& file, std::string_view name_or_jinja) {
  KVRUN_ASSIGN_OR_RETURN(ChatTokenTexts tokens, ReadChatTokenTexts(file));
  const std::string_view named = FindNamedTemplate(name_or_jinja);
  if (!named.empty()) {
    KVRUN_ASSIGN_OR_RETURN(ChatForm form, ChatForm::FromSource(named, std::move(tokens)));
    return OfForm(std::move(form));
  }
  const bool is_jinja = name_or_jinja.find("{{") != std::string_view::npos ||
                        name_or_jinja.find("{%") != std::string_view::npos;
  if (is_jinja) {
    KVRUN_ASSIGN_OR_RETURN(ChatTemplate chosen, Create(name_or_jinja, std::move(tokens)));
    // Whoever chose this wants no other in its place.
    if (chosen.form_stands_in_ && chosen.jinja_ == nullptr) {
      return Status(StatusCode::kUnsupported,
                    fmt::format("{}; mend it, or give one of {}", chosen.failure_, ListChatFormNames()));
    }
    chosen.form_stands_in_ = false;
    return chosen;
  }
  return Status(StatusCode::kUnsupported,
                fmt::format("there is no chat template \"{}\"; give one of {}, or a Jinja template",
                            name_or_jinja.substr(0, 64), ListChatFormNames()));
}

Result<ChatTemplate> ChatTemplate::Create(std::string_view jinja, ChatTokenTexts tokens) {
  if (jinja.size() > kMaxTemplateBytes) {
    return Status(
        StatusCode::kUnsupported,
        fmt::format("the chat template has {} bytes; kvrun reads up to {}, as those of models have a "
                    "few thousand: name a known form with --chat-template instead ({})",
                    jinja.size(), kMaxTemplateBytes, ListChatFormNames()));
  }
  ChatTemplate result(tokens);
  result.source_ = jinja;
  if (Result<ChatForm> form = ChatForm::FromSource(jinja, std::move(tokens)); form.ok())
    result.form_ = std::move(form).value();
  Result<JinjaTemplate> parsed = JinjaTemplate::Parse(jinja);
  Status failure = parsed.status();
  if (parsed.ok()) {
    result.jinja_ = std::make_shared<const JinjaTemplate>(std::move(parsed).value());
    failure = result.Probe();
    if (failure.ok()) return result;
  }
  if (!result.form_ && (result.jinja_ == nullptr || failure.code() == StatusCode::kUnsupported)) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("{}; name a known form with --chat-template instead ({})", failure.message(),
                              ListChatFormNames()));
  }
  // With variables that it asks for it may work yet.
  result.form_stands_in_ = result.form_.has_value();
  result.failure_ = failure.message();
  return result;
}

std::string ChatTemplate::note() const {
  if (!form_stands_in_) return failure_;
  return fmt::format("{}; the known form {} is used instead", failure_, form_->name());
}

// A template that works shows a user's question, as a text or as a list of parts.
Status ChatTemplate::Probe() {
  ChatRequest request;
  request.messages = {{{"role", "user"}, {"content", kStandIn}}};
  Result<ChatText> text = Render(request);
  if (text.ok() && Holds(*text, kStandIn)) return Status::Ok();
  parts_content_ = true;
  const Result<ChatText> of_parts = Render(request);
  if (of_parts.ok() && Holds(*of_parts, kStandIn)) return Status::Ok();
  parts_content_ = false;
  if (!text.ok()) return text.status();
  return {StatusCode::kUnsupported, "the chat template does not write what the user asks"};
}

Result<ChatText> ChatTemplate::Write(const ChatRequest& request) const {
  KVRUN_RETURN_IF_ERROR(CheckMessages(request.messages));
  if (!request.variables.is_object())
    return Status(StatusCode::kInvalidArgument, "the template's variables are not a JSON object");
  if (UsesForm(request)) return WriteForm(request);
  KVRUN_RETURN_IF_ERROR(CheckVariables(request.variables));
  if (request.continued) return RenderContinued(request);
  return Render(request);
}

bool ChatTemplate::UsesForm(const ChatRequest& request) const {
  return jinja_ == nullptr || (form_stands_in_ && request.variables.empty());
}

// What nobody reads is a mistake, or tools that the model would never see.
Status ChatTemplate::CheckVariables(const Json& variables) const {
  for (const auto& [name, value] : variables.items()) {
    if (name == "bos_token" || name == "eos_token") {
      return {StatusCode::kInvalidArgument, fmt::format("the variable \"{}\" is the model's own", name)};
    }
    if (jinja_->reads(name)) continue;
    return {StatusCode::kUnsupported,
            fmt::format("the model's chat template does not read the variable \"{}\"", name)};
  }
  return Status::Ok();
}

Result<ChatText> ChatTemplate::WriteForm(const ChatRequest& request) const {
  if (!request.variables.empty()) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("the known chat form {} reads no variables, such as \"{}\": they are the "
                              "model's own chat template's",
                              form_->name(), request.variables.begin().key()));
  }
  KVRUN_ASSIGN_OR_RETURN(const std::vector<ChatMessage> messages, PlainMessages(request.messages));
  const ChatStart start = request.continued ? ChatStart::kAnswer : ChatStart::kNothing;
  return form_->Write(messages, {start, true, request.thinking});
}

// What is written behind a stand-in for the answer.
Result<ChatText> ChatTemplate::RenderContinued(const ChatRequest& request) const {
  ChatRequest whole = request;
  whole.messages = {{{"role", "user"}, {"content", "?"}}, {{"role", "assistant"}, {"content", kStandIn}}};
  for (const Json& message : request.messages) whole.messages.push_back(message);
  KVRUN_ASSIGN_OR_RETURN(ChatText text, Render(whole));
  return TextBehindStandIn(std::move(text));
}

Result<ChatText> ChatTemplate::Render(const ChatRequest& request) const {
  JinjaVariables variables;
  variables.content = request.variables;
  KVRUN_RETURN_IF_ERROR(SetThinking(request.thinking, &variables.content));
  variables.content["messages"] = MessagesFor(request.messages);
  if (!variables.content.contains("add_generation_prompt")) variables.content["add_generation_prompt"] = true;
  variables.form = {{"bos_token", tokens_.bos}, {"eos_token", tokens_.eos}};
  // What a template makes of a document of some megabytes are several texts of that size.
  JinjaLimits limits;
  for (const Json& message : request.messages)
    limits.max_bytes += 16 * TextOfContent(message.value("content", Json())).size();
  return jinja_->Render(variables, limits);
}

Status ChatTemplate::SetThinking(Thinking thinking, Json* variables) const {
  if (thinking == Thinking::kDefault) return Status::Ok();
  for (const std::string_view name : kThinkingSwitches) {
    if (!jinja_->reads(name)) continue;
    if (variables->contains(name)) {
      return {StatusCode::kInvalidArgument,
              fmt::format("whether the model thinks is said twice: by --thinking, and by the variable \"{}\"",
                          name)};
    }
    (*variables)[std::string(name)] = thinking == Thinking::kOn;
    return Status::Ok();
  }
  return {
      StatusCode::kUnsupported,
      "the model's chat template has no switch for thinking: leave out --thinking (or set a variable that "
      "it reads with --template-var)"};
}

// Contents and thoughts as this template takes them. One that reads no field of thoughts finds them in the
// content, where it looks for their end; and where it does not, they are left out, as they are no answer.
Json ChatTemplate::MessagesFor(const Json& messages) const {
  Json adapted = messages;
  for (Json& message : adapted) {
    if (const Json thoughts = message.value("reasoning_content", Json()); thoughts.is_string()) {
      message.erase("reasoning_content");
      bool is_placed = false;
      for (const std::string_view field : kThoughtFields) {
        if (!NamesField(source_, field)) continue;
        message[std::string(field)] = thoughts;
        is_placed = true;
      }
      const ReasoningMarks* const marks = is_placed ? nullptr : FindReasoningMarks(source_);
      if (marks != nullptr) {
        message["content"] = fmt::format("{}\n{}\n{}\n\n{}", marks->open, thoughts.get<std::string>(),
                                         marks->close, TextOfContent(message.value("content", Json())));
      }
    }
    if (parts_content_ && message.contains("content") && message["content"].is_string())
      message["content"] = Json::array({{{"type", "text"}, {"text", message["content"]}}});
  }
  return adapted;
}

std::vector<std::string> ChatTemplate::FormTexts() const {
  std::vector<std::string> texts;
  if (jinja_ == nullptr || form_stands_in_) texts = form_->FormTexts();
  if (jinja_ == nullptr) return texts;
  texts.insert(texts.end(), jinja_->form_texts().begin(), jinja_->form_texts().end());
  for (const std::string& text : {tokens_.bos, tokens_.eos}) {
    if (!text.empty()) texts.push_back(text);
  }
  return texts;
}

}  // namespace kvrun
