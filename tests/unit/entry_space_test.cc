// The space of records on the host, against matrices.
#include "runtime/device/entry_space.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/device/self_test_data.h"
#include "tests/support/slot_reference.h"

namespace kvrun {
namespace {

constexpr uint32_t kSizes[] = {2, 8, 12, 64, 66, 80, 96, 128, 250, 256};

std::vector<double> Doubles(std::span<const float> row) { return {row.begin(), row.end()}; }

void ExpectNear(std::span<const float> found, std::span<const double> expected, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], tolerance) << "element " << i << " of " << found.size();
  }
}

TEST(EntrySpace, IsThatOfTheMatrices) {
  for (const uint32_t size : kSizes) {
    const std::vector<float> row = RandomFloats(size, 1);
    const std::vector<float> mean = RandomFloats(size, 2);
    const double tolerance = testing::SpaceTolerance(Doubles(row), mean);
    std::vector<float> found = row;
    RotateRow(found);
    ExpectNear(found, testing::RotatedRow(Doubles(row)), tolerance);
    found = row;
    RotateRowBack(found);
    ExpectNear(found, testing::RotatedBackRow(Doubles(row)), tolerance);
    found = row;
    IntoSpace(mean, found);
    ExpectNear(found, testing::IntoSpaceRow(Doubles(row), mean), tolerance);
    found = row;
    OutOfSpace(mean, found);
    ExpectNear(found, testing::OutOfSpaceRow(Doubles(row), mean), tolerance);
  }
}

TEST(EntrySpace, OutIsTheReverseOfInto) {
  for (const uint32_t size : kSizes) {
    const std::vector<float> row = RandomFloats(size, 3);
    const std::vector<float> mean = RandomFloats(size, 4);
    std::vector<float> found = row;
    IntoSpace(mean, found);
    OutOfSpace(mean, found);
    ExpectNear(found, Doubles(row), 2 * testing::SpaceTolerance(Doubles(row), mean));
  }
}

// What scores are made of.
TEST(EntrySpace, KeepsProducts) {
  for (const uint32_t size : kSizes) {
    std::vector<float> query = RandomFloats(size, 5);
    std::vector<float> key = RandomFloats(size, 6);
    double before = 0.0;
    for (uint32_t i = 0; i < size; ++i) before += double{query[i]} * key[i];
    RotateRow(query);
    RotateRow(key);
    double after = 0.0;
    for (uint32_t i = 0; i < size; ++i) after += double{query[i]} * key[i];
    EXPECT_NEAR(after, before, size * 1e-6) << size;
  }
}

// One large element becomes many of one size: what the space is for.
TEST(EntrySpace, SpreadsALargeElement) {
  std::vector<float> row(64);
  row[17] = 8.0F;
  RotateRow(row);
  for (const float element : row) EXPECT_NEAR(std::abs(element), 1.0F, 1e-6F);
}

}  // namespace
}  // namespace kvrun
