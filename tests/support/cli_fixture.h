// The command-line program, run as a person runs it, with a toy in the library's place
// (tests/support/fake_kvrun.cc says what the toy does: its answer is "LENGTH:" and the end of its context).
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/program_runner.h"

namespace kvrun::testing {

using Json = nlohmann::json;

inline bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline ProgramResult Cli(const std::vector<std::string>& arguments, const ProgramInput& input = {}) {
  return RunProgram(KVRUN_FAKE_PROGRAM, arguments, input);
}

inline std::vector<Json> JsonLines(const std::string& text) {
  std::vector<Json> lines;
  for (size_t start = 0; start < text.size();) {
    const size_t end = text.find('\n', start);
    lines.push_back(Json::parse(text.substr(start, end - start), nullptr, false));
    start = end + 1;
  }
  return lines;
}

}  // namespace kvrun::testing
