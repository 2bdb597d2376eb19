// kvadapt, the command-line program that adapts kvrun to a model and a machine. It uses the public C header
// and offline/.
#include "apps/common/program.h"
#include "apps/kvadapt/commands.h"

int main(int argc, char** argv) {
  using namespace kvrun::cli;
  static constexpr AddCommand kCommands[] = {AddCalibrateCommand, AddProbeCommand, AddTuneCommand,
                                             AddInspectCommand, AddVerifyCommand};
  const ProgramInfo info{
      "kvadapt",
      "kvadapt: adapts kvrun to a model and a machine.\n"
      "Every option can be given as the environment variable named beside it; the command line wins.\n"
      "Exit codes: 0 done, 1 failed, 2 bad usage, 130 interrupted."};
  return RunProgram(info, kCommands, argc, argv);
}
