#include "runtime/kv/math/selection_pace.h"

#include <gtest/gtest.h>

namespace kvrun {
namespace {

TEST(SelectionPace, BeginsAsUsualWithinItsBounds) {
  EXPECT_EQ(SelectionPace(10, 50, 100, 0.9).count(), 50U);
  EXPECT_EQ(SelectionPace(10, 5, 100, 0.9).count(), 10U);
  EXPECT_EQ(SelectionPace(10, 200, 100, 0.9).count(), 100U);
}

TEST(SelectionPace, LateReadsMakeItFewerDownToTheLeast) {
  SelectionPace pace(10, 160, 200, 0.9);
  pace.Note(10.0, 1.1);  // 89 % hidden
  EXPECT_EQ(pace.count(), 150U);
  for (int i = 0; i < 200; ++i) pace.Note(10.0, 10.0);
  EXPECT_EQ(pace.count(), 10U);
}

TEST(SelectionPace, EarlyReadsMakeItMoreUpToTheMost) {
  SelectionPace pace(10, 160, 200, 0.9);
  pace.Note(10.0, 0.4);  // 96 % hidden
  EXPECT_EQ(pace.count(), 165U);
  for (int i = 0; i < 200; ++i) pace.Note(10.0, 0.0);
  EXPECT_EQ(pace.count(), 200U);
}

// About as late as is asked for, nothing changes; where nothing was read, there is time.
TEST(SelectionPace, StaysWhereReadsAreAboutInTime) {
  SelectionPace pace(10, 160, 200, 0.9);
  pace.Note(10.0, 0.8);
  EXPECT_EQ(pace.count(), 160U);
  pace.Note(0.0, 0.0);
  EXPECT_EQ(pace.count(), 165U);
}

// Small numbers move, too.
TEST(SelectionPace, MovesByOneAtLeast) {
  SelectionPace pace(1, 5, 7, 0.5);
  pace.Note(1.0, 1.0);
  EXPECT_EQ(pace.count(), 4U);
  pace.Note(1.0, 0.0);
  EXPECT_EQ(pace.count(), 5U);
}

// Reads that take as long for each group settle where as much of them is hidden as is asked for.
TEST(SelectionPace, SettlesWhereTheReadsAreHidden) {
  SelectionPace pace(10, 20, 1000, 0.9);
  const auto step = [&] {
    const double io_ms = 0.1 * pace.count();
    pace.Note(io_ms, io_ms > 30.0 ? io_ms - 30.0 : 0.0);
  };
  for (int i = 0; i < 300; ++i) step();
  for (int i = 0; i < 50; ++i) {
    EXPECT_GE(pace.count(), 290U);
    EXPECT_LE(pace.count(), 345U);
    step();
  }
}

}  // namespace
}  // namespace kvrun
