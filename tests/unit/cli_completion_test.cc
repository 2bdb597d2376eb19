// `kvrun completion`: what the scripts offer, in the shells themselves.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/cli_fixture.h"

namespace kvrun {
namespace {

using testing::Cli;
using testing::Contains;
using Words = std::vector<std::string>;

Words Lines(const std::string& text) {
  Words lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string PathOf(const std::string& program) {
  return program == "kvrun" ? KVRUN_FAKE_PROGRAM : KVADAPT_FAKE_PROGRAM;
}

// What bash offers for the last of these words, as its array COMP_WORDS has them: "--kv-io=a" is three words.
// The first is the program's name, in whose place bash starts the toy.
Words Offered(Words words, const std::string& environment = "") {
  const TemporaryFolder folder;
  const std::string name = words.front();
  words.front() = folder.Write(name, "#!/bin/sh\nexec " + ShellWords(PathOf(name)) + " \"$@\"\n");
  std::filesystem::permissions(words.front(), std::filesystem::perms::owner_all);
  const std::string script = fmt::format(
      "set -u; source <(\"$1\" completion bash); COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _{}; "
      "if [[ ${{#COMPREPLY[@]}} -gt 0 ]]; then printf '%s\\n' \"${{COMPREPLY[@]}}\"; fi",
      name);
  Words arguments = {"-c", "exec bash --norc -c \"$0\" bash \"$@\"", script};
  arguments.insert(arguments.end(), words.begin(), words.end());
  const Words variables = environment.empty() ? Words{} : Words{environment};
  const ProgramResult result = RunProgram("/bin/sh", arguments, {variables, "", ""});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return Lines(result.out);
}

bool Has(const Words& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

TEST(CliCompletion, OffersCommandsAndTheirOptions) {
  EXPECT_EQ(Offered({"kvrun", "ru"}), Words{"run"});
  EXPECT_EQ(Offered({"kvadapt", "c"}), (Words{"calibrate", "completion"}));
  EXPECT_EQ(Offered({"kvrun", "--v"}), Words{"--version"});
  EXPECT_EQ(Offered({"kvrun", "run", "--top"}), (Words{"--top-k", "--top-p"}));
  EXPECT_EQ(Offered({"kvrun", "run", "-m", "x.gguf", "--top-k", "3", "--top-p"}), Words{"--top-p"});
  EXPECT_TRUE(Has(Offered({"kvrun", "run", ""}), "--model"));
  // Another command's.
  EXPECT_EQ(Offered({"kvrun", "info", "--top"}), Words{});
  EXPECT_EQ(Offered({"kvadapt", "tune", "--par"}), Words{"--pareto"});
}

// Whatever --help lists: an option that completion does not know cannot be added.
TEST(CliCompletion, OffersAllThatHelpLists) {
  for (const std::string program : {"kvrun", "kvadapt"}) {
    size_t n_options = 0;
    for (const std::string& command : Offered({program, ""})) {
      if (command.starts_with("-")) continue;
      const Words offered = Offered({program, command, "-"});
      for (const std::string& line : Lines(RunProgram(PathOf(program), {command, "--help"}, {}).out)) {
        if (!line.starts_with("  -") && !line.starts_with("      --")) continue;
        const std::string names = line.substr(line.find('-'));
        const std::string name = names.substr(0, names.find_first_of(" ,"));
        EXPECT_TRUE(Has(offered, name)) << program << " " << command << " " << name;
        ++n_options;
      }
    }
    EXPECT_GT(n_options, 50U) << program;
  }
}

TEST(CliCompletion, OffersValuesThatTheLibraryAndTheProgramKnow) {
  // "toy" is known to the toy library alone.
  EXPECT_EQ(Offered({"kvrun", "run", "--kv-method", ""}), (Words{"full", "toy"}));
  EXPECT_EQ(Offered({"kvadapt", "calibrate", "--kind", "q"}), (Words{"query", "query-centred"}));
  EXPECT_EQ(Offered({"kvrun", "run", "--progress", "al"}), Words{"always"});
  EXPECT_EQ(Offered({"kvrun", "completion", ""}), (Words{"bash", "zsh"}));
  // "--progress=al" and "--progress=".
  EXPECT_EQ(Offered({"kvrun", "run", "--progress", "=", "al"}), Words{"always"});
  EXPECT_EQ(Offered({"kvrun", "run", "--progress", "="}), (Words{"auto", "always", "never"}));
  // Nothing is known of these.
  EXPECT_EQ(Offered({"kvrun", "run", "--top-k", ""}), Words{});
  EXPECT_EQ(Offered({"kvrun", "run", "-p", ""}), Words{});
}

TEST(CliCompletion, OffersFilesAndFolders) {
  const TemporaryFolder folder;
  const std::string begin = folder.Path("mod");
  const std::string file = folder.Write("model one.gguf", "x");
  const std::string inside = folder.Path("models");
  std::filesystem::create_directory(inside);
  for (const char* option : {"-m", "--model", "-f", "--config"}) {
    Words offered = Offered({"kvrun", "run", option, begin});
    std::sort(offered.begin(), offered.end());
    EXPECT_EQ(offered, (Words{file, inside})) << option;
  }
  EXPECT_EQ(Offered({"kvrun", "run", "--kv-dir", begin}), Words{inside});
  EXPECT_EQ(Offered({"kvadapt", "inspect", begin}).size(), 2U);
}

TEST(CliCompletion, OffersDevicesAsTheyAreNow) {
  const Words offered = Offered({"kvrun", "run", "--device", ""});
  // As words of the shell.
  for (const char* word : {"auto", "vulkan", "gpu", "cpu", "0", "1", "Fake\\ GPU"})
    EXPECT_TRUE(Has(offered, word)) << word;
  EXPECT_EQ(Offered({"kvrun", "doctor", "--device", "Fake\\ G"}), Words{"Fake\\ GPU"});
  EXPECT_EQ(Offered({"kvadapt", "tune", "--device", "\"Fake G"}), Words{"Fake GPU"});
  const Words without = Offered({"kvrun", "run", "--device", ""}, "FAKE_NO_DEVICE=1");
  EXPECT_TRUE(Has(without, "auto"));
  EXPECT_FALSE(Has(without, "0"));
}

TEST(CliCompletion, OfZshIsUnderstoodByIt) {
  for (const char* program : {"kvrun", "kvadapt"}) {
    const ProgramResult written = RunProgram(PathOf(program), {"completion", "zsh"}, {});
    EXPECT_EQ(written.exit_code, 0) << written.err;
    EXPECT_TRUE(written.out.starts_with("#compdef kv")) << written.out.substr(0, 80);
    EXPECT_PRED2(Contains, written.out, "'*--progress=[");
    EXPECT_PRED2(Contains, written.out, ":(auto always never)'");
    if (!std::filesystem::exists("/bin/zsh")) continue;  // .ci/run has it
    const ProgramResult read = RunProgram("/bin/sh", {"-c", "exec zsh -n"}, {{}, written.out, ""});
    EXPECT_EQ(read.exit_code, 0) << read.err;
    EXPECT_EQ(read.err, "");
  }
}

TEST(CliCompletion, AnUnknownShellIsWrongUsage) {
  const ProgramResult other = Cli({"completion", "fish"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_PRED2(Contains, other.err, "\"fish\"");
  EXPECT_PRED2(Contains, other.err, "bash or zsh");
  const ProgramResult none = Cli({"completion"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_PRED2(Contains, none.err, "kvrun completion bash, or zsh");
}

}  // namespace
}  // namespace kvrun
