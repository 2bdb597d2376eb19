// kvrun devices, info, doctor and version.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/cli_fixture.h"

namespace kvrun {
namespace {

using testing::Cli;
using testing::Contains;
using testing::Json;

TEST(CliDevices, AreListed) {
  EXPECT_PRED2(Contains, Cli({"devices"}).out, "0  Fake GPU");
  EXPECT_PRED2(Contains, Cli({"devices"}).out, "cpu, Vulkan 1.1, driver fake 1, 1.0 GiB\n");
  EXPECT_PRED2(Contains, Cli({"devices"}).out, "1  Fake CPU\n     cpu, driver fake host, 2.0 GiB\n");
  EXPECT_EQ(Json::parse(Cli({"devices", "--json"}).out)[0]["name"], "Fake GPU");
  EXPECT_PRED2(Contains, Cli({"devices"}).out, "  -  /icd.d/fake.json\n     it crashed\n");
  EXPECT_FALSE(Contains(Cli({"devices"}).err, "tried again"));
  EXPECT_PRED2(Contains, Cli({"devices", "--retry-drivers"}).err, "drivers are tried again");
  const ProgramResult none = Cli({"devices"}, {{"FAKE_NO_DEVICE=1"}, "", ""});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_PRED2(Contains, none.err, "no Vulkan device");
}

TEST(CliInfo, ShowsShapesAndKvSize) {
  const ProgramResult result = Cli({"info", "-m", "toy", "--ctx", "100"});
  EXPECT_EQ(result.exit_code, 0);
  for (const char* part :
       {"n_layers", "F32", "1.0 KiB (f16), 2.0 KiB (f32)", "KV at 100 tokens", "100.0 KiB"}) {
    EXPECT_PRED2(Contains, result.out, part);
  }
  EXPECT_EQ(Json::parse(Cli({"info", "-m", "toy", "--json"}).out)["context"], 4096);
}

TEST(CliInfo, ShowsWhatABudgetBuys) {
  const std::string line = "1 sequences of 100 tokens, budget 1/1000";
  const ProgramResult result = Cli({"info", "-m", "toy", "-c", "100", "--kv-budget", "1/1000"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_PRED2(Contains, result.out, "KV cache                  " + line + "\n");
  EXPECT_PRED2(Contains, result.out, "note                      the KV budget (--kv-budget) is raised\n");
  const Json json =
      Json::parse(Cli({"info", "--shape", "Toy-8B", "-c", "100", "--kv-budget", "1/1000", "--json"}).out);
  EXPECT_EQ(json["kv_plan"]["line"], line);
  EXPECT_EQ(json["context"], 100);
  EXPECT_FALSE(Contains(Cli({"info", "-m", "toy", "-c", "100"}).out, "KV cache"));
  const ProgramResult refused = Cli({"info", "-m", "toy", "--kv-budget", "1"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_PRED2(Contains, refused.err, "the smallest that does is 9.0 MiB");
}

// What it says is shown, and that it cannot be run: showing it is what was asked for.
TEST(CliInfo, ShowsAModelThatCannotBeRun) {
  const ProgramResult result = Cli({"info", "-m", "foreign"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_PRED2(Contains, result.out,
               "cannot be run             foreign: the architecture is not supported\n");
  EXPECT_PRED2(Contains, result.out, "type 39                 2\n");
  EXPECT_PRED2(Contains, result.out, "n_vocab                   259\n");
  for (const char* unknown : {"n_layers", "KV", "null"}) EXPECT_FALSE(Contains(result.out, unknown));
  const Json json = Json::parse(Cli({"info", "-m", "foreign", "--json"}).out);
  EXPECT_EQ(json["unsupported"], "foreign: the architecture is not supported");
  EXPECT_TRUE(Json::parse(Cli({"info", "-m", "toy", "--json"}).out)["unsupported"].is_null());
  EXPECT_FALSE(Contains(Cli({"info", "-m", "toy"}).out, "cannot be run"));
  EXPECT_EQ(Cli({"run", "-m", "foreign", "-p", "x"}).exit_code, 1);
  const ProgramResult ids = Cli({"tokenize", "-m", "foreign", "-p", "ab"});
  EXPECT_EQ(ids.out, "97 98\n");
  EXPECT_EQ(ids.err,
            "kvrun: note: kvrun does not run this model: foreign: the architecture is not supported\n");
}

TEST(CliInfo, ShowsAVocabularyAlone) {
  const ProgramResult result = Cli({"info", "-m", "words"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(result.out.starts_with(
      "holds                     a vocabulary alone, no weights: kvrun tokenize takes it\n"))
      << result.out;
  EXPECT_PRED2(Contains, result.out,
               "vocabulary\n  bos                     256\n  tokens                  259\n");
  EXPECT_PRED2(Contains, result.out, "cannot be run             words: it holds no tensors\n");
  for (const char* absent : {"null", "tensor_types", "parameters", "merges", "KV"}) {
    EXPECT_FALSE(Contains(result.out, absent)) << absent;
  }
  EXPECT_EQ(Json::parse(Cli({"info", "-m", "words", "--json"}).out)["vocabulary"]["tokens"], 259);
  const ProgramResult ids = Cli({"tokenize", "-m", "words", "-p", "ab"});
  EXPECT_EQ(ids.out, "97 98\n");
  EXPECT_EQ(ids.err, "");
  const ProgramResult run = Cli({"run", "-m", "words", "-p", "x"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_PRED2(Contains, run.err, "words: it holds no tensors");
}

TEST(CliInfo, ALongNameIsWholeInJsonAlone) {
  const ProgramResult text = Cli({"info", "-m", "wordy"});
  EXPECT_LT(text.out.size(), 3000U);
  EXPECT_PRED2(Contains, text.out, " bytes left out) ");
  EXPECT_EQ(Json::parse(Cli({"info", "-m", "wordy", "--json"}).out)["name"], std::string(100000, 'x'));
}

TEST(CliInfo, AsksForAModelOrAShape) {
  EXPECT_PRED2(Contains, Cli({"info"}).err, "no model is named");
  EXPECT_PRED2(Contains, Cli({"info", "-m", "toy", "--shape", "Toy-8B"}).err, "cannot be given together");
  EXPECT_PRED2(Contains, Cli({"info", "--shape", "Toy-2B"}).err, "is not one of Toy-1B, Toy-8B");
  EXPECT_EQ(Cli({"info", "--shape", "Toy-8B"}, {{"KVRUN_MODEL=missing"}, "", ""}).exit_code, 0);
}

TEST(CliDoctor, FailsIfATestFails) {
  const ProgramResult good = Cli({"doctor", "-v"});
  EXPECT_EQ(good.exit_code, 0) << good.err;
  for (const char* part : {"Fake GPU", "max_binding_bytes", "tile", "pass  matvec_q4_1"}) {
    EXPECT_PRED2(Contains, good.out, part);
  }
  EXPECT_EQ(Cli({"doctor"}).out, "Fake GPU: 1 of 1 self-test passed\n1 device: 1 of 1 self-test passed\n");
  const ProgramResult bad = Cli({"doctor"}, {{"FAKE_BAD_KERNEL=1"}, "", ""});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_PRED2(Contains, bad.out, "FAIL  matvec_q4_1: error 0.5");
  EXPECT_EQ(Json::parse(Cli({"doctor", "--json"}, {{"FAKE_BAD_KERNEL=1"}, "", ""}).out)["passed"], false);
  EXPECT_EQ(Cli({"doctor", "--device", "none"}).exit_code, 1);
  EXPECT_EQ(Cli({"doctor"}, {{"FAKE_NO_DEVICE=1"}, "", ""}).exit_code, 1);
}

TEST(CliDoctor, SaysWhatThereWasNoTimeForAndAllRunsIt) {
  const ProgramInput slow{{"FAKE_SLOW_TESTS=1"}, "", ""};
  const ProgramResult quick = Cli({"doctor"}, slow);
  EXPECT_EQ(quick.exit_code, 0);
  EXPECT_PRED2(Contains, quick.out, "Fake GPU: 1 of 1 self-test passed, 30 left out\n1 device: ");
  EXPECT_PRED2(Contains, quick.err, "kvrun: testing for 30 seconds at most (--all: every self-test)\n");
  EXPECT_PRED2(Contains, quick.err, "there was no time for 30 self-tests; --all runs every one, in about ");
  EXPECT_EQ(Json::parse(Cli({"doctor", "--json"}, slow).out)["devices"][0]["n_left_out"], 30);
  EXPECT_EQ(Cli({"doctor", "-q"}, slow).err, "");
  const ProgramResult all = Cli({"doctor", "--all"}, slow);
  EXPECT_PRED2(Contains, all.out, "Fake GPU: 1 of 1 self-test passed\n");
  EXPECT_EQ(all.err, "");
}

TEST(CliVersion, IsPrinted) {
  EXPECT_EQ(Cli({"version"}).out, "kvrun 0.1.0 (fake)\n");
  EXPECT_EQ(Cli({"--version"}).out, "kvrun 0.1.0 (fake)\n");
}

}  // namespace
}  // namespace kvrun
