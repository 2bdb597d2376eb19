// Steps measured on a machine that drifts, and the model that is fitted to them.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "offline/step_times.h"
#include "tests/support/tune_cases.h"

namespace kvrun::offline {
namespace {

using testing::SmolLm2Setting;

TEST(OfflineSteadyClock, SlownessIsThatOfTheReferencesAround) {
  SteadyClock clock;
  clock.Note();
  EXPECT_EQ(clock.Slowness(0), 1.0) << "nothing is known";
  clock.Refer(10.0);
  clock.Note();
  clock.Note();
  clock.Refer(20.0);
  clock.Note();
  clock.Refer(10.0);
  clock.Refer(10.0);
  clock.Refer(10.0);
  clock.Note();
  EXPECT_EQ(clock.Slowness(0), 1.5) << "before the first reference: as around it";
  EXPECT_EQ(clock.Slowness(1), 1.5);
  EXPECT_EQ(clock.Slowness(2), 1.5);
  EXPECT_EQ(clock.Slowness(3), 1.5);
  EXPECT_EQ(clock.Slowness(4), 1.0) << "after the last";
}

double LawMs(const TimePoint& point) {
  const double n_entries =
      1.0 * point.n_streams * point.chosen_groups * point.group_tokens * point.heads_per_record;
  return 3.0 + 1e-3 * n_entries + 2e-3 * point.loads;
}

// Half as fast for two fifths of the time.
double Drift(size_t k, size_t n) { return k > n / 5 && k < 3 * n / 5 ? 2.0 : 1.0; }

// What the models make of steps on a machine that drifts, knowing of it and not.
struct DriftErrors {
  double times = 0.0;
  double blind = 0.0;
};

DriftErrors FitDrifting(uint64_t seed) {
  const std::vector<SearchSetting> settings = {SmolLm2Setting(13)};
  const std::vector<StepPoint> points = SpreadPoints(settings, {AllCandidates(settings.front())}, 60, seed);
  StepTimes times({});
  StepTimes blind({});
  std::vector<StepSample> truth;
  for (size_t k = 0; k < points.size(); ++k) {
    const double drift = Drift(k, points.size());
    times.Refer(5.0 * drift);
    blind.Refer(5.0);
    const TimePoint point = PointOf(settings.front(), points[k].sized.plan, {points[k].repeated_share});
    truth.push_back({point, LawMs(point)});
    times.Add({point, drift * LawMs(point)});
    blind.Add({point, drift * LawMs(point)});
    if (k % 10 == 0) times.Note();  // something that no model is fitted to
  }
  times.Refer(5.0);
  blind.Refer(5.0);
  EXPECT_TRUE(times.Fit().ok());
  EXPECT_TRUE(blind.Fit().ok());
  const auto mean_error = [&](const TimeModel& model) {
    double error = 0.0;
    for (const StepSample& sample : truth)
      error += std::abs(model.Predict(sample.point).step_ms / sample.step_ms - 1.0);
    return error / static_cast<double>(truth.size());
  };
  const std::vector<StepSample> steady = times.SteadySamples();
  EXPECT_EQ(steady.size(), truth.size());
  size_t n_right = 0;
  for (size_t k = 0; k < steady.size(); ++k)
    n_right += std::abs(steady[k].step_ms / truth[k].step_ms - 1.0) < 1e-9 ? 1 : 0;
  EXPECT_GE(n_right, truth.size() - 2) << "all but those between two states of the machine";
  return {mean_error(times.model()), mean_error(blind.model())};
}

// Of one spread of points alone, what does not know of the drift may come near by chance.
TEST(OfflineStepTimes, TheMachinesDriftIsTakenOut) {
  DriftErrors sum;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const DriftErrors errors = FitDrifting(seed);
    EXPECT_LT(errors.times, 0.03) << seed;
    sum.times += errors.times;
    sum.blind += errors.blind;
  }
  EXPECT_LT(sum.times, 0.5 * sum.blind);
}

TEST(OfflineStepTimes, TooFewSamplesCannotBeFitted) {
  StepTimes times({});
  times.Add({});
  EXPECT_FALSE(times.Fit().ok());
}

}  // namespace
}  // namespace kvrun::offline
