#include "tests/support/message_list.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>

namespace kvrun::testing {
namespace {

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

// The exit code and what was said, as the list has it.
std::string Answer(const std::string& command, const TemporaryFolder& folder, const std::string& kvrun,
                   const std::string& kvadapt) {
  // Settings of the person who runs the tests are not tested.
  const std::string setup = fmt::format(
      "cd {0} && unset $(env | sed -n 's/^\\(KVRUN_[A-Z_]*\\)=.*/\\1/p' | grep -v LAUNCHER) COLUMNS\n"
      "kvrun() {{ {1} \"$@\"; }}\nkvadapt() {{ {2} \"$@\"; }}\n",
      folder.Path(""), ShellWords(kvrun), ShellWords(kvadapt));
  const ProgramResult result = RunShell(setup + command + "\n");
  std::string text = fmt::format("{}\n", result.exit_code);
  std::istringstream lines(Replaced(result.err, folder.Path(""), "FOLDER/"));
  for (std::string line; std::getline(lines, line);) text += fmt::format("> {}\n", line);
  return text;
}

}  // namespace

size_t CheckMessages(const std::string& list_path, const TemporaryFolder& folder, const std::string& kvrun,
                     const std::string& kvadapt) {
  const char* update = std::getenv("KVRUN_UPDATE_MESSAGES");
  std::istringstream list(ReadWholeFile(list_path));
  std::string anew;
  std::string expected;
  std::string command;
  size_t n_commands = 0;
  const auto finish = [&] {
    if (command.empty()) return;
    const std::string answer = Answer(command, folder, kvrun, kvadapt);
    EXPECT_EQ(answer, expected) << "$ " << command << "\nKVRUN_UPDATE_MESSAGES=1 writes the list anew";
    anew += answer;
    ++n_commands;
    command.clear();
    expected.clear();
  };
  for (std::string line; std::getline(list, line);) {
    if (line.starts_with("$ ")) {
      finish();
      command = line.substr(2);
      anew += line + "\n";
    } else if (line.empty() || line.starts_with("#")) {
      finish();
      anew += line + "\n";
    } else {
      expected += line + "\n";
    }
  }
  finish();
  if (update != nullptr && std::string_view(update) == "1") std::ofstream(list_path) << anew;
  return n_commands;
}

}  // namespace kvrun::testing
