// What is remembered of drivers, and what their trials do: work in a process of its own, without any driver.
#include "platform/vulkan/driver_trials.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "runtime/device/open_device.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"

namespace kvrun {
namespace {

using testing::OrDie;
namespace fs = std::filesystem;

class DriverTrials : public ::testing::Test {
 protected:
  DriverFile Driver(const std::string& name) const {
    return {.manifest = folder_.Path(name + ".json"),
            .library = "/lib/" + name + ".so",
            .manifest_bytes = 10,
            .manifest_mtime_ns = 1,
            .library_bytes = 20,
            .library_mtime_ns = 2};
  }
  std::string NotesFolder() const { return folder_.Path("notes"); }
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(NotesFolder())) names.push_back(entry.path().filename());
    return names;
  }
  // What a process leaves that dies with a note.
  void DieWith(const DriverFile& driver, NoteKind kind, const std::string& doing = "danced") const {
    const pid_t pid = fork();
    if (pid == 0) {
      const TrialNote note = DriverNotes(NotesFolder()).Begin(driver, kind, doing, 5.0);
      _exit(note.is_held() ? 0 : 1);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    ASSERT_EQ(status, 0);
  }

  const TemporaryFolder folder_;
};

TEST_F(DriverTrials, ANoteIsOfALivingProcessOrOfADeadOne) {
  const DriverNotes notes(NotesFolder());
  const DriverFile driver = Driver("some");
  {
    const TrialNote note = notes.Begin(driver, NoteKind::kTrial, "danced", 5.0);
    ASSERT_TRUE(note.is_held());
    EXPECT_EQ(Files().size(), 1U);
    EXPECT_EQ(DriverNotes(NotesFolder()).Read(driver).state, DriverState::kUntried)
        << "its trial is going on";
  }
  EXPECT_TRUE(Files().empty());
  DieWith(driver, NoteKind::kTrial);
  const DriverRecord record = notes.Read(driver);
  EXPECT_EQ(record.state, DriverState::kLeftOut);
  EXPECT_EQ(record.why, "kvrun ended while it danced");
  EXPECT_NE(notes.PathsOf(driver).find(Files().at(0)), std::string::npos) << "the file to delete";
  EXPECT_EQ(notes.Read(Driver("other")).state, DriverState::kUntried);
  DriverFile changed = driver;
  changed.library_mtime_ns += 1;
  EXPECT_EQ(notes.Read(changed).state, DriverState::kUntried);
  notes.Forget(driver);
  EXPECT_EQ(notes.Read(driver).state, DriverState::kUntried);
}

TEST_F(DriverTrials, OneThatHasWorkedIsTriedAgainOnce) {
  const DriverNotes notes(NotesFolder());
  const DriverFile driver = Driver("some");
  const DriverRecord works = {.state = DriverState::kWorks, .was_opened = true, .devices = {"ab"}, .why = ""};
  ASSERT_TRUE(notes.Write(driver, works).ok());
  EXPECT_EQ(notes.Read(driver), works);
  DieWith(driver, NoteKind::kUse);
  EXPECT_EQ(notes.Read(driver).state, DriverState::kUntried);
  const auto fine = [](const DriverFile&) -> Result<std::string> { return std::string("ab\n"); };
  EXPECT_EQ(OrDie(JudgeDrivers({driver}, notes, fine)).usable.size(), 1U);
  EXPECT_EQ(notes.Read(driver).state, DriverState::kWorks);
  EXPECT_FALSE(notes.Read(driver).was_opened);
  DieWith(driver, NoteKind::kUse);
  EXPECT_EQ(notes.Read(driver).state, DriverState::kLeftOut);
  EXPECT_EQ(notes.Read(driver).why, "kvrun ended twice while it danced");
}

// A process that is killed (by a system without memory) while a copy of it tries a driver says little of it.
TEST_F(DriverTrials, AKilledTrialIsTriedOnceMore) {
  const DriverNotes notes(NotesFolder());
  const DriverFile driver = Driver("some");
  const auto fine = [](const DriverFile&) -> Result<std::string> { return std::string("ab\n"); };
  DieWith(driver, NoteKind::kApart, "listed its devices");
  EXPECT_EQ(notes.Read(driver).state, DriverState::kUntried);
  EXPECT_EQ(OrDie(JudgeDrivers({driver}, notes, fine)).usable.size(), 1U);
  DieWith(driver, NoteKind::kApart, "listed its devices");
  EXPECT_EQ(notes.Read(driver).state, DriverState::kWorks) << "it has worked in between";
  notes.ForgetEnds(driver, "listed its devices");
  // What else has worked does not count.
  DieWith(driver, NoteKind::kApart);
  notes.ForgetEnds(driver, "sung");
  EXPECT_EQ(notes.Read(driver).state, DriverState::kWorks);
  DieWith(driver, NoteKind::kApart);
  const DriverRecord record = notes.Read(driver);
  EXPECT_EQ(record.state, DriverState::kLeftOut);
  EXPECT_EQ(record.why, "kvrun ended twice while it danced");
  notes.Forget(driver);
  EXPECT_TRUE(Files().empty());
}

TEST_F(DriverTrials, TheUsersSignalTakesTheNoteAway) {
  const DriverNotes notes(NotesFolder());
  const TrialNote note = notes.Begin(Driver("some"), NoteKind::kTrial, "danced", 100.0);
  const TrialNote late = notes.Begin(Driver("slow"), NoteKind::kTrial, "danced", 0.0);
  usleep(1000);
  ASSERT_EQ(Files().size(), 2U);
  InterruptTrials();
  ASSERT_EQ(Files().size(), 1U);
  EXPECT_TRUE(Files()[0].starts_with("slow-")) << "it has had its time: it hangs";
}

TEST_F(DriverTrials, DamagedFilesAndMissingFoldersAreNoVerdict) {
  const DriverNotes notes(NotesFolder());
  const DriverFile driver = Driver("some");
  const DriverRecord left_out = {
      .state = DriverState::kLeftOut, .was_opened = false, .devices = {}, .why = "why"};
  ASSERT_TRUE(notes.Write(driver, left_out).ok());
  ASSERT_EQ(notes.Read(driver).state, DriverState::kLeftOut);
  for (const char* text : {"", "{", "[]", R"({"format": "kvrun driver", "version": 1, "works": 7})"}) {
    std::ofstream(NotesFolder() + "/" + Files().at(0)) << text;
    EXPECT_EQ(notes.Read(driver).state, DriverState::kUntried) << text;
  }
  for (const auto& nowhere : {std::optional<std::string>(), std::optional<std::string>("/proc/nowhere")}) {
    const DriverNotes none(nowhere);
    EXPECT_FALSE(none.is_kept());
    EXPECT_FALSE(none.Begin(driver, NoteKind::kTrial, "danced", 5.0).is_held());
    EXPECT_EQ(none.Read(driver).state, DriverState::kUntried);
  }
}

// Whoever may write there: a pipe is not waited for, a device without an end not read, nothing is thrown.
TEST_F(DriverTrials, OddFilesAreNoVerdict) {
  const DriverNotes notes(NotesFolder());
  const DriverFile driver = Driver("some");
  const DriverRecord left_out = {
      .state = DriverState::kLeftOut, .was_opened = false, .devices = {}, .why = "it sang"};
  ASSERT_TRUE(notes.Write(driver, left_out).ok());
  const std::string record = NotesFolder() + "/" + Files().at(0);
  const std::string stem = record.substr(0, record.size() - std::string(".json").size());
  const std::vector<std::string> paths = {record, stem + ".1-0.trial", stem + ".1-0.apart",
                                          stem + ".1-1.apart", stem + ".1-0.use"};
  const std::vector<std::function<void(const std::string&)>> odd = {
      [](const std::string& path) { ASSERT_EQ(mkfifo(path.c_str(), 0600), 0); },
      [](const std::string& path) { fs::create_symlink("/dev/zero", path); },
      [](const std::string& path) { fs::create_symlink(path, path); },
      [](const std::string& path) { fs::create_directories(path + "/in it"); }};
  for (size_t i = 0; i < odd.size(); ++i) {
    SCOPED_TRACE(i);
    for (const std::string& path : paths) {
      fs::remove_all(path);
      odd[i](path);
    }
    EXPECT_EQ(notes.Read(driver).state, DriverState::kUntried);
    EXPECT_NE(notes.PathsOf(driver), "");
  }
  // More than memory has.
  fs::remove_all(record);
  std::ofstream(record) << "{";
  fs::resize_file(record, uint64_t{1} << 42);
  EXPECT_EQ(notes.Read(driver).state, DriverState::kUntried);
}

TEST_F(DriverTrials, WhatCannotBeKeptIsSaidSo) {
  if (!CanTryApart()) GTEST_SKIP() << "this process has other threads";
  const DriverNotes notes(NotesFolder());
  const auto crash = [](const DriverFile&) -> Result<std::string> { abort(); };
  const DriverFile driver = Driver("first");
  const std::string kept = OrDie(JudgeDrivers({driver}, notes, crash)).left_out.at(0).message;
  EXPECT_NE(kept.find("; to try it again set KVRUN_RETRY_DRIVERS=1 or delete "), std::string::npos) << kept;
  // A folder in the record's place: root, too, cannot replace it.
  const std::string record = NotesFolder() + "/" + Files().at(0);
  notes.Forget(driver);
  fs::create_directories(record + "/in it");
  setenv("KVRUN_RETRY_DRIVERS", "1", 1);
  const std::string not_kept = OrDie(JudgeDrivers({driver}, notes, crash)).left_out.at(0).message;
  unsetenv("KVRUN_RETRY_DRIVERS");
  EXPECT_NE(not_kept.find("; the next start tries it again, as this cannot be kept: "), std::string::npos)
      << not_kept;
}

TEST(LeftOutRemark, IsOneLineForAnyNumber) {
  const auto driver = [](const std::string& name) {
    LeftOutDriver left_out{.driver = {},
                           .message = "much; to try it again",
                           .brief = "the Vulkan driver " + name + " is left out: it sang"};
    left_out.driver.manifest = "/long/path/to/" + name;
    return left_out;
  };
  EXPECT_EQ(LeftOutRemark({}), "");
  EXPECT_EQ(LeftOutRemark({driver("a.json")}),
            "the Vulkan driver a.json is left out: it sang (kvrun devices says how to try it again)");
  std::vector<LeftOutDriver> some = {driver("a.json"), driver("b.json"), driver("c.json"), driver("d.json")};
  EXPECT_EQ(
      LeftOutRemark(some),
      "4 Vulkan drivers are left out: a.json, b.json, c.json, d.json (kvrun devices says why, and how to "
      "try them again)");
  some.resize(40, driver("e.json"));
  EXPECT_NE(LeftOutRemark(some).find("40 Vulkan drivers are left out: a.json, b.json, c.json and 37 more ("),
            std::string::npos)
      << LeftOutRemark(some);
  EXPECT_EQ(LeftOutRemark({{.driver = {}, .message = "all crash", .brief = "all crash"}}), "all crash");
}

// What is registered for the end of a process may wait for ever for what the caller of exit() holds.
bool g_hangs_at_end = false;

TEST_F(DriverTrials, ACallOfExitIsSeenAtOnce) {
  if (!CanTryApart()) GTEST_SKIP() << "this process has other threads";
  ASSERT_EQ(std::atexit([] {
              while (g_hangs_at_end) pause();
            }),
            0);
  const auto leave = []() -> Result<std::string> {
    g_hangs_at_end = true;
    std::exit(5);
  };
  EXPECT_EQ(TryWork(leave, {}, 5.0).fault, "ended the process with code 5");
}

TEST_F(DriverTrials, WorkThatIsKilledIsCalledOnceMore) {
  if (!CanTryApart()) GTEST_SKIP() << "this process has other threads";
  const std::string trace = folder_.Path("trace");
  const auto killed = [&](size_t n_times) {
    fs::remove(trace);
    return TryWork(
        [&, n_times]() -> Result<std::string> {
          std::ofstream(trace, std::ios::app) << "x" << std::flush;
          if (fs::file_size(trace) <= n_times) raise(SIGKILL);
          return std::string("done");
        },
        {}, 100.0);
  };
  EXPECT_EQ(OrDie(Result<std::string>(killed(1).answer)), "done");
  const TrialOutcome twice = killed(2);
  EXPECT_EQ(ReadWholeFile(trace), "xx");
  EXPECT_TRUE(twice.is_fault);
  EXPECT_FALSE(twice.is_kept) << "somebody else's doing";
  EXPECT_EQ(twice.fault, "was killed twice (signal 9, as by a system that is out of memory)");
  // It is left out of this run alone, and not blamed.
  const DriverNotes notes(NotesFolder());
  const auto look = [](const DriverFile&) -> Result<std::string> {
    raise(SIGKILL);
    return std::string();
  };
  const JudgedDrivers judged = OrDie(JudgeDrivers({Driver("some")}, notes, look));
  ASSERT_EQ(judged.left_out.size(), 1U);
  EXPECT_NE(judged.left_out[0].message.find("the next start tries it again, as it may not be to blame"),
            std::string::npos)
      << judged.left_out[0].message;
  EXPECT_EQ(notes.Read(Driver("some")).state, DriverState::kUntried);
}

// Where memory runs out, the system ends the trial, and not what tries.
TEST_F(DriverTrials, IsTheFirstToEndWithoutMemory) {
  if (!CanTryApart()) GTEST_SKIP() << "this process has other threads";
  const auto read = []() -> Result<std::string> { return ReadWholeFile("/proc/self/oom_score_adj"); };
  EXPECT_EQ(OrDie(Result<std::string>(TryWork(read, {}, 100.0).answer)), "1000\n");
}

TEST_F(DriverTrials, WorkApartAnswersOrDies) {
  if (!CanTryApart()) GTEST_SKIP() << "this process has other threads";
  const auto outcome = [](const std::function<Result<std::string>()>& work, double limit_s = 100.0) {
    return TryWork(work, {}, limit_s);
  };
  int here = 0;
  const TrialOutcome fine = outcome([&]() -> Result<std::string> {
    here = 1;
    return std::string(100'000, 'x');
  });
  EXPECT_EQ(OrDie(Result<std::string>(fine.answer)).size(), 100'000U) << "more than a pipe holds";
  EXPECT_EQ(here, 0);
  const TrialOutcome refused =
      outcome([]() -> Result<std::string> { return Status(StatusCode::kUnsupported, "no"); });
  EXPECT_FALSE(refused.is_fault);
  EXPECT_EQ(refused.answer.status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(refused.answer.status().message(), "no");
  const TrialOutcome poor = outcome([]() -> Result<std::string> { throw std::bad_alloc(); });
  EXPECT_FALSE(poor.is_fault) << "it may be this process's own want";
  EXPECT_EQ(poor.answer.status().code(), StatusCode::kOutOfMemory);
  const auto raise_in = [&](int number) {
    return outcome([number]() -> Result<std::string> {
      raise(number);
      return std::string();
    });
  };
  EXPECT_TRUE(raise_in(SIGSEGV).is_kept);
  EXPECT_NE(raise_in(SIGABRT).fault.find("crashed (signal 6"), std::string::npos);
  EXPECT_TRUE(raise_in(SIGINT).answer.ok()) << "the terminal's is for the parent";
  const TrialOutcome left = outcome([]() -> Result<std::string> { _exit(7); });
  EXPECT_EQ(left.fault, "ended the process with code 7");
  const auto sleep_on = []() -> Result<std::string> {
    for (;;) pause();
  };
  EXPECT_EQ(outcome(sleep_on, 0.2).fault, "hung (no answer within 0.2 s)");
  int asked = 0;
  const TrialOutcome cancelled = TryWork(
      sleep_on, [&] { return ++asked > 2; }, 100.0);
  EXPECT_EQ(cancelled.answer.status().code(), StatusCode::kCancelled);
  EXPECT_FALSE(cancelled.is_fault);
}

// What it takes of memory must not count as this process's.
TEST_F(DriverTrials, WorkOnTheCpuIsDoneApartToo) {
  if (!CanTryApart()) GTEST_SKIP() << "this process has other threads";
  const auto pid = [](Device&, const std::function<bool()>&) -> Result<std::string> {
    return std::to_string(getpid());
  };
  const OpenDeviceOptions cpu = {.device = "host", .n_threads = 1};
  EXPECT_NE(OrDie(TryOnDevice(cpu, "did this", pid, {})), std::to_string(getpid()));
  const auto crash = [](Device&, const std::function<bool()>&) -> Result<std::string> { abort(); };
  const Result<std::string> crashed = TryOnDevice(cpu, "did this", crash, {});
  EXPECT_EQ(crashed.status().code(), StatusCode::kDevice);
  EXPECT_NE(crashed.status().message().find("the process that did this crashed (signal 6"), std::string::npos)
      << crashed.status().message();
}

TEST_F(DriverTrials, EachIsTriedAloneAndOnce) {
  if (!CanTryApart()) GTEST_SKIP() << "this process has other threads";
  const DriverNotes notes(NotesFolder());
  const std::vector<DriverFile> drivers = {Driver("good"), Driver("bad"), Driver("empty")};
  const std::string trace = folder_.Path("trace");
  const DriverLook look = [&](const DriverFile& driver) -> Result<std::string> {
    std::ofstream(trace, std::ios::app) << "x";
    if (driver == drivers[1]) abort();
    return driver == drivers[0] ? std::string("d1\nd2\n") : std::string();
  };
  for (int i = 0; i < 2; ++i) {
    const JudgedDrivers judged = OrDie(JudgeDrivers(drivers, notes, look));
    EXPECT_EQ(judged.usable, (std::vector<DriverFile>{drivers[0], drivers[2]}));
    ASSERT_EQ(judged.left_out.size(), 1U);
    EXPECT_EQ(judged.left_out[0].driver, drivers[1]);
    EXPECT_NE(judged.left_out[0].message.find("bad.json is left out: it crashed (signal 6"),
              std::string::npos)
        << judged.left_out[0].message;
    EXPECT_EQ(ReadWholeFile(trace), "xxx");
  }
  EXPECT_EQ(notes.Read(drivers[0]).devices, (std::vector<std::string>{"d1", "d2"}));
  EXPECT_EQ(notes.Read(drivers[2]).state, DriverState::kWorks);
}

}  // namespace
}  // namespace kvrun
