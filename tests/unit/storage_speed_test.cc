#include "runtime/engine/machine/storage_speed.h"

#include <gtest/gtest.h>

#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/plan/kv_plan_input.h"

namespace kvrun {
namespace {

TEST(StorageSpeed, SlowStorageReadsLongerGroups) {
  EXPECT_EQ(GroupTokensFor(1e6), 4U);
  EXPECT_EQ(GroupTokensFor(15000.0), 4U);
  EXPECT_EQ(GroupTokensFor(14999.9), 8U);
  EXPECT_EQ(GroupTokensFor(1500.0), 8U);
  EXPECT_EQ(GroupTokensFor(1499.9), 16U);
  EXPECT_EQ(GroupTokensFor(0.001), 16U);
  EXPECT_EQ(kDefaultGroupTokens, 4U);
}

TEST(StorageSpeed, ANoteSaysWhatWasFound) {
  EXPECT_EQ(
      GroupNote(4236.7),
      "the flash reads 4,200 blocks of 4 KiB a second, so KV is read in groups of 8 entries, as on eMMC");
  EXPECT_EQ(
      GroupNote(14960.0),
      "the flash reads 15,000 blocks of 4 KiB a second, so KV is read in groups of 8 entries, as on eMMC");
  EXPECT_EQ(GroupNote(123.4),
            "the storage reads 120 blocks of 4 KiB a second, so KV is read in groups of 16 entries, as on "
            "hard disks");
  EXPECT_EQ(GroupNote(7.0),
            "the storage reads 7 blocks of 4 KiB a second, so KV is read in groups of 16 entries, as on hard "
            "disks");
}

}  // namespace
}  // namespace kvrun
