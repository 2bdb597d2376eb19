// Runs a program as a shell would and keeps what it said.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace kvrun {

struct ProgramResult {
  int exit_code = -1;  // 128 + signal if a signal killed it
  std::string out;
  std::string err;
};

struct ProgramInput {
  std::vector<std::string> environment;  // "NAME=value"; nothing else is passed on, but AlwaysPassedOn()
  std::string stdin_text;
  std::string stdout_path;  // empty: captured
  // In the child, before the program begins; false ends it with exit code 126. For limits and filters.
  std::function<bool()> before_program = {};
};

// A folder that is removed with all that is in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string Path(const std::string& name) const { return path_ + "/" + name; }
  std::string Write(const std::string& name, const std::string& text) const;  // answers the path

 private:
  std::string path_;
};

std::string ReadWholeFile(const std::string& path);

// "NAME=value" of what programs get whatever the test says: PATH, and how sanitizers report. And of what they
// get where it says nothing: no document is kept in the home of whoever runs the tests (KVRUN_NO_KEEP).
std::vector<std::string> AlwaysPassedOn();

// The words of KVRUN_TEST_LAUNCHER: what runs programs that this machine cannot run by itself.
std::vector<std::string> LauncherWords();

// Where KVRUN_TEST_LAUNCHER names what runs programs that this machine cannot run by itself, it runs this one
// too.
class RunningProgram {
 public:
  RunningProgram(const std::string& program, const std::vector<std::string>& arguments,
                 const ProgramInput& input);
  ~RunningProgram();
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;

  // Waits until its standard output or error contains `text`. False if it ended without, or after two
  // minutes.
  bool WaitForOutput(const std::string& text) const;
  // The same, until it has read all that was typed.
  bool WaitForRead() const;
  pid_t pid() const { return pid_; }
  const std::string& stdout_path() const { return stdout_path_; }
  void Signal(int number) const;
  void Type(const std::string& text) const;  // standard input stays open until CloseInput() or Finish()
  void CloseInput();
  ProgramResult Finish();

 private:
  bool HasEnded() const;
  bool WaitUntil(const std::function<bool()>& holds) const;

  TemporaryFolder folder_;
  std::string stdout_path_;
  pid_t pid_ = -1;
  int stdin_fd_ = -1;
};

ProgramResult RunProgram(const std::string& program, const std::vector<std::string>& arguments,
                         const ProgramInput& input = {});

// The same with a command of the shell, in which ShellWords(program) stands for a program.
ProgramResult RunShell(const std::string& command);
std::string ShellWords(const std::string& program);

}  // namespace kvrun
