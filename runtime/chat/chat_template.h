// What makes a text of messages: the Jinja template that a model carries, run by kvrun (runtime/jinja); or
// one of the forms that kvrun knows by itself (chat_form.h), chosen by name or where the template fails.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "platform/base/status.h"
#include "runtime/chat/chat_form.h"
#include "runtime/chat/chat_text.h"
#include "runtime/jinja/jinja_template.h"
#include "runtime/model/gguf.h"

namespace kvrun {

// A conversation, up to where the assistant answers.
struct ChatRequest {
  // An array of objects: "role", "content", and what else the template reads: "tool_calls", "name". What a
  // model thought before an answer is in "reasoning_content", apart from the answer, whatever its template
  // calls that.
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  // An object: "tools", "documents", "enable_thinking", "reasoning_effort", or any other that the template
  // reads. Texts in it are contents.
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  Thinking thinking = Thinking::kDefault;
  // The messages follow an assistant's answer: the text begins with the end of its turn.
  bool continued = false;
};

// Constant; several threads may use one at once.
class ChatTemplate {
 public:
  // Of the file's own. kUnsupported: there is none, or none that works; with how to go on.
  static Result<ChatTemplate> OfFile(const GgufFile& file);
  static ChatTemplate OfForm(ChatForm form);
  // The name of a known form (ChatFormNames), or a Jinja template. kUnsupported lists the names.
  static Result<ChatTemplate> Choose(const GgufFile& file, std::string_view name_or_jinja);

  // That of the known form which it is, or looks like; else "template".
  std::string_view name() const { return form_ ? form_->name() : "template"; }
  // Why the template fails at a first question, and which known form stands in, if one does; "": it works.
  std::string note() const;

  // With the BOS text where the template writes it. kInvalidArgument: a message that the template or the form
  // cannot take; kUnsupported: it has no switch for thinking, or does not read variables.
  Result<ChatText> Write(const ChatRequest& request) const;

  // Every text that the template itself may write: the tokens in them are never a content's.
  std::vector<std::string> FormTexts() const;

 private:
  explicit ChatTemplate(ChatTokenTexts tokens) : tokens_(std::move(tokens)) {}
  static Result<ChatTemplate> Create(std::string_view jinja, ChatTokenTexts tokens);

  Status Probe();
  bool UsesForm(const ChatRequest& request) const;
  Status CheckVariables(const nlohmann::ordered_json& variables) const;
  Result<ChatText> WriteForm(const ChatRequest& request) const;
  Result<ChatText> RenderContinued(const ChatRequest& request) const;
  Result<ChatText> Render(const ChatRequest& request) const;
  nlohmann::ordered_json MessagesFor(const nlohmann::ordered_json& messages) const;
  Status SetThinking(Thinking thinking, nlohmann::ordered_json* variables) const;

  ChatTokenTexts tokens_;
  std::shared_ptr<const JinjaTemplate> jinja_;  // null: the known form writes
  bool form_stands_in_ = false;                 // it writes where no variables are given
  std::optional<ChatForm> form_;
  std::string source_;          // of jinja_
  bool parts_content_ = false;  // it takes contents as lists of parts alone
  std::string failure_;         // at a first question
};

}  // namespace kvrun
