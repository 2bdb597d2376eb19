#include "apps/common/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace kvrun::cli {
namespace {

std::string Joined(const std::vector<std::string>& words, std::string_view separator) {
  std::string text;
  for (const std::string& word : words) text += fmt::format("{}{}", text.empty() ? "" : separator, word);
  return text;
}

std::string Replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

// Between single quotes, in either shell.
std::string Quoted(const std::string& text) { return "'" + Replaced(text, "'", "'\\''") + "'"; }

// How the value of an option is completed, besides its choices.
enum class ValueKind { kNone, kFree, kFile, kFolder, kDevice };

ValueKind ValueKindOf(const OptionInfo& option) {
  const auto has = [&option](std::string_view word) { return option.kind.find(word) != std::string::npos; };
  if (option.is_flag()) return ValueKind::kNone;
  if (option.kind == "DEVICE") return ValueKind::kDevice;
  // --file also takes folders and "-", and is called a text then.
  const bool is_file = std::find(option.names.begin(), option.names.end(), "--file") != option.names.end();
  if (is_file || has("FILE") || has("PREFIX")) return ValueKind::kFile;
  return has("FOLDER") ? ValueKind::kFolder : ValueKind::kFree;
}

OptionInfo Flag(const std::vector<std::string>& names, const std::string& help) {
  return {names, "", "", {}, help, "", HelpGroup::kOutput};
}

// What the parser adds to every command.
OptionInfo HelpOption() { return Flag({"-h", "--help"}, "this help"); }

std::vector<OptionInfo> OptionsOf(const CommandInfo& command) {
  std::vector<OptionInfo> options = command.options;
  options.push_back(HelpOption());
  return options;
}

std::vector<OptionInfo> OptionsOfProgram() {
  return {HelpOption(), Flag({"--version"}, "the program's version")};
}

// ---- bash

// As _NAME_offer takes it: how, and choices.
std::string BashValue(const OptionInfo& option) {
  const char* how = "free";
  switch (ValueKindOf(option)) {
    case ValueKind::kFile: how = "files"; break;
    case ValueKind::kFolder: how = "folders"; break;
    case ValueKind::kDevice: how = "devices"; break;
    case ValueKind::kFree:
    case ValueKind::kNone: break;
  }
  return option.choices.empty() ? how : fmt::format("{} {}", how, Joined(option.choices, " "));
}

std::string BashCommand(const std::string& command, const std::vector<OptionInfo>& options) {
  std::vector<std::string> names;
  std::string values;
  std::string words;
  for (const OptionInfo& option : options) {
    names.insert(names.end(), option.names.begin(), option.names.end());
    if (!option.positional.empty()) words = fmt::format("      words={}\n", Quoted(BashValue(option)));
    if (option.is_flag()) continue;
    values +=
        fmt::format("        {}) value={} ;;\n", Joined(option.names, " | "), Quoted(BashValue(option)));
  }
  std::string text = fmt::format("    {})\n      options={}\n{}", command, Quoted(Joined(names, " ")), words);
  if (!values.empty()) text += fmt::format("      case $option in\n{}      esac\n", values);
  return text + "      ;;\n";
}

// @NAME@: the program; @TABLE@: a case for each command. Works without the package bash-completion, and
// leaves the shell's options and variables alone. "--option=value" arrives as three words.
constexpr std::string_view kBash =
    R"bash(# Completion of @NAME@ for bash, written by `@NAME@ completion bash`.

# Sets options, value (how the value of $option is completed; empty: it has none) and words (what else follows).
_@NAME@_table() {
  local command=$1 option=$2
  options='' value='' words=''
  case $command in
@TABLE@  esac
}

# _@NAME@_offer HOW CHOICE...: fills COMPREPLY with what begins with $current.
_@NAME@_offer() {
  local how=$1 line
  shift
  while IFS= read -r line; do
    if [[ -n $line ]]; then COMPREPLY+=("$line"); fi
  done < <(compgen -W "$*" -- "$current")
  case $how in
    files | folders)
      while IFS= read -r line; do COMPREPLY+=("$line"); done < <(
        if [[ $how == files ]]; then compgen -f -- "$current"; else compgen -d -- "$current"; fi)
      compopt -o filenames 2>/dev/null
      # Names in quotes, which the shell takes apart itself.
      if [[ ${#COMPREPLY[@]} -eq 0 ]]; then compopt -o default 2>/dev/null; fi
      ;;
    devices)
      local wanted=${current//\\/}
      wanted=${wanted#[\"\']}
      # A driver that hangs must not hang the shell.
      while IFS=$'\t' read -r line _; do
        if [[ -z $line || $line != "$wanted"* ]]; then continue; fi
        if [[ $current != [\"\']* ]]; then printf -v line '%q' "$line"; fi
        COMPREPLY+=("$line")
      done < <(timeout 5 "${COMP_WORDS[0]/#\~/${HOME-}}" completion devices 2>/dev/null)
      ;;
  esac
}

_@NAME@() {
  local IFS=$' \t\n' current=${COMP_WORDS[COMP_CWORD]} option='' command='' options value words
  local -i i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    if [[ ${COMP_WORDS[i]} != -* ]]; then command=${COMP_WORDS[i]} && break; fi
  done
  if ((COMP_CWORD > 0)); then option=${COMP_WORDS[COMP_CWORD - 1]}; fi
  if [[ $current == = ]]; then
    current=''
  elif [[ $option == = ]] && ((COMP_CWORD > 1)); then
    option=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  _@NAME@_table "$command" "$option"
  if [[ -n $value ]]; then
    # shellcheck disable=SC2086
    _@NAME@_offer $value
  elif [[ $current == -* ]]; then
    _@NAME@_offer words "$options"
  elif [[ -z $command ]]; then
    _@NAME@_offer words '@COMMANDS@'
  elif [[ -n $words ]]; then
    # shellcheck disable=SC2086
    _@NAME@_offer $words
  else
    _@NAME@_offer words "$options"
  fi
}

complete -F _@NAME@ @NAME@
)bash";

// ---- zsh

// Inside of a specification of _arguments, where brackets and colons separate.
std::string ZshEscaped(const std::string& text, std::string_view special) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\' || special.find(c) != special.npos) escaped += '\\';
    escaped += c == '\n' ? ' ' : c;
  }
  return escaped;
}

std::string ZshAction(const std::string& program, const OptionInfo& option) {
  std::vector<std::string> choices;
  for (const std::string& choice : option.choices) choices.push_back(ZshEscaped(choice, ":()[] "));
  const std::string words = Joined(choices, " ");
  switch (ValueKindOf(option)) {
    case ValueKind::kFile:
      return words.empty() ? "_files" : fmt::format(" _{}_words_or_files {}", program, words);
    case ValueKind::kFolder: return "_files -/";
    case ValueKind::kDevice: return fmt::format(" _{}_devices {}", program, words);
    case ValueKind::kFree:
    case ValueKind::kNone: break;
  }
  return words.empty() ? " " : "(" + words + ")";
}

// A flag is offered once. An option with a value always is: of several the last counts, or all.
std::string ZshOption(const std::string& program, const OptionInfo& option, const std::string& indent) {
  std::string value;
  if (!option.is_flag()) {
    value = fmt::format(":{}:{}", ZshEscaped(option.kind, ":"), ZshAction(program, option));
  }
  const std::string before = option.is_flag() ? "(" + Joined(option.names, " ") + ")" : "*";
  const std::string help = ZshEscaped(option.help, "[]");
  std::string text;
  for (const std::string& name : option.names) {
    const char* joint = option.is_flag() ? "" : name.starts_with("--") ? "=" : "+";
    text += fmt::format("{}{} \\\n", indent,
                        Quoted(fmt::format("{}{}{}[{}]{}", before, name, joint, help, value)));
  }
  if (!option.positional.empty()) text += fmt::format("{}{} \\\n", indent, Quoted("*" + value));
  return text;
}

std::string ZshCommand(const std::string& program, const CommandInfo& command) {
  std::string options;
  for (const OptionInfo& option : OptionsOf(command)) options += ZshOption(program, option, "            ");
  return fmt::format("        {})\n          _arguments \\\n{}            && ret=0\n          ;;\n",
                     command.name, options);
}

constexpr std::string_view kZsh =
    R"zsh(#compdef @NAME@
# Completion of @NAME@ for zsh, written by `@NAME@ completion zsh`.

# _@NAME@_devices WORD...: these words, and the devices that are there now.
_@NAME@_devices() {
  local -a lines names
  compadd -- "$@"
  # A driver that hangs must not hang the shell.
  lines=(${(f)"$(timeout 5 ${~called_as:-@NAME@} completion devices 2>/dev/null)"})
  names=(${lines%%$'\t'*})
  lines=(${lines//$'\t'/  -- })
  compadd -l -d lines -a names
}

_@NAME@_words_or_files() {
  compadd -- "$@"
  _files
}

_@NAME@() {
  local curcontext=$curcontext state line ret=1 called_as=$words[1]
  typeset -A opt_args
  _arguments -C \
@OPTIONS@    '1:command:->command' \
    '*::argument:->argument' && ret=0
  case $state in
    command)
      local -a commands
      commands=(
@COMMANDS@      )
      _describe -t commands 'command' commands && ret=0
      ;;
    argument)
      curcontext=${curcontext%:*:*}:@NAME@-$words[1]:
      case $words[1] in
@TABLE@      esac
      ;;
  esac
  return ret
}

if [[ $funcstack[1] == _@NAME@ ]]; then
  _@NAME@ "$@"
else
  compdef _@NAME@ @NAME@
fi
)zsh";

}  // namespace

std::string BashCompletion(const std::string& program, std::span<const CommandInfo> commands) {
  std::string table = BashCommand("''", OptionsOfProgram());
  std::vector<std::string> names;
  for (const CommandInfo& command : commands) {
    table += BashCommand(command.name, OptionsOf(command));
    names.push_back(command.name);
  }
  const std::string text = Replaced(std::string(kBash), "@COMMANDS@", Joined(names, " "));
  return Replaced(Replaced(text, "@NAME@", program), "@TABLE@", table);
}

std::string ZshCompletion(const std::string& program, std::span<const CommandInfo> commands) {
  std::string options;
  for (const OptionInfo& option : OptionsOfProgram()) options += ZshOption(program, option, "    ");
  std::string names;
  std::string table;
  for (const CommandInfo& command : commands) {
    names += fmt::format("        {}\n", Quoted(command.name + ":" + command.description));
    table += ZshCommand(program, command);
  }
  std::string text = Replaced(std::string(kZsh), "@NAME@", program);
  text = Replaced(text, "@OPTIONS@", options);
  return Replaced(Replaced(text, "@COMMANDS@", names), "@TABLE@", table);
}

}  // namespace kvrun::cli
