// PROGRAM completion SHELL: prints the script that completes the program's command line.
#pragma once

#include "apps/common/program.h"

namespace kvrun::cli {

// `describe` is what the program is, this command included.
Command AddCompletionCommand(CLI::App* program, ProgramInfo (*describe)());

}  // namespace kvrun::cli
