// kvadapt probe: what reaches offline/, and what is said of its answer.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "offline/device_profile.h"
#include "tests/support/cli_fixture.h"

namespace kvrun {
namespace {

using testing::Contains;
using testing::Json;

class CliProbe : public ::testing::Test {
 protected:
  ProgramResult Run(const std::vector<std::string>& more, const ProgramInput& input = {}) const {
    std::vector<std::string> arguments = {"probe"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunProgram(KVADAPT_FAKE_PROGRAM, arguments, input);
  }
  size_t FilesInFolder() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_.Path("")), {}));
  }

  TemporaryFolder folder_;
  std::string out_ = folder_.Path("profile.json");
};

TEST_F(CliProbe, TablesSayWhatWasMeasured) {
  const ProgramResult result = Run({"-m", "toy", "--device", "gpu"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out,
            "storage: /default, toyfs on toy; sessions read by io_uring direct\n"
            "random reads, MB/s   block   depth 1  depth 16  depth 1: us      p99  best other, depth 16\n"
            "                     4 KiB     100.0    1600.0           41       82  1600.0 threads direct\n"
            "                     8 KiB     200.0    3200.0           41       82  3200.0 threads direct\n"
            "buffered: the page cache was emptied before; what it reads ahead or keeps is still its doing\n"
            "\n"
            "operations: Fake gpu; batch 1, ctx 8192, entries 464, k fp8\n"
            "  attend     0.750 ms   75.0 %\n"
            "  norm       0.250 ms   25.0 %\n"
            "  all        1.000 ms per step\n");
}

TEST_F(CliProbe, TheProfileIsWritten) {
  const ProgramResult result = Run({"-m", "toy", "-o", out_, "--kv-dir", "/some/dir", "--batch", "2,4",
                                    "--ctx", "4096,512", "--storage-seconds", "7"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_PRED2(Contains, result.err, "wrote " + out_);
  const offline::DeviceProfile profile = offline::ReadProfile(out_).value();
  EXPECT_EQ(profile.machine.device, "Fake auto");
  EXPECT_EQ(profile.model, "toy");
  EXPECT_EQ(profile.model_fingerprint, "0123");
  EXPECT_EQ(profile.storage.folder, "/some/dir");
  EXPECT_EQ(profile.storage.rates.size(), 12U);
  EXPECT_EQ(profile.storage.rates[0].bytes_per_s, 1e8 + 7);
  ASSERT_EQ(profile.operations.size(), 16U);
  EXPECT_EQ(profile.operations.front().shape.at("batch"), 2U);
  EXPECT_EQ(profile.operations.back().shape.at("batch"), 4U);
  EXPECT_EQ(profile.operations.back().shape.at("ctx"), 512U);
  EXPECT_EQ(FilesInFolder(), 1U);
}

TEST_F(CliProbe, PartsAreMeasuredAlone) {
  const ProgramResult storage = Run({"--storage-only", "--json", "-o", out_});
  EXPECT_EQ(storage.exit_code, 0) << storage.err;
  const Json json = Json::parse(storage.out);
  EXPECT_EQ(json["operations"], Json::array());
  EXPECT_EQ(json["machine"]["device"], "");
  EXPECT_EQ(json["paths"], Json::array({out_}));
  EXPECT_EQ(offline::ReadProfile(out_).value().storage.rates.size(), json["storage"]["rates"].size());
  const ProgramResult device = Run({"-m", "toy", "--device-only", "--json"});
  EXPECT_EQ(Json::parse(device.out)["storage"]["rates"], Json::array());
  EXPECT_EQ(Json::parse(device.out)["operations"].size(), 4U);
  EXPECT_FALSE(Contains(Run({"-m", "toy", "--device-only"}).out, "storage"));
  EXPECT_FALSE(Contains(Run({"--storage-only"}).out, "operations"));
}

TEST_F(CliProbe, WhatDoesNotFitIsSaidAndTheRestIsWritten) {
  const ProgramResult result = Run({"-m", "tight", "-o", out_, "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(Json::parse(result.out)["skipped"],
            Json({"the second point: no memory", "the last point: too large"}));
  EXPECT_PRED2(Contains, result.err,
               "kvadapt: note: left out, for memory does not suffice: the second point: no memory\n"
               "kvadapt: note: left out, for memory does not suffice: the last point: too large\n");
  EXPECT_FALSE(offline::ReadProfile(out_).value().operations.empty());
  EXPECT_EQ(Run({"-m", "tight", "-q"}).err, "");
  EXPECT_EQ(Json::parse(Run({"-m", "toy", "--json"}).out)["skipped"], Json::array());
}

TEST_F(CliProbe, PlotsAreDrawn) {
  const std::string prefix = folder_.Path("here");
  ASSERT_EQ(Run({"-m", "toy", "--plot", prefix}).exit_code, 0);
  EXPECT_EQ(FilesInFolder(), 3U);
  const std::string storage = ReadWholeFile(prefix + "-storage.svg");
  for (const char* part : {">io_uring direct, toyfs on toy<", ">depth 1<", ">depth 16<", ">4Ki<"}) {
    EXPECT_PRED2(Contains, storage, part);
  }
  const std::string modes = ReadWholeFile(prefix + "-modes.svg");
  for (const char* part : {">16 reads in flight, toyfs on toy<", ">threads direct<", ">threads buffered<"}) {
    EXPECT_PRED2(Contains, modes, part);
  }
  const std::string operations = ReadWholeFile(prefix + "-operations.svg");
  for (const char* part : {">attend<", ">norm<", ">ms per step<"}) EXPECT_PRED2(Contains, operations, part);
  const std::string alone = folder_.Path("alone");
  ASSERT_EQ(Run({"--storage-only", "--plot", alone}).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(alone + "-operations.svg"));
  EXPECT_TRUE(std::filesystem::exists(alone + "-modes.svg"));
}

TEST_F(CliProbe, ProgressNamesTheParts) {
  const ProgramResult result = Run({"-m", "toy", "--progress", "always"});
  EXPECT_PRED2(Contains, result.err, "storage: 0 of 20, 0 %");
  EXPECT_PRED2(Contains, result.err, "storage: 20 of 20, 100 %");
  EXPECT_PRED2(Contains, result.err, "operations: 20 of 20, 100 %");
  EXPECT_FALSE(Contains(result.err, "test/s"));
  EXPECT_EQ(Run({"-m", "toy", "-q", "-o", out_}).err, "");
}

TEST_F(CliProbe, OptionsAreVariablesToo) {
  const ProgramInput input{{"KVRUN_MODEL=toy", "KVRUN_KV_DIR=/from/there", "KVRUN_BATCH=3", "KVRUN_CTX=1024",
                            "KVRUN_OUTPUT=" + out_, "KVRUN_JSON=1"},
                           "",
                           ""};
  const Json json = Json::parse(Run({}, input).out);
  EXPECT_EQ(json["storage"]["folder"], "/from/there");
  EXPECT_EQ(json["operations"][0]["shape"]["batch"], 3);
  EXPECT_EQ(json["operations"][0]["shape"]["ctx"], 1024);
  const ProgramResult help = Run({"--help"});
  for (const char* name : {"--plot", "--storage-only", "--device-only", "--storage-seconds"})
    EXPECT_PRED2(Contains, help.out, name);
}

TEST_F(CliProbe, BadUsageIsSaid) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "no model is named"},
      {{"--device-only"}, "no model is named"},
      {{"-m", "toy", "--storage-only", "--device-only"}, "leave nothing to measure"},
      {{"-m", "toy", "--batch", "0"}, "--batch: \"0\""},
      {{"-m", "toy", "--batch", "1,"}, "--batch: \"1,\""},
      {{"-m", "toy", "--batch", ",1"}, "--batch"},
      {{"-m", "toy", "--batch", "17"}, "--batch"},
      {{"-m", "toy", "--ctx", "4096;8192"}, "--ctx"},
      {{"-m", "toy", "--ctx", "16"}, "--ctx"},
      {{"-m", "toy", "--ctx", "99999999999"}, "--ctx"},
      {{"-m", "toy", "--storage-seconds", "nan"}, "--storage-seconds"},
  };
  for (const auto& [arguments, part] : cases) {
    const ProgramResult result = Run(arguments);
    EXPECT_EQ(result.exit_code, 2) << part;
    EXPECT_EQ(result.out, "") << part;
    EXPECT_PRED2(Contains, result.err, part);
  }
}

TEST_F(CliProbe, WhatCannotBeDoneFailsBeforeAnythingIsMeasured) {
  const std::string missing = folder_.Path("no/such");
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"-m", "toy", "--kv-dir", "/memory"}, "kvadapt: /memory lies in memory: name another with --kv-dir\n"},
      {{"-m", "toy", "--device-only", "--kv-dir", "/memory"},
       "kvadapt: /memory lies in memory: name another "
       "with --kv-dir\n"},
      {{"--storage-only", "--kv-dir", "/full"}, "kvadapt: no room in /full\n"},
      {{"-m", "toy", "-o", missing + "/x"},
       "kvadapt: cannot write " + missing + "/x: No such file or directory\n"},
      {{"-m", "toy", "-o", folder_.Path("")},
       "kvadapt: cannot write " + folder_.Path("") + ": Is a directory\n"},
      {{"-m", "toy", "-o", folder_.Path(".") + "/"},
       "kvadapt: cannot write " + folder_.Path(".") + "/: Is a directory\n"},
      {{"-m", "toy", "--plot", missing + "/x"},
       "kvadapt: cannot write " + missing + "/x-storage.svg: No such file or directory\n"},
  };
  for (const auto& [arguments, message] : cases) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"--progress", "always"});
    const ProgramResult result = Run(all);
    EXPECT_EQ(result.exit_code, 1) << message;
    EXPECT_EQ(result.err, message);
    EXPECT_EQ(result.out, "");
  }
  EXPECT_EQ(Run({"-m", "toy", "--kv-dir", "/memory", "--kv-tmpfs"}).exit_code, 0);
  EXPECT_EQ(FilesInFolder(), 0U);
}

// A reader takes the end of a try for the end of all, so a pipe is not opened before the profile is written.
TEST_F(CliProbe, APipeIsOpenedOnce) {
  const std::string pipe = folder_.Path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  pollfd reader = {::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC), POLLIN, 0};
  ASSERT_GE(reader.fd, 0);
  {
    RunningProgram program(
        KVADAPT_FAKE_PROGRAM,
        {"probe", "--storage-only", "--kv-dir", "/slow", "-o", pipe, "--progress", "always"}, {});
    EXPECT_TRUE(program.WaitForOutput("storage: 0 of 20"));
    EXPECT_EQ(::poll(&reader, 1, 0), 0) << "POLLHUP: it was opened and closed";
  }
  ::close(reader.fd);
  const ProgramResult result = RunShell(fmt::format(
      "timeout 120 cat {0} & timeout 120 {1} probe --storage-only -q -o {0} >{2}; echo $? >&2; wait", pipe,
      ShellWords(KVADAPT_FAKE_PROGRAM), folder_.Path("table")));
  EXPECT_EQ(result.err, "0\n");
  const auto profile = offline::ProfileFromJson(result.out);
  ASSERT_TRUE(profile.ok()) << profile.status().message() << result.out;
  EXPECT_EQ(profile->storage.rates.size(), 12U);
}

TEST_F(CliProbe, FailuresAreOneLineAndLeaveNoFile) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"-m", "missing"}, "not found"},
      {{"-m", "nodevice"}, "not found"},
      {{"-m", "devicefail"}, "device error"},
      {{"-m", "toy", "--kv-dir", "/broken"}, "io error"},
  };
  for (const auto& [arguments, status] : cases) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"-o", out_, "--plot", folder_.Path("p"), "--json", "-q"});
    const ProgramResult result = Run(all);
    EXPECT_EQ(result.exit_code, 1) << status;
    EXPECT_EQ(Json::parse(result.out)["error"]["status"], status) << result.out;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
  EXPECT_EQ(FilesInFolder(), 0U);
}

TEST_F(CliProbe, CtrlCEndsItAndLeavesNoFile) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"probe", "--storage-only", "--kv-dir", "/slow"}, "storage"},
      {{"probe", "-m", "slow", "--device-only"}, "operations"},
  };
  for (const auto& [given, part] : cases) {
    std::vector<std::string> arguments = given;
    arguments.insert(arguments.end(), {"-o", out_, "--progress", "always"});
    RunningProgram program(KVADAPT_FAKE_PROGRAM, arguments, {});
    ASSERT_TRUE(program.WaitForOutput(part));
    program.Signal(SIGINT);
    const ProgramResult result = program.Finish();
    EXPECT_EQ(result.exit_code, 130) << part;
    EXPECT_PRED2(Contains, result.err, "kvadapt: interrupted");
    EXPECT_EQ(FilesInFolder(), 0U);
  }
}

}  // namespace
}  // namespace kvrun
