// Lines that a person types and edits on a terminal: keys, history and pastes (docs/chat.md).
#pragma once

#include <memory>
#include <string>

#include "apps/kvrun/line_reader.h"

namespace kvrun::cli {

// Whether standard input and an output are terminals, and this build has a line editor.
bool CanEditLines();

struct TerminalLines {
  std::unique_ptr<LineReader> reader;  // null: lines cannot be edited
  std::string note;                    // what a person should know, such as that the history is not kept
};

// Standard input must be a terminal, whose modes are TerminalModes. `history_path` as ChatHistory has it.
TerminalLines OpenTerminalLines(const std::string& history_path);

// Where the line editor writes: standard error, or where that is no terminal, standard output. -1: nowhere.
int TerminalOutput();

}  // namespace kvrun::cli
