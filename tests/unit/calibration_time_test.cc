// What of a calibration there is time for, by rates as devices have them.
#include "runtime/engine/measure/calibration_time.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvrun {
namespace {

// As SmolLM2-135M on two cores: 16 s for a piece of 8192 tokens.
constexpr CalibrationRates kQuiet{.token_s = 0.001, .attend_s = 2.4e-7, .step_s = 0.005};
CalibrationRates SlowerBy(double factor) {
  return {kQuiet.token_s * factor, kQuiet.attend_s * factor, kQuiet.step_s * factor};
}
constexpr CalibrationJob kJob{.n_tokens = 131072, .n_ctx = 8192, .rank = 192, .n_layers = 30};

TEST(CalibrationTime, WithoutALimitNothingIsLeftOut) {
  const CalibrationTimes times = ChooseCalibrationTimes(kQuiet, kJob, 0);
  EXPECT_EQ(times.n_ctx, 8192U);
  EXPECT_EQ(times.seconds, times.all_seconds);
  EXPECT_NEAR(times.sums_s, 16 * kQuiet.PromptSeconds(8192), 1e-6);
  EXPECT_NEAR(times.all_seconds, times.sums_s + times.later_s, 1e-6);
}

TEST(CalibrationTime, WhatFitsIsDoneInFull) {
  const double all_s = ChooseCalibrationTimes(kQuiet, kJob, 0).all_seconds;
  const CalibrationTimes times = ChooseCalibrationTimes(kQuiet, kJob, 2 * all_s);
  EXPECT_EQ(times.n_ctx, 8192U);
  EXPECT_EQ(times.seconds, all_s);
  EXPECT_GT(times.sums_s, all_s - times.later_s) << "the sums may take what is over";
}

// Whatever the machine, the parts are within the limit, and the less there is time for, the shorter a piece.
TEST(CalibrationTime, ALimitIsKeptOnSlowMachines) {
  constexpr double kLimitS = 180;
  uint32_t n_ctx = 8192;
  for (const double factor : {1.0, 3.0, 10.0, 30.0, 100.0}) {
    const CalibrationRates rates = SlowerBy(factor);
    const CalibrationTimes times = ChooseCalibrationTimes(rates, kJob, kLimitS);
    EXPECT_LE(times.sums_s + times.later_s, kLimitS + 1e-6) << factor;
    EXPECT_GT(times.all_seconds, kLimitS) << factor;
    EXPECT_LE(times.n_ctx, n_ctx) << factor;
    n_ctx = times.n_ctx;
    if (n_ctx >= 1024) {
      EXPECT_LE(2 * rates.PromptSeconds(n_ctx), times.sums_s) << factor;
      EXPECT_LE(rates.PromptSeconds(n_ctx), 0.15 * kLimitS) << factor;
    }
    EXPECT_LE(times.seconds, kLimitS) << factor;
  }
  EXPECT_EQ(n_ctx, 512U);
  CalibrationJob asked = kJob;
  asked.may_shorten = false;
  EXPECT_EQ(ChooseCalibrationTimes(SlowerBy(100), asked, kLimitS).n_ctx, 8192U) << "--ctx";
  EXPECT_GT(ChooseCalibrationTimes(SlowerBy(1000), kJob, kLimitS).seconds, kLimitS)
      << "what a rank needs is summed up, and said";
}

TEST(CalibrationTime, WhatIsNotMeasuredGivesItsTimeToTheSums) {
  const auto sums_s = [](double factor, bool measures_reuse, bool measures_layers) {
    CalibrationJob job = kJob;
    job.measures_reuse = measures_reuse;
    job.measures_layers = measures_layers;
    return ChooseCalibrationTimes(SlowerBy(factor), job, 180).sums_s;
  };
  EXPECT_GT(sums_s(2, false, false), sums_s(2, true, false));
  EXPECT_GT(sums_s(2, true, false), sums_s(2, true, true));
  EXPECT_EQ(sums_s(10, true, false), sums_s(10, true, true)) << "layers take too long";
}

TEST(CalibrationTime, WhatIsKeptAlreadyTakesNoTime) {
  CalibrationJob job = kJob;
  job.n_done_tokens = job.n_tokens;
  EXPECT_EQ(ChooseCalibrationTimes(kQuiet, job, 0).sums_s, 0.0);
}

TEST(PiecesThatFit, EndWithTheTimeButNotBeforeTheRankIsThere) {
  const std::vector<TokenId> text(100);
  const std::vector<std::span<const TokenId>> pieces(5, std::span(text));
  EXPECT_EQ(PiecesThatFit(pieces, 0, 50, 1.0, 1000), 5U);
  EXPECT_EQ(PiecesThatFit(pieces, 0, 50, 1.0, 300), 3U);
  EXPECT_EQ(PiecesThatFit(pieces, 0, 50, 1.0, 299), 2U);
  EXPECT_EQ(PiecesThatFit(pieces, 2, 50, 1.0, 199), 3U) << "two are done";
  EXPECT_EQ(PiecesThatFit(pieces, 2, 50, 1.0, -10), 2U);
  EXPECT_EQ(PiecesThatFit(pieces, 0, 50, 1.0, 0), 1U) << "one at least";
  EXPECT_EQ(PiecesThatFit(pieces, 0, 250, 1.0, 0), 3U) << "96 of each count";
}

TEST(ReuseSettings, ThoseNearestToWhatIsChosenComeFirst) {
  std::vector<ReuseSettingSize> settings;
  for (const uint32_t group : {1U, 2U, 4U, 8U, 16U}) {
    for (const uint32_t select : {96U, 192U, 384U, 768U}) settings.emplace_back(group, select);
  }
  const std::vector<ReuseSettingSize> order = ByImportance(settings);
  ASSERT_EQ(order.size(), settings.size());
  EXPECT_EQ(order[0], (ReuseSettingSize{4, 384}));
  EXPECT_EQ(order[1], (ReuseSettingSize{2, 384}));
  EXPECT_EQ(order[2], (ReuseSettingSize{4, 192}));
  EXPECT_EQ(order.back(), (ReuseSettingSize{16, 96}));
}

TEST(Cuts, AreHalvedUntilTheyFit) {
  constexpr CutSize kFull{4096, 64};
  EXPECT_EQ(ChooseCuts(kQuiet, kFull, 30, 1e9), kFull);
  double left_s = CutSeconds(kQuiet, kFull, 30);
  size_t n_sizes = 0;
  for (auto size = ChooseCuts(kQuiet, kFull, 30, left_s); size;
       size = ChooseCuts(kQuiet, kFull, 30, left_s)) {
    EXPECT_LE(CutSeconds(kQuiet, *size, 30), left_s);
    EXPECT_GE(size->n_ctx, 8 * size->n_steps);
    left_s = 0.999 * CutSeconds(kQuiet, *size, 30);
    ++n_sizes;
  }
  EXPECT_EQ(n_sizes, 3U) << "half the text, twice, and all steps";
  EXPECT_EQ(ChooseCuts(kQuiet, kFull, 30, 0), std::nullopt);
  EXPECT_EQ(ChooseCuts(kQuiet, {256, 32}, 30, 1e9), (CutSize{256, 32})) << "a short text";
}

}  // namespace
}  // namespace kvrun
