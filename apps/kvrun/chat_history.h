// What was typed in chats, kept from one to the next in a file of the user's.
#pragma once

#include <string>
#include <vector>

namespace kvrun::cli {

// The file has an entry a line, each a JSON string; nobody but the user can read it. It never becomes much
// larger than 1 MiB: the oldest entries go. Whatever is wrong with it, a chat goes on without.
class ChatHistory {
 public:
  // $XDG_STATE_HOME/kvrun/chat_history, where that is not set in $HOME/.local/state; "" where neither is.
  static std::string UsualPath();

  // `path` "": nothing is kept beyond this chat.
  explicit ChatHistory(std::string path);

  // Of earlier chats, oldest first.
  const std::vector<std::string>& earlier() const { return earlier_; }
  void Add(const std::string& entry);

  // Why the file is not used; "": it is, or none was asked for.
  const std::string& problem() const { return problem_; }

 private:
  std::string path_;  // "": nothing is written
  std::vector<std::string> earlier_;
  std::string problem_;
};

}  // namespace kvrun::cli
