#include "apps/kvadapt/commands.h"

#include "apps/common/completion_command.h"

namespace kvrun::cli {

namespace {

Command AddCompletion(CLI::App* program) { return AddCompletionCommand(program, ThisProgram); }

}  // namespace

ProgramInfo ThisProgram() {
  return {
      "kvadapt",
      "kvadapt adapts kvrun to a model and to a machine.",
      {{"kvadapt calibrate -m model.gguf -o adapter.gguf",
        "compute adapters for the KV cache from texts that come with Debian"},
       {"kvadapt tune -m model.gguf --budget 1/13 --ctx 8192 -o kvrun.toml",
        "find the fastest KV options for a budget on this machine"}},
      {AddCalibrateCommand, AddProbeCommand, AddTuneCommand, AddInspectCommand, AddVerifyCommand,
       AddCompletion},
  };
}

}  // namespace kvrun::cli
