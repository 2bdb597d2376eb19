#include "tests/support/real_program.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

namespace kvrun::testing {
namespace {

constexpr std::string_view kPassedOn[] = {"VK_",
                                          "LP_",
                                          "MESA_",
                                          "KVRUN_VALIDATION=",
                                          "KVRUN_DEVICE_CLAMP=",
                                          "KVRUN_DEVICE=",
                                          "KVRUN_THREADS=",
                                          "KVRUN_EXACT=",
                                          "HOME=",
                                          "ASAN_OPTIONS=",
                                          "UBSAN_OPTIONS=",
                                          "TSAN_OPTIONS=",
                                          "LD_LIBRARY_PATH=",
                                          "XDG_"};

std::string_view NameOf(std::string_view variable) { return variable.substr(0, variable.find('=')); }

}  // namespace

std::string RealProgram() {
  const std::filesystem::path tests = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return tests.parent_path() / "bin" / "kvrun";
}

ProgramInput WithDrivers(const std::vector<std::string>& more) {
  ProgramInput input;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view variable = *entry;
    const bool passed_on = std::any_of(std::begin(kPassedOn), std::end(kPassedOn),
                                       [&](std::string_view prefix) { return variable.starts_with(prefix); });
    const bool replaced = std::any_of(
        more.begin(), more.end(), [&](std::string_view other) { return NameOf(other) == NameOf(variable); });
    if (passed_on && !replaced) input.environment.emplace_back(variable);
  }
  input.environment.insert(input.environment.end(), more.begin(), more.end());
  return input;
}

}  // namespace kvrun::testing
