// From messages to ids, and templates by themselves.
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/capi/border.h"
#include "runtime/capi/handles.h"
#include "runtime/chat/chat_encoder.h"
#include "runtime/jinja/jinja_template.h"

using kvrun::ChatRequest;
using kvrun::ChatTemplate;
using kvrun::Status;
using kvrun::StatusCode;
using kvrun::TokenId;
using kvrun::capi::CheckNotNull;
using kvrun::capi::CopyIfRoom;
using kvrun::capi::CopyOut;
using kvrun::capi::GetTokenizer;
using kvrun::capi::Guard;
using kvrun::capi::Json;

namespace {

kvrun::Result<Json> ReadMessages(const kvrun_chat_message* messages, size_t count) {
  if (count > 0) KVRUN_RETURN_IF_ERROR(CheckNotNull(messages, "messages"));
  Json list = Json::array();
  for (size_t i = 0; i < count; ++i) {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(messages[i].role, "messages[].role"));
    KVRUN_RETURN_IF_ERROR(CheckNotNull(messages[i].content, "messages[].content"));
    list.push_back({{"role", messages[i].role}, {"content", messages[i].content}});
  }
  return list;
}

// Members of an object are looked for one by one.
constexpr size_t kMostMembers = 10'000;
constexpr size_t kMostDepth = 500;

// Up to its first mistake the text is taken apart as a parser does, which goes no further. (A callback of
// nlohmann's parser takes time in the square of a list's length: after each object it goes through the list.)
bool IsWithinLimits(std::string_view json) {
  std::vector<size_t> n_members;  // of each list and object that is open
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (c == '"') {
      for (++i; i < json.size() && json[i] != '"'; ++i) i += json[i] == '\\' ? 1 : 0;
    } else if (c == '{' || c == '[') {
      n_members.push_back(0);
      if (n_members.size() > kMostDepth) return false;
    } else if (n_members.empty()) {
      continue;
    } else if (c == '}' || c == ']') {
      n_members.pop_back();
    } else if (c == ':' && ++n_members.back() > kMostMembers) {
      return false;
    }
  }
  return true;
}

kvrun::Result<Json> ReadObject(const char* json, std::string_view name) {
  if (!IsWithinLimits(json)) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} is nested more than {} deep, or has more than {} members in an object",
                              name, kMostDepth, kMostMembers));
  }
  Json object = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (object.is_object()) return object;
  return Status(StatusCode::kInvalidArgument,
                fmt::format("{} {}", name, object.is_discarded() ? "is not JSON" : "is not a JSON object"));
}

kvrun::Result<kvrun::Thinking> ReadThinking(kvrun_thinking thinking) {
  switch (thinking) {
    case KVRUN_THINKING_DEFAULT: return kvrun::Thinking::kDefault;
    case KVRUN_THINKING_ON: return kvrun::Thinking::kOn;
    case KVRUN_THINKING_OFF: return kvrun::Thinking::kOff;
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("kvrun_chat_options.thinking is {}, which is not a value of kvrun_thinking",
                            static_cast<int>(thinking)));
}

kvrun::Result<ChatRequest> ReadRequest(Json messages, const kvrun_chat_options& given) {
  ChatRequest request;
  request.messages = std::move(messages);
  request.continued = given.continued != 0;
  KVRUN_ASSIGN_OR_RETURN(request.thinking, ReadThinking(given.thinking));
  if (given.variables == nullptr) return request;
  KVRUN_ASSIGN_OR_RETURN(request.variables, ReadObject(given.variables, "kvrun_chat_options.variables"));
  if (!request.variables.contains("messages")) return request;
  if (!request.messages.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "the conversation is given twice: as messages and in kvrun_chat_options.variables");
  }
  request.messages = std::move(request.variables["messages"]);
  request.variables.erase("messages");
  return request;
}

kvrun::Result<std::vector<TokenId>> EncodeMessages(const kvrun_model* model, Json messages,
                                                   const kvrun_chat_options& given) {
  KVRUN_ASSIGN_OR_RETURN(const kvrun::Tokenizer* tokenizer, GetTokenizer(model));
  KVRUN_ASSIGN_OR_RETURN(const ChatRequest request, ReadRequest(std::move(messages), given));
  const bool parse_special = given.parse_special != 0;
  if (given.chat_template != nullptr) {
    KVRUN_ASSIGN_OR_RETURN(const ChatTemplate chosen,
                           ChatTemplate::Choose(*model->model->file, given.chat_template));
    return kvrun::EncodeChat(*tokenizer, chosen, request, parse_special);
  }
  const kvrun::Result<ChatTemplate>& own = model->chat_template();
  if (!own.ok()) return own.status();
  return kvrun::EncodeChat(*tokenizer, *own, request, parse_special);
}

}  // namespace

extern "C" {

void kvrun_chat_options_init(kvrun_chat_options* options) {
  if (options == nullptr) return;
  *options = {};
  options->struct_size = sizeof(*options);
}

const char* const* kvrun_chat_template_names(void) { return kvrun::ChatFormNames(); }

kvrun_status kvrun_chat_encode(const kvrun_model* model, const kvrun_chat_message* messages, size_t count,
                               const kvrun_chat_options* options, int32_t* ids, size_t* id_count) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(model, "model"));
    KVRUN_RETURN_IF_ERROR(CheckNotNull(id_count, "id_count"));
    if (*id_count > 0) KVRUN_RETURN_IF_ERROR(CheckNotNull(ids, "ids"));
    kvrun_chat_options read;
    kvrun_chat_options_init(&read);
    KVRUN_RETURN_IF_ERROR(kvrun::capi::ReadOptions(options, "kvrun_chat_options", &read));
    KVRUN_ASSIGN_OR_RETURN(Json list, ReadMessages(messages, count));
    KVRUN_ASSIGN_OR_RETURN(const std::vector<TokenId> encoded, EncodeMessages(model, std::move(list), read));
    CopyIfRoom(encoded, ids, id_count);
    return Status::Ok();
  });
}

kvrun_status kvrun_chat_format(const kvrun_model* model, const kvrun_chat_message* messages, size_t count,
                               int continued, char** text) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(text, "text"));
    *text = nullptr;
    KVRUN_RETURN_IF_ERROR(CheckNotNull(model, "model"));
    ChatRequest request;
    request.continued = continued != 0;
    KVRUN_ASSIGN_OR_RETURN(request.messages, ReadMessages(messages, count));
    const kvrun::Result<ChatTemplate>& own = model->chat_template();
    if (!own.ok()) return own.status();
    KVRUN_ASSIGN_OR_RETURN(kvrun::ChatText written, own->Write(request));
    const kvrun::Tokenizer* const tokenizer = model->model->tokenizer.get();
    if (tokenizer != nullptr) written = kvrun::WithoutAddedBos(*tokenizer, std::move(written));
    return CopyOut(std::string_view(kvrun::JoinPieces(written)), text);
  });
}

kvrun_status kvrun_template_render(const char* chat_template, const char* variables, int64_t now_s,
                                   char** text) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(text, "text"));
    *text = nullptr;
    KVRUN_RETURN_IF_ERROR(CheckNotNull(chat_template, "chat_template"));
    KVRUN_RETURN_IF_ERROR(CheckNotNull(variables, "variables"));
    kvrun::JinjaVariables read;
    KVRUN_ASSIGN_OR_RETURN(read.content, ReadObject(variables, "the variables' text"));
    read.now = static_cast<std::time_t>(now_s);
    KVRUN_ASSIGN_OR_RETURN(const kvrun::JinjaTemplate parsed, kvrun::JinjaTemplate::Parse(chat_template));
    KVRUN_ASSIGN_OR_RETURN(const kvrun::JinjaText rendered, parsed.Render(read));
    const std::string whole = kvrun::JoinPieces(rendered);
    if (whole.find('\0') != std::string::npos) {
      return {StatusCode::kInvalidArgument,
              "the text has a zero byte, which cannot be handed out: take it out of the variables"};
    }
    return CopyOut(std::string_view(whole), text);
  });
}

}  // extern "C"
