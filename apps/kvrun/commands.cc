#include "apps/kvrun/commands.h"

#include "apps/common/completion_command.h"

namespace kvrun::cli {

namespace {

Command AddCompletion(CLI::App* program) { return AddCompletionCommand(program, ThisProgram); }

}  // namespace

ProgramInfo ThisProgram() {
  ProgramInfo program = {
      "kvrun",
      "kvrun runs long-context language models on any Vulkan device, or on the CPU, with the KV cache in "
      "memory or on flash.",
      {{"kvrun chat -m model.gguf", "talk with a model"},
       {"kvrun run -m model.gguf -f report.txt -p \"What is it about?\" --chat",
        "ask a question about a document"}},
      {AddRunCommand, AddChatCommand, AddTokenizeCommand, AddRenderCommand, AddLogitsCommand, AddEvalCommand,
       AddBenchCommand, AddInfoCommand, AddSessionsCommand, AddDevicesCommand, AddDoctorCommand,
       AddCompletion, AddVersionCommand},
  };
#ifndef KVRUN_WITHOUT_SERVE
  program.commands.insert(program.commands.begin() + 2, AddServeCommand);
#endif
  return program;
}

}  // namespace kvrun::cli
