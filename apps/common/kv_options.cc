#include "apps/common/kv_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/common/api.h"
#include "apps/common/failure.h"

namespace kvrun::cli {
namespace {

// The library's rows: what an option is called, what it takes and who chooses it.
const Json& KvOptionRows() {
  static const Json rows = [] {
    char* text = nullptr;
    Check(kvrun_kv_options_json(&text));
    return TakeJson(text);
  }();
  return rows;
}

std::vector<std::string> WordsOf(const Json& row, KvComparisons comparisons) {
  std::vector<std::string> words = row.value("words", std::vector<std::string>());
  if (comparisons == KvComparisons::kShown) return words;
  const auto hidden = row.value("comparisons", std::vector<std::string>());
  std::erase_if(words, [&hidden](const std::string& word) {
    return std::find(hidden.begin(), hidden.end(), word) != hidden.end();
  });
  return words;
}

std::string HelpOf(const Json& row, KvComparisons comparisons) {
  std::string help = row.at("help").get<std::string>();
  if (comparisons == KvComparisons::kHidden) return help;
  std::string names;
  for (const std::string& word : row.value("comparisons", std::vector<std::string>()))
    names += (names.empty() ? "" : ", ") + word;
  return names.empty() ? help : help + ". To compare with: " + names;
}

// As a line of options has it (kvrun_eval_options.configs).
std::string Quoted(const std::string& value) {
  if (value.find_first_of(" \t\r\n\"\\") == std::string::npos) return value;
  std::string quoted = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

}  // namespace

void KvOptionList::Set(const std::string& source, const std::string& name, const std::string& value) {
  if (kvrun_kv_option_check(name.c_str(), value.c_str()) != KVRUN_OK) {
    // The source names the option already.
    std::string why = kvrun_last_error();
    if (const std::string named = fmt::format("KV option {}: ", name); why.starts_with(named))
      why.erase(0, named.size());
    throw UsageError(fmt::format("{}: {}", source, why));
  }
  options_.push_back({name, value, source});
}

void KvOptionList::Override(const KvOptionList& other) {
  std::erase_if(options_, [&other](const Said& option) { return other.Find(option.name) != nullptr; });
  options_.insert(options_.end(), other.options_.begin(), other.options_.end());
}

const std::string* KvOptionList::Find(const std::string& name) const {
  for (auto option = options_.rbegin(); option != options_.rend(); ++option) {
    if (option->name == name) return &option->value;
  }
  return nullptr;
}

bool KvOptionList::asks_for_plan() const { return Find("budget") != nullptr || Find("method") != nullptr; }

std::string KvOptionList::VariablesIn(const std::string& message) const {
  std::string text;
  for (const auto& [name, value, source] : options_) {
    // A variable's source is "KVRUN_KV_BUDGET (--kv-budget of kvrun run)".
    const size_t open = source.find(" (--kv-");
    if (!source.starts_with("KVRUN_KV_") || open == source.npos) continue;
    if (message.find("--kv-" + name) == message.npos) continue;
    text +=
        fmt::format(" (the environment variable {} sets {}", source.substr(0, open), source.substr(open + 2));
  }
  return text;
}

std::string KvOptionList::Line() const {
  std::string line;
  for (const auto& [name, value, source] : options_)
    line += fmt::format("{}--kv-{} {}", line.empty() ? "" : " ", name, Quoted(value));
  return line;
}

std::vector<kvrun_option> KvOptionList::values() const {
  std::vector<kvrun_option> values;
  for (const auto& [name, value, source] : options_) values.push_back({name.c_str(), value.c_str()});
  return values;
}

void AddKvOptions(OptionSet* set, KvOptionList* kv, KvComparisons comparisons) {
  for (const Json& row : KvOptionRows()) {
    const std::string name = row.at("name").get<std::string>();
    const std::string audience = row.at("audience").get<std::string>();
    const std::string kind = row.at("value").get<std::string>();
    const std::string help = HelpOf(row, comparisons);
    set->Group(audience == "everybody" ? HelpGroup::kKv : HelpGroup::kKvExperts);
    if (kind.empty()) {
      set->CheckedFlag("--kv-" + name, help, [kv, name](const std::string& source, bool value) {
        kv->Set(source, name, value ? "on" : "off");
      });
    } else {
      set->Checked(
          "--kv-" + name, kind, help,
          [kv, name](const std::string& source, const std::string& value) { kv->Set(source, name, value); });
      set->Offer(WordsOf(row, comparisons));
    }
    if (audience == "comparisons" && comparisons == KvComparisons::kHidden) set->Hide();
  }
}

}  // namespace kvrun::cli
