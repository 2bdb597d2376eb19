// Reads a config's TOML. toml++ is seen by this file alone, as it compiles slowly.
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
// toml++ asserts what a file may break, such as [# x], and then refuses it all the same.
#define TOML_ASSERT(condition) static_cast<void>(0)
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "runtime/engine/config/config_file.h"
#include "runtime/engine/config/config_keys.h"
#include "runtime/engine/session/session.h"
#include "runtime/kv/planner/kv_options.h"

namespace kvrun {
namespace {

std::string Names(std::span<const std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) text += fmt::format("{}{}", text.empty() ? "" : ", ", name);
  return text;
}

std::string_view TypeWords(toml::node_type type) {
  switch (type) {
    case toml::node_type::string: return "a text";
    case toml::node_type::integer: return "a whole number";
    case toml::node_type::floating_point: return "a number with decimals";
    case toml::node_type::boolean: return "true or false";
    case toml::node_type::table: return "a table";
    case toml::node_type::array: return "a list";
    default: return "a date or a time";
  }
}

// One table of the file: its keys, with messages that say where they are.
class Section {
 public:
  // `name` as messages have it: "[machine]"; empty: the file itself.
  Section(const toml::table& table, std::string name, const std::string& path)
      : table_(table), name_(std::move(name)), path_(path) {}

  Status Refuse(const toml::source_region& at, std::string_view what) const {
    return {StatusCode::kInvalidArgument, Where(at) + fmt::format(": {}", what)};
  }
  Status Refuse(const toml::node& at, std::string_view what) const { return Refuse(at.source(), what); }

  Status CheckKeys(std::span<const std::string_view> known) const {
    const toml::key* first = nullptr;
    for (const auto& [key, value] : table_) {
      if (std::find(known.begin(), known.end(), key.str()) != known.end()) continue;
      if (first == nullptr || key.source().begin < first->source().begin) first = &key;
    }
    if (first == nullptr) return Status::Ok();
    return Refuse(first->source(), fmt::format("there is no key \"{}\"{}; known: {}", first->str(),
                                               name_.empty() ? "" : " in " + name_, Names(known)));
  }

  const toml::node* Find(std::string_view key) const { return table_.get(key); }
  Result<const toml::node*> Need(std::string_view key) const {
    const toml::node* node = Find(key);
    if (node != nullptr) return node;
    return Refuse(table_, fmt::format("{} lacks the key \"{}\"", name_.empty() ? "the file" : name_, key));
  }

  Status WrongType(std::string_view key, const toml::node& node, std::string_view meant) const {
    return Refuse(node, fmt::format("{} is {}; it must be {}", key, TypeWords(node.type()), meant));
  }

  // The getters leave alone what the file does not say.
  Status Text(std::string_view key, std::string* text) const {
    const toml::node* node = Find(key);
    if (node == nullptr) return Status::Ok();
    const auto* value = node->as_string();
    if (value == nullptr) return WrongType(key, *node, "a text in quotes");
    *text = value->get();
    return Status::Ok();
  }
  Status NeedText(std::string_view key, std::string* text) const {
    KVRUN_ASSIGN_OR_RETURN(const toml::node* node, Need(key));
    KVRUN_RETURN_IF_ERROR(Text(key, text));
    return text->empty() ? Refuse(*node, fmt::format("{} is empty", key)) : Status::Ok();
  }
  Status Flag(std::string_view key, bool* flag) const {
    const toml::node* node = Find(key);
    if (node == nullptr) return Status::Ok();
    const auto* value = node->as_boolean();
    if (value == nullptr) return WrongType(key, *node, "true or false");
    *flag = value->get();
    return Status::Ok();
  }
  template <typename T>
  Status Count(std::string_view key, int64_t least, int64_t most, T* count) const {
    const toml::node* node = Find(key);
    if (node == nullptr) return Status::Ok();
    const auto* value = node->as_integer();
    if (value == nullptr) return WrongType(key, *node, "a whole number");
    if (value->get() < least || value->get() > most) {
      return Refuse(*node, fmt::format("{} is {}; it must be from {} to {}", key, value->get(), least, most));
    }
    *count = static_cast<T>(value->get());
    return Status::Ok();
  }
  Status Figure(std::string_view key, double* figure) const {
    const toml::node* node = Find(key);
    if (node == nullptr) return Status::Ok();
    const std::optional<double> value = node->is_number() ? node->value<double>() : std::nullopt;
    if (!value) return WrongType(key, *node, "a number");
    if (!(*value >= 0.0 && *value <= kMaxConfigFigure)) {  // written so that NaN fails it
      return Refuse(*node, fmt::format("{} is {}; it must be from 0 to {:g}", key, *value, kMaxConfigFigure));
    }
    *figure = *value;
    return Status::Ok();
  }
  Result<Section> Table(std::string_view key) const {
    KVRUN_ASSIGN_OR_RETURN(const toml::node* node, Need(key));
    const std::string header = fmt::format("[{}]", key);
    if (node->as_table() == nullptr) return WrongType(key, *node, "a table, " + header);
    return Section(*node->as_table(), header, path_);
  }

  // In the order of the file, where the value of a key stands.
  uint64_t Place(std::string_view key) const {
    const toml::source_position at = Find(key)->source().begin;
    return uint64_t{at.line} << 32 | at.column;
  }
  const toml::table& table() const { return table_; }

 private:
  std::string Where(const toml::source_region& at) const {
    // What was never written, as an empty file's table, begins where the file does.
    return fmt::format("{}:{}:{}", path_, std::max(at.begin.line, 1U), std::max(at.begin.column, 1U));
  }

  const toml::table& table_;
  std::string name_;
  const std::string& path_;
};

Status ReadVersion(const Section& file) {
  KVRUN_ASSIGN_OR_RETURN(const toml::node* node, file.Need("version"));
  int64_t version = 0;
  KVRUN_RETURN_IF_ERROR(file.Count("version", std::numeric_limits<int64_t>::min(),
                                   std::numeric_limits<int64_t>::max(), &version));
  if (version == kConfigVersion) return Status::Ok();
  if (version < kConfigVersion) {
    return file.Refuse(
        *node, fmt::format("there is no version {} of configs: write version = {}", version, kConfigVersion));
  }
  const Status refused = file.Refuse(
      *node, fmt::format("the config is of version {}, and this kvrun reads version {}: update kvrun, or run "
                         "kvadapt tune again",
                         version, kConfigVersion));
  return {StatusCode::kUnsupported, refused.message()};
}

Status ReadModel(const Section& file, KvConfig* config) {
  static constexpr std::string_view kKeys[] = {"name", "fingerprint"};
  KVRUN_ASSIGN_OR_RETURN(const Section model, file.Table("model"));
  KVRUN_RETURN_IF_ERROR(model.CheckKeys(kKeys));
  KVRUN_RETURN_IF_ERROR(model.Text("name", &config->model));
  return model.NeedText("fingerprint", &config->model_fingerprint);
}

Status ReadMachine(const Section& file, KvConfig* config) {
  static constexpr std::string_view kKeys[] = {"device", "driver", "cpu", "storage", "exact_activations"};
  KVRUN_ASSIGN_OR_RETURN(const Section machine, file.Table("machine"));
  KVRUN_RETURN_IF_ERROR(machine.CheckKeys(kKeys));
  KVRUN_RETURN_IF_ERROR(machine.NeedText("device", &config->device));
  KVRUN_RETURN_IF_ERROR(machine.Text("driver", &config->driver));
  KVRUN_RETURN_IF_ERROR(machine.Text("cpu", &config->cpu));
  KVRUN_RETURN_IF_ERROR(machine.Text("storage", &config->storage));
  return machine.Flag("exact_activations", &config->exact_activations);
}

Status CheckOption(const Section& section, std::string_view key, std::string_view option,
                   const std::string& value) {
  KvSettings scratch;
  const Status status = SetKvOption(option, value, &scratch);
  return status.ok() ? status : section.Refuse(*section.Find(key), status.message());
}

Status ReadKv(const Section& file, KvConfig* config) {
  static constexpr std::string_view kKeys[] = {"method"};
  if (file.Find("kv") == nullptr) return Status::Ok();
  KVRUN_ASSIGN_OR_RETURN(const Section kv, file.Table("kv"));
  KVRUN_RETURN_IF_ERROR(kv.CheckKeys(kKeys));
  KVRUN_RETURN_IF_ERROR(kv.Text("method", &config->method));
  if (kv.Find("method") != nullptr) {
    KVRUN_RETURN_IF_ERROR(CheckOption(kv, "method", "method", config->method));
  }
  return Status::Ok();
}

Status ReadOption(const Section& section, const ConfigOptionKey& row, NamedKvOptions* options) {
  std::string value;
  if (row.row->config.is_count) {
    int64_t count = 0;
    // What the option takes is its own matter.
    KVRUN_RETURN_IF_ERROR(section.Count(row.key, std::numeric_limits<int64_t>::min(),
                                        std::numeric_limits<int64_t>::max(), &count));
    value = fmt::format("{}", count);
  } else {
    KVRUN_RETURN_IF_ERROR(section.Text(row.key, &value));
  }
  KVRUN_RETURN_IF_ERROR(CheckOption(section, row.key, row.row->name, value));
  options->emplace_back(row.row->name, std::move(value));
  return Status::Ok();
}

Status ReadOptions(const Section& section, NamedKvOptions* options) {
  std::vector<const ConfigOptionKey*> rows;
  for (const ConfigOptionKey& row : ConfigOptionKeys()) {
    if (section.Find(row.key) != nullptr) rows.push_back(&row);
  }
  std::sort(rows.begin(), rows.end(), [&section](const ConfigOptionKey* a, const ConfigOptionKey* b) {
    return section.Place(a->key) < section.Place(b->key);
  });
  for (const ConfigOptionKey* row : rows) KVRUN_RETURN_IF_ERROR(ReadOption(section, *row, options));
  return Status::Ok();
}

std::vector<std::string_view> SolutionKeys() {
  std::vector<std::string_view> keys = {"batch", "ctx", "budget_bytes"};
  for (const ConfigOptionKey& row : ConfigOptionKeys()) keys.push_back(row.key);
  for (const std::string_view key : {"predicted_ms", "measured_ms", "kl", "bound"}) keys.push_back(key);
  return keys;
}

Result<ConfigSolution> ReadSolution(const Section& section) {
  KVRUN_RETURN_IF_ERROR(section.CheckKeys(SolutionKeys()));
  ConfigSolution solution;
  KVRUN_RETURN_IF_ERROR(section.Count("batch", 1, kMaxSequences, &solution.batch));
  KVRUN_RETURN_IF_ERROR(section.Need("ctx").status());
  KVRUN_RETURN_IF_ERROR(section.Count("ctx", 1, std::numeric_limits<uint32_t>::max(), &solution.ctx));
  KVRUN_RETURN_IF_ERROR(section.Need("budget_bytes").status());
  KVRUN_RETURN_IF_ERROR(section.Count("budget_bytes", 1, int64_t{kMaxBudgetBytes}, &solution.budget_bytes));
  KVRUN_RETURN_IF_ERROR(ReadOptions(section, &solution.options));
  KVRUN_RETURN_IF_ERROR(section.Figure("predicted_ms", &solution.predicted_ms));
  KVRUN_RETURN_IF_ERROR(section.Figure("measured_ms", &solution.measured_ms));
  KVRUN_RETURN_IF_ERROR(section.Figure("kl", &solution.kl));
  KVRUN_RETURN_IF_ERROR(section.Text("bound", &solution.bound));
  return solution;
}

Status ReadSolutions(const Section& file, const std::string& path, KvConfig* config) {
  if (file.Find("solution") == nullptr) {
    return file.Refuse(file.table(), "the file has no [[solution]]: there is nothing to take from it");
  }
  const toml::node& node = *file.Find("solution");
  constexpr std::string_view kWrite =
      "begin each solution with a line [[solution]], in double brackets, and its keys, as ctx = 8192, below";
  const toml::array* list = node.as_array();
  if (list == nullptr) {
    return file.Refuse(node, node.is_table()
                                 ? "solution is a single table: write [[solution]], in double brackets"
                                 : fmt::format("solution is {}: {}", TypeWords(node.type()), kWrite));
  }
  if (list->empty()) return file.Refuse(node, fmt::format("the list of solutions is empty: {}", kWrite));
  for (const toml::node& element : *list) {
    if (element.as_table() == nullptr) {
      return file.Refuse(
          element, fmt::format("solution is a list with {} in it: {}", TypeWords(element.type()), kWrite));
    }
    const Section section(*element.as_table(), "[[solution]]", path);
    KVRUN_ASSIGN_OR_RETURN(ConfigSolution solution, ReadSolution(section));
    const bool is_there =
        std::any_of(config->solutions.begin(), config->solutions.end(), [&](const ConfigSolution& other) {
          return other.batch == solution.batch && other.ctx == solution.ctx;
        });
    if (is_there) {
      return section.Refuse(
          element, fmt::format("this is the second solution for batch {} and ctx {}: remove one of the two",
                               solution.batch, solution.ctx));
    }
    config->solutions.push_back(std::move(solution));
  }
  return Status::Ok();
}

// Behind the text in quotes that begins at `at`; a line's end ends one of a single line, whose parser refuses
// it there.
size_t EndOfQuotes(std::string_view text, size_t at) {
  const char quote = text[at];
  const std::string triple(3, quote);
  const bool has_lines = text.substr(at).starts_with(triple);
  for (at += has_lines ? 3 : 1; at < text.size(); ++at) {
    if (quote == '"' && text[at] == '\\') {
      ++at;
    } else if (!has_lines && text[at] == '\n') {
      return at;
    } else if (!has_lines && text[at] == quote) {
      return at + 1;
    } else if (has_lines && text.substr(at).starts_with(triple)) {
      at += 3;
      // Up to two more belong to the text.
      for (int n = 0; n < 2 && text.substr(at).starts_with(quote); ++n) ++at;
      return at;
    }
  }
  return text.size();
}

// What the TOML library must not be given; `line` 0: nothing. It makes a table within a table for each part
// of a dotted key, and thousands of them are more than a stack holds. And of letters beyond ASCII that stand
// where neither a comment nor a text in quotes is, it takes some for what cannot be (toml++ 3.3: U+0362).
// Neither is in a config.
struct Unreadable {
  size_t line = 0;  // from 1
  std::string why;
};

Unreadable FindUnreadable(std::string_view text) {
  constexpr size_t kMostDots = 32;
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  // Elsewhere a quote is a part of a word, and an error.
  constexpr std::string_view kBeforeQuotes = "\n=[{,.";
  size_t line = 1;
  size_t n_dots = 0;
  char before = '\n';  // but for blanks
  for (size_t at = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0; at < text.size();) {
    size_t next = at + 1;
    const bool is_quote = text[at] == '"' || text[at] == '\'';
    if (text[at] == '\n') {
      n_dots = 0;
    } else if (is_quote && kBeforeQuotes.find(before) != kBeforeQuotes.npos) {
      next = EndOfQuotes(text, at);
    } else if (text[at] == '#') {
      next = std::min(text.find('\n', at), text.size());
    } else if (text[at] == '.' && ++n_dots > kMostDots) {
      return {line, "this key has more parts than any key of a config"};
    } else if (static_cast<unsigned char>(text[at]) >= 0x80) {
      return {line, "a letter that is not ASCII stands outside quotes and comments"};
    }
    if (text[at] != ' ' && text[at] != '\t' && text[at] != '\r') before = text[at];
    const std::string_view passed = text.substr(at, next - at);
    line += static_cast<size_t>(std::count(passed.begin(), passed.end(), '\n'));
    at = next;
  }
  return {};
}

}  // namespace

Result<KvConfig> ConfigFromToml(std::string_view text, const std::string& path) {
  if (const Unreadable found = FindUnreadable(text); found.line != 0)
    return Status(StatusCode::kCorrupt, fmt::format("{}:{}:1: {}", path, found.line, found.why));
  const toml::parse_result parsed = toml::parse(text);
  const toml::table no_table;
  if (!parsed) {
    return Section(no_table, "", path).Refuse(parsed.error().source(), parsed.error().description());
  }
  const Section file(parsed.table(), "", path);
  KvConfig config;
  // Another version may have other keys.
  KVRUN_RETURN_IF_ERROR(ReadVersion(file));
  KVRUN_RETURN_IF_ERROR(file.CheckKeys(kConfigKeys));
  KVRUN_RETURN_IF_ERROR(ReadModel(file, &config));
  KVRUN_RETURN_IF_ERROR(ReadMachine(file, &config));
  KVRUN_RETURN_IF_ERROR(ReadKv(file, &config));
  KVRUN_RETURN_IF_ERROR(ReadSolutions(file, path, &config));
  return config;
}

}  // namespace kvrun
