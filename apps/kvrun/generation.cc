#include "apps/kvrun/generation.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <random>
#include <utility>

#include "apps/common/failure.h"
#include "apps/common/files.h"

namespace kvrun::cli {
namespace {

constexpr uint32_t kMaxU32 = std::numeric_limits<uint32_t>::max();

std::string ChatTemplateNames() {
  std::string names;
  for (const char* const* name = kvrun_chat_template_names(); *name != nullptr; ++name) {
    names += (names.empty() ? "" : ", ") + std::string(*name);
  }
  return names;
}

// Points into `form` and `variables`, which is JSON or empty.
kvrun_chat_options ChatOptionsOf(const PromptForm& form, const std::string& variables, bool continued) {
  kvrun_chat_options options;
  kvrun_chat_options_init(&options);
  options.continued = continued ? 1 : 0;
  options.parse_special = form.parse_special ? 1 : 0;
  options.thinking = form.thinking == "on"    ? KVRUN_THINKING_ON
                     : form.thinking == "off" ? KVRUN_THINKING_OFF
                                              : KVRUN_THINKING_DEFAULT;
  if (!form.jinja.empty()) options.chat_template = form.jinja.c_str();
  if (!variables.empty()) options.variables = variables.c_str();
  return options;
}

std::string VariablesOf(const PromptForm& form) {
  return form.variables.empty() ? std::string() : DumpJson(form.variables);
}

// NAME=VALUE: VALUE is JSON where it can be read as that, else a text; @FILE: what the file holds.
void ReadTemplateVariable(const std::string& given, Json* variables) {
  const size_t equals = given.find('=');
  const std::string name = given.substr(0, equals);
  const bool is_name = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  });
  if (equals == std::string::npos || !is_name) {
    throw UsageError(
        fmt::format("--template-var: \"{}\" is not NAME=VALUE, such as reasoning_effort=high", given));
  }
  if (name == "messages") throw UsageError("--template-var: messages are what the chat consists of");
  std::string value = given.substr(equals + 1);
  if (value == "@") throw UsageError(fmt::format("--template-var: {}=@ names no file", name));
  if (value.starts_with('@')) value = ReadText(value.substr(1), LimitOfSmallFile("a template's variable"));
  std::string why;
  const Json json = ParseJson(value, &why);
  const size_t first = value.find_first_not_of(" \t\r\n");
  if (json.is_discarded() && first != std::string::npos && (value[first] == '{' || value[first] == '[')) {
    throw Failure(
        KVRUN_INVALID_ARGUMENT,
        fmt::format("--template-var: the value of {} begins as JSON does, but is none: {}", name, why));
  }
  (*variables)[name] = json.is_discarded() ? Json(value) : json;
}

void ReadChatTemplate(PromptForm* form) {
  if (form->chat_template.empty()) return;
  for (const char* const* name = kvrun_chat_template_names(); *name != nullptr; ++name) {
    if (form->chat_template == *name) form->jinja = *name;
  }
  if (!form->jinja.empty()) return;
  if (access(form->chat_template.c_str(), F_OK) != 0) {
    throw Failure(KVRUN_NOT_FOUND, fmt::format("--chat-template: \"{}\" is neither a file nor one of {}",
                                               form->chat_template, ChatTemplateNames()));
  }
  form->jinja = ReadText(form->chat_template, LimitOfSmallFile("a chat template"));
  const bool has_marks =
      form->jinja.find("{{") != std::string::npos || form->jinja.find("{%") != std::string::npos;
  if (form->jinja.find('\0') != std::string::npos || !has_marks) {
    throw Failure(KVRUN_UNSUPPORTED,
                  fmt::format("--chat-template: {} is not a Jinja template; known forms are {}",
                              form->chat_template, ChatTemplateNames()));
  }
}

// But for -1.
void RejectNegative(const std::string& source, const std::string& text) {
  if (text.starts_with('-') && text != "-1")
    throw UsageError(fmt::format("{}: \"{}\" is below -1: give -1, or a number from 0", source, text));
}

}  // namespace

void AddGenerationOptions(OptionSet* set, GenerationOptions* generation, uint32_t default_max_tokens,
                          SamplingDefaults defaults) {
  const bool of_chat = defaults == SamplingDefaults::kChat;
  kvrun_generate_options& values = generation->values;
  values.max_tokens = default_max_tokens;
  set->Group(HelpGroup::kSampling);
  set->Checked(
      "-n,--max-tokens", "N",
      fmt::format("the most tokens to generate (default {}; -1 or 0: until the model ends or the context "
                  "is full)",
                  default_max_tokens),
      [&values](const std::string& source, const std::string& text) {
        RejectNegative(source, text);
        values.max_tokens = text == "-1" ? 0 : ParseCountOption(source, text, 0, kMaxU32);
      });
  set->Number("--temp", &values.temperature, 0.0F, 100.0F,
              of_chat ? "temperature (default: the model file's, else 0.7; 0: greedy)"
                      : "temperature (default 0: greedy)");
  set->Number("--top-k", &values.top_k, 0, kMaxU32,
              of_chat ? "sample among the K likeliest tokens (default: the model file's, else 0: off)"
                      : "sample among the K likeliest tokens (0: off)");
  set->Number("--top-p", &values.top_p, 0.0F, 1.0F,
              of_chat ? "sample among the likeliest tokens whose probabilities add up to P (default: the "
                        "model file's, else 0.95; 1: off)"
                      : "sample among the likeliest tokens whose probabilities add up to P (1: off)");
  set->Number(
      "--min-p", &values.min_p, 0.0F, 1.0F,
      of_chat ? "drop tokens less likely than P times the likeliest (default: the model file's, else 0: off)"
              : "drop tokens less likely than P times the likeliest (0: off)");
  set->Number("--repeat-penalty", &values.repetition_penalty, 0.01F, 100.0F,
              of_chat ? "the penalty for repeated tokens (1: off; default: 1.1 with models of less than a "
                        "billion parameters, else off)"
                      : "the penalty for repeated tokens (1: off; default: with --chat and models of less "
                        "than a billion parameters 1.1, else off)");
  set->Number("--repeat-window", &values.repetition_window, 0, kMaxU32,
              "how many of the last tokens the penalties look at");
  set->Number(
      "--presence-penalty", &values.presence_penalty, -2.0F, 2.0F,
      "lower the logit of a token by this if it is among the answer's last --repeat-window tokens (0: off)");
  set->Number("--frequency-penalty", &values.frequency_penalty, -2.0F, 2.0F,
              "the same, for each time that the token occurs there (0: off)");
  set->Checked("--seed", "N",
               of_chat ? "seed of the sampler (default -1: a random one, which is printed at the end)"
                       : fmt::format("seed of the sampler (default {}; -1: a random one, which is printed)",
                                     values.seed),
               [generation](const std::string& source, const std::string& text) {
                 RejectNegative(source, text);
                 generation->has_random_seed = text == "-1";
                 if (!generation->has_random_seed) generation->values.seed = ParseSeed(source, text);
               });
  set->TextList("--stop", &generation->stop, "TEXT", "end before this text (may be given several times)");
  set->Flag("--ignore-end", &generation->ignore_end,
            "go on after the model has ended its answer, and where a chat's answer repeats itself (for "
            "benchmarks)");
}

void CheckGenerationOptions(const GenerationOptions& generation) {
  for (const std::string& stop : generation.stop) {
    if (stop.empty()) throw UsageError("--stop: the text is empty: give one, or leave --stop out");
  }
}

void ChooseSeed(GenerationOptions* generation, bool quiet, const std::string& where) {
  if (!generation->has_random_seed) return;
  generation->has_random_seed = false;
  // 32 bits are easily typed again.
  generation->values.seed = std::random_device()();
  if (!quiet) {
    PrintMessage(fmt::format("note: {1}the seed is {0}; --seed {0} gives the same answer again",
                             generation->values.seed, where));
  }
}

void AddPromptFormOptions(OptionSet* set, PromptForm* form) {
  set->NonEmptyText(
      "--chat-template", &form->chat_template, "NAME|FILE",
      fmt::format(
          "the chat template to use instead of the model file's own: a file with a Jinja template, or a "
          "known form: {}",
          ChatTemplateNames()));
  std::vector<std::string> forms;
  for (const char* const* name = kvrun_chat_template_names(); *name != nullptr; ++name)
    forms.push_back(*name);
  set->Offer(forms);
  set->Choice(
      "--thinking", &form->thinking, {"auto", "on", "off", "hide"},
      "whether the model thinks before it answers, if its chat template has a switch for that (Qwen3); hide: "
      "as auto, and what it thinks is not shown");
  set->TextList(
      "--template-var", &form->template_variables, "NAME=VALUE",
      "a variable that the chat template reads, such as reasoning_effort=high or tools=@FILE: JSON or a "
      "text; @: what that file holds (may be given several times)");
  set->Flag(
      "--parse-special", &form->parse_special,
      "obey control tokens that are written in prompts, files and messages; without this they are text");
}

void ReadPromptForm(PromptForm* form) {
  form->jinja.clear();
  form->variables = Json::object();
  ReadChatTemplate(form);
  for (const std::string& given : form->template_variables) ReadTemplateVariable(given, &form->variables);
}

void NoteChatTemplate(const PromptForm& form, const Json& model_info) {
  const Json note = model_info.value("chat_note", Json());
  const bool has_form = model_info.value("chat_form", Json()).is_string();
  if (form.jinja.empty() && has_form && note.is_string()) PrintMessage("note: " + note.get<std::string>());
}

std::vector<int32_t> EncodePlain(const Model& model, const PromptForm& form, const std::string& text,
                                 const std::string& what) {
  const uint32_t special = form.parse_special ? KVRUN_ENCODE_PARSE_SPECIAL : 0U;
  std::vector<int32_t> ids = Tokenize(model, text, KVRUN_ENCODE_BOS_IF_ASKED | special);
  if (ids.empty()) {
    throw Failure(KVRUN_INVALID_ARGUMENT,
                  what + " is empty: there is nothing to continue; give it some text");
  }
  return ids;
}

namespace {

std::vector<int32_t> EncodeSome(const Model& model, const std::vector<kvrun_chat_message>& messages,
                                const kvrun_chat_options& options) {
  std::vector<int32_t> ids = EncodeMessages(model, messages, options);
  if (ids.empty()) {
    throw Failure(KVRUN_INVALID_ARGUMENT,
                  "the chat template makes an empty text of the messages: there is nothing to answer");
  }
  return ids;
}

}  // namespace

std::vector<int32_t> EncodeChat(const Model& model, const PromptForm& form,
                                const std::vector<kvrun_chat_message>& messages) {
  const std::string variables = VariablesOf(form);
  return EncodeSome(model, messages, ChatOptionsOf(form, variables, /*continued=*/false));
}

std::vector<int32_t> EncodeChat(const Model& model, const PromptForm& form, const std::string& system,
                                const std::string& text) {
  RejectNul(system);
  RejectNul(text);
  std::vector<kvrun_chat_message> messages;
  if (!system.empty()) messages.push_back({"system", system.c_str()});
  messages.push_back({"user", text.c_str()});
  return EncodeChat(model, form, messages);
}

std::vector<int32_t> EncodeConversation(const Model& model, const PromptForm& form, const Json& messages,
                                        const Json& tools) {
  for (const Json& message : messages) RejectNul(message["content"].get_ref<const std::string&>());
  const bool is_plain = std::all_of(messages.begin(), messages.end(), [](const Json& message) {
    return message.size() == 2 && message["role"] != "tool";
  });
  if (!is_plain || !tools.is_null()) {
    Json variables = form.variables;
    variables["messages"] = messages;
    if (!tools.is_null()) variables["tools"] = tools;
    if (tools.is_array() && tools.empty()) variables.erase("tools");
    const std::string json = DumpJson(variables);
    return EncodeSome(model, {}, ChatOptionsOf(form, json, /*continued=*/false));
  }
  std::vector<kvrun_chat_message> plain;
  for (const Json& message : messages) {
    plain.push_back({message["role"].get_ref<const std::string&>().c_str(),
                     message["content"].get_ref<const std::string&>().c_str()});
  }
  return EncodeChat(model, form, plain);
}

std::vector<int32_t> EncodeNextTurn(const Model& model, const PromptForm& form, const std::string& text) {
  RejectNul(text);
  const std::string variables = VariablesOf(form);
  return EncodeMessages(model, {{"user", text.c_str()}}, ChatOptionsOf(form, variables, /*continued=*/true));
}

void NoteLostBytes(const Model& model, const PromptForm& form, const std::string& text,
                   const std::string& what) {
  const uint64_t lost_bytes =
      CountLostBytes(model, text, form.parse_special ? KVRUN_ENCODE_PARSE_SPECIAL : 0U);
  if (lost_bytes == 0) return;
  PrintMessage(
      lost_bytes == 1
          ? fmt::format("note: 1 byte of {} is not in the model's vocabulary; the model does not see it",
                        what)
          : fmt::format("note: {} bytes of {} are not in the model's vocabulary; the model does not "
                        "see them",
                        lost_bytes, what));
}

void RejectNul(const std::string& text) {
  if (text.find('\0') == std::string::npos) return;
  throw Failure(
      KVRUN_INVALID_ARGUMENT,
      "the text has a zero byte, which the chat form cannot carry, and is not sent: is it really text?");
}

Reasoning BeginReasoning(const Model& model, const std::vector<int32_t>& prompt) {
  kvrun_reasoning* reasoning = nullptr;
  Check(kvrun_reasoning_begin(model.get(), prompt.data(), prompt.size(), &reasoning));
  return Reasoning(reasoning);
}

}  // namespace kvrun::cli
