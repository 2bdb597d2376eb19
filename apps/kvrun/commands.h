// The subcommands: each adds itself to the program and says how it is run.
#pragma once

#include <functional>
#include <memory>

#include "apps/kvrun/options.h"

namespace kvrun::cli {

struct Command {
  std::shared_ptr<OptionSet> options;
  std::shared_ptr<const bool> json;  // whether errors are to be JSON too; may be null
  std::function<int()> run;          // the answer is the exit code
};

Command AddRunCommand(CLI::App* program);
Command AddChatCommand(CLI::App* program);
Command AddTokenizeCommand(CLI::App* program);
Command AddLogitsCommand(CLI::App* program);
Command AddEvalCommand(CLI::App* program);
Command AddDevicesCommand(CLI::App* program);
Command AddInfoCommand(CLI::App* program);
Command AddDoctorCommand(CLI::App* program);
Command AddVersionCommand(CLI::App* program);

}  // namespace kvrun::cli
