// How fast what is encrypted is opened, and that a session remembers it.
#include "runtime/engine/machine/opening_speed.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "platform/io/seal.h"
#include "runtime/engine/session/session_identity.h"
#include "tests/support/or_die.h"

namespace kvrun::testing {
namespace {

TEST(OpeningSpeed, IsMeasuredOnce) {
  const OpeningTimes times = MeasuredOpening("");
  EXPECT_EQ(MeasuredOpening(""), times);
  if (!CheckEncryption().ok()) {
    EXPECT_EQ(times.Microseconds(4096), 0.0);
    return;
  }
  EXPECT_GE(times.unit_us, 0.0);
  EXPECT_GT(times.bytes_per_s, 1e6) << "slower than any processor, with sanitizers, too";
  EXPECT_LT(times.bytes_per_s, 1e12);
  EXPECT_GT(times.Microseconds(8192), times.Microseconds(4096));
}

TEST(OpeningSpeed, ASessionRemembersIt) {
  SessionIdentity identity;
  identity.model = "m";
  identity.n_sequences = 1;
  identity.n_ctx = 64;
  identity.flash_times = FlashTimes{.reads_per_s = 1e5 / 3.0, .layer_us = 7.1, .share_cores = true};
  const auto again = [&] { return *OrDie(ReadIdentity(WriteIdentity(identity))).flash_times; };
  EXPECT_EQ(again().opening, OpeningTimes());
  EXPECT_EQ(again().reads_per_s, 1e5 / 3.0);
  identity.flash_times->opening = {.unit_us = 0.3, .bytes_per_s = 4.1e9};
  EXPECT_EQ(again().opening, identity.flash_times->opening);
  EXPECT_EQ(again().layer_us, 7.1);
  EXPECT_TRUE(again().share_cores);
  const std::string rest = "kvrun session\nmodel\tm\nsequences\t1\ncontext\t64\n";
  EXPECT_TRUE(ReadIdentity(rest + "flash\t1\t2\t3\t1\t5\t6\n").ok());
  EXPECT_FALSE(ReadIdentity(rest + "flash\t1\t2\t3\t1\t5\n").ok()) << "half of it";
}

}  // namespace
}  // namespace kvrun::testing
