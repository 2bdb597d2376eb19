// The terminal's modes during a chat.
#pragma once

#include <termios.h>

namespace kvrun::cli {

// While this lives, the terminal hands out what is typed byte by byte and without a limit (a line of its own
// has 4,095 bytes at most), echoes nothing, leaves line ends as they are, and marks what is pasted. Signals
// of keys work as before. The modes from before come back at the end, also where a signal ends or stops the
// process. One at a time. Not for use from several threads.
class TerminalModes {
 public:
  // `input` is a terminal. Marks are asked for on `output`; where that is no terminal, nowhere.
  TerminalModes(int input, int output);
  ~TerminalModes();
  TerminalModes(const TerminalModes&) = delete;
  TerminalModes& operator=(const TerminalModes&) = delete;

  // Whether the process was stopped and went on since the last call: what was on the terminal is gone.
  static bool TakeContinued();
};

}  // namespace kvrun::cli
