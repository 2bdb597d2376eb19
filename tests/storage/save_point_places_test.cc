// Which place a unit has, and what becomes of it, without any file.
#include "runtime/store/save_point_places.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace kvrun::testing {
namespace {

using PlaceRun = std::pair<uint32_t, uint32_t>;

constexpr uint32_t kUnits = 6;  // so shadows are from 6 on

std::vector<PlaceRun> EndSaveOf(SavePointPlaces& places) {
  std::vector<PlaceRun> runs;
  places.EndSave([&](uint32_t first, uint32_t end) { runs.emplace_back(first, end); });
  return runs;
}

std::vector<PlaceRun> SaveOf(SavePointPlaces& places) {
  places.Show();
  return EndSaveOf(places);
}

std::vector<PlaceRun> DiscardOf(SavePointPlaces& places, uint32_t first, uint32_t end) {
  std::vector<PlaceRun> runs;
  places.Discard(first, end, [&](uint32_t a, uint32_t b) { runs.emplace_back(a, b); });
  return runs;
}

TEST(SavePointPlaces, AUnitGoesHomeAndIsWrittenThereUntilItIsSaved) {
  SavePointPlaces places(kUnits);
  EXPECT_FALSE(places.IsThere(3));
  EXPECT_EQ(places.PlaceOf(3), SavePointPlaces::kNone);
  EXPECT_EQ(places.PlaceToWrite(3), 3U);
  EXPECT_EQ(places.PlaceToWrite(3), 3U);
  EXPECT_TRUE(places.IsThere(3));
  EXPECT_EQ(places.CountUsed(), 1U);
  EXPECT_TRUE(SaveOf(places).empty());
  EXPECT_EQ(places.PlaceOf(3), 3U);
  EXPECT_EQ(places.PlaceToWrite(3), 6U);
  EXPECT_EQ(places.PlaceToWrite(3), 6U);
  EXPECT_EQ(places.PlaceOf(3), 6U);
  EXPECT_EQ(places.CountUsed(), 2U);
  EXPECT_EQ(places.HighestPlace(), 6U);
}

TEST(SavePointPlaces, AUnitGoesToAndFroBetweenItsHomeAndAShadow) {
  SavePointPlaces places(kUnits);
  for (int round = 0; round < 5; ++round) {
    EXPECT_EQ(places.PlaceToWrite(1), 1U);
    const std::vector<PlaceRun> shadow_is_free = {{6, 7}};
    EXPECT_EQ(SaveOf(places), round == 0 ? std::vector<PlaceRun>() : shadow_is_free);
    EXPECT_EQ(places.PlaceToWrite(1), 6U);
    EXPECT_EQ(SaveOf(places), (std::vector<PlaceRun>{{1, 2}}));
    EXPECT_EQ(places.CountUsed(), 1U);
  }
}

TEST(SavePointPlaces, TheLowestShadowIsTakenAndRunsAreWhole) {
  SavePointPlaces places(kUnits);
  for (uint32_t unit = 0; unit < 5; ++unit) places.PlaceToWrite(unit);
  SaveOf(places);
  for (uint32_t unit = 0; unit < 4; ++unit) EXPECT_EQ(places.PlaceToWrite(unit), 6 + unit);
  EXPECT_EQ(SaveOf(places), (std::vector<PlaceRun>{{0, 4}}));
  places.PlaceToWrite(1);
  places.PlaceToWrite(2);
  EXPECT_EQ(SaveOf(places), (std::vector<PlaceRun>{{7, 9}}));
  EXPECT_EQ(places.PlaceToWrite(4), 7U);
  EXPECT_EQ(places.PlaceToWrite(2), 8U);
  EXPECT_EQ(places.PlaceToWrite(1), 10U);
}

// A save that was shown may be on the disk though it was not confirmed, and so may the one before it.
TEST(SavePointPlaces, WhatWasShownSinceTheLastSavePointIsHeldWithIt) {
  SavePointPlaces places(kUnits);
  places.PlaceToWrite(0);
  SaveOf(places);
  EXPECT_EQ(places.PlaceToWrite(0), 6U);
  places.Show();
  EXPECT_EQ(places.PlaceToWrite(0), 7U);
  places.Show();
  EXPECT_EQ(places.PlaceToWrite(0), 8U);
  EXPECT_EQ(places.CountUsed(), 4U);
  places.Show();
  EXPECT_EQ(EndSaveOf(places), (std::vector<PlaceRun>{{0, 1}, {6, 8}}));
  EXPECT_EQ(places.CountUsed(), 1U);
  EXPECT_EQ(places.PlaceToWrite(0), 0U);
}

TEST(SavePointPlaces, WhatIsWrittenAfterTheLastWasShownIsNoPartOfIt) {
  SavePointPlaces places(kUnits);
  places.PlaceToWrite(0);
  places.Show();
  EXPECT_EQ(places.PlaceToWrite(0), 6U);
  EXPECT_EQ(places.PlaceToWrite(1), 1U);
  EXPECT_TRUE(EndSaveOf(places).empty());
  EXPECT_EQ(places.PlaceToWrite(0), 6U);  // not held
  EXPECT_EQ(places.PlaceToWrite(1), 1U);
  EXPECT_EQ(SaveOf(places), (std::vector<PlaceRun>{{0, 1}}));
}

TEST(SavePointPlaces, WhatIsDiscardedIsFreeAfterTheNextSavePoint) {
  SavePointPlaces places(kUnits);
  places.PlaceToWrite(0);
  places.PlaceToWrite(1);
  SaveOf(places);
  EXPECT_EQ(places.PlaceToWrite(1), 6U);
  EXPECT_EQ(places.PlaceToWrite(2), 2U);
  // The save point holds 0 and 1; shadow 6 and home 2 nobody holds.
  EXPECT_EQ(DiscardOf(places, 0, 5), (std::vector<PlaceRun>{{6, 7}, {2, 3}}));
  EXPECT_FALSE(places.IsThere(1));
  EXPECT_EQ(places.CountUsed(), 2U);
  EXPECT_TRUE(DiscardOf(places, 0, 5).empty());
  EXPECT_EQ(places.PlaceToWrite(0), 7U);  // not home, and not the shadow that a write may be on its way to
  EXPECT_EQ(SaveOf(places), (std::vector<PlaceRun>{{0, 3}, {6, 7}}));
  EXPECT_EQ(places.PlaceOf(1), SavePointPlaces::kNone);
  EXPECT_EQ(places.PlaceToWrite(1), 1U);
  EXPECT_EQ(places.PlaceToWrite(0), 0U);
}

TEST(SavePointPlaces, WhatIsDiscardedAfterItWasShownIsHeld) {
  SavePointPlaces places(kUnits);
  places.PlaceToWrite(0);
  places.Show();
  EXPECT_TRUE(DiscardOf(places, 0, 1).empty());
  EXPECT_TRUE(EndSaveOf(places).empty());
  EXPECT_EQ(places.PlaceToWrite(0), 6U);
}

TEST(SavePointPlaces, ManyUnitsHaveManyShadows) {
  constexpr uint32_t kMany = 5000;
  SavePointPlaces places(kMany);
  for (uint32_t unit = 0; unit < kMany; ++unit) places.PlaceToWrite(unit);
  SaveOf(places);
  for (uint32_t unit = 0; unit < kMany; ++unit) EXPECT_EQ(places.PlaceToWrite(unit), kMany + unit);
  EXPECT_EQ(SaveOf(places), (std::vector<PlaceRun>{{0, kMany}}));
  EXPECT_EQ(places.HighestPlace(), 2 * kMany - 1);
  EXPECT_EQ(places.CountUsed(), kMany);
}

}  // namespace
}  // namespace kvrun::testing
