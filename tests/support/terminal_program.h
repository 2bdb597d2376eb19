// Runs a program on a terminal of its own (a pseudo-terminal), as a person would.
#pragma once

#include <sys/types.h>
#include <termios.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace kvrun {

// Standard input, output and error are the terminal, which has 80 columns and 24 rows.
class TerminalProgram {
 public:
  // `environment` as in ProgramInput; TERM is xterm unless it says otherwise.
  TerminalProgram(const std::string& program, const std::vector<std::string>& arguments,
                  const std::vector<std::string>& environment = {});
  ~TerminalProgram();
  TerminalProgram(const TerminalProgram&) = delete;
  TerminalProgram& operator=(const TerminalProgram&) = delete;

  // Waits until the terminal takes it.
  void Type(const std::string& text) const;
  // All that came on the terminal so far.
  std::string Output() const;
  // Waits for `text` behind what was waited for before. False if the program ended without, or after two
  // minutes.
  bool WaitFor(const std::string& text);
  void Signal(int number) const;
  // The terminal's modes at present.
  termios Modes() const;
  // Waits for the program's end, two minutes at most, and answers its exit code; 128 + signal if one killed
  // it.
  int Finish();

 private:
  bool WaitUntil(const std::function<bool()>& holds) const;
  void ReadAll();

  int master_ = -1;
  int slave_ = -1;  // held open, so that modes and output outlive the program
  pid_t pid_ = -1;
  std::thread reader_;
  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;
  std::string output_;
  size_t waited_for_ = 0;
};

}  // namespace kvrun
