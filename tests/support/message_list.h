// Files that list messages of the programs: commands, their exit codes, and what they say on standard error,
// word for word, so that a changed message shows in a review.
//
//   $ kvrun rum                       a line for the shell, in which kvrun and kvadapt are the programs
//   2                                 its exit code
//   > kvrun: there is no command      a line of standard error; a blank line ends the entry
//
// Lines that begin with # are comments.
#pragma once

#include <string>

#include "tests/support/program_runner.h"

namespace kvrun::testing {

// Runs all commands of the list in `folder` and compares. Where KVRUN_UPDATE_MESSAGES is 1 the list is
// written anew instead. Names in messages that differ from run to run are replaced before: the folder by
// FOLDER. Answers how many commands there are.
size_t CheckMessages(const std::string& list_path, const TemporaryFolder& folder, const std::string& kvrun,
                     const std::string& kvadapt);

}  // namespace kvrun::testing
