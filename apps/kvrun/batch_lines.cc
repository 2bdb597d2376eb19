#include "apps/kvrun/batch_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "apps/common/files.h"

namespace kvrun::cli {
namespace {

constexpr uint64_t kLargestCount = std::numeric_limits<uint32_t>::max();

struct Field {
  std::string_view key;
  const Json& value;
};

[[noreturn]] void Refuse(const Field& field, const std::string& what_it_must_be) {
  throw Failure(KVRUN_INVALID_ARGUMENT, fmt::format("\"{}\" is {}: it must be {}", field.key,
                                                    DumpJson(field.value), what_it_must_be));
}

float RealIn(const Field& field, float least, float most) {
  const double value = field.value.is_number() ? field.value.get<double>() : NAN;
  // NaN fails it, too.
  if (!(value >= least && value <= most)) Refuse(field, fmt::format("a number from {} to {}", least, most));
  return static_cast<float>(value);
}

// Some programs write whole numbers as 64.0. `takes_minus_one`: it is answered as nothing.
std::optional<uint64_t> WholeIn(const Field& field, uint64_t most, bool takes_minus_one = false) {
  const Json& value = field.value;
  if (value.is_number_unsigned() && value.get<uint64_t>() <= most) return value.get<uint64_t>();
  const double real = value.is_number() ? value.get<double>() : NAN;
  if (takes_minus_one && real == -1.0) return std::nullopt;
  if (!value.is_number_unsigned() && real >= 0.0 && real == std::floor(real) && real < 0x1.0p53 &&
      static_cast<uint64_t>(real) <= most) {
    return static_cast<uint64_t>(real);
  }
  Refuse(field, fmt::format("a whole number from {} to {}", takes_minus_one ? -1 : 0, most));
}

uint32_t CountIn(const Field& field) {
  return static_cast<uint32_t>(WholeIn(field, kLargestCount).value_or(0));
}

std::string TextIn(const Field& field) {
  if (!field.value.is_string()) Refuse(field, "a string");
  return field.value.get<std::string>();
}

std::vector<std::string> StopsIn(const Field& field) {
  std::vector<std::string> stops;
  const Json list = field.value.is_array() ? field.value : Json::array({field.value});
  for (const Json& stop : list) {
    if (!stop.is_string() || stop.get_ref<const std::string&>().empty())
      Refuse(field, "a text that is not empty, or a list of such");
    stops.push_back(stop.get<std::string>());
  }
  return stops;
}

// A text, or a list of parts {"type": "text", "text": ...}.
std::string ContentOf(const Json& message) {
  const auto found = message.find("content");
  if (found == message.end()) throw Failure(KVRUN_INVALID_ARGUMENT, "a message has no \"content\"");
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) Refuse({"content", *found}, "a string, or a list of parts of type \"text\"");
  std::string text;
  for (const Json& part : *found) {
    const auto of_part = part.is_object() ? part.find("text") : part.end();
    if (of_part == part.end() || !of_part->is_string() || part.value("type", Json("text")) != "text")
      Refuse({"content", *found}, "a string, or a list of parts of type \"text\"");
    text += of_part->get<std::string>();
  }
  return text;
}

// OpenAI writes a call's arguments as a text of JSON, templates read the object.
Json ToolCallsIn(const Field& field) {
  if (!field.value.is_array()) Refuse(field, "a list of calls: {\"function\": {\"name\", \"arguments\"}}");
  Json calls = field.value;
  for (Json& call : calls) {
    Json* const function = call.is_object() && call.contains("function") ? &call["function"] : nullptr;
    if (function == nullptr || !function->is_object()) {
      Refuse({"tool_calls[]", call}, "{\"function\": {\"name\", \"arguments\"}}");
    }
    const auto arguments = function->find("arguments");
    if (arguments == function->end() || !arguments->is_string()) continue;
    Json object = ParseJson(arguments->get_ref<const std::string&>());
    if (object.is_object()) *arguments = std::move(object);
  }
  return calls;
}

// What a template may read of it stays: reasoning_content, tool_calls, name and the like.
Json MessageIn(const Json& given) {
  const auto role = given.is_object() ? given.find("role") : given.end();
  if (role == given.end() || !role->is_string()) Refuse({"messages[]", given}, "{\"role\", \"content\"}");
  const std::string& name = role->get_ref<const std::string&>();
  constexpr std::array kRoles = {"system", "developer", "user", "assistant", "tool"};
  if (std::find(kRoles.begin(), kRoles.end(), name) == kRoles.end())
    Refuse({"role", *role}, "one of system, developer, user, assistant, tool");
  Json message = Json::object();
  for (const auto& [key, value] : given.items()) {
    const bool calls_nothing = key == "tool_calls" && value.is_array() && value.empty();
    if (value.is_null() || calls_nothing) continue;
    message[key] = key == "tool_calls" ? ToolCallsIn({key, value}) : value;
  }
  // What newer models of OpenAI call the system message.
  if (name == "developer") message["role"] = "system";
  // An answer that only calls tools has none.
  message["content"] =
      message.contains("tool_calls") && !message.contains("content") ? "" : ContentOf(message);
  return message;
}

Json MessagesIn(const Field& field) {
  if (!field.value.is_array() || field.value.empty()) Refuse(field, "a list of {\"role\", \"content\"}");
  Json messages = Json::array();
  for (const Json& message : field.value) messages.push_back(MessageIn(message));
  return messages;
}

Json ToolsIn(const Field& field) {
  const bool are_objects =
      field.value.is_array() &&
      std::all_of(field.value.begin(), field.value.end(), [](const Json& tool) { return tool.is_object(); });
  if (!are_objects) Refuse(field, "a list of {\"type\": \"function\", \"function\": {...}}");
  return field.value;
}

struct KnownKey {
  std::string_view name;  // the one of OpenAI's API, or the option's of kvrun
  void (*set)(const Field& field, BatchLine* line);
};

constexpr KnownKey kKnownKeys[] = {
    {"prompt", [](const Field& f, BatchLine* line) { line->prompt = TextIn(f); }},
    {"messages", [](const Field& f, BatchLine* line) { line->messages = MessagesIn(f); }},
    {"tools", [](const Field& f, BatchLine* line) { line->tools = ToolsIn(f); }},
    {"max_tokens",
     [](const Field& f, BatchLine* line) {
       line->generation.values.max_tokens =
           static_cast<uint32_t>(WholeIn(f, kLargestCount, true).value_or(0));
     }},
    {"temperature",
     [](const Field& f, BatchLine* line) { line->generation.values.temperature = RealIn(f, 0.0F, 100.0F); }},
    {"top_k", [](const Field& f, BatchLine* line) { line->generation.values.top_k = CountIn(f); }},
    {"top_p", [](const Field& f, BatchLine* line) { line->generation.values.top_p = RealIn(f, 0.0F, 1.0F); }},
    {"min_p", [](const Field& f, BatchLine* line) { line->generation.values.min_p = RealIn(f, 0.0F, 1.0F); }},
    {"repeat_penalty",
     [](const Field& f, BatchLine* line) {
       line->generation.values.repetition_penalty = RealIn(f, 0.01F, 100.0F);
     }},
    {"repeat_window",
     [](const Field& f, BatchLine* line) { line->generation.values.repetition_window = CountIn(f); }},
    {"presence_penalty",
     [](const Field& f, BatchLine* line) {
       line->generation.values.presence_penalty = RealIn(f, -2.0F, 2.0F);
     }},
    {"frequency_penalty",
     [](const Field& f, BatchLine* line) {
       line->generation.values.frequency_penalty = RealIn(f, -2.0F, 2.0F);
     }},
    {"seed",
     [](const Field& f, BatchLine* line) {
       const std::optional<uint64_t> seed = WholeIn(f, std::numeric_limits<uint64_t>::max(), true);
       line->generation.has_random_seed = !seed;
       line->generation.values.seed = seed.value_or(0);
     }},
    {"stop", [](const Field& f, BatchLine* line) { line->generation.stop = StopsIn(f); }},
};

// One name for each thing, with '_': "top-k" is "top_k".
std::string NameOf(std::string key) {
  std::replace(key.begin(), key.end(), '-', '_');
  constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
      {"max_completion_tokens", "max_tokens"},
      {"temp", "temperature"},
      {"repetition_penalty", "repeat_penalty"}};
  for (const auto& [other, name] : kOtherNames) {
    if (key == other) return std::string(name);
  }
  return key;
}

// Of which an answer is known, even that what is asked for is wrong.
void TakeId(const Json& object, BatchLine* line) {
  for (const char* key : {"id", "custom_id"}) {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null()) continue;
    if (!found->is_string() && !found->is_number()) Refuse({key, *found}, "a string or a number");
    line->id_key = key;
    line->id = *found;
    return;
  }
}

class BatchReader {
 public:
  BatchReader(std::string name, const UsualGeneration& usual) : name_(std::move(name)), usual_(usual) {}

  std::vector<BatchLine> Read(std::string_view text) {
    size_t number = 0;
    for (size_t start = 0; start < text.size();) {
      const size_t end = std::min(text.find('\n', start), text.size());
      const std::string_view line = text.substr(start, end - start);
      start = end + 1;
      ++number;
      if (line.find_first_not_of(" \t\r") != std::string_view::npos) Add(line, number);
    }
    if (lines_.empty()) throw Failure(KVRUN_INVALID_ARGUMENT, name_ + " has no prompt in it");
    return std::move(lines_);
  }

  // Keys that some line has and none may have, in the order in which they came.
  const std::vector<std::string>& unknown() const { return unknown_; }

 private:
  void Add(std::string_view text, size_t number) {
    BatchLine& line = lines_.emplace_back();
    line.index = lines_.size() - 1;
    line.where = fmt::format("{}: line {}", name_, number);
    line.generation = usual_.of_prompts;
    line.generation.values.seed += line.index;  // one that asks as another does draws differently
    try {
      Take(text, &line);
    } catch (const Failure& failure) {
      line.error.emplace(failure.status(), line.where + failure.what());
    }
  }

  void Take(std::string_view text, BatchLine* line) {
    std::string why;
    const Json json = ParseJson(text, &why);
    if (json.is_discarded()) throw Failure(KVRUN_INVALID_ARGUMENT, " is not JSON: " + why);
    if (!json.is_object()) throw Failure(KVRUN_INVALID_ARGUMENT, " is not an object: give {\"prompt\": ...}");
    try {
      TakeId(json, line);
      has_prompt_ = has_messages_ = has_penalty_ = false;
      TakeKeys(json, line);
    } catch (const Failure& failure) {
      throw Failure(failure.status(), std::string(": ") + failure.what());
    }
    if (has_prompt_ == has_messages_) {
      throw Failure(KVRUN_INVALID_ARGUMENT, has_prompt_
                                                ? " has both a \"prompt\" and \"messages\": leave one out"
                                                : " has neither a \"prompt\" nor \"messages\"");
    }
    if (has_prompt_ && !line->tools.is_null()) {
      throw Failure(KVRUN_INVALID_ARGUMENT,
                    " has \"tools\" beside a \"prompt\": give \"messages\" in place of it");
    }
    if (has_messages_) TakeUsualOfMessages(line);
  }

  // What keeps a chat's answer from repeating itself.
  void TakeUsualOfMessages(BatchLine* line) const {
    const kvrun_generate_options& usual = usual_.of_messages.values;
    line->generation.values.repeat_limit = usual.repeat_limit;
    if (!has_penalty_) line->generation.values.repetition_penalty = usual.repetition_penalty;
  }

  // null is as if the key were not there: so do programs write what was not set.
  void TakeKeys(const Json& object, BatchLine* line) {
    for (const auto& [key, value] : object.items()) {
      if (value.is_null() || key == "id" || key == "custom_id") continue;
      const std::string name = NameOf(key);
      const auto* known = std::find_if(std::begin(kKnownKeys), std::end(kKnownKeys),
                                       [&](const KnownKey& one) { return one.name == name; });
      if (known != std::end(kKnownKeys)) {
        known->set({key, value}, line);
        has_prompt_ = has_prompt_ || name == "prompt";
        has_messages_ = has_messages_ || name == "messages";
        has_penalty_ = has_penalty_ || name == "repeat_penalty";
      } else if (key == "body") {
        if (!value.is_object()) Refuse({key, value}, "an object: what is asked for");
        TakeKeys(value, line);                       // as the lines of OpenAI's batches have it
      } else if (key != "method" && key != "url" &&  // which every line of OpenAI's batch files has
                 std::find(unknown_.begin(), unknown_.end(), key) == unknown_.end()) {
        unknown_.push_back(key);
      }
    }
  }

  std::string name_;
  const UsualGeneration& usual_;
  std::vector<BatchLine> lines_;
  std::vector<std::string> unknown_;
  bool has_prompt_ = false;    // the line that is read
  bool has_messages_ = false;  // the same
  bool has_penalty_ = false;   // the same
};

}  // namespace

Json BatchLine::Beginning() const {
  Json object = {{"index", index}};
  if (!id_key.empty()) object[id_key] = id;
  return object;
}

std::vector<BatchLine> ReadBatchLines(const std::string& path, const UsualGeneration& usual, bool quiet) {
  const std::string name = path == "-" ? "standard input" : path;
  BatchReader reader(name, usual);
  std::vector<BatchLine> lines = reader.Read(ReadText(path));
  std::string names;
  for (const std::string& key : reader.unknown()) names += (names.empty() ? "" : ", ") + key;
  if (!names.empty() && !quiet) {
    PrintMessage(
        fmt::format("note: {}: kvrun does not know these keys, and goes without them: {}", name, names));
  }
  for (BatchLine& line : lines) {
    if (!line.error) ChooseSeed(&line.generation, quiet, line.where + ": ");
  }
  return lines;
}

}  // namespace kvrun::cli
