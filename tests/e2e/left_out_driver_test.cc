// Vulkan drivers that crash or hang: the program answers all the same, says which driver it left out, and
// does not try it again until it is told to or the driver changes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/engine_fixture.h"
#include "tests/support/real_program.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// The manifest of Mesa's driver for the CPU.
std::optional<std::string> Lavapipe() {
  std::error_code error;
  for (fs::directory_iterator i("/usr/share/vulkan/icd.d", error), end; !error && i != end;
       i.increment(error)) {
    if (i->path().filename().string().starts_with("lvp_icd")) return i->path().string();
  }
  return std::nullopt;
}

// A machine with a driver that fails, and Mesa's beside it where that is installed.
class LeftOutDriver : public ::testing::Test {
 protected:
  void Install(const std::string& mode, const std::string& name) {
    library_ = folder_.Path(name + ".so");
    fs::copy_file(std::string(KVRUN_DRIVERS_FOLDER) + "/kvrun_driver_" + mode + ".so", library_);
    manifest_ =
        folder_.Write(name + ".json", R"({"file_format_version": "1.0.0", "ICD": {"library_path": ")" +
                                          library_ + R"(", "api_version": "1.1.0"}})");
  }
  void Install(const std::string& mode) {
    Install(mode, mode);
    model_ = WriteModel(folder_, "tiny.gguf", TalkingModel().Build());
  }

  ProgramInput Input(const std::vector<std::string>& more = {}) const {
    std::string files = manifest_;
    if (const auto lavapipe = Lavapipe(); lavapipe && has_lavapipe_) files += ":" + *lavapipe;
    std::vector<std::string> environment = {"VK_DRIVER_FILES=" + files,
                                            "VK_ICD_FILENAMES=" + files,
                                            "FAKE_DRIVER_TRACE=" + folder_.Path("trace"),
                                            "XDG_CACHE_HOME=" + folder_.Path("cache"),
                                            "KVRUN_VALIDATION=0",
                                            "KVRUN_DEVICE=auto"};
    environment.insert(environment.begin(), more.begin(), more.end());  // the first of a name counts
    return WithDrivers(environment);
  }

  ProgramResult Devices(const std::vector<std::string>& more = {},
                        const std::vector<std::string>& arguments = {}) const {
    std::vector<std::string> words = {"devices", "--json"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return RunProgram(RealProgram(), words, Input(more));
  }
  ProgramResult Run(const std::vector<std::string>& arguments = {}, ProgramInput input = {}) const {
    std::vector<std::string> words = {"run", "-m", model_, "-p", "Once", "-n", "3", "--ignore-end"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    if (input.environment.empty()) input = Input();
    return RunProgram(RealProgram(), words, input);
  }

  // How often the driver was about to fail.
  size_t Tries() const {
    std::error_code error;
    const auto size = fs::file_size(folder_.Path("trace"), error);
    return error ? 0 : size;
  }
  // What `kvrun devices` says of the driver; null where it lists none.
  static Json DriverIn(const ProgramResult& devices) {
    EXPECT_EQ(devices.exit_code, 0) << devices.err;
    for (const Json& device : Json::parse(devices.out, nullptr, false)) {
      if (device.at("kind") == "driver") return device;
    }
    return {};
  }
  static size_t DevicesIn(const ProgramResult& devices) {
    size_t count = 0;
    for (const Json& device : Json::parse(devices.out, nullptr, false))
      count += device.at("index").is_number();
    return count;
  }
  static size_t LinesWith(const std::string& text, const std::string& part) {
    size_t count = 0;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) count += line.find(part) != std::string::npos;
    return count;
  }
  void ExpectLeftOut(const ProgramResult& devices, const std::string& why) const {
    const Json driver = DriverIn(devices);
    ASSERT_FALSE(driver.is_null()) << devices.out;
    EXPECT_EQ(driver.at("name"), manifest_);
    EXPECT_EQ(driver.at("usable"), false);
    const std::string reason = driver.at("reason");
    EXPECT_NE(reason.find(why), std::string::npos) << reason;
    EXPECT_NE(reason.find("KVRUN_RETRY_DRIVERS=1"), std::string::npos) << reason;
    EXPECT_EQ(DevicesIn(devices), Lavapipe() && has_lavapipe_ ? 2U : 1U) << devices.out;
  }
  // Notes of trials in progress.
  size_t Notes() const {
    size_t count = 0;
    std::error_code error;
    for (fs::directory_iterator i(folder_.Path("cache/kvrun/drivers"), error), end; !error && i != end;
         i.increment(error)) {
      count += i->path().extension() == ".apart" ? 1 : 0;
    }
    return count;
  }

  const TemporaryFolder folder_;
  bool has_lavapipe_ = true;
  std::string library_;
  std::string manifest_;
  std::string model_;
};

TEST_F(LeftOutDriver, OneThatCrashesCostsNothing) {
  const std::pair<const char*, const char*> cases[] = {{"abort", "it crashed (signal 6"},
                                                       {"segfault", "it crashed (signal 11"},
                                                       {"exit", "it ended the process with code 3"}};
  for (const auto& [mode, why] : cases) {
    SCOPED_TRACE(mode);
    Install(mode);
    ExpectLeftOut(Devices(), why);
    const size_t tries = Tries();
    EXPECT_GE(tries, 1U);
    ExpectLeftOut(Devices(), why);
    const ProgramResult run = Run();
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_NE(run.err.find(manifest_ + " is left out: it "), std::string::npos) << run.err;
    EXPECT_EQ(LinesWith(run.err, "left out"), 1U) << run.err;
    EXPECT_EQ(Tries(), tries) << "it was tried again";
    EXPECT_EQ(Notes(), 0U);
  }
}

// Whether the device was chosen or named.
TEST_F(LeftOutDriver, SeveralAreOneLine) {
  std::string files;
  for (const char* name : {"a", "b", "c", "d"}) {
    Install("abort", name);
    files += manifest_ + ":";
  }
  Install("abort");
  files += Lavapipe().value_or("");
  const std::vector<std::string> more = {"VK_DRIVER_FILES=" + files, "VK_ICD_FILENAMES=" + files};
  EXPECT_EQ(Devices(more).exit_code, 0);
  for (const std::string& device : {std::string("auto"), std::string("0")}) {
    const ProgramResult run = Run({"--device", device}, Input(more));
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(LinesWith(run.err, "left out"), 1U) << run.err;
    EXPECT_NE(run.err.find("4 Vulkan drivers are left out: a.json, b.json, c.json, d.json (kvrun devices"),
              std::string::npos)
        << run.err;
  }
  // There each has its line, with what it did.
  EXPECT_EQ(LinesWith(RunProgram(RealProgram(), {"devices"}, Input(more)).out, "it crashed"), 4U);
}

TEST_F(LeftOutDriver, TheFirstCommandMayBeAnAnswer) {
  Install("abort");
  const ProgramResult run = Run();
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.err.find("is left out: it crashed"), std::string::npos) << run.err;
}

TEST_F(LeftOutDriver, TheCpuNamedLooksForNoDriver) {
  Install("abort");
  EXPECT_EQ(Run({"--device", "host"}).exit_code, 0);
  EXPECT_EQ(Tries(), 0U);
}

TEST_F(LeftOutDriver, WithNoOtherTheMessageOfVulkanNamesIt) {
  has_lavapipe_ = false;
  Install("abort");
  const ProgramResult run = Run({"--device", "vulkan"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_NE(run.err.find(manifest_ + " is left out"), std::string::npos) << run.err;
  EXPECT_EQ(Run().exit_code, 0);
  ExpectLeftOut(Devices(), "it crashed");
}

TEST_F(LeftOutDriver, AChangedDriverIsTriedAgain) {
  Install("abort");
  ExpectLeftOut(Devices(), "it crashed");
  const size_t tries = Tries();
  fs::last_write_time(library_, fs::last_write_time(library_) + std::chrono::seconds(7));
  ExpectLeftOut(Devices(), "it crashed");
  EXPECT_GT(Tries(), tries);
}

TEST_F(LeftOutDriver, IsTriedAgainWhereTheUserSaysSo) {
  Install("abort");
  ExpectLeftOut(Devices(), "it crashed");
  size_t tries = Tries();
  ExpectLeftOut(Devices({}, {"--retry-drivers"}), "it crashed");
  EXPECT_EQ(Tries(), tries + 1) << "once";
  tries = Tries();
  const ProgramResult run = Run({}, Input({"KVRUN_RETRY_DRIVERS=1"}));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(Tries(), tries + 1);
  // The file that the message names may be deleted instead.
  fs::remove_all(folder_.Path("cache/kvrun/drivers"));
  ExpectLeftOut(Devices(), "it crashed");
  EXPECT_EQ(Tries(), tries + 2);
}

TEST_F(LeftOutDriver, OneThatHangsEndsInTime) {
  Install("hang");
  ExpectLeftOut(Devices({"KVRUN_DRIVER_TIMEOUT=5"}), "it hung (no answer within 5 s)");
  ExpectLeftOut(Devices(), "it hung");
  EXPECT_EQ(Tries(), 1U);
}

TEST_F(LeftOutDriver, OddFilesInTheirFolderCostNothing) {
  Install("abort");
  ExpectLeftOut(Devices(), "it crashed");
  const std::string folder = folder_.Path("cache/kvrun/drivers");
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  ASSERT_FALSE(files.empty());
  const std::vector<std::function<void(const fs::path&)>> odd = {
      [](const fs::path& path) { ASSERT_EQ(mkfifo(path.c_str(), 0600), 0); },
      [](const fs::path& path) { fs::create_symlink("/dev/zero", path); },
      [](const fs::path& path) { fs::create_directory(path); }};
  for (size_t i = 0; i < odd.size(); ++i) {
    SCOPED_TRACE(i);
    for (const fs::path& path : files) {
      fs::remove_all(path);
      odd[i](path);
      const fs::path note = fs::path(path).replace_extension(".1-0.trial");
      fs::remove_all(note);
      odd[i](note);
    }
    const std::string reason = DriverIn(Devices()).value("reason", "");
    EXPECT_NE(reason.find("it crashed"), std::string::npos) << reason;
    EXPECT_EQ(Run().exit_code, 0);
  }
}

TEST_F(LeftOutDriver, TheUsersSignalBlamesNoDriver) {
  size_t tries = 0;
  Install("hang");
  const std::pair<int, int> cases[] = {
      {SIGINT, 130}, {SIGTERM, 130}, {SIGHUP, 128 + SIGHUP}, {SIGQUIT, 128 + SIGQUIT}};
  for (const auto& [signal, exit_code] : cases) {
    SCOPED_TRACE(signal);
    ProgramInput input = Input({"KVRUN_DRIVER_TIMEOUT=600"});
    input.before_program = [] {
      const rlimit no_core = {0, 0};
      // What a shell starts in the background ignores these, and hands that on.
      for (const int one : {SIGINT, SIGHUP, SIGQUIT}) ::signal(one, SIG_DFL);
      return setrlimit(RLIMIT_CORE, &no_core) == 0;
    };
    RunningProgram program(RealProgram(), {"devices"}, input);
    for (int i = 0; i < 1200 && Tries() == tries; ++i) usleep(100'000);
    ASSERT_EQ(Tries(), ++tries) << "tried again each time";
    EXPECT_EQ(Notes(), 1U);
    program.Signal(signal);
    EXPECT_EQ(program.Finish().exit_code, exit_code);
    EXPECT_EQ(Notes(), 0U);
  }
}

// Killed, with its copy, as where memory runs out: not by the driver, the first time.
TEST_F(LeftOutDriver, AKvrunThatIsKilledInItsTrialTriesOnceMore) {
  Install("hang");
  for (size_t tries = 1; tries <= 2; ++tries) {
    RunningProgram program(RealProgram(), {"devices"}, Input({"KVRUN_DRIVER_TIMEOUT=600"}));
    for (int i = 0; i < 1200 && Tries() < tries; ++i) usleep(100'000);
    ASSERT_EQ(Tries(), tries);
    program.Signal(SIGKILL);
    program.Finish();
    EXPECT_EQ(Notes(), tries);
  }
  ExpectLeftOut(Devices(), "kvrun ended twice while it listed its devices");
  EXPECT_EQ(Tries(), 2U);
}

TEST_F(LeftOutDriver, ATrialInProgressIsNoVerdict) {
  Install("hang");
  RunningProgram program(RealProgram(), {"devices"}, Input({"KVRUN_DRIVER_TIMEOUT=600"}));
  for (int i = 0; i < 1200 && Tries() == 0; ++i) usleep(100'000);
  ASSERT_EQ(Tries(), 1U);
  ExpectLeftOut(Devices({"KVRUN_DRIVER_TIMEOUT=5"}), "it hung");
  EXPECT_EQ(Tries(), 2U);
}

TEST_F(LeftOutDriver, OneThatCrashesLaterIsLeftOutThen) {
  const auto lavapipe = Lavapipe();
  if (!lavapipe) GTEST_SKIP() << "no driver to stand behind it";
  std::ifstream file(*lavapipe);
  const std::string behind = Json::parse(file).at("ICD").at("library_path");
  has_lavapipe_ = false;
  Install("device");
  const std::vector<std::string> more = {"FAKE_DRIVER_BEHIND=" + behind};
  const ProgramResult devices = Devices(more);
  EXPECT_EQ(DevicesIn(devices), 2U) << devices.out << devices.err;
  EXPECT_EQ(Tries(), 0U);
  const ProgramResult first = Run({}, Input(more));
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_NE(first.err.find("it crashed (signal 6"), std::string::npos) << first.err;
  EXPECT_EQ(Tries(), 1U);
  const ProgramResult second = Run({}, Input(more));
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(Tries(), 1U);
  // Named, it is opened for the first time too.
  fs::remove_all(folder_.Path("cache/kvrun/drivers"));
  for (int i = 0; i < 2; ++i) {
    const ProgramResult named = Run({"--device", "vulkan"}, Input(more));
    EXPECT_EQ(named.exit_code, 1) << named.err;
    EXPECT_NE(named.err.find("it crashed (signal 6"), std::string::npos) << named.err;
    EXPECT_EQ(Tries(), 2U);
  }
}

// llvmpipe's compiler throws where there is no memory for it.
TEST_F(LeftOutDriver, ALimitOfMemoryEndsInAnAnswer) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need address space";
#endif
  if (!Lavapipe()) GTEST_SKIP() << "no driver";
  Install("abort");
  for (int i = 0; i < 2; ++i) {
    ProgramInput input = Input({"VK_DRIVER_FILES=" + *Lavapipe(), "VK_ICD_FILENAMES=" + *Lavapipe()});
    input.before_program = [] {
      const rlimit limit = {400'000 * 1024, 400'000 * 1024};
      return setrlimit(RLIMIT_AS, &limit) == 0;
    };
    const ProgramResult run = Run({}, input);
    EXPECT_EQ(run.exit_code, 0) << run.err;
  }
}

}  // namespace
}  // namespace kvrun::testing
