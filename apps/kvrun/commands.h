// The subcommands: each adds itself to the program and says how it is run.
#pragma once

#include "apps/common/program.h"

namespace kvrun::cli {

Command AddRunCommand(CLI::App* program);
Command AddChatCommand(CLI::App* program);
Command AddTokenizeCommand(CLI::App* program);
Command AddRenderCommand(CLI::App* program);
Command AddLogitsCommand(CLI::App* program);
Command AddEvalCommand(CLI::App* program);
Command AddServeCommand(CLI::App* program);  // in builds with KVRUN_SERVE
Command AddSessionsCommand(CLI::App* program);
Command AddDevicesCommand(CLI::App* program);
Command AddBenchCommand(CLI::App* program);
Command AddInfoCommand(CLI::App* program);
Command AddDoctorCommand(CLI::App* program);
Command AddVersionCommand(CLI::App* program);

// The program's name, and all of these.
ProgramInfo ThisProgram();

}  // namespace kvrun::cli
