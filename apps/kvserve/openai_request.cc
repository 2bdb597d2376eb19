#include "apps/kvserve/openai_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <string_view>
#include <utility>

#include "apps/kvserve/json_fields.h"
#include "apps/kvserve/openai_messages.h"

namespace kvrun::serve {
namespace {

constexpr int64_t kMostAnswers = 16;
constexpr size_t kMostPrompts = 16;
constexpr size_t kMostStops = 16;
constexpr int64_t kMostOfCount = std::numeric_limits<uint32_t>::max();

// ---- What cannot be done ----

bool IsEmpty(const Json& value) { return value.empty(); }  // a list, an object
bool IsEmptyText(const Json& value) { return value == ""; }
bool IsFalse(const Json& value) { return value == false; }
bool CallsNothing(const Json& value) { return value == "none" || value == "auto"; }
bool IsOnlyText(const Json& value) { return value == Json::array({"text"}); }
bool IsTextFormat(const Json& value) { return value.is_object() && value.value("type", Json()) == "text"; }
bool Never(const Json& /*value*/) { return false; }

// Ignoring these would give another answer than what was asked for.
struct UndoableField {
  const char* name;
  bool (*asks_for_nothing)(const Json& value);
  const char* why;
};
constexpr const char* kNoTools = "this server cannot call tools yet: leave it out";
constexpr const char* kNoShape =
    "this server cannot hold an answer to a schema or a grammar yet: say in the prompt what it should look "
    "like, and leave it out";
constexpr UndoableField kUndoableFields[] = {
    {"tools", IsEmpty, kNoTools},
    {"tool_choice", CallsNothing,
     "this server cannot call tools yet: only \"none\" and \"auto\" are possible"},
    {"functions", IsEmpty, kNoTools},
    {"function_call", CallsNothing,
     "this server cannot call functions yet: only \"none\" and \"auto\" are possible"},
    {"response_format", IsTextFormat,
     "this server cannot hold an answer to a form yet: only {\"type\": \"text\"} is possible"},
    {"json_schema", Never, kNoShape},
    {"grammar", IsEmptyText, kNoShape},
    {"structured_outputs", Never, kNoShape},
    {"guided_json", Never, kNoShape},
    {"guided_regex", Never, kNoShape},
    {"guided_choice", Never, kNoShape},
    {"guided_grammar", Never, kNoShape},
    {"modalities", IsOnlyText, "this server answers with text alone: only [\"text\"] is possible"},
    {"audio", Never, "this server answers with text alone: leave it out"},
    {"web_search_options", Never, "this server does not search the web: leave it out"},
    {"moderation", Never, "this server does not moderate: leave it out"},
    {"suffix", IsEmptyText, "this server cannot fill a gap before a suffix: leave it out"},
    {"use_beam_search", IsFalse, "this server does not search beams: leave it out"},
};

void RefuseUndoable(const Fields& fields) {
  for (const UndoableField& field : kUndoableFields) {
    const Json* const value = fields.Find(field.name);
    if (value != nullptr && !field.asks_for_nothing(*value))
      RefuseUnsupported(field.name, fmt::format("\"{}\": {}", field.name, field.why));
  }
}

// ---- Sampling ----

std::optional<uint64_t> ReadSeed(const Fields& fields) {
  const Json* const value = fields.Find("seed");
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  if (const std::optional<int64_t> number = WholeNumber(*value)) return static_cast<uint64_t>(*number);
  RefuseValue("seed", *value, "a whole number of 64 bits");
}

std::map<int32_t, float> ReadLogitBias(const Fields& fields) {
  constexpr const char* kForm = "an object of token ids and numbers from -100 to 100, such as {\"42\": -100}";
  std::map<int32_t, float> biases;
  const Json* const value = fields.Find("logit_bias");
  if (value == nullptr) return biases;
  if (!value->is_object()) RefuseValue("logit_bias", *value, kForm);
  for (const auto& [key, bias] : value->items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0)
      RefuseValue("logit_bias", Json(key), kForm);
    const double real = bias.is_number() ? bias.get<double>() : std::numeric_limits<double>::infinity();
    if (!(real >= -100.0 && real <= 100.0))
      RefuseValue(fmt::format("logit_bias.{}", id), bias, "a number from -100 to 100");
    biases[id] = static_cast<float>(real);
  }
  return biases;
}

SamplingRequest ReadSampling(const Fields& fields) {
  SamplingRequest sampling;
  sampling.temperature = fields.Real("temperature", 0.0F, 2.0F);
  sampling.top_p = fields.Real("top_p", 0.0F, 1.0F);
  // For some servers -1 is what 0 is here: off.
  if (const std::optional<int64_t> top_k = fields.Whole("top_k", -1, kMostOfCount))
    sampling.top_k = static_cast<uint32_t>(std::max<int64_t>(*top_k, 0));
  sampling.min_p = fields.Real("min_p", 0.0F, 1.0F);
  sampling.presence_penalty = fields.Real("presence_penalty", -2.0F, 2.0F);
  sampling.frequency_penalty = fields.Real("frequency_penalty", -2.0F, 2.0F);
  const std::optional<float> repetition_penalty = fields.Real("repetition_penalty", 0.01F, 100.0F);
  sampling.repeat_penalty = fields.Real("repeat_penalty", 0.01F, 100.0F);
  if (!sampling.repeat_penalty) sampling.repeat_penalty = repetition_penalty;
  sampling.seed = ReadSeed(fields);
  sampling.logit_bias = ReadLogitBias(fields);
  return sampling;
}

// ---- The answer ----

std::vector<std::string> ReadStops(const Fields& fields) {
  const std::string form =
      fmt::format("a text that is not empty, or a list of at most {} such, without zero bytes", kMostStops);
  const Json* const value = fields.Find("stop");
  std::vector<std::string> stops;
  if (value == nullptr) return stops;
  const Json list = value->is_array() ? *value : Json::array({*value});
  if (list.size() > kMostStops) RefuseValue("stop", *value, form);
  for (const Json& stop : list) {
    const auto* const text = stop.get_ptr<const std::string*>();
    // The C API's stop strings end at a zero byte.
    if (text == nullptr || text->empty() || text->find('\0') != text->npos) RefuseValue("stop", stop, form);
    stops.push_back(*text);
  }
  return stops;
}

// -1 is "no limit" for some programs. 0 would be that for the C API.
std::optional<uint32_t> ReadLimit(const Fields& fields, const char* name) {
  const std::optional<int64_t> number = fields.Whole(name, -1, std::numeric_limits<int64_t>::max());
  if (number == 0) RefuseValue(name, *fields.Find(name), "1 or more; leave it out for no limit");
  if (!number || *number < 0) return std::nullopt;
  return static_cast<uint32_t>(std::min(*number, kMostOfCount));
}

void ReadStreaming(const Fields& fields, CompletionRequest* request) {
  request->stream = fields.Flag("stream").value_or(false);
  request->return_progress = fields.Flag("return_progress").value_or(false);
  const Json* const options = fields.Find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) RefuseValue("stream_options", *options, "an object {\"include_usage\"}");
  if (!request->stream) RefuseValue("stream_options", *options, "left out where \"stream\" is not true");
  request->include_usage = Fields(*options).Flag("include_usage").value_or(false);
}

void ReadCommon(const Fields& fields, CompletionRequest* request) {
  RefuseUndoable(fields);
  request->model = fields.Text("model").value_or("");
  request->sampling = ReadSampling(fields);
  request->stop = ReadStops(fields);
  const std::optional<uint32_t> max_tokens = ReadLimit(fields, "max_tokens");
  request->max_tokens = ReadLimit(fields, "max_completion_tokens");
  if (!request->max_tokens) request->max_tokens = max_tokens;
  request->n = static_cast<uint32_t>(fields.Whole("n", 1, kMostAnswers).value_or(1));
  const std::optional<int64_t> best_of = fields.Whole("best_of", 1, kMostOfCount);
  if (best_of && *best_of != request->n) {
    RefuseUnsupported("best_of",
                      "\"best_of\": this server returns all answers that it makes: leave it out, "
                      "or give what \"n\" is");
  }
  ReadStreaming(fields, request);
}

// ---- Chats ----

// Of what is said twice the more special one counts: chat_template_kwargs, then enable_thinking.
Json ReadTemplateVariables(const Fields& fields) {
  constexpr std::array kEfforts = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  Json variables = Json::object();
  if (const std::optional<std::string> effort = fields.Text("reasoning_effort")) {
    if (std::find(kEfforts.begin(), kEfforts.end(), *effort) == kEfforts.end())
      RefuseValue("reasoning_effort", Json(*effort), "one of none, minimal, low, medium, high, xhigh, max");
    if (effort == "none") {
      variables["enable_thinking"] = false;
    } else {
      variables["reasoning_effort"] = *effort;
    }
  }
  if (const std::optional<bool> thinks = fields.Flag("enable_thinking"))
    variables["enable_thinking"] = *thinks;
  const Json* const more = fields.Find("chat_template_kwargs");
  if (more == nullptr) return variables;
  if (!more->is_object()) RefuseValue("chat_template_kwargs", *more, "an object of what the template reads");
  for (const auto& [name, value] : more->items()) {
    // The C API takes this one for the conversation.
    if (name == "messages") {
      RefuseValue("chat_template_kwargs.messages", value,
                  "left out: the conversation is what \"messages\" of the body has");
    }
    variables[name] = value;
  }
  return variables;
}

std::optional<uint32_t> ReadChatLogprobs(const Fields& fields) {
  const bool wanted = fields.Flag("logprobs").value_or(false);
  const std::optional<int64_t> n = fields.Whole("top_logprobs", 0, KVRUN_MAX_LOGPROBS);
  if (!wanted && n.value_or(0) > 0)
    RefuseValue("top_logprobs", *fields.Find("top_logprobs"), "left out where \"logprobs\" is not true");
  if (!wanted) return std::nullopt;
  return static_cast<uint32_t>(n.value_or(0));
}

// ---- Completions ----

using Prompt = CompletionRequest::Prompt;

Prompt ReadPromptText(const std::string& param, const Json& value) {
  if (!value.is_string() || value.get_ref<const std::string&>().empty())
    RefuseValue(param, value, "a text that is not empty");
  return {value.get<std::string>(), {}, false};
}

Prompt ReadPromptIds(const std::string& param, const Json& value) {
  Prompt prompt{"", TokenIds(param, value), true};
  if (prompt.ids.empty()) RefuseValue(param, value, "a list of at least one token id");
  return prompt;
}

std::vector<Prompt> ReadPrompts(const Fields& fields) {
  const std::string form =
      fmt::format("a text, a list of token ids, or a list of 1 to {} of either", kMostPrompts);
  const Json* const value = fields.Find("prompt");
  if (value == nullptr) RefuseMissing("prompt", form);
  if (value->is_string()) return {ReadPromptText("prompt", *value)};
  if (!value->is_array() || value->empty()) RefuseValue("prompt", *value, form);
  const Json& first = value->front();
  if (first.is_number()) return {ReadPromptIds("prompt", *value)};
  if (!first.is_string() && !first.is_array()) RefuseValue("prompt[0]", first, "a text, or a token id");
  if (value->size() > kMostPrompts) RefuseValue("prompt", *value, form);
  std::vector<Prompt> prompts;
  for (const Json& one : *value) {
    const std::string param = fmt::format("prompt[{}]", prompts.size());
    prompts.push_back(first.is_string() ? ReadPromptText(param, one) : ReadPromptIds(param, one));
  }
  return prompts;
}

}  // namespace

CompletionRequest ParseChatRequest(const std::string& body) {
  const Json json = ParseBody(body);
  const Fields fields(json);
  CompletionRequest request;
  request.is_chat = true;
  ReadCommon(fields, &request);
  request.template_variables = ReadTemplateVariables(fields);
  request.n_logprobs = ReadChatLogprobs(fields);
  const Json* const messages = fields.Find("messages");
  if (messages == nullptr) RefuseMissing("messages", "a list of at least one {\"role\", \"content\"}");
  request.messages = ReadMessages(*messages);
  return request;
}

CompletionRequest ParseCompletionRequest(const std::string& body) {
  const Json json = ParseBody(body);
  const Fields fields(json);
  CompletionRequest request;
  ReadCommon(fields, &request);
  request.prompts = ReadPrompts(fields);
  request.echo = fields.Flag("echo").value_or(false);
  if (const std::optional<int64_t> n = fields.Whole("logprobs", 0, KVRUN_MAX_LOGPROBS))
    request.n_logprobs = static_cast<uint32_t>(*n);
  if (request.echo && request.n_logprobs) {
    RefuseUnsupported("logprobs",
                      "\"logprobs\": with \"echo\" they would be the prompt's, too, which this "
                      "server does not have: leave one of both out");
  }
  return request;
}

TokenizeRequest ParseTokenizeRequest(const std::string& body) {
  const Json json = ParseBody(body);
  const Fields fields(json);
  std::optional<std::string> content = fields.Text("content");
  if (!content) RefuseMissing("content", "a text");
  return {*std::move(content), fields.Flag("parse_special").value_or(false),
          fields.Flag("add_special").value_or(false)};
}

std::vector<int32_t> ParseDetokenizeRequest(const std::string& body) {
  const Json json = ParseBody(body);
  const Json* const tokens = Fields(json).Find("tokens");
  if (tokens == nullptr) RefuseMissing("tokens", "a list of token ids");
  return TokenIds("tokens", *tokens);
}

}  // namespace kvrun::serve
