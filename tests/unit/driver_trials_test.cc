// What is remembered of drivers, and what their trials do: work in a process of its own, without any driver.
#include "platform/vulkan/driver_trials.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <new>
#include <string>
#include <thread>
#include <vector>

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
  void DieWith(const DriverFile& driver, NoteKind kind) const {
    const pid_t pid = fork();
    if (pid == 0) {
      const TrialNote note = DriverNotes(NotesFolder()).Begin(driver, kind, "danced", 5.0);
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
  notes.Write(driver, works);
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
  notes.Write(driver, {.state = DriverState::kLeftOut, .was_opened = false, .devices = {}, .why = "why"});
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
  EXPECT_TRUE(raise_in(SIGKILL).is_fault);
  EXPECT_FALSE(raise_in(SIGKILL).is_kept) << "somebody else's doing";
  EXPECT_TRUE(raise_in(SIGINT).answer.ok()) << "the terminal's is for the parent";
  const TrialOutcome left = outcome([]() -> Result<std::string> { _exit(7); });
  EXPECT_EQ(left.fault, "ended the process (exit status 7)");
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
