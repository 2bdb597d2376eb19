#include "apps/common/program.h"

#include <fmt/format.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <exception>
#include <new>
#include <sstream>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/common/api.h"
#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/interrupt.h"

namespace kvrun::cli {
namespace {

int ReportFailure(const Failure& failure, bool json) {
  if (json) {
    const Json error = {{"status", kvrun_status_name(failure.status())}, {"message", failure.what()}};
    (void)TryWriteStdout(JsonLine({{"error", error}}));
  }
  PrintMessage(failure.what());
  return failure.exit_code();
}

int ReportUsageError(const UsageError& error, bool json, const std::string& see) {
  const int exit_code = ReportFailure(error, json);
  WriteStderr(fmt::format("See {}.\n", see));
  return exit_code;
}

int RunCommand(const ProgramInfo& info, const Command& command) {
  const auto json = [&command] { return command.json != nullptr && *command.json; };
  try {
    command.options->Resolve();
    return command.run();
  } catch (const OutputClosed& closed) {
    return closed.exit_code();
  } catch (const UsageError& error) {
    return ReportUsageError(error, json(),
                            fmt::format("`{} {} --help`", info.name, command.options->command()));
  } catch (const Failure& failure) {
    const std::string message = failure.what() + command.options->VariablesIn(failure.what());
    return ReportFailure(Failure(failure.status(), message, failure.exit_code()), json());
  } catch (const std::bad_alloc&) {
    return ReportFailure(Failure(KVRUN_OUT_OF_MEMORY, "the memory of this machine does not suffice"), json());
  } catch (const std::exception& error) {
    return ReportFailure(Failure(KVRUN_INTERNAL_ERROR, error.what()), json());
  }
}

// CLI11's way of saying that the command line is wrong, or that help was asked for. A line that is wrong was
// not taken apart to its end: whether it asks for JSON is seen from its words.
int AnswerParseError(const ProgramInfo& info, const CLI::App& program, const CLI::ParseError& error,
                     std::span<char* const> words) {
  std::ostringstream out;
  std::ostringstream message;
  if (program.exit(error, out, message) != 0) {
    const bool json = std::ranges::any_of(
        words, [](const std::string_view word) { return word == "--json" || word == "--json-lines"; });
    return ReportUsageError(UsageError(error.what()), json,
                            fmt::format("`{0} --help`, or `{0} COMMAND --help`", info.name));
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

// What is given up goes back to the system: the budget of the KV cache is one of resident memory. Without
// this glibc raises its threshold with every large block that is freed, and keeps the next ones.
void ReturnMemoryAtOnce() {
#ifdef __GLIBC__
  constexpr int kThresholdBytes = 128 * 1024;
  mallopt(M_MMAP_THRESHOLD, kThresholdBytes);
  mallopt(M_TRIM_THRESHOLD, kThresholdBytes);
#endif
}

}  // namespace

int RunProgram(const ProgramInfo& info, std::span<const AddCommand> commands, int argc, char** argv) {
  ReturnMemoryAtOnce();
  GuardStandardStreams();
  InstallSignalHandlers();
  SetProgramName(info.name);
  CLI::App program(info.description, info.name);
  program.set_version_flag("--version", fmt::format("{} {}", info.name, kvrun_version()),
                           "The program's version");
  program.require_subcommand(1);
  std::vector<Command> added;
  for (const AddCommand add : commands) added.push_back(add(&program));
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return AnswerParseError(info, program, error, {argv, static_cast<size_t>(argc)});
  }
  for (const Command& command : added) {
    if (command.options->Chosen()) return RunCommand(info, command);
  }
  return kExitUsage;
}

}  // namespace kvrun::cli
