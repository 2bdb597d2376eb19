#include "apps/common/program.h"

#include <fmt/format.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <system_error>

#include <algorithm>
#include <exception>
#include <new>
#include <span>
#include <sstream>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/common/api.h"
#include "apps/common/command_line_error.h"
#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/interrupt.h"
#include "apps/common/printable.h"

namespace kvrun::cli {
namespace {

int ReportFailure(const Failure& failure, bool json) {
  if (json) {
    const Json error = {{"status", kvrun_status_name(failure.status())},
                        {"message", Clipped(failure.what())}};
    (void)TryWriteStdout(JsonLine({{"error", error}}));
  }
  PrintError(failure.what());
  return failure.exit_code();
}

int ReportUsageError(const UsageError& error, bool json, const std::string& see) {
  const int exit_code = ReportFailure(error, json);
  WriteStderr(fmt::format("See {}.\n", see));
  return exit_code;
}

std::string HelpOf(const ProgramInfo& info, const std::string& command) {
  return fmt::format("`{}{}{} --help`", info.name, command.empty() ? "" : " ", command);
}

// A system that has no thread, file or the like to give, which says itself only "Resource temporarily
// unavailable".
Failure OfSystem(const std::system_error& error) {
  if (error.code() == std::errc::resource_unavailable_try_again) {
    return Failure(KVRUN_OUT_OF_MEMORY,
                   "this system allows no more threads: end other programs, or raise its limit (ulimit -u)");
  }
  return Failure(KVRUN_IO_ERROR, fmt::format("the system refused: {}", error.code().message()));
}

int RunCommand(const ProgramInfo& info, const Command& command) {
  const auto json = [&command] { return command.json != nullptr && *command.json; };
  try {
    command.options->Resolve();
    return command.run();
  } catch (const OutputClosed& closed) {
    return closed.exit_code();
  } catch (const UsageError& error) {
    return ReportUsageError(UsageError(error.what() + command.options->VariablesIn(error.what())), json(),
                            HelpOf(info, command.options->command()));
  } catch (const Failure& failure) {
    const std::string message = failure.what() + command.options->VariablesIn(failure.what());
    return ReportFailure(Failure(failure.status(), message, failure.exit_code()), json());
  } catch (const std::bad_alloc&) {
    return ReportFailure(Failure(KVRUN_OUT_OF_MEMORY, "this machine has too little memory free"), json());
  } catch (const std::system_error& error) {
    return ReportFailure(OfSystem(error), json());
  } catch (const std::exception& error) {
    const std::string message =
        fmt::format("a fault in {}, not in what you gave it: please report it ({})", info.name, error.what());
    return ReportFailure(Failure(KVRUN_INTERNAL_ERROR, message), json());
  }
}

// Such as of chat, which says on a terminal what is wrong: once.
bool SpeaksNoJson(std::span<const CommandInfo> commands, const std::string& name) {
  const auto command = std::find_if(commands.begin(), commands.end(),
                                    [&](const CommandInfo& one) { return one.name == name; });
  return command != commands.end() &&
         std::none_of(command->options.begin(), command->options.end(), [](const OptionInfo& option) {
           return std::find(option.names.begin(), option.names.end(), "--json") != option.names.end();
         });
}

// Help was asked for, or the command line is wrong. A line that is wrong was not taken apart to its end:
// whether it asks for JSON is seen from its words.
int AnswerParseError(const ProgramInfo& info, const CLI::App& program, const CLI::ParseError& error,
                     std::span<char* const> words) {
  std::ostringstream out;
  std::ostringstream unused;
  if (error.get_exit_code() != 0) {
    const std::vector<CommandInfo> commands = DescribeCommands(info);
    const CommandLineError wrong = ExplainParseError(program, commands, error);
    const bool json =
        std::any_of(words.begin(), words.end(),
                    [](const std::string_view word) { return word == "--json" || word == "--json-lines"; }) &&
        !SpeaksNoJson(commands, wrong.command);
    return ReportUsageError(UsageError(wrong.message), json, HelpOf(info, wrong.command));
  }
  (void)program.exit(error, out, unused);
  try {
    WriteStdout(out.str());
  } catch (const OutputClosed& closed) {
    return closed.exit_code();
  } catch (const Failure& failure) {
    return ReportFailure(failure, /*json=*/false);
  }
  return 0;
}

// What stands behind --help.
HelpTopic TopicOf(std::span<char* const> words) {
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    const std::string_view word = words[i];
    if (word != "--help" && word != "-h") continue;
    const std::string_view next = words[i + 1];
    return next == "kv" ? HelpTopic::kKv : next == "all" ? HelpTopic::kAll : HelpTopic::kUsual;
  }
  return HelpTopic::kUsual;
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

std::vector<CommandInfo> DescribeCommands(const ProgramInfo& info) {
  CLI::App program(info.description, info.name);
  std::vector<CommandInfo> described;
  for (const AddCommand add : info.commands) described.push_back(add(&program).options->Describe());
  return described;
}

int RunProgram(const ProgramInfo& info, int argc, char** argv) {
  ReturnMemoryAtOnce();
  GuardStandardStreams();
  InstallSignalHandlers();
  SetProgramName(info.name);
  CLI::App program(info.description, info.name);
  program.set_version_flag("--version", fmt::format("{} {}", info.name, kvrun_version()),
                           "The program's version");
  program.require_subcommand(1);
  std::vector<Command> added;
  program.formatter_fn([&](const CLI::App*, const std::string&, CLI::AppFormatMode) {
    return ProgramHelp(info.name, info.description, DescribeCommands(info), info.examples, HelpWidth());
  });
  const HelpTopic topic = TopicOf({argv, static_cast<size_t>(argc)});
  for (const AddCommand add : info.commands) {
    added.push_back(add(&program));
    added.back().options->SetHelpTopic(topic);
  }
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
