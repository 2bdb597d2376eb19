// Completion of a program's command line in bash and zsh, as scripts that are written from its options: what
// is offered is what the program takes. Names of devices are not in them, as they differ from one day to the
// next: the scripts run `PROGRAM completion devices` when they are wanted.
#pragma once

#include <span>
#include <string>

#include "apps/common/help.h"

namespace kvrun::cli {

// `program` is its name, as it is called.
std::string BashCompletion(const std::string& program, std::span<const CommandInfo> commands);
std::string ZshCompletion(const std::string& program, std::span<const CommandInfo> commands);

}  // namespace kvrun::cli
