// The subcommands: each adds itself to the program and says how it is run.
#pragma once

#include "apps/common/program.h"

namespace kvrun::cli {

Command AddCalibrateCommand(CLI::App* program);
Command AddInspectCommand(CLI::App* program);
Command AddProbeCommand(CLI::App* program);
Command AddTuneCommand(CLI::App* program);
Command AddVerifyCommand(CLI::App* program);

// The program's name, and all of these.
ProgramInfo ThisProgram();

}  // namespace kvrun::cli
