// kvrun as a program: a self-made model goes on for 60 tokens after a prompt of 201, at a context of 400.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/engine_fixture.h"
#include "tests/support/real_program.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing {

class LongRunFixture : public ::testing::Test {
 protected:
  static constexpr size_t kTokens = 60;

  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    model_ = WriteModel(folder_, "tiny.gguf", TalkingModel().Build());
  }

  // KV that is not in memory lies in Path("kv").
  ProgramResult Run(const std::vector<std::string>& more,
                    const std::vector<std::string>& environment = {}) const {
    const std::string prompt = std::string(200, 'a') + "b";
    std::vector<std::string> arguments = {"run", "-m", model_, "-p", prompt, "-n", std::to_string(kTokens)};
    const auto add = [&](const std::vector<std::string>& words) {
      arguments.insert(arguments.end(), words.begin(), words.end());
    };
    add({"--ctx", "400", "--json", "--ignore-end", "--kv-dir", folder_.Path("kv")});
    add(more);
    return RunProgram(RealProgram(), arguments, WithDrivers(environment));
  }

  TemporaryFolder folder_;
  std::string model_;
};

}  // namespace kvrun::testing
