#include "apps/kvrun/chat_commands.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace kvrun::cli {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";
constexpr size_t kShownBytes = 40;

struct KnownCommand {
  std::string_view name;
  ChatAction action;
  std::string_view argument;  // "": it takes none
  std::string_view help;      // "": another name of the one above
};
constexpr KnownCommand kCommands[] = {
    {"/file", ChatAction::kFile, "PATH", "add a document to the next message; several may be added"},
    {"/save", ChatAction::kSave, "PATH", "write the conversation so far into a new file, as Markdown"},
    {"/stats", ChatAction::kStats, "", "speed and memory so far (with -v: what the device and the cache do)"},
    {"/reset", ChatAction::kReset, "", "start over; documents of -f stay"},
    {"/help", ChatAction::kHelp, "", "this list"},
    {"/exit", ChatAction::kExit, "", "end (also Ctrl-D, or Ctrl-C twice)"},
    {"/quit", ChatAction::kExit, "", ""},
};

std::string Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == text.npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1));
}

std::string Names() {
  std::string names;
  for (const KnownCommand& command : kCommands) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", command.name);
  }
  return names;
}

ChatLine ReadCommand(const KnownCommand& command, const std::string& argument) {
  const std::string name(command.name);
  if (command.argument.empty() && !argument.empty()) {
    return {ChatAction::kWrong, name + " takes nothing after it: it was not carried out"};
  }
  if (!command.argument.empty() && argument.empty()) {
    return {ChatAction::kWrong, fmt::format("{0} needs the name of a file: {0} {1}", name, command.argument)};
  }
  return {command.action, argument};
}

std::string WithoutBackslashes(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size()) ++i;
    plain += text[i];
  }
  return plain;
}

std::string WithHome(const std::string& path) {
  if (path != "~" && !path.starts_with("~/")) return path;
  const char* home = std::getenv("HOME");
  return home == nullptr || *home == '\0' ? path : home + path.substr(1);
}

bool IsThere(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

}  // namespace

ChatLine ReadChatLine(const std::string& line) {
  if (line.find_first_not_of(kBlanks) == line.npos) return {};
  // Commands are of one line: several are a paste, such as of code or of a path and more.
  const bool has_lines = line.find_first_of("\r\n") < line.find_last_not_of(kBlanks);
  if (!line.starts_with('/') || has_lines) return {ChatAction::kMessage, line};
  if (line.starts_with("//")) return {ChatAction::kMessage, line.substr(1)};
  const std::string word = line.substr(0, line.find_first_of(kBlanks));
  for (const KnownCommand& command : kCommands) {
    if (word == command.name) return ReadCommand(command, Trimmed(line.substr(word.size())));
  }
  const std::string shown = word.size() <= kShownBytes ? word : word.substr(0, kShownBytes) + "...";
  return {
      ChatAction::kWrong,
      fmt::format("there is no command {}, and nothing was sent; there are {}; a message that begins with a "
                  "slash is written with two: //",
                  shown, Names())};
}

std::string ChatHelp(bool with_keys) {
  std::string text;
  for (const KnownCommand& command : kCommands) {
    if (command.help.empty()) continue;
    text += fmt::format("{:<12} {}\n", fmt::format("{} {}", command.name, command.argument), command.help);
  }
  text += fmt::format("{:<12} {}\n", "//TEXT", "send /TEXT as a message");
  if (!with_keys) return text;
  return text +
         "Enter        send; with a backslash at the line's end, or as Alt-Enter, it begins a new line\n"
         "Up, Down     earlier messages; Ctrl-R searches them\n"
         "Ctrl-C       stop an answer; clear the line\n"
         "A paste is one message, whatever its lines: it is sent by Enter.\n";
}

std::string TypedPath(const std::string& typed) {
  const std::string path = WithHome(typed);
  if (IsThere(path)) return path;
  const bool quoted = typed.size() > 2 && (typed[0] == '"' || typed[0] == '\'') && typed.back() == typed[0];
  if (quoted) return WithHome(typed.substr(1, typed.size() - 2));
  const std::string plain = WithHome(WithoutBackslashes(typed));
  return IsThere(plain) ? plain : path;
}

}  // namespace kvrun::cli
