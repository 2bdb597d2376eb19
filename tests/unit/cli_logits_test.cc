// kvrun tokenize and kvrun logits.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/cli_fixture.h"

namespace kvrun {
namespace {

using testing::Cli;
using testing::Contains;
using testing::Json;

std::vector<float> Floats(const std::string& path) {
  const std::string bytes = ReadWholeFile(path);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

size_t FilesIn(const std::string& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

TEST(CliTokenize, IdsOnOneLine) {
  const TemporaryFolder folder;
  const std::string file = folder.Write("text", "a\n");
  EXPECT_EQ(Cli({"tokenize", "-m", "toy", "-f", file}).out, "97 10\n");
  EXPECT_EQ(Cli({"tokenize", "-m", "toy", "-f", file, "--bos"}).out, "256 97 10\n");
  EXPECT_EQ(Cli({"tokenize", "-m", "toy", "-p", "<end>", "--special"}).out, "258\n");
  EXPECT_EQ(Cli({"tokenize", "-m", "toy", "-p", "a", "--json"}).out, "{\"tokens\":[97]}\n");
  EXPECT_EQ(Cli({"tokenize", "-m", "toy", "-f", "-"}, {{}, std::string("b\0", 2), ""}).out, "98 0\n");
  EXPECT_EQ(Cli({"tokenize", "-m", "toy", "-f", "-"}).out, "\n");
}

TEST(CliLogits, WritesRawRows) {
  const TemporaryFolder folder;
  const std::string ids = folder.Write("ids", " 1 2\n3\n");
  const std::string out = folder.Path("out.f32");
  ASSERT_EQ(Cli({"logits", "-m", "toy", "--ids", ids, "--out", out}).exit_code, 0);
  ASSERT_EQ(Floats(out).size(), 3U * 259);
  EXPECT_EQ(Floats(out)[259 + 2], 1.5F);
  ASSERT_EQ(Cli({"logits", "-m", "toy", "--ids", ids, "--out", out, "--last", "1", "--force"}).exit_code, 0);
  ASSERT_EQ(Floats(out).size(), 259U);
  EXPECT_EQ(Floats(out)[0], 1.0F);
}

TEST(CliLogits, WritesLikelihoodsOfTheNextTokens) {
  const TemporaryFolder folder;
  const std::string ids = folder.Write("ids", "1 2 3");
  const std::string out = folder.Path("out.f32");
  const std::string nll = folder.Path("nll.f32");
  const ProgramResult result =
      Cli({"logits", "-m", "toy", "--ids", ids, "--out", out, "--nll", nll, "--last", "1", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(Floats(out).size(), 259U);
  const std::vector<float> values = Floats(nll);
  ASSERT_EQ(values.size(), 2U);
  double sum = 0;
  for (int v = 0; v < 259; ++v) sum += std::exp((v % 7) / 2.0);
  EXPECT_NEAR(values[0], std::log(sum) - 1.0, 1e-5);  // of token 2 at position 0
  EXPECT_NEAR(Json::parse(result.out)["mean_nll"].get<double>(), (values[0] + values[1]) / 2.0, 1e-6);
}

TEST(CliLogits, BadIdsAreNamed) {
  const TemporaryFolder folder;
  const std::string out = folder.Path("out.f32");
  const auto error = [&](const std::string& text) {
    const ProgramResult result = Cli({"logits", "-m", "toy", "--ids", "-", "--out", out}, {{}, text, ""});
    EXPECT_EQ(result.exit_code, 1) << text;
    return result.err;
  };
  EXPECT_PRED2(Contains, error("1 2 x3"), "word 3 (\"x3\", at byte 4) is not a token id");
  EXPECT_PRED2(Contains, error("1 -2"), "word 2");
  EXPECT_PRED2(Contains, error("1 99999999999"), "word 2");
  EXPECT_PRED2(Contains, error("1 259"), "word 2 is the id 259, but the model has only 259 tokens");
  EXPECT_PRED2(Contains, error(" \n"), "no token id");
  EXPECT_EQ(FilesIn(folder.Path(".")), 0U);
}

TEST(CliLogits, AFileAppearsOnlyWhenItIsComplete) {
  const TemporaryFolder folder;
  const std::string out = folder.Write("out.f32", "old");
  const std::vector<std::string> run = {"logits", "-m", "devicefail", "--ids", "-", "--out", out, "--force"};
  EXPECT_PRED2(Contains, Cli(run, {{}, "1 2", ""}).err, "device");
  EXPECT_EQ(ReadWholeFile(out), "old");
  EXPECT_EQ(FilesIn(folder.Path(".")), 1U);
}

TEST(CliLogits, FilesThatCannotBeWrittenAreNamed) {
  const ProgramResult full =
      Cli({"logits", "-m", "toy", "--ids", "-", "--out", "/dev/full"}, {{}, "1 2", ""});
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_PRED2(Contains, full.err, "cannot write /dev/full: No space left on device");
  struct stat facts = {};
  ASSERT_EQ(stat("/dev/full", &facts), 0);
  EXPECT_TRUE(S_ISCHR(facts.st_mode)) << "a device must not be replaced by a file";
  const ProgramResult nowhere =
      Cli({"logits", "-m", "toy", "--ids", "-", "--nll", "/no/such/folder/x"}, {{}, "1 2", ""});
  EXPECT_EQ(nowhere.exit_code, 1);
  EXPECT_PRED2(Contains, nowhere.err, "cannot write /no/such/folder/x: No such file or directory");
}

}  // namespace
}  // namespace kvrun
