// The toy's chats: <start>ROLE:CONTENT<end> for each message.
#include <fmt/format.h>
#include <kvrun/kvrun.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/fake_kvrun.h"

using kvrun::fake::Fail;
using kvrun::fake::HandOut;
using kvrun::fake::kBos;
using kvrun::fake::kEnd;

kvrun_status kvrun_chat_format(const kvrun_model* model, const kvrun_chat_message* messages, size_t count,
                               int continued, char** text) {
  if (model->Is("nochat")) return Fail(KVRUN_UNSUPPORTED, "the chat form of this model is not known");
  std::string out =
      continued != 0 || std::string_view(messages[0].role) == "system" ? "" : "<start>system:be good<end>";
  for (size_t i = 0; i < count; ++i) {
    out += fmt::format("<start>{}:{}<end>", messages[i].role, messages[i].content);
  }
  return HandOut(out + "<start>assistant:", text);
}

void kvrun_chat_options_init(kvrun_chat_options* options) {
  *options = {};
  options->struct_size = sizeof *options;
}

const char* const* kvrun_chat_template_names(void) {
  static constexpr const char* kNames[] = {"toy-form", "other-form", nullptr};
  return kNames;
}

// A template given shows as {template} at the start, variables as they are after it, a choice about thinking
// at the end, and what else a message has as (key value). What was thought before earlier answers is left
// out.
kvrun_status kvrun_chat_encode(const kvrun_model* model, const kvrun_chat_message* messages, size_t count,
                               const kvrun_chat_options* options, int32_t* ids, size_t* id_count) {
  if (options->struct_size != sizeof *options) return Fail(KVRUN_INVALID_ARGUMENT, "struct_size");
  if (model->Is("nochat") && options->chat_template == nullptr) {
    return Fail(KVRUN_UNSUPPORTED, "the chat form of this model is not known");
  }
  std::vector<int32_t> all;
  const auto add = [&](std::string_view text, bool special) {
    std::vector<int32_t> tokens(text.size());
    size_t n_tokens = tokens.size();
    kvrun_tokenize(model, text.data(), text.size(), special ? KVRUN_ENCODE_PARSE_SPECIAL : 0, tokens.data(),
                   &n_tokens);
    all.insert(all.end(), tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(n_tokens));
  };
  if (options->continued != 0) {
    all.push_back(kEnd);
  } else if (kvrun_model_adds_bos(model) != 0) {
    all.push_back(kBos);
  }
  if (options->chat_template != nullptr) add(fmt::format("{{{}}}", options->chat_template), false);
  using Json = nlohmann::ordered_json;
  Json variables = options->variables == nullptr ? Json::object() : Json::parse(options->variables);
  Json said = variables.value("messages", Json::array());
  variables.erase("messages");
  if (!variables.empty()) add(variables.dump(), false);
  for (size_t i = 0; i < count; ++i)
    said.push_back({{"role", messages[i].role}, {"content", messages[i].content}});
  if (options->continued == 0 && said[0]["role"] != "system") add("<start>system:be good<end>", true);
  for (const Json& message : said) {
    add(fmt::format("<start>{}:", message["role"].get<std::string>()), true);
    add(message["content"].get<std::string>(), options->parse_special != 0);
    for (const auto& [key, value] : message.items()) {
      if (key == "role" || key == "content" || key == "reasoning_content") continue;
      add(fmt::format("({} {})", key, value.dump()), false);
    }
    add("<end>", true);
  }
  constexpr const char* kThinking[] = {"", "(think)", "(do not think)"};
  add(fmt::format("<start>assistant:{}", kThinking[options->thinking]), true);
  if (all.size() <= *id_count) std::copy(all.begin(), all.end(), ids);
  *id_count = all.size();
  return KVRUN_OK;
}

kvrun_status kvrun_template_render(const char* chat_template, const char* variables, int64_t now_s,
                                   char** text) {
  if (std::string_view(chat_template).find("{% fail %}") != std::string_view::npos)
    return Fail(KVRUN_INVALID_ARGUMENT, "the chat template, line 1: it failed");
  return HandOut(fmt::format("{}|{}|{}", chat_template, variables, now_s), text);
}
