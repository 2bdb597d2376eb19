#include "apps/kvserve/openai_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "apps/common/printable.h"
#include "apps/kvserve/json_fields.h"

namespace kvrun::serve {
namespace {

// The limits of a body hold for each text of arguments alone.
constexpr size_t kMostArgumentBytes = size_t{4} << 20;

constexpr std::string_view kContentForm = "a string, or a list of parts {\"type\": \"text\", \"text\"}";

// "text" is what users send, "refusal" what an assistant of OpenAI's may have answered.
std::string TextOfPart(const std::string& param, const Json& part) {
  if (!part.is_object()) RefuseValue(param, part, "a part {\"type\": \"text\", \"text\"}");
  const Fields fields(part);
  const std::string kind = fields.Text("type").value_or("text");
  if (kind != "text" && kind != "refusal") {
    RefuseUnsupported(param, fmt::format("\"{}\" is a part of type \"{}\": only text can be read, in parts "
                                         "of type \"text\"",
                                         param, cli::Clipped(kind, 100)));
  }
  const Json* const text = fields.Find(kind.c_str());
  if (text == nullptr) RefuseMissing(param + "." + kind, "a string");
  if (!text->is_string()) RefuseValue(param + "." + kind, *text, "a string");
  return text->get<std::string>();
}

std::string TextOfContent(const std::string& param, const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) RefuseValue(param, content, std::string(kContentForm));
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) text += TextOfPart(fmt::format("{}[{}]", param, i), content[i]);
  return text;
}

std::string ReadRole(const std::string& param, const Json& message) {
  constexpr std::array kRoles = {"system", "developer", "user", "assistant", "tool"};
  constexpr const char* kRoleForm = "one of system, developer, user, assistant, tool";
  const Json* const role = Fields(message).Find("role");
  if (role == nullptr) RefuseMissing(param + ".role", kRoleForm);
  const auto* const name = role->get_ptr<const std::string*>();
  if (name == nullptr || std::find(kRoles.begin(), kRoles.end(), *name) == kRoles.end())
    RefuseValue(param + ".role", *role, kRoleForm);
  // What newer models of OpenAI call the system message.
  return *name == "developer" ? "system" : *name;
}

class MessageReader {
 public:
  // What a template may read of it stays: tool_calls, tool_call_id, name and the like.
  Json Read(const std::string& param, const Json& given) {
    if (!given.is_object()) RefuseValue(param, given, "an object {\"role\", \"content\"}");
    Json message = Json::object();
    message["role"] = ReadRole(param, given);
    message["content"] = "";
    for (const auto& [key, value] : given.items()) {
      if (key == "role" || key == "content" || value.is_null()) continue;
      // Clients send back what they were answered, with all of its fields.
      if (key == "tool_calls" && value.is_array() && value.empty()) continue;
      const std::string place = param + "." + key;
      if (key == "reasoning_content" && !value.is_string()) RefuseValue(place, value, "a string");
      message[key] = key == "tool_calls" ? ReadToolCalls(place, value) : value;
    }
    const Json* const content = Fields(given).Find("content");
    // An answer that only calls tools has none, and neither has one that was cut off in thought.
    const bool may_lack_content = message["role"] == "assistant" &&
                                  (message.contains("tool_calls") || message.contains("reasoning_content"));
    if (content != nullptr) {
      message["content"] = TextOfContent(param + ".content", *content);
    } else if (!may_lack_content) {
      RefuseMissing(param + ".content", std::string(kContentForm));
    }
    return message;
  }

 private:
  Json ReadToolCalls(const std::string& param, const Json& value) {
    constexpr const char* kCall = "a call {\"function\": {\"name\", \"arguments\"}}";
    if (!value.is_array()) RefuseValue(param, value, std::string("a list, each ") + kCall);
    Json calls = value;
    for (size_t i = 0; i < calls.size(); ++i) {
      const std::string place = fmt::format("{}[{}]", param, i);
      const auto function = calls[i].is_object() ? calls[i].find("function") : calls[i].end();
      if (function == calls[i].end() || !function->is_object()) RefuseValue(place, calls[i], kCall);
      const auto arguments = function->find("arguments");
      if (arguments != function->end() && arguments->is_string())
        ReadArguments(place + ".function.arguments", &*arguments);
    }
    return calls;
  }

  // OpenAI writes a call's arguments as a text of JSON, templates read the object.
  void ReadArguments(const std::string& param, Json* arguments) {
    const auto& text = arguments->get_ref<const std::string&>();
    n_argument_bytes_ += text.size();
    if (n_argument_bytes_ > kMostArgumentBytes)
      RefuseValue(param, *arguments,
                  fmt::format("shorter: all arguments have at most {} bytes", kMostArgumentBytes));
    try {
      Json object = ParseBody(text);
      *arguments = std::move(object);
    } catch (const ApiError&) {
      // It stays the text that the model may have written.
    }
  }

  size_t n_argument_bytes_ = 0;
};

}  // namespace

Json ReadMessages(const Json& value) {
  if (!value.is_array() || value.empty())
    RefuseValue("messages", value, "a list of at least one {\"role\", \"content\"}");
  MessageReader reader;
  Json messages = Json::array();
  for (const Json& message : value)
    messages.push_back(reader.Read(fmt::format("messages[{}]", messages.size()), message));
  return messages;
}

}  // namespace kvrun::serve
