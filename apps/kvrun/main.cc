// kvrun, the command-line program. It uses the public C header and nothing else of kvrun.
#include "apps/common/program.h"
#include "apps/kvrun/commands.h"

int main(int argc, char** argv) {
  using namespace kvrun::cli;
  static constexpr AddCommand kCommands[] = {
      AddRunCommand,   AddChatCommand, AddTokenizeCommand, AddLogitsCommand, AddEvalCommand,
      AddBenchCommand, AddInfoCommand, AddDevicesCommand,  AddDoctorCommand, AddVersionCommand,
  };
  const ProgramInfo info{
      "kvrun",
      "kvrun: long-context language models on any Vulkan device, or the CPU.\n"
      "Every option can be given as the environment variable named beside it; the command line wins.\n"
      "Exit codes: 0 done, 1 failed, 2 bad usage, 130 interrupted."};
  return RunProgram(info, kCommands, argc, argv);
}
