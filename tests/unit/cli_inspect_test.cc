// kvadapt inspect and verify: what is said of what offline/ finds (tests/support/fake_offline_adapter.cc).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/cli_fixture.h"

namespace kvrun {
namespace {

using testing::Contains;
using testing::Json;

class CliInspect : public ::testing::Test {
 protected:
  static ProgramResult Run(const std::vector<std::string>& arguments, const ProgramInput& input = {}) {
    return RunProgram(KVADAPT_FAKE_PROGRAM, arguments, input);
  }

  TemporaryFolder folder_;
  std::string adapter_ = folder_.Write("a", "adapter");
  std::string bare_ = folder_.Write("b", "bare");
};

TEST_F(CliInspect, AnAdapterHasTables) {
  const ProgramResult result = Run({"inspect", adapter_});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out,
            "  rank  energy kept     lowest  in layer\n"
            "     2    87.50 %    75.00 %  1\n"
            "reuse rates with lru, 8 entries selected (M groups), by groups kept (C)\n"
            "  group    C = M   1.25 M    1.5 M      2 M      3 M      4 M\n"
            "      4   50.0 %        -        -        -        -        -\n" +
                adapter_ +
                ": an adapter, plain, rank 2, 2 layers, keys of 6 elements, 2.0 KiB\n"
                "reuse rates: 2 rows; cluster thresholds: 4; mean keys and values: there; shares of layers: "
                "0.50 to "
                "1.50\n"
                "of the model with the fingerprint 0123\n");
  EXPECT_PRED2(Contains, Run({"inspect", bare_}).out,
               "reuse rates: none; cluster thresholds: none; mean keys and values: none; shares of layers: "
               "none\n");
}

TEST_F(CliInspect, OtherFilesAreShownToo) {
  EXPECT_EQ(Run({"inspect", folder_.Write("p", "profile")}).out,
            "what             profile\n"
            "device           toy\n"
            "rates            3 (--json shows them)\n");
  const ProgramResult config = Run({"inspect", folder_.Write("c", "config")});
  EXPECT_PRED2(Contains, config.out, "model            toy\n");
  EXPECT_PRED2(Contains, config.out, "2 x 512 tokens, 1.0 KiB: --kv-group 4\n");
}

TEST_F(CliInspect, ControlCharactersAreShownAsTextInOneLine) {
  const std::string path = folder_.Write("c", "controls");
  EXPECT_EQ(Run({"inspect", path}).out,
            "what             config\n"
            "model            \\x1b[31mred\\nfingerprint  xx\n"
            "solutions        1 (--json shows them)\n"
            "2 x 512 tokens, 1.0 KiB: --kv-adapter a\\nb\n");
  EXPECT_EQ(Json::parse(Run({"inspect", path, "--json"}).out)["model"], "\x1B[31mred\nfingerprint  xx");
}

TEST_F(CliInspect, JsonIsTheObjectAndThePath) {
  const Json object = Json::parse(Run({"inspect", adapter_, "--json"}).out);
  EXPECT_EQ(object["path"], adapter_);
  EXPECT_EQ(object["what"], "adapter");
  EXPECT_EQ(object["reuse"]["rates"].size(), 2U);
  const ProgramInput variables{{"KVRUN_FILE=" + adapter_, "KVRUN_JSON=1"}, "", ""};
  EXPECT_EQ(Json::parse(Run({"inspect"}, variables).out)["what"], "adapter");
}

TEST_F(CliInspect, WhatIsNoneOfOursIsRefused) {
  const std::string other = folder_.Write("o", "hello");
  const ProgramResult result = Run({"inspect", other});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, "kvadapt: " + other + " is none of kvrun's files\n");
  EXPECT_EQ(Json::parse(Run({"inspect", other, "--json"}).out)["error"]["status"], "corrupt");
  EXPECT_PRED2(Contains, Run({"inspect", folder_.Write("o", "nul")}).err, "kvrun's files\\x00behind\n");
}

TEST_F(CliInspect, VerifySaysOneLinePerCheck) {
  const ProgramResult good = Run({"verify", adapter_, "-m", "MODEL"});
  EXPECT_EQ(good.exit_code, 0);
  EXPECT_EQ(good.out, "ok      fingerprint: MODEL\nok      energies: column 3 adds 0.5\n");
  const ProgramResult bad = Run({"verify", bare_, "-m", "MODEL"});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_EQ(bad.out, "ok      fingerprint: MODEL\nFAILED  energies: column 3 adds 0.5\n");
  const ProgramResult json = Run({"verify", bare_, "-m", "MODEL", "--json"});
  EXPECT_EQ(json.exit_code, 1);
  const Json object = Json::parse(json.out);
  EXPECT_EQ(object["ok"], false);
  EXPECT_EQ(object["checks"][1],
            Json({{"name", "energies"}, {"ok", false}, {"detail", "column 3 adds 0.5"}}));
  EXPECT_EQ(Json::parse(Run({"verify", adapter_, "-m", "MODEL", "--json"}).out)["ok"], true);
  const ProgramResult damaged = Run({"verify", folder_.Write("o", "hello"), "-m", "MODEL"});
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_PRED2(Contains, damaged.err, "the adapter is damaged");
}

TEST_F(CliInspect, BadUsageIsSaid) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"inspect"}, "name one file"},
      {{"inspect", adapter_, bare_}, "\"" + bare_ + "\" is one word too many: kvadapt inspect takes one"},
      {{"inspect", "--file", adapter_, "--file", bare_}, "name one file"},
      {{"verify", "-m", "MODEL"}, "name one file"},
      {{"verify", adapter_}, "no model is named"},
  };
  for (const auto& [arguments, part] : cases) {
    const ProgramResult result = Run(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_PRED2(Contains, result.err, part);
  }
}

}  // namespace
}  // namespace kvrun
