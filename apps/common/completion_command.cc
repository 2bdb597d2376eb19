#include "apps/common/completion_command.h"

#include <fmt/format.h>

#include <string>

#include "apps/common/api.h"
#include "apps/common/completion.h"
#include "apps/common/failure.h"
#include "apps/common/files.h"

namespace kvrun::cli {
namespace {

// The devices that can compute, as --device takes them: a line for each index and each name, a tab, and what
// it is.
void WriteDevices() {
  char* text = nullptr;
  Check(kvrun_devices_json(&text));
  std::string lines;
  for (const Json& device : TakeJson(text)) {
    if (device.value("usable", Json(true)) == false) continue;
    const std::string name = TextOf(device["name"]);
    lines += fmt::format("{0}\t{1}\n{1}\t{2}\n", TextOf(device["index"]), name, TextOf(device["kind"]));
  }
  WriteStdout(lines);
}

int Complete(const ProgramInfo& program, const std::string& shell) {
  if (shell == "devices") {
    WriteDevices();
  } else if (shell == "bash") {
    WriteStdout(BashCompletion(program.name, DescribeCommands(program)));
  } else if (shell == "zsh") {
    WriteStdout(ZshCompletion(program.name, DescribeCommands(program)));
  } else {
    throw UsageError(shell.empty()
                         ? fmt::format("no shell is named: {} completion bash, or zsh", program.name)
                         : fmt::format("\"{}\" is no shell that can be completed: bash or zsh", shell));
  }
  return 0;
}

}  // namespace

Command AddCompletionCommand(CLI::App* program, ProgramInfo (*describe)()) {
  auto shell = std::make_shared<std::string>();
  const std::string name = describe().name;
  auto set =
      std::make_shared<OptionSet>(program, "completion", "The script that completes options in a shell");
  set->Text("SHELL,--shell", shell.get(), "bash|zsh",
            "which shell reads it (`devices` prints the devices, which the scripts offer for --device)");
  set->Offer({"bash", "zsh"});
  set->AddExample(name + " completion bash",
                  fmt::format("print the script; `. <({} completion bash)` completes in this shell", name));
  set->AddExample(name + " completion zsh",
                  fmt::format("print the function that zsh looks for as _{}", name));
  return {set, nullptr, [shell, describe] { return Complete(describe(), *shell); }};
}

}  // namespace kvrun::cli
