// The KV cache's options in run, chat and logits: how they reach the library, and what is said of it.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/cli_fixture.h"

namespace kvrun {
namespace {

using testing::Cli;
using testing::Contains;
using testing::Json;
using testing::JsonLines;

std::vector<std::string> RunHello(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"run", "-m", "nobos", "-p", "hello", "-n", "10"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// Each option with a value; the library's name is the same without --kv-.
const std::vector<std::pair<std::string, std::string>>& Options() {
  static const std::vector<std::pair<std::string, std::string>> options = {
      {"adapter", "a.gguf"}, {"adapter-kind", "plain"}, {"budget", "1/13"},
      {"dir", "/flash"},     {"direct", "off"},         {"group", "8"},
      {"heads", "gqa"},      {"index", "int4"},         {"io", "threads"},
      {"method", "kvswap"},  {"policy", "lru"},         {"rank", "24"},
      {"reuse", "100"},      {"select", "400"},         {"sinks", "4"},
      {"type", "fp8,int8"},  {"window", "64"},
  };
  return options;
}

std::string ExpectedLine() {
  std::string line = "kvrun: KV cache: 1 sequences of 15 tokens";
  for (const auto& [name, value] : Options()) {
    if (name == "type") line += ", tmpfs on";  // in alphabetical order
    line += ", " + name + " " + value;
  }
  return line + "\n";
}

TEST(CliKv, EveryOptionReachesTheLibraryAndThePlanIsSaid) {
  std::vector<std::string> arguments = {"--kv-tmpfs", "-v"};
  for (const auto& [name, value] : Options()) {
    arguments.push_back("--kv-" + name);
    arguments.push_back(value);
  }
  const ProgramResult result = Cli(RunHello(arguments));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_PRED2(Contains, result.err, ExpectedLine());
  EXPECT_EQ(result.out, "5:hello\n");
}

// One seed says what is drawn, of tokens and of entries, unless there are two.
TEST(CliKv, ASampleDrawsByTheSeed) {
  const std::vector<std::string> sample = {"--kv-method", "kvswap", "--kv-sample", "40", "--seed", "5", "-v"};
  const auto err = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = sample;
    all.insert(all.end(), more.begin(), more.end());
    return Cli(RunHello(all)).err;
  };
  EXPECT_PRED2(Contains, err({}), "method kvswap, sample 40, seed 5\n");
  EXPECT_PRED2(Contains, err({"--kv-seed", "7"}), "method kvswap, sample 40, seed 7\n");
  EXPECT_FALSE(Contains(Cli(RunHello({"--kv-method", "kvswap", "--seed", "5", "-v"})).err, "seed"))
      << "nothing is drawn";
}

TEST(CliKv, EveryOptionIsAVariableToo) {
  ProgramInput input{{"KVRUN_KV_TMPFS=1"}, "", ""};
  for (const auto& [name, value] : Options()) {
    std::string variable = "KVRUN_KV_";
    for (const char c : name) variable += static_cast<char>(c == '-' ? '_' : c - 'a' + 'A');
    input.environment.push_back(variable + "=" + value);
  }
  EXPECT_PRED2(Contains, Cli(RunHello({"-v"}), input).err, ExpectedLine());
  const ProgramResult help = Cli({"run", "--help", "kv"});
  for (const auto& [name, value] : Options()) EXPECT_PRED2(Contains, help.out, "--kv-" + name);
}

TEST(CliKv, TheCommandLineWins) {
  const ProgramResult result = Cli(RunHello({"--kv-budget", "1/34", "--kv-tmpfs=0", "-v"}),
                                   {{"KVRUN_KV_BUDGET=1/13", "KVRUN_KV_TMPFS=1"}, "", ""});
  EXPECT_PRED2(Contains, result.err, "tokens, budget 1/34, tmpfs off\n");
}

TEST(CliKv, RunChatAndLogitsSayThePlanOnceBeforeTheyLoad) {
  const auto expect_plan = [](const ProgramResult& result, const std::string& plan) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const size_t at = result.err.find("KV cache: " + plan);
    ASSERT_NE(at, std::string::npos) << result.err;
    EXPECT_LT(at, result.err.find("loading")) << result.err;
    EXPECT_EQ(result.err.find("KV cache:", at + 1), std::string::npos) << result.err;
  };
  const std::vector<std::string> kv = {"--kv-method", "kvswap", "--progress", "always"};
  const auto with_kv = [&kv](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), kv.begin(), kv.end());
    return arguments;
  };
  const std::string plan = "13.0 MiB of 180.0 MiB in memory, the rest on flash in /fake/kv\n";
  expect_plan(Cli(RunHello(kv)), plan);
  expect_plan(Cli(with_kv({"run", "-m", "nobos", "--batch", "-", "-n", "4"}),
                  {{}, "{\"prompt\": \"ab\"}\n{\"prompt\": \"abc\"}\n", ""}),
              plan);
  expect_plan(Cli(with_kv({"chat", "-m", "toy"}), {{}, "hello\n", ""}), plan);
  expect_plan(Cli(with_kv({"logits", "-m", "toy", "--ids", "-", "--out", "/dev/null"}), {{}, "1 2 3", ""}),
              plan);
}

TEST(CliKv, TheFolderIsNamedAsAPersonWritesIt) {
  const std::vector<std::string> arguments = RunHello({"--kv-method", "kvswap", "--kv-dir", "/home/a/flash"});
  EXPECT_PRED2(Contains, Cli(arguments, {{"HOME=/home/a"}, "", ""}).err, "on flash in ~/flash\n");
  EXPECT_PRED2(Contains, Cli(arguments, {{"HOME=/home/ab"}, "", ""}).err, "on flash in /home/a/flash\n");
}

// Once, as it is in the session: what the library says before it knows the device may be another number.
TEST(CliKv, DetailsAreForVerboseAndSaidOnce) {
  const std::string brief = Cli(RunHello({"--kv-method", "kvswap"})).err;
  EXPECT_FALSE(Contains(brief, "sequences of")) << brief;
  EXPECT_FALSE(Contains(brief, "a token attends to")) << brief;
  const std::string verbose = Cli(RunHello({"--kv-method", "kvswap", "-v"})).err;
  EXPECT_PRED2(Contains, verbose, "kvrun: KV cache: 1 sequences of 15 tokens, method kvswap\n");
  EXPECT_PRED2(Contains, verbose, "kvrun: note: a token attends to 8 of 15 entries\n");
  EXPECT_EQ(verbose.find("a token attends to"), verbose.rfind("a token attends to")) << verbose;
}

TEST(CliKv, NothingIsSaidUnlessItWasAskedForOrWhenQuiet) {
  for (const auto& arguments :
       {RunHello({}), RunHello({"--kv-method", "full"}), RunHello({"--kv-type", "f32"}),
        RunHello({"--kv-budget", "1/2", "--quiet"})}) {
    EXPECT_EQ(Cli(arguments).err.find("KV cache"), std::string::npos) << ::testing::PrintToString(arguments);
  }
}

TEST(CliKv, NotesOfThePlanAreSaidOnceUnlessQuiet) {
  const std::vector<std::string> slow = {"--kv-method", "kvswap", "--kv-dir", "/slow"};
  const std::string note = "\nkvrun: note: flash is slow: groups of 8\n";
  const std::string said = Cli(RunHello(slow)).err;
  const size_t at = said.find(note);
  EXPECT_NE(at, std::string::npos) << said;
  EXPECT_EQ(said.find("groups of 8", at + note.size()), std::string::npos) << said;
  EXPECT_EQ(Cli(RunHello({"--kv-method", "kvswap", "--kv-dir", "/slow", "-q"})).err.find("slow"),
            std::string::npos);
  EXPECT_EQ(Cli(RunHello({"--kv-method", "kvswap"})).err.find("note: flash"), std::string::npos);
}

TEST(CliKv, ANoteNamesTheVariableThatSetItsOption) {
  const std::string note = "\nkvrun: note: the KV budget (--kv-budget) is raised";
  EXPECT_PRED2(Contains, Cli(RunHello({}), {{"KVRUN_KV_BUDGET=1/1000"}, "", ""}).err,
               note + " (the environment variable KVRUN_KV_BUDGET sets --kv-budget of kvrun run)\n");
  EXPECT_PRED2(
      Contains,
      Cli(RunHello({"--kv-budget", "1/1000"}), {{"KVRUN_KV_BUDGET=1/2", "KVRUN_KV_DIR=/"}, "", ""}).err,
      note + "\n");
}

TEST(CliKv, ARefusedValueIsBadUsageAndNamesTheOption) {
  for (const auto& [name, value] : Options()) {
    const ProgramResult result = Cli(RunHello({"--kv-" + name, "bad"}));
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_PRED2(Contains, result.err, "kvrun: --kv-" + name + ": \"bad\" is not one of good\n");
  }
  const ProgramResult variable = Cli(RunHello({}), {{"KVRUN_KV_BUDGET=bad"}, "", ""});
  EXPECT_EQ(variable.exit_code, 2);
  EXPECT_PRED2(Contains, variable.err, "kvrun: KVRUN_KV_BUDGET (--kv-budget of kvrun run): \"bad\"");
  EXPECT_EQ(Cli(RunHello({"--kv-tmpfs=maybe"})).exit_code, 2);
}

TEST(CliKv, ABudgetThatDoesNotSufficeFailsBeforeLoading) {
  for (const auto& arguments :
       {RunHello({"--kv-budget", "1", "--json", "--progress", "always"}),
        std::vector<std::string>{"chat", "-m", "toy", "--kv-budget", "1", "--progress", "always"}}) {
    const ProgramResult result = Cli(arguments);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.err, "kvrun: a budget of 1 B does not suffice; the smallest that does is 9.0 MiB\n");
  }
}

// What it means is the library's matter: the program adds no method of its own.
TEST(CliKv, ABudgetAloneIsGivenAloneAndItsPlanIsSaid) {
  const ProgramResult result = Cli(RunHello({"--kv-budget", "1/13"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_PRED2(Contains, result.err,
               "kvrun: KV cache: 13.0 MiB of 180.0 MiB in memory, the rest on flash in /fake/kv\n");
  EXPECT_PRED2(Contains, Cli(RunHello({"--kv-budget", "1/13", "-v"})).err,
               "kvrun: KV cache: 1 sequences of 15 tokens, budget 1/13\n");
  EXPECT_PRED2(Contains, Cli({"run", "--help"}).out, "with --kv-budget, kvswap where");
}

TEST(CliKv, StatisticsHaveATable) {
  const ProgramResult result = Cli(RunHello({"--kv-method", "kvswap", "-v"}));
  EXPECT_PRED2(Contains, result.err,
               "kv       kvswap: 13.0 MiB (budget 13.5 MiB) for 180.0 MiB of f16\n"
               "decoding 12.0 MiB: slots 8.0 MiB, index 2.0 MiB\n"
               "prefill  13.0 MiB: index 2.0 MiB\n"
               "read     7.8 MiB in 250 reads of 32.0 KiB, 512.5 MB/s (threads buffered)\n"
               "written  90.0 MiB\n"
               "groups   1000 chosen, 75.0 % of them in memory\n"
               "stall    3.25 ms per token, 87.5 % of reading hidden\n"
               "note     io_uring cannot be used: forbidden\n");
  EXPECT_EQ(result.err.find("layer"), std::string::npos);
  const ProgramResult profile = Cli(RunHello({"--kv-method", "kvswap", "--profile"}));
  EXPECT_PRED2(Contains, profile.err,
               "          ms      loads  layer\n"
               "       1.500          7  0\n"
               "       2.500          8  1\n");
  EXPECT_EQ(Cli(RunHello({})).err.find("groups"), std::string::npos);
}

TEST(CliKv, JsonHasTheObject) {
  const Json object = Json::parse(Cli(RunHello({"--kv-method", "kvswap", "--json"})).out);
  EXPECT_EQ(object["kv"]["method"], "kvswap");
  EXPECT_EQ(object["kv"]["hit_rate"], 0.75);
  EXPECT_FALSE(Json::parse(Cli(RunHello({"--json"})).out).contains("kv"));
  const ProgramResult batch = Cli({"run", "-m", "nobos", "--batch", "-", "--json", "--kv-method", "flexgen"},
                                  {{}, "{\"prompt\": \"a\"}", ""});
  EXPECT_EQ(JsonLines(batch.out)[0]["kv"]["method"], "flexgen");
}

TEST(CliKv, ChatReportsAtTheEnd) {
  const ProgramResult result =
      Cli({"chat", "-m", "toy", "--kv-method", "kvswap", "-v"}, {{}, "one\ntwo\n", ""});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_PRED2(Contains, result.err, "stall    3.25 ms per token");
}

}  // namespace
}  // namespace kvrun
