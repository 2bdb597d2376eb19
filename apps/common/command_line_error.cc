#include "apps/common/command_line_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>

#include <CLI/CLI.hpp>

namespace kvrun::cli {
namespace {

// Insertions, deletions, replacements, and neighbours that changed places.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before;
  std::vector<size_t> last(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    std::vector<size_t> row(b.size() + 1, i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = a[i - 1] == b[j - 1];
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0U : 1U)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before = std::move(last);
    last = std::move(row);
  }
  return last.back();
}

std::string Suggestion(const std::string& word, const std::vector<std::string>& known) {
  const std::string nearest = NearestWord(word, known);
  return nearest.empty() ? "" : fmt::format(": did you mean {}?", nearest);
}

std::string CommandList(std::span<const CommandInfo> commands) {
  std::string list;
  for (const CommandInfo& command : commands) list += (list.empty() ? "" : ", ") + command.name;
  return list;
}

CommandLineError WrongCommand(const std::string& word, std::span<const CommandInfo> commands) {
  std::vector<std::string> names;
  for (const CommandInfo& command : commands) names.push_back(command.name);
  if (word.starts_with('-')) {
    return {fmt::format("\"{}\" is not an option of the program itself: name a command first ({})", word,
                        CommandList(commands)),
            ""};
  }
  const std::string suggestion = Suggestion(word, names);
  return {fmt::format("there is no command \"{}\"{}", word,
                      suggestion.empty() ? ": the commands are " + CommandList(commands) : suggestion),
          ""};
}

CommandLineError WrongWord(const std::string& program, const std::string& word, const CommandInfo& command) {
  if (!word.starts_with('-') || word == "-") {
    const bool takes_word = std::any_of(command.options.begin(), command.options.end(),
                                        [](const OptionInfo& option) { return !option.positional.empty(); });
    return {fmt::format("\"{}\" is {}: {} {} takes {}", word,
                        takes_word ? "one word too many" : "not an option", program, command.name,
                        takes_word ? "one" : "options only; a text of several words is put in quotes"),
            command.name};
  }
  std::vector<std::string> names = {"--help"};
  for (const OptionInfo& option : command.options)
    names.insert(names.end(), option.names.begin(), option.names.end());
  const std::string name = word.substr(0, word.find('='));
  return {
      fmt::format("\"{}\" is not an option of {} {}{}", name, program, command.name, Suggestion(name, names)),
      command.name};
}

const OptionInfo* FindOption(const CommandInfo& command, const std::string& name) {
  const auto has_name = [&name](const OptionInfo& option) {
    return option.positional == name ||
           std::find(option.names.begin(), option.names.end(), name) != option.names.end();
  };
  const auto found = std::find_if(command.options.begin(), command.options.end(), has_name);
  return found == command.options.end() ? nullptr : &*found;
}

}  // namespace

std::string NearestWord(const std::string& word, const std::vector<std::string>& known) {
  const auto bare = [](const std::string& text) {
    return text.substr(std::min(text.find_first_not_of('-'), text.size()));
  };
  const std::string wanted = bare(word);
  std::string nearest;
  size_t least = std::max<size_t>(1, wanted.size() / 3) + 1;
  for (const std::string& name : known) {
    const std::string offered = bare(name);
    if (offered.size() < 2) continue;  // every letter is like every other
    const bool begins_so = wanted.size() >= 3 && offered.starts_with(wanted);
    const size_t distance = begins_so ? 1 : Distance(wanted, offered);
    if (distance < least) {
      least = distance;
      nearest = name;
    }
  }
  return nearest;
}

CommandLineError ExplainParseError(const CLI::App& program, std::span<const CommandInfo> commands,
                                   const CLI::ParseError& error) {
  const std::vector<CLI::App*> chosen = program.get_subcommands();
  const std::vector<std::string> unknown = program.remaining();
  if (!unknown.empty() && chosen.empty()) return WrongCommand(unknown.front(), commands);
  if (chosen.empty()) {
    return {fmt::format("no command is named: name one of {}", CommandList(commands)), ""};
  }
  const auto command = std::find_if(commands.begin(), commands.end(), [&](const CommandInfo& one) {
    return one.name == chosen.front()->get_name();
  });
  if (command == commands.end()) return {error.what(), ""};
  if (!unknown.empty() && unknown.front() == "help") {
    return {fmt::format("the help of {0} is `{1} {0} --help`", command->name, program.get_name()),
            command->name};
  }
  if (!unknown.empty()) {
    return {fmt::format("\"{}\" stands before the command: options follow it, as in {} {} {}",
                        unknown.front(), program.get_name(), command->name, unknown.front()),
            command->name};
  }
  const std::vector<std::string> extras = chosen.front()->remaining();
  const std::string text = error.what();
  if (error.get_name() == "ArgumentMismatch") {
    const std::string name = text.substr(0, text.find(':'));
    const OptionInfo* option = FindOption(*command, name);
    const std::string kind = option == nullptr ? "VALUE" : option->kind;
    return {fmt::format("{0} needs a value: {0} {1}", name, kind), command->name};
  }
  constexpr std::string_view kExcludes = " excludes ";
  if (const size_t at = text.find(kExcludes); error.get_name() == "ExcludesError" && at != text.npos) {
    return {fmt::format("{} and {} cannot be given together: leave one of them out", text.substr(0, at),
                        text.substr(at + kExcludes.size())),
            command->name};
  }
  if (!extras.empty()) return WrongWord(program.get_name(), extras.front(), *command);
  return {text, command->name};
}

}  // namespace kvrun::cli
