// What steps say of a device's rates, and when that is far from what was measured.
#include "runtime/engine/device/rate_watch.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "tests/support/fake_forward_pass.h"

namespace kvrun {
namespace {

void Add(RateWatch* watch, uint32_t count, uint32_t n_rows, uint32_t position, double us) {
  for (uint32_t i = 0; i < count; ++i) watch->Add(n_rows, position, us);
}

TEST(RateWatch, KeepsTheLeastTimeOfEnoughSteps) {
  RateWatch watch;
  Add(&watch, kWatchedSteps - 1, 1, 10, 100.0);
  EXPECT_EQ(watch.Seen(), DeviceTimes());
  watch.Add(1, 10, 70.0);
  watch.Add(1, 10, 90.0);
  EXPECT_EQ(watch.Seen().decode_us, 70.0);
  EXPECT_EQ(watch.Seen().prefill_us, 0.0);
  Add(&watch, kWatchedChunks, 100, 100, 1000.0);
  EXPECT_EQ(watch.Seen().prefill_us, 10.0) << "per token";
}

TEST(RateWatch, LooksAtNothingThatTheTrialDoesNotMeasure) {
  RateWatch watch;
  Add(&watch, 100, 1, kWatchedPositions, 1.0);  // a long context
  Add(&watch, 100, kWatchedChunkRows - 1, 100, 1.0);
  EXPECT_EQ(watch.Seen(), DeviceTimes());
}

// It is asked for that alone.
class SharingPass final : public testing::FakeForwardPass {
 public:
  SharingPass() : FakeForwardPass(testing::FakePassOptions{}) {}
  StepMember* step_member() override { return reinterpret_cast<StepMember*>(this); }
};

TEST(RateWatch, APassThatIsWatchedSharesSteps) {
  auto pass = std::make_unique<SharingPass>();
  StepMember* const member = pass->step_member();
  EXPECT_EQ(WatchPass(std::move(pass), std::make_shared<RateWatch>())->step_member(), member);
}

TEST(RateWatch, StepsOfSeveralSequencesDoNotCount) {
  const auto watch = std::make_shared<RateWatch>();
  const auto pass = WatchPass(std::make_unique<testing::FakeForwardPass>(testing::FakePassOptions{
                                  .n_sequences = 100, .n_ctx = 200, .max_rows = 100}),
                              watch);
  EXPECT_EQ(pass->max_rows(), 100U);
  for (uint32_t position = 0; position < 2 * kWatchedSteps; ++position) {
    ForwardStep rows;
    for (uint32_t i = 0; i < 100; ++i) rows.Add(SpanKind::kDecode, {1, position, i});
    ASSERT_TRUE(pass->Run(rows, {}, {}).ok());
  }
  EXPECT_EQ(watch->Seen(), DeviceTimes());
  for (uint32_t position = 0; position < kWatchedSteps; ++position) {
    const ForwardStep row(SpanKind::kDecode, {1, 2 * kWatchedSteps + position, 0});
    ASSERT_TRUE(pass->Run(row, {}, {}).ok());
  }
  EXPECT_GT(watch->Seen().decode_us, 0.0);
  EXPECT_EQ(watch->Seen().prefill_us, 0.0);
}

TEST(RateWatch, FarOffIsBeyondTheFactorEitherWay) {
  const DeviceTimes kept = {.prefill_us = 10, .decode_us = 100};
  const DeviceTimes usual = {.prefill_us = 1, .decode_us = 1};
  const auto far = [&](double prefill_us, double decode_us) {
    return FarOff({.prefill_us = prefill_us, .decode_us = decode_us}, kept, usual).has_value();
  };
  EXPECT_FALSE(far(0, 0));
  EXPECT_FALSE(far(15.9, 159));
  EXPECT_FALSE(far(6.3, 63));
  EXPECT_TRUE(far(0, 161));
  EXPECT_TRUE(far(0, 62));
  EXPECT_TRUE(far(16.1, 100));
  EXPECT_TRUE(far(6.2, 0));
  EXPECT_FALSE(FarOff({.prefill_us = 0, .decode_us = 50}, kept, {.prefill_us = 1, .decode_us = 0.5}));
  EXPECT_TRUE(FarOff({.prefill_us = 0, .decode_us = 100}, kept, {.prefill_us = 1, .decode_us = 0.5}));
}

}  // namespace
}  // namespace kvrun
