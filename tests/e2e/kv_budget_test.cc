// --kv-budget alone on a real device: what is taken, what is said, and that no token changes where all KV
// fits.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/long_run_fixture.h"

namespace kvrun::testing {
namespace {

using Json = nlohmann::json;

class KvBudgetAlone : public LongRunFixture {
 protected:
  ProgramResult WithBudget(const std::string& budget, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"--kv-budget", budget, "--kv-tmpfs"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Run(arguments);
  }
  static Json Parse(const ProgramResult& result) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Json::parse(result.out, nullptr, false);
  }
  static bool Says(const ProgramResult& result, const std::string& part) {
    return result.err.find(part) != std::string::npos;
  }
};

TEST_F(KvBudgetAlone, WhereAllKvFitsFullIsTakenAndSaid) {
  const Json without = Parse(Run({}));
  for (const char* budget : {"1/1", "1000000"}) {
    const ProgramResult result = WithBudget(budget);
    const Json full = Parse(result);
    EXPECT_EQ(full["tokens"], without["tokens"]);
    EXPECT_FALSE(full.contains("kv")) << "nothing is kept in records";
    EXPECT_TRUE(Says(result, ", all in memory\n")) << result.err;
    EXPECT_TRUE(Says(result, "holds all KV of 400 tokens of context in 1 sequence")) << result.err;
  }
  EXPECT_EQ(Parse(WithBudget("1000000", {"--kv-method", "kvswap"}))["kv"]["method"], "kvswap")
      << "a method that is said is kept";
}

TEST_F(KvBudgetAlone, AShareThatIsTooSmallIsRaised) {
  const ProgramResult chosen = WithBudget("1/1000");
  EXPECT_EQ(Parse(chosen)["tokens"].size(), kTokens);
  EXPECT_TRUE(Says(chosen, "it is raised to ")) << chosen.err;
  const ProgramResult named = WithBudget("1/1000", {"--kv-method", "kvswap"});
  const Json kv = Parse(named)["kv"];
  EXPECT_EQ(kv["method"], "kvswap");
  EXPECT_TRUE(Says(named, "it is raised to ")) << named.err;
  // As bytes that much is taken without a word; far less is refused.
  const uint64_t bytes = kv["budget_bytes"];
  const ProgramResult same = WithBudget(std::to_string(bytes), {"--kv-method", "kvswap"});
  EXPECT_EQ(Parse(same)["kv"]["budget_bytes"], bytes);
  EXPECT_FALSE(Says(same, "raised")) << same.err;
  const ProgramResult refused = WithBudget(std::to_string(bytes / 2), {"--kv-method", "kvswap"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_TRUE(Says(refused, "needs at least ")) << refused.err;
}

TEST_F(KvBudgetAlone, BytesThatAreTooFewAreRefusedWithWhatSuffices) {
  const ProgramResult refused = WithBudget("100");
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_TRUE(Says(refused, "the KV budget of 100 B is too small")) << refused.err;
  const std::string enough = refused.err.substr(refused.err.find("needs "));
  const std::string bytes = std::to_string(std::stoull(enough.substr(enough.find('(') + 1)));
  EXPECT_EQ(Parse(WithBudget(bytes))["tokens"].size(), kTokens);
}

TEST_F(KvBudgetAlone, ALongContextIsKeptOnFlash) {
  const ProgramResult result =
      RunProgram(RealProgram(),
                 {"run", "-m", model_, "-p", "aaaab", "-n", "4", "--ctx", "32768", "--json", "--kv-dir",
                  folder_.Path("kv"), "--kv-tmpfs", "--kv-budget", "1/2"},
                 WithDrivers({}));
  EXPECT_EQ(Parse(result)["kv"]["method"], "kvswap");
  EXPECT_TRUE(Says(result, " in memory, the rest on flash in " + folder_.Path("kv") + "\n")) << result.err;
}

}  // namespace
}  // namespace kvrun::testing
