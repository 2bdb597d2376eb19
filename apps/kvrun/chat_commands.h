// What a chat's lines ask for: messages, and commands that begin with a slash.
#pragma once

#include <cstdint>
#include <string>

namespace kvrun::cli {

enum class ChatAction : uint8_t {
  kNothing,  // a blank line
  kMessage,
  kFile,
  kSave,
  kStats,
  kReset,
  kHelp,
  kExit,
  kWrong,  // no command, or one that is not given as it must be
};

struct ChatLine {
  ChatAction action = ChatAction::kNothing;
  std::string text;  // the message, the command's argument, or what is wrong
};

ChatLine ReadChatLine(const std::string& line);

// All commands, and where a person edits lines their keys too.
std::string ChatHelp(bool with_keys);

// A path as people type it behind a command: ~ is the home folder, and quotes around it or backslashes before
// its blanks are no part of it, unless a file has them in its name.
std::string TypedPath(const std::string& typed);

}  // namespace kvrun::cli
