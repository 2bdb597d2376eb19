// The program on the device that it measures to be fastest: what is measured is kept, and what is kept is
// believed.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/device/open_device.h"
#include "runtime/engine/device/device_times_file.h"
#include "tests/support/or_die.h"
#include "tests/support/real_program.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing {
namespace {

using Json = nlohmann::json;

class AutoDeviceProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    if (OrDie(ListDevices()).size() < 2) GTEST_SKIP() << "no Vulkan device";
    model_ = WriteModel(folder_, "tiny.gguf", TalkingModel().Build());
    cache_ = folder_.Path("cache");
  }

  ProgramResult Run(const std::vector<std::string>& environment = {}) const {
    std::vector<std::string> more = {"KVRUN_DEVICE=auto", "XDG_CACHE_HOME=" + cache_};
    more.insert(more.end(), environment.begin(), environment.end());
    ProgramResult result =
        RunProgram(RealProgram(), {"run", "-m", model_, "-p", "Hello", "-n", "6", "--ignore-end", "--json"},
                   WithDrivers(more));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  }
  std::string File() const { return cache_ + "/kvrun/device_times.json"; }
  // A line on standard error; "" where there is none.
  static std::string NoteWith(const ProgramResult& result, const std::string& part) {
    std::istringstream lines(result.err);
    for (std::string line; std::getline(lines, line);) {
      if (line.find("note: ") != std::string::npos && line.find(part) != std::string::npos) return line;
    }
    return "";
  }
  static std::string DeviceOf(const ProgramResult& result) {
    return Json::parse(result.out).at("device").get<std::string>();
  }

  const TemporaryFolder folder_;
  std::string model_;
  std::string cache_;
};

TEST_F(AutoDeviceProgram, TheSecondStartMeasuresNothingAndIsTheSame) {
  const ProgramResult first = Run();
  const std::string reason = NoteWith(first, "auto: ");
  EXPECT_NE(reason.find("token/s"), std::string::npos) << first.err;
  const std::string kept = ReadWholeFile(File());
  ASSERT_EQ(OrDie(ReadTimes(File())).size(), 1U);
  struct stat before {};
  ASSERT_EQ(::stat(File().c_str(), &before), 0);

  const ProgramResult second = Run();
  EXPECT_EQ(NoteWith(second, "auto: "), "") << "it was said when it was measured";
  EXPECT_EQ(NoteWith(Run({"KVRUN_VERBOSE=1"}), "auto: "), reason);
  EXPECT_EQ(DeviceOf(second), DeviceOf(first));
  EXPECT_EQ(Json::parse(second.out).at("text"), Json::parse(first.out).at("text"));
  EXPECT_EQ(ReadWholeFile(File()), kept);
  struct stat after {};
  ASSERT_EQ(::stat(File().c_str(), &after), 0);
  EXPECT_EQ(after.st_ino, before.st_ino) << "it was written again";
}

// That times from the file are used shows where they say what no measurement would.
TEST_F(AutoDeviceProgram, WhatIsKeptDecides) {
  Run();
  TimesEntry entry = OrDie(ReadTimes(File())).at(0);
  entry.cpu = {.prefill_us = 1.0, .decode_us = 1.0};
  entry.gpu = {.prefill_us = 2.0, .decode_us = 2.0};
  RunOrDie(WriteTimes(File(), entry));
  const ProgramResult on_cpu = Run({"KVRUN_VERBOSE=1"});
  EXPECT_NE(NoteWith(on_cpu, "auto: computing on the CPU: prefill 1000000 token/s"), "") << on_cpu.err;
  EXPECT_EQ(DeviceOf(on_cpu), entry.key.cpu);
  std::swap(entry.cpu, entry.gpu);
  RunOrDie(WriteTimes(File(), entry));
  const ProgramResult on_gpu = Run();
  EXPECT_EQ(DeviceOf(on_gpu), entry.key.gpu) << on_gpu.err;
  EXPECT_EQ(OrDie(ReadTimes(File())), std::vector<TimesEntry>{entry});
  // Other threads are another key.
  Run({"KVRUN_THREADS=1"});
  EXPECT_GE(OrDie(ReadTimes(File())).size(), entry.key.n_threads == 1 ? 1U : 2U);
}

TEST_F(AutoDeviceProgram, AFolderThatCannotBeWrittenAndADamagedFileCostTheMeasurementAlone) {
  // A folder in the file's place: whoever runs the test, root too, cannot replace it.
  cache_ = folder_.Path("taken");
  std::filesystem::create_directories(cache_ + "/kvrun/device_times.json/in it");
  EXPECT_NE(NoteWith(Run(), "cannot be kept"), "");
  cache_ = folder_.Path("other");
  Run();
  folder_.Write("other/kvrun/device_times.json", "[1, 2");
  EXPECT_NE(NoteWith(Run(), "measured again"), "");
  EXPECT_EQ(OrDie(ReadTimes(File())).size(), 1U);
}

TEST_F(AutoDeviceProgram, WithoutAUsableVulkanDeviceNothingIsMeasured) {
  const ProgramResult unusable = Run({"KVRUN_DEVICE_CLAMP=max_storage_buffers_per_stage=1"});
  EXPECT_NE(NoteWith(unusable, "computing on the CPU itself"), "") << unusable.err;
  const ProgramResult none =
      Run({"VK_DRIVER_FILES=/dev/null", "VK_ICD_FILENAMES=/dev/null", "KVRUN_VERBOSE=1"});
  EXPECT_NE(NoteWith(none, "no GPU was found"), "") << none.err;
  EXPECT_EQ(ReadTimes(File()).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace kvrun::testing
