// kvrun bench: how its options reach the library, and what it says of the results.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/cli_fixture.h"

namespace kvrun {
namespace {

using testing::Cli;
using testing::Contains;
using testing::Json;

ProgramResult Bench(const std::vector<std::string>& more, const ProgramInput& input = {}) {
  std::vector<std::string> arguments = {"bench"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return Cli(arguments, input);
}

Json BenchJson(std::vector<std::string> arguments) {
  arguments.push_back("--json");
  const ProgramResult result = Bench(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return Json::parse(result.out, nullptr, false);
}

TEST(CliBench, MeasuresAtDepth0UnlessAsked) {
  const Json results = BenchJson({"-m", "toy"});
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results[0]["depth"], 0);
  EXPECT_EQ(results[0]["prefill_tps_runs"], Json({512, 513, 514}));
  EXPECT_EQ(results[0]["decode_tps_runs"], Json({32, 33, 34}));
  EXPECT_EQ(results[0]["asked"], Json({{"kv", ""}, {"sequences", 1}, {"random", 0}, {"io_only", 0}}));
}

TEST(CliBench, EveryOptionReachesTheLibrary) {
  const Json results = BenchJson({"-m",
                                  "toy",
                                  "-p",
                                  "7",
                                  "-n",
                                  "5",
                                  "-d",
                                  "0,4096",
                                  "-r",
                                  "2",
                                  "--sequences",
                                  "4",
                                  "--kv-method",
                                  "kvswap",
                                  "--kv-budget",
                                  "1/13",
                                  "--random-fill",
                                  "--hit-rate",
                                  "0.75",
                                  "--io-only"});
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(results[0]["depth"], 0);
  EXPECT_EQ(results[1]["depth"], 4096);
  EXPECT_EQ(results[1]["prefill_tps_runs"], Json({7, 8}));
  EXPECT_EQ(results[1]["decode_tps_runs"], Json({5, 6}));
  EXPECT_EQ(results[1]["hit_rate"], 0.75);
  EXPECT_EQ(
      results[1]["asked"],
      Json({{"kv", "--kv-method kvswap --kv-budget 1/13"}, {"sequences", 4}, {"random", 1}, {"io_only", 1}}));
}

TEST(CliBench, AnInstructionSetIsTheCpus) {
  const ProgramResult result = Bench({"-m", "toy", "--isa", "avx2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_PRED2(Contains, result.err, "computing with avx2");
  const ProgramResult on_gpu = Bench({"-m", "toy", "--isa", "avx2", "--device", "gpu"});
  EXPECT_EQ(on_gpu.exit_code, 2);
  EXPECT_PRED2(Contains, on_gpu.err,
               "--isa is for the CPU itself, and --device names gpu: give --device cpu");
  const ProgramResult unknown = Bench({"-m", "toy", "--isa", "avx3"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_PRED2(Contains, unknown.err,
               "--isa: \"avx3\" is not one of amx, avx512, avx2-vnni, avx2, sse4, neon-i8mm, neon-dot, neon");
}

TEST(CliBench, AShapeIsFilledAtRandomWithTheLibrarysHitRate) {
  const ProgramResult result =
      Bench({"--shape", "Toy-8B", "--layers", "3", "--kv-method", "kvswap", "--json", "-d", "9"},
            {{"KVRUN_MODEL=missing"}, "", ""});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json results = Json::parse(result.out, nullptr, false);
  EXPECT_EQ(results[0]["asked"]["random"], 1);
  EXPECT_EQ(results[0]["hit_rate"], 0.5);
}

TEST(CliBench, ATableForPeople) {
  const ProgramResult result =
      Bench({"-m", "toy", "-p", "0", "-d", "0,128", "--kv-method", "kvswap", "--io-only"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out,
            "   depth             prefill token/s              decode token/s     hits   hidden   stall ms  "
            "read MB/s\n"
            "       0                           -         32.00 (32.00-34.00)   50.0 %   87.5 %       3.25   "
            "   512.5\n"
            "     128                           -         32.00 (32.00-34.00)   50.0 %   87.5 %       3.25   "
            "   512.5\n"
            "reads alone, depth 0: 700.2 MB/s, 100 reads of 4.0 KiB, in batches of 10.0\n"
            "reads alone, depth 128: 700.2 MB/s, 100 reads of 4.0 KiB, in batches of 10.0\n"
            "weights, depth 0: 40.0 GB/s, 80 % of the 50.0 GB/s that reading alone reaches\n"
            "weights, depth 128: 40.0 GB/s, 80 % of the 50.0 GB/s that reading alone reaches\n");
  EXPECT_PRED2(Contains, result.err, "KV cache: 1 sequences of 32 tokens, method kvswap\n");
  EXPECT_PRED2(Contains, result.err, "KV cache: 1 sequences of 160 tokens, method kvswap\n");
  EXPECT_PRED2(Contains, Bench({"-m", "toy"}).out, "       -        -          -          -\n");
}

TEST(CliBench, KindsOfWorkStandBesideTheirBounds) {
  const std::string out = Bench({"-m", "toy", "--profile", "-d", "9"}).out;
  EXPECT_PRED2(Contains, out,
               "kind of work                  ms          MB    bound ms     times  of a step, depth 9\n"
               "products                   8.000        5.00       4.000      2.00\n"
               "other                      1.500           -           -         -\n");
  EXPECT_PRED2(Contains, out,
               "kind of work                  ms          MB    bound ms     times  of a prompt\n"
               "delta rule                 3.000        0.02       0.250     12.00\n");
  EXPECT_FALSE(Contains(Bench({"-m", "toy"}).out, "kind of work"));
}

TEST(CliBench, APartOfAModelSaysSoAndHasTheWholeBesideIt) {
  const ProgramResult result = Bench({"--shape", "Toy-8B", "-d", "0,9"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::string rows =
      "  layers             prefill token/s              decode token/s     hits   hidden   stall ms  read "
      "MB/s\n"
      "       0   4 of 32      512.00 (512.00-514.00)         32.00 (32.00-34.00)        -        -          "
      "-  "
      "        -\n"
      "            all 32         70.50 (69.50-70.50)            4.50 (4.50-4.75)                            "
      "   "
      "         \n";
  EXPECT_PRED2(Contains, result.out, rows);
  EXPECT_PRED2(Contains, result.out, "       9   4 of 32 ");
  EXPECT_PRED2(Contains, result.out, "4 of the model's 32 layers were timed: \"all 32\" is what these take");
  EXPECT_PRED2(
      Contains, result.err,
      "note: 4 layers of random weights fit into the memory that is free, and not all 32 (--layers)");
  EXPECT_FALSE(Contains(Bench({"--shape", "Toy-8B", "--layers", "4"}).err, "memory that is free"));
  const Json json = BenchJson({"--shape", "Toy-8B", "--layers", "10"});
  EXPECT_EQ(json[0]["n_layers"], 10);
  EXPECT_EQ(json[0]["n_layers_model"], 32);
  EXPECT_EQ(json[0]["whole_model"]["decode_tps"], 4.5);
}

TEST(CliBench, OneLayerIsNotScaledAndSaysWhy) {
  const ProgramResult result = Bench({"--shape", "Toy-8B", "--layers", "1"});
  EXPECT_PRED2(Contains, result.out, "   1 of 32 ");
  EXPECT_PRED2(Contains, result.out, "1 of the model's 32 layers was timed; all other numbers");
  EXPECT_FALSE(Contains(result.out, "all 32 "));
  EXPECT_PRED2(Contains, result.err, "note: a layer alone");
}

TEST(CliBench, AWholeModelHasNoSuchColumn) {
  for (const std::vector<std::string>& whole : std::vector<std::vector<std::string>>{
           {"-m", "toy"}, {"--shape", "Toy-1B"}, {"--shape", "Toy-8B", "--layers", "32"}}) {
    const ProgramResult result = Bench(whole);
    EXPECT_FALSE(Contains(result.out, "layers")) << result.out;
  }
}

TEST(CliBench, RefusesWhatMakesNoSense) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{}, "name what to measure"},
      {{"-m", "toy", "--shape", "Toy-1B"}, "cannot be given together"},
      {{"--shape", "Toy-2B"}, "\"Toy-2B\" is not one of Toy-1B, Toy-8B"},
      {{"-m", "toy", "--layers", "3"}, "--layers goes with --shape only"},
      {{"-m", "toy", "-p", "0", "-n", "0"}, "-p and -n are both 0"},
      {{"-m", "toy", "-n", "0", "--io-only"}, "-n is 0"},
      {{"-m", "toy", "-d", ""}, "is not a list of numbers"},
      {{"-m", "toy", "-d", "1,,2"}, "\"1,,2\" is not a list of numbers"},
      {{"-m", "toy", "-d", "1,2,"}, "is not a list of numbers"},
      {{"-m", "toy", "-d", "4.5k"}, "is not a list of numbers"},
      {{"-m", "toy", "-d", "134217729"}, "is not a list of numbers"},
      {{"-m", "toy", "-r", "0"}, "--repetitions"},
      {{"-m", "toy", "--sequences", "17"}, "--sequences"},
      {{"-m", "toy", "--hit-rate", "1.5"}, "--hit-rate"},
      {{"-m", "toy", "--kv-rank", "bad"}, "--kv-rank"},
  };
  for (const auto& [arguments, message] : cases) {
    const ProgramResult result = Bench(arguments);
    EXPECT_EQ(result.exit_code, 2) << ::testing::PrintToString(arguments);
    EXPECT_PRED2(Contains, result.err, message);
    EXPECT_EQ(result.out, "");
  }
}

// What takes seconds says so where standard error is no terminal too, unless it is to be quiet.
TEST(CliBench, ALogHasALineNowAndThen) {
  const auto arguments = [](const std::string& more) {
    return std::vector<std::string>{"bench", "--shape", "Toy-8B", "-d", "777,0", more};
  };
  RunningProgram loud(KVRUN_FAKE_PROGRAM, arguments("--layers=4"), {});
  RunningProgram quiet(KVRUN_FAKE_PROGRAM, arguments("-q"), {});
  RunningProgram never(KVRUN_FAKE_PROGRAM, arguments("--progress=never"), {});
  const std::string line = "evaluating (random weights): 1 of 2, 50 %";
  EXPECT_PRED2(Contains, loud.Finish().err, line);
  EXPECT_EQ(quiet.Finish().err, "");
  EXPECT_FALSE(Contains(never.Finish().err, line));
  const ProgramResult soon = Bench({"--shape", "Toy-8B", "-d", "9,0", "--layers=4"});
  EXPECT_FALSE(Contains(soon.err, "evaluating")) << soon.err;
}

TEST(CliBench, SaysWhatTheLibraryCouldNotDo) {
  const ProgramResult result = Bench({"-m", "toy", "-d", "1,666", "--json"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(Json::parse(result.out, nullptr, false)["error"]["status"], "out of memory");
  EXPECT_PRED2(Contains, result.err, "at a depth of 666 tokens: too deep");
}

}  // namespace
}  // namespace kvrun
