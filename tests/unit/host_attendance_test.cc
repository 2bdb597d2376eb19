// Who takes part in the next operation.
#include <gtest/gtest.h>

#include "runtime/device/host/attendance.h"

namespace kvrun::host {
namespace {

constexpr int64_t kWindow = Attendance::kWindowNs;

// A caller that has its core but for what is said.
class Caller {
 public:
  explicit Caller(uint32_t n_workers) : attendance_(n_workers) { Pass(kWindow, 0, 0); }

  // A window in which the caller waited so long for a worker, and was put off its core for so long.
  void Pass(int64_t window_ns, int64_t waited_ns, int64_t starved_ns, uint32_t worker = 1) {
    times_.now_ns += window_ns;
    times_.slept_ns += waited_ns;
    times_.ran_ns += window_ns - waited_ns - starved_ns;
    if (waited_ns > 0) attendance_.BeginWait(worker);
    attendance_.EndWait(waited_ns);
    ASSERT_TRUE(attendance_.IsDue(times_.now_ns));
    attendance_.Decide(times_);
    EXPECT_FALSE(attendance_.IsDue(times_.now_ns + kWindow - 1));
  }
  // Windows until the worker is back.
  int CountAbsence() {
    int n = 0;
    for (; !attendance_.TakesPart(1); ++n) Pass(kWindow, 0, 0);
    return n;
  }
  const Attendance& attendance() const { return attendance_; }

 private:
  Attendance attendance_;
  CallerTimes times_;
};

TEST(HostAttendance, AllTakePartWhileWaitsAreShort) {
  Caller caller(4);
  for (int i = 0; i < 100; ++i) caller.Pass(kWindow, kWindow / 5, 0);
  EXPECT_EQ(caller.attendance().n_out(), 0U);
}

TEST(HostAttendance, WaitsOfMuchMoreThanAWorkersShareLeaveItOut) {
  Caller of_two(2);
  of_two.Pass(kWindow, kWindow * 7 / 10, 0);
  EXPECT_TRUE(of_two.attendance().TakesPart(1));
  of_two.Pass(kWindow, kWindow * 4 / 5, 0);
  EXPECT_FALSE(of_two.attendance().TakesPart(1));
  Caller of_four(4);
  of_four.Pass(kWindow, kWindow / 3, 0, 2);
  EXPECT_TRUE(of_four.attendance().TakesPart(2));
  of_four.Pass(kWindow, kWindow * 2 / 5, 0, 2);
  EXPECT_TRUE(of_four.attendance().TakesPart(1));
  EXPECT_FALSE(of_four.attendance().TakesPart(2));
  EXPECT_EQ(of_four.attendance().n_out(), 1U);
  EXPECT_TRUE(of_four.attendance().TakesPart(0));
}

TEST(HostAttendance, LongAgoDoesNotCount) {
  Caller caller(2);
  caller.Pass(100 * kWindow, kWindow, 0);
  EXPECT_EQ(caller.attendance().n_out(), 0U);
}

TEST(HostAttendance, AbsencesBecomeLongerUpToASecondAndShortAgain) {
  Caller caller(2);
  int64_t absence = 0;
  for (int64_t expected = Attendance::kShortestAbsenceNs; expected < 4'000'000'000; expected *= 2) {
    caller.Pass(kWindow, kWindow, 0);
    absence = caller.CountAbsence() * kWindow;
    EXPECT_GE(absence, std::min(expected, Attendance::kLongestAbsenceNs));
    EXPECT_LT(absence, std::min(expected, Attendance::kLongestAbsenceNs) + kWindow);
  }
  EXPECT_GE(absence, Attendance::kLongestAbsenceNs);
  caller.Pass(3 * Attendance::kLongestAbsenceNs, 0, 0);
  caller.Pass(kWindow, kWindow, 0);
  EXPECT_EQ(caller.CountAbsence() * kWindow, Attendance::kShortestAbsenceNs);
}

TEST(HostAttendance, NobodyIsLeftOutWhileTheCallerIsStarved) {
  Caller caller(2);
  caller.Pass(kWindow, kWindow * 4 / 5, kWindow / 10);
  EXPECT_TRUE(caller.attendance().TakesPart(1));
  caller.Pass(kWindow, kWindow * 4 / 5, 0);
  EXPECT_FALSE(caller.attendance().TakesPart(1));
  caller.Pass(kWindow, 0, kWindow / 2);
  EXPECT_TRUE(caller.attendance().TakesPart(1));
}

}  // namespace
}  // namespace kvrun::host
