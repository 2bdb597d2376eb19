#include "runtime/kv/planner/kv_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/kv/planner/kv_option_table.h"
#include "runtime/kv/planner/kv_option_values.h"

namespace kvrun {
namespace {

// Separated by blanks; what stands between double quotes is as it is, but for \" and \\.
Result<std::vector<std::string>> Words(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r\n";
  std::vector<std::string> words;
  bool is_in_word = false;
  bool is_quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    char c = line[i];
    if (!is_quoted && kBlanks.find(c) != kBlanks.npos) {
      is_in_word = false;
      continue;
    }
    if (!is_in_word) words.emplace_back();
    is_in_word = true;
    if (c == '"') {
      is_quoted = !is_quoted;
      continue;
    }
    const bool is_escape = is_quoted && c == '\\' && i + 1 < line.size();
    if (is_escape && (line[i + 1] == '"' || line[i + 1] == '\\')) c = line[++i];
    words.back() += c;
  }
  if (!is_quoted) return words;
  return Status(StatusCode::kInvalidArgument,
                fmt::format("a quote is not closed in the KV options {}", line));
}

}  // namespace

Status SetKvOption(std::string_view name, std::string_view value, KvSettings* settings) {
  if (const KvOptionRow* row = FindKvOption(name)) {
    KVRUN_RETURN_IF_ERROR(row->set({*row, value}, settings));
    settings->given[std::string(name)] = value;
    return Status::Ok();
  }
  return {StatusCode::kInvalidArgument,
          fmt::format("there is no KV option \"{}\"; known: {}", name, option_values::Names(KvOptionRows()))};
}

std::vector<std::string> KvOptionChoices(std::string_view name) {
  const KvOptionRow* row = FindKvOption(name);
  return row == nullptr || row->words == nullptr ? std::vector<std::string>() : row->words();
}

Status ParseKvOptions(std::string_view line, KvSettings* settings) {
  static constexpr std::string_view kPrefix = "--kv-";
  KVRUN_ASSIGN_OR_RETURN(const std::vector<std::string> words, Words(line));
  for (size_t i = 0; i < words.size(); ++i) {
    if (!words[i].starts_with(kPrefix)) {
      return {StatusCode::kInvalidArgument,
              fmt::format("\"{}\" is not a KV option: they begin with {} and have one value each", words[i],
                          kPrefix)};
    }
    const std::string_view option = std::string_view(words[i]).substr(kPrefix.size());
    const size_t equals = std::min(option.find('='), option.size());
    const std::string_view name = option.substr(0, equals);
    std::string_view value;
    if (equals < option.size()) {
      value = option.substr(equals + 1);
    } else if (i + 1 < words.size() && !words[i + 1].starts_with(kPrefix)) {
      value = words[++i];
    } else if (const KvOptionRow* const row = FindKvOption(name); row != nullptr && row->value.empty()) {
      value = "on";  // the command line has it as a flag
    } else {
      return {StatusCode::kInvalidArgument, fmt::format("the option {} lacks its value", words[i])};
    }
    KVRUN_RETURN_IF_ERROR(SetKvOption(name, value, settings));
  }
  return Status::Ok();
}

}  // namespace kvrun
