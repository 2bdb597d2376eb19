// kvrun, the command-line program. It uses the public C header and nothing else of kvrun.
#include <fmt/format.h>

#include <exception>
#include <new>
#include <sstream>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/kvrun/api.h"
#include "apps/kvrun/commands.h"
#include "apps/kvrun/failure.h"
#include "apps/kvrun/files.h"
#include "apps/kvrun/interrupt.h"

namespace kvrun::cli {
namespace {

constexpr const char* kDescription =
    "kvrun: long-context language models on any Vulkan device.\n"
    "Every option can be given as the environment variable named beside it; the command line wins.\n"
    "Exit codes: 0 done, 1 failed, 2 bad usage, 130 interrupted.";

int ReportFailure(const Failure& failure, bool json) {
  if (json) {
    const Json error = {{"status", kvrun_status_name(failure.status())}, {"message", failure.what()}};
    (void)TryWriteStdout(JsonLine({{"error", error}}));
  }
  PrintMessage(failure.what());
  return failure.exit_code();
}

int RunCommand(const Command& command) {
  bool json = false;
  try {
    command.options->Resolve();
    json = command.json != nullptr && *command.json;
    return command.run();
  } catch (const OutputClosed& closed) {
    return closed.exit_code();
  } catch (const UsageError& error) {
    PrintMessage(error.what());
    WriteStderr(fmt::format("See `kvrun {} --help`.\n", command.options->command()));
    return error.exit_code();
  } catch (const Failure& failure) {
    return ReportFailure(failure, json);
  } catch (const std::bad_alloc&) {
    return ReportFailure(Failure(KVRUN_OUT_OF_MEMORY, "the memory of this machine does not suffice"), json);
  } catch (const std::exception& error) {
    return ReportFailure(Failure(KVRUN_INTERNAL_ERROR, error.what()), json);
  }
}

// CLI11's way of saying that the command line is wrong, or that help was asked for.
int AnswerParseError(const CLI::App& program, const CLI::ParseError& error) {
  std::ostringstream out;
  std::ostringstream message;
  if (program.exit(error, out, message) != 0) {
    PrintMessage(error.what());
    WriteStderr("See `kvrun --help`, or `kvrun COMMAND --help`.\n");
    return kExitUsage;
  }
  try {
    WriteStdout(out.str());
  } catch (const OutputClosed& closed) {
    return closed.exit_code();
  } catch (const Failure& failure) {
    return ReportFailure(failure, /*json=*/false);
  }
  return 0;
}

int Main(int argc, char** argv) {
  GuardStandardStreams();
  InstallSignalHandlers();
  CLI::App program(kDescription, "kvrun");
  program.set_version_flag("--version", fmt::format("kvrun {}", kvrun_version()), "The program's version");
  program.require_subcommand(1);
  const std::vector<Command> commands = {
      AddRunCommand(&program),     AddChatCommand(&program),   AddTokenizeCommand(&program),
      AddLogitsCommand(&program),  AddEvalCommand(&program),   AddInfoCommand(&program),
      AddDevicesCommand(&program), AddDoctorCommand(&program), AddVersionCommand(&program),
  };
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return AnswerParseError(program, error);
  }
  for (const Command& command : commands) {
    if (command.options->Chosen()) return RunCommand(command);
  }
  return kExitUsage;
}

}  // namespace
}  // namespace kvrun::cli

int main(int argc, char** argv) { return kvrun::cli::Main(argc, argv); }
