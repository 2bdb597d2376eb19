#include "apps/common/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <locale>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include <CLI/CLI.hpp>

#include "apps/common/failure.h"
#include "apps/common/number_list.h"

namespace kvrun::cli {
namespace {

std::string VariableName(const CLI::Option& option) {
  std::string name = "KVRUN_";
  for (const char c : option.get_lnames().front()) {
    name += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  }
  return name;
}

std::string Join(const std::vector<std::string>& texts, const std::string& separator) {
  std::string joined;
  for (const std::string& text : texts) joined += (joined.empty() ? "" : separator) + text;
  return joined;
}

// All of the text, or false.
bool Parse(const std::string& text, uint64_t* value) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && rest == end;
}

// libc++ has std::from_chars for whole numbers only, before version 20. A stream takes blanks, signs and
// names too.
bool Parse(const std::string& text, float* value) {
  if (text.empty() || text.front() == '+' || text.find_first_not_of("0123456789.eE+-") != std::string::npos)
    return false;
  std::istringstream stream(text);
  stream.imbue(std::locale::classic());
  return (stream >> *value) && stream.peek() == std::istringstream::traits_type::eof();
}

template <typename T>
T ParseNumber(const std::string& name, const std::string& text, T least, T most) {
  T value{};
  // The comparison is written so that NaN fails it.
  if (!Parse(text, &value) || !(value >= least && value <= most)) {
    throw UsageError(fmt::format("{}: \"{}\" is not a number from {} to {}", name, text, least, most));
  }
  return value;
}

bool ParseFlag(const std::string& name, const std::string& text) {
  static constexpr std::string_view kYes[] = {"1", "true", "yes", "on"};
  static constexpr std::string_view kNo[] = {"0", "false", "no", "off"};
  if (std::find(std::begin(kYes), std::end(kYes), text) != std::end(kYes)) return true;
  if (std::find(std::begin(kNo), std::end(kNo), text) != std::end(kNo)) return false;
  throw UsageError(fmt::format("{}: \"{}\" is neither 1 (on) nor 0 (off)", name, text));
}

// A plain word, or a dash, is in many messages that have nothing to do with it.
bool IsTelling(std::string_view value) {
  const auto is_letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; };
  return value.size() > 1 && !std::all_of(value.begin(), value.end(), is_letter);
}

// Not as a part of another word.
bool Mentions(std::string_view message, std::string_view value) {
  constexpr std::string_view kEnds = " ,;:.`=\"'()\n";
  const auto is_end = [&](size_t at) {
    return at >= message.size() || kEnds.find(message[at]) != kEnds.npos;
  };
  for (size_t at = message.find(value); at != message.npos; at = message.find(value, at + 1)) {
    if ((at == 0 || is_end(at - 1)) && is_end(at + value.size())) return true;
  }
  return false;
}

}  // namespace

uint32_t ParseCountOption(const std::string& source, const std::string& text, uint32_t least, uint32_t most) {
  const std::optional<uint64_t> count = ParseCount(text);
  if (!count || *count < least || *count > most) {
    throw UsageError(fmt::format("{}: \"{}\" is not a whole number from {} to {}{}", source, text, least,
                                 most, most < 8192 ? "" : " (8k means 8192)"));
  }
  return static_cast<uint32_t>(*count);
}

uint64_t ParseSeed(const std::string& source, const std::string& text) {
  return ParseNumber<uint64_t>(source, text, 0, std::numeric_limits<uint64_t>::max());
}

OptionSet::OptionSet(CLI::App* program, const std::string& command, const std::string& description)
    : info_{command, description, {}, {}}, app_(program->add_subcommand(command, description)) {
  app_->formatter_fn([this](const CLI::App* app, const std::string&, CLI::AppFormatMode) {
    return CommandHelp(app->get_parent()->get_name(), Describe(), help_topic_, HelpWidth());
  });
}

void OptionSet::Offer(const std::vector<std::string>& choices) { info_.options.back().choices = choices; }

void OptionSet::Hide() { info_.options.back().is_shown = false; }

void OptionSet::AddExample(const std::string& line, const std::string& what) {
  info_.examples.push_back({line, what});
}

void OptionSet::Exclude(const std::string& one, const std::string& other) {
  app_->get_option(one)->excludes(app_->get_option(other));
}

void OptionSet::Renamed(const std::string& former, const std::string& name) {
  Add(former, "", "", [name](const std::string& source, const std::vector<std::string>&) {
    throw UsageError(fmt::format("{}: it is called {} now", source, name));
  });
  Hide();
}

CommandInfo OptionSet::Describe() const {
  CommandInfo shown = info_;
  std::erase_if(shown.options, [](const OptionInfo& option) { return !option.is_shown; });
  return shown;
}

bool OptionSet::Chosen() const { return app_->parsed(); }

bool OptionSet::OnCommandLine(const std::string& name) const { return app_->get_option(name)->count() > 0; }

bool OptionSet::Given(const std::string& name) const {
  const CLI::Option* option = app_->get_option(name);
  return std::any_of(bindings_.begin(), bindings_.end(), [option](const Binding& binding) {
    return binding.option == option && (option->count() > 0 || ValueOfVariable(binding) != nullptr);
  });
}

void OptionSet::Bind(CLI::Option* option, const std::string& kind, Setter set) {
  const std::string variable = VariableName(*option);
  OptionInfo info{{}, "", kind, {}, option->get_description(), variable, group_};
  for (const std::string& name : option->get_snames()) info.names.push_back("-" + name);
  for (const std::string& name : option->get_lnames()) info.names.push_back("--" + name);
  if (option->get_positional()) info.positional = option->get_name(/*positional=*/true);
  info_.options.push_back(std::move(info));
  bindings_.push_back({option, variable, std::move(set), false});
}

void OptionSet::Add(const std::string& names, const std::string& kind, const std::string& help, Setter set) {
  // CLI11 only splits the command line; Resolve() converts, the same way for both sources.
  CLI::Option* option = app_->add_option(
      names, [](const CLI::results_t&) { return true; }, help);
  option->take_all();
  Bind(option, kind, std::move(set));
}

void OptionSet::Text(const std::string& names, std::string* value, const std::string& kind,
                     const std::string& help) {
  Add(names, kind, help, [value](const auto&, const auto& values) { *value = values.back(); });
  bindings_.back().is_text = true;
}

void OptionSet::NonEmptyText(const std::string& names, std::string* value, const std::string& kind,
                             const std::string& help) {
  Add(names, kind, help, [=](const std::string& name, const std::vector<std::string>& values) {
    if (values.back().empty()) {
      throw UsageError(fmt::format("{}: it is empty: name a {}, or leave the option out", name, kind));
    }
    *value = values.back();
  });
  bindings_.back().is_text = true;
}

void OptionSet::TextList(const std::string& names, std::vector<std::string>* values, const std::string& kind,
                         const std::string& help) {
  Add(names, kind, help, [values](const auto&, const auto& given) { *values = given; });
  bindings_.back().is_text = true;
}

void OptionSet::Choice(const std::string& names, std::string* value, const std::vector<std::string>& allowed,
                       const std::string& help) {
  Add(names, Join(allowed, "|"), help,
      [value, allowed](const std::string& name, const std::vector<std::string>& values) {
        if (std::find(allowed.begin(), allowed.end(), values.back()) == allowed.end()) {
          throw UsageError(
              fmt::format("{}: \"{}\" is not one of {}", name, values.back(), Join(allowed, ", ")));
        }
        *value = values.back();
      });
  Offer(allowed);
}

void OptionSet::Number(const std::string& names, uint32_t* value, uint32_t least, uint32_t most,
                       const std::string& help) {
  Add(names, "N", help, [=](const std::string& name, const std::vector<std::string>& values) {
    *value = ParseCountOption(name, values.back(), least, most);
  });
}

void OptionSet::Number(const std::string& names, uint64_t* value, const std::string& help) {
  Add(names, "N", help, [=](const std::string& name, const std::vector<std::string>& values) {
    *value = ParseNumber<uint64_t>(name, values.back(), 0, std::numeric_limits<uint64_t>::max());
  });
}

void OptionSet::Number(const std::string& names, float* value, float least, float most,
                       const std::string& help) {
  Add(names, "X", help, [=](const std::string& name, const std::vector<std::string>& values) {
    *value = ParseNumber(name, values.back(), least, most);
  });
}

void OptionSet::Flag(const std::string& names, bool* value, const std::string& help) {
  CheckedFlag(names, help, [value](const std::string&, bool given) { *value = given; });
}

void OptionSet::Checked(const std::string& names, const std::string& kind, const std::string& help,
                        std::function<void(const std::string&, const std::string&)> set) {
  Add(names, kind, help,
      [set = std::move(set)](const std::string& name, const std::vector<std::string>& values) {
        set(name, values.back());
      });
}

void OptionSet::CheckedFlag(const std::string& names, const std::string& help,
                            std::function<void(const std::string&, bool)> set) {
  CLI::Option* option = app_->add_flag(names, help);
  option->take_all();
  Bind(option, "", [set = std::move(set)](const std::string& name, const std::vector<std::string>& values) {
    set(name, ParseFlag(name, values.back()));
  });
}

void OptionSet::Resolve() const {
  std::optional<UsageError> first_error;
  for (const Binding& binding : bindings_) {
    try {
      Resolve(binding);
    } catch (const UsageError& error) {
      if (!first_error) first_error = error;
    }
  }
  if (first_error) throw UsageError(*first_error);
}

void OptionSet::Resolve(const Binding& binding) const {
  if (binding.option->count() > 0) {
    binding.set("--" + binding.option->get_lnames().front(), binding.option->results());
    return;
  }
  if (const char* value = ValueOfVariable(binding)) {
    binding.set(fmt::format("{} ({})", binding.variable, OfCommand(binding)), {value});
  }
}

const char* OptionSet::ValueOfVariable(const Binding& binding) {
  if (binding.option->count() > 0) return nullptr;
  const auto excluded = binding.option->get_excludes();
  if (std::any_of(excluded.begin(), excluded.end(),
                  [](const CLI::Option* other) { return other->count() > 0; }))
    return nullptr;
  const char* value = std::getenv(binding.variable.c_str());
  return value == nullptr || *value == '\0' ? nullptr : value;
}

std::string OptionSet::OfCommand(const Binding& binding) const {
  return fmt::format("--{} of {} {}", binding.option->get_lnames().front(), app_->get_parent()->get_name(),
                     info_.name);
}

// A text that a variable holds, or the name of an option that it sets.
bool OptionSet::IsMeant(const Binding& binding, const OptionInfo& info, const std::string& message) {
  const char* value = ValueOfVariable(binding);
  if (value == nullptr || Mentions(message, binding.variable)) return false;
  if (binding.is_text && IsTelling(value) && Mentions(message, value)) return true;
  return std::any_of(info.names.begin(), info.names.end(),
                     [&](const std::string& name) { return Mentions(message, name); });
}

std::string OptionSet::VariablesIn(const std::string& message) const {
  const bool asks_to_leave_out = message.find("leave ") != message.npos && Mentions(message, "out");
  std::string text;
  for (size_t i = 0; i < bindings_.size(); ++i) {
    if (!IsMeant(bindings_[i], info_.options[i], message)) continue;
    text += fmt::format("{}the environment variable {} sets {}", text.empty() ? " (" : "; ",
                        bindings_[i].variable, OfCommand(bindings_[i]));
    if (asks_to_leave_out) text += fmt::format(": unset {} to leave it out", bindings_[i].variable);
  }
  return text.empty() ? "" : text + ")";
}

}  // namespace kvrun::cli
