// What a command-line program of kvrun's is: subcommands, and how it reads its command line, reports failures
// and ends.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

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
};

// The whole of main(): answers the exit code.
int RunProgram(const ProgramInfo& info, std::span<const AddCommand> commands, int argc, char** argv);

}  // namespace kvrun::cli
