// What a loaded model occupies, seen from outside of the process. On a driver that computes on the CPU,
// device memory is resident memory too.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/engine_fixture.h"
#include "tests/support/program_runner.h"
#include "tests/support/real_program.h"
#include "tests/support/reference_files.h"

namespace kvrun::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// Of a line "VmRSS:   123 kB" of /proc/PID/status.
uint64_t StatusBytes(pid_t pid, const std::string& key) {
  std::istringstream status(ReadWholeFile(fmt::format("/proc/{}/status", pid)));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) return std::stoull(line.substr(key.size() + 1)) * 1024;
  }
  ADD_FAILURE() << "no " << key;
  return 0;
}

TEST(Memory, WeightsAreNotHeldTwice) {
  const auto model = TestModelPath();
  if (!model) GTEST_SKIP() << "the test model is not here";
  if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
  if (!SharedDevice()->info().is_cpu) GTEST_SKIP() << "device memory is not resident memory";
  constexpr uint64_t kContext = 2048;
  const ProgramResult info =
      RunProgram(RealProgram(), {"info", "-m", *model, "--ctx", std::to_string(kContext), "--json"});
  ASSERT_EQ(info.exit_code, 0) << info.err;
  const uint64_t kv_bytes = nlohmann::json::parse(info.out)["kv_bytes"].get<uint64_t>();

  ProgramInput input = WithDrivers();
  // The validation layer has memory of its own.
  std::erase_if(input.environment,
                [](const std::string& text) { return text.starts_with("KVRUN_VALIDATION="); });
  RunningProgram chat(RealProgram(),
                      {"chat", "-m", *model, "--ctx", std::to_string(kContext), "-n", "1", "-q"}, input);
  chat.Type("Hello\n");
  ASSERT_TRUE(chat.WaitForOutput("\n"));
  const uint64_t resident = StatusBytes(chat.pid(), "VmRSS");
  const uint64_t peak = StatusBytes(chat.pid(), "VmHWM");
  EXPECT_EQ(chat.Finish().exit_code, 0);

  const uint64_t bound = std::filesystem::file_size(*model) + kv_bytes + 150 * kMiB;
  EXPECT_LE(resident, bound) << "resident " << resident / kMiB << " MiB, bound " << bound / kMiB << " MiB";
  RecordProperty("resident_mib", std::to_string(resident / kMiB));
  RecordProperty("peak_mib", std::to_string(peak / kMiB));
  RecordProperty("bound_mib", std::to_string(bound / kMiB));
}

}  // namespace
}  // namespace kvrun::testing
