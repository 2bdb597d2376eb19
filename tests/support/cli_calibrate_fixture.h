// `kvadapt calibrate` with a toy in the library's place: texts of two tokens and of one, and a folder.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include "tests/support/program_runner.h"

namespace kvrun::testing {

class CliCalibrate : public ::testing::Test {
 protected:
  // With -m MODEL and -o out_; with --force, as what the toy writes does not begin as kvrun's results do.
  std::vector<std::string> Arguments(const std::string& model, const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"calibrate", "-m", model, "-o", out_, "--force"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  ProgramResult Run(const std::vector<std::string>& more, const ProgramInput& input = {},
                    const std::string& model = "nobos") const {
    return RunProgram(KVADAPT_FAKE_PROGRAM, Arguments(model, more), input);
  }
  std::string Written() const { return ReadWholeFile(out_); }
  size_t FilesInFolder() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_.Path("")), {}));
  }

  TemporaryFolder folder_;
  std::string out_ = folder_.Path("adapter.gguf");
  std::string ab_ = folder_.Write("ab", "ab");
  std::string c_ = folder_.Write("c", "c");
};

}  // namespace kvrun::testing
