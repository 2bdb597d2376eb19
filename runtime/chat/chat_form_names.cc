#include "runtime/chat/chat_form_names.h"

#include <algorithm>
#include <array>

#include "runtime/chat/chat_form.h"

namespace kvrun {
namespace {

struct NamedTemplate {
  const char* name;
  std::string_view jinja;
};

// Only what ChatFormReader looks for.
constexpr auto kTemplates = std::to_array<NamedTemplate>({
    {"chatml", R"({{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }})"},
    {"llama-2",
     R"({% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message.content %})"
     R"({{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{{ ' ' + content.strip() + ' ' + eos_token }})"},
    {"llama-3",
     R"({{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content|trim + )"
     R"('<|eot_id|>' }})"},
    {"zephyr",
     R"({{ '<|user|>\n' + message.content + eos_token }}{{ '<|assistant|>\n' + message.content + eos_token }})"},
    {"mistral", R"({% if loop.last and system_message is defined %}{{ '[INST] ' + system_message + '\n\n' + )"
                R"(message.content + '[/INST]' }}{% endif %}{{ ' ' + message.content|trim + eos_token }})"},
    {"qwen",
     R"({{ '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }})"
     R"({{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }})"},
    {"qwen3",
     R"({% if enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %})"
     R"({{ '<|im_start|>' + message.content.split('</think>')[-1] + '<|im_end|>' }}{{ last_query_index }})"},
    {"deepseek-r1",
     R"({{ '<｜User｜>' + message.content }}{{ '<｜Assistant｜>' + message.content.split('</think>')[-1] + )"
     R"('<｜end▁of▁sentence｜>' }}{{ '<｜Assistant｜><think>\n' }})"},
});

constexpr auto kNames = [] {
  std::array<const char*, kTemplates.size() + 1> names{};
  for (size_t i = 0; i < kTemplates.size(); ++i) names[i] = kTemplates[i].name;
  return names;
}();

}  // namespace

const char* const* ChatFormNames() { return kNames.data(); }

std::string_view FindNamedTemplate(std::string_view name) {
  const auto* found = std::find_if(kTemplates.begin(), kTemplates.end(),
                                   [&](const NamedTemplate& known) { return known.name == name; });
  return found == kTemplates.end() ? std::string_view() : found->jinja;
}

std::string ListChatFormNames() {
  std::string names;
  for (const NamedTemplate& known : kTemplates) {
    if (!names.empty()) names += ", ";
    names += known.name;
  }
  return names;
}

}  // namespace kvrun
