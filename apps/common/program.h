// What a command-line program of kvrun's is: subcommands, and how it reads its command line, reports failures
// and ends.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/common/options.h"

namespace kvrun::cli {

struct Command {
  std::shared_ptr<OptionSet> options;
  std::shared_ptr<const bool> json;  // whether errors are to be JSON too; may be null
  std::function<int()> run;          // the answer is the exit code
};
using AddCommand = Command (*)(CLI::App* program);

struct ProgramInfo {
  std::string name;
  std::string description;
  std::vector<Example> examples;
  std::vector<AddCommand> commands;
};

// Each command with its options, in the order of the help.
std::vector<CommandInfo> DescribeCommands(const ProgramInfo& info);

// The whole of main(): answers the exit code.
int RunProgram(const ProgramInfo& info, int argc, char** argv);

}  // namespace kvrun::cli
