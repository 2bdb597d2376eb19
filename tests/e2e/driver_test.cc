// One model, every driver and subgroup width that this machine has: the same tokens, and logits within the
// bound.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/engine_fixture.h"
#include "tests/support/real_program.h"
#include "tests/support/reference_files.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing {
namespace {

using Environment = std::vector<std::string>;

// No environment where the machine has no such driver.
std::vector<std::pair<std::string, Environment>> Drivers() {
  std::vector<std::pair<std::string, Environment>> drivers;
  const auto add = [&](const std::string& name, const std::string& icd, const Environment& more) {
    if (!std::filesystem::exists(icd)) return;
    Environment environment = {"VK_DRIVER_FILES=" + icd, "VK_ICD_FILENAMES=" + icd, "KVRUN_DEVICE=vulkan"};
    environment.insert(environment.end(), more.begin(), more.end());
    drivers.emplace_back(name, environment);
  };
  const std::string lavapipe = "/usr/share/vulkan/icd.d/lvp_icd.x86_64.json";
  for (const int width : {128, 256, 512}) {
    add(fmt::format("lavapipe {}", width), lavapipe, {fmt::format("LP_NATIVE_VECTOR_WIDTH={}", width)});
  }
  add("lavapipe floor", lavapipe, {"KVRUN_DEVICE_CLAMP=floor"});
  // It takes minutes to compile pipelines.
  const char* swiftshader = std::getenv("KVRUN_SWIFTSHADER_ICD");
  if (std::getenv("KVRUN_LONG_TESTS") != nullptr && swiftshader != nullptr)
    add("swiftshader", swiftshader, {});
  return drivers;
}

struct Outcome {
  nlohmann::json tokens;
  std::vector<float> logits;
};

Outcome RunOn(const Environment& environment, const std::string& model, const TemporaryFolder& folder) {
  const ProgramInput input = WithDrivers(environment);
  Outcome outcome;
  const ProgramResult run = RunProgram(
      RealProgram(),
      {"run", "-m", model, "-p", "Once upon", "-n", "24", "--json", "--ignore-end", "--kv-type", "f32"},
      input);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  outcome.tokens = nlohmann::json::parse(run.out, nullptr, false).value("tokens", nlohmann::json());
  std::string ids;
  for (int i = 0; i < 150; ++i) ids += fmt::format("{} ", 3 + i * 37 % 290);
  const std::string out = folder.Path("logits.f32");
  const ProgramResult logits = RunProgram(RealProgram(),
                                          {"logits", "-m", model, "--ids", folder.Write("ids", ids), "--last",
                                           "8", "--out", out, "--force", "--kv-type", "f32"},
                                          input);
  EXPECT_EQ(logits.exit_code, 0) << logits.err;
  outcome.logits = ReadFloats(out);
  for (const std::string& err : {run.err, logits.err}) {
    EXPECT_EQ(err.find("vulkan validation"), std::string::npos) << err;
  }
  return outcome;
}

void CompareDrivers(const std::string& model, size_t n_vocab) {
  const TemporaryFolder folder;
  std::optional<Outcome> first;
  for (const auto& [name, environment] : Drivers()) {
    SCOPED_TRACE(name);
    const Outcome outcome = RunOn(environment, model, folder);
    ASSERT_EQ(outcome.tokens.size(), 24U);
    ASSERT_EQ(outcome.logits.size(), 8 * n_vocab);
    if (!first) first = outcome;
    EXPECT_EQ(outcome.tokens, first->tokens);
    const LogitsDifference difference = CompareLogits(first->logits, outcome.logits, n_vocab);
    EXPECT_LE(difference.max_absolute, 0.02);
    EXPECT_LE(difference.mean_kl, 1e-5);
    EXPECT_EQ(difference.wrong_top1, 0U);
  }
  if (!first) GTEST_SKIP() << "no CPU driver";
}

TEST(Drivers, ASelfMadeModelAnswersTheSame) {
  const TemporaryFolder folder;
  CompareDrivers(WriteModel(folder, "tiny.gguf", TalkingModel().Build()), 300);
}

TEST(Drivers, StoriesAnswerTheSame) {
  const auto model = SharedPath("models/stories260K.gguf");
  if (!model) GTEST_SKIP() << "the model is not here";
  CompareDrivers(*model, 512);
}

TEST(Drivers, QuantisedQwen3AnswersTheSame) {
  const auto model = SharedPath("reference/tiny/qwen3-qknorm-Q4_K_M.gguf");
  if (!model) GTEST_SKIP() << "the model is not here";
  CompareDrivers(*model, 512);
}

}  // namespace
}  // namespace kvrun::testing
