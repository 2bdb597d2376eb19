// Predicted times of steps: the storage's rates, the fit, and what it does with samples of a known law.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "offline/step_sampler.h"
#include "offline/time_model.h"
#include "tests/support/tune_cases.h"

namespace kvrun::offline {
namespace {

using testing::SmolLm2Setting;

StorageRate Rate(uint32_t block_bytes, uint32_t depth, double bytes_per_s, const char* backend = "io_uring",
                 bool direct = true) {
  return {backend, direct, block_bytes, depth, bytes_per_s, 0.0, 0.0};
}

// A layer's reads of one stream: `loads` in all, each a read of its own.
TimePoint Reading(double loads, uint32_t record_bytes) {
  TimePoint point;
  point.n_layers = 10;
  point.n_streams = 1;
  point.loads = point.reads = loads;
  point.record_bytes = record_bytes;
  return point;
}

const StorageProfile kDisk = {
    "/x",
    512,
    {Rate(4096, 1, 1e8), Rate(4096, 16, 4e8), Rate(16384, 1, 4e8), Rate(16384, 16, 16e8),
     Rate(4096, 1, 1.0, "threads"), Rate(4096, 1, 1.0, "io_uring", false)}};

TEST(OfflineStorageModel, RatesAreThoseOfBlockAndDepth) {
  const StorageModel model(kDisk);
  EXPECT_NEAR(model.Milliseconds(Reading(10, 4096)), 10 * 4096 / 1e8 * 1e3, 1e-9) << "one at a time";
  EXPECT_NEAR(model.Milliseconds(Reading(160, 4096)), 160 * 4096 / 4e8 * 1e3, 1e-9) << "16 at a time";
  EXPECT_NEAR(model.Milliseconds(Reading(160, 16384)), 160 * 16384 / 16e8 * 1e3, 1e-9);
  EXPECT_NEAR(model.Milliseconds(Reading(10, 8192)), 10 * 8192 / 2e8 * 1e3, 1e-9) << "between the blocks";
  EXPECT_NEAR(model.Milliseconds(Reading(40, 4096)), 40 * 4096 / 2e8 * 1e3, 1e-9) << "between the depths";
}

TEST(OfflineStorageModel, BeyondWhatWasMeasuredItIsCautious) {
  const StorageModel model(kDisk);
  EXPECT_NEAR(model.Milliseconds(Reading(10, 512)), model.Milliseconds(Reading(10, 4096)), 1e-9)
      << "a smaller block comes no sooner";
  EXPECT_NEAR(model.Milliseconds(Reading(1600, 4096)), 1600 * 4096 / 4e8 * 1e3, 1e-9);
  EXPECT_NEAR(model.Milliseconds(Reading(10, 65536)), 10 * 65536 / 4e8 * 1e3, 1e-9);
}

TEST(OfflineStorageModel, AdjacentGroupsAreOneRead) {
  TimePoint merged = Reading(40, 4096);
  merged.reads = 10;
  EXPECT_NEAR(StorageModel(kDisk).Milliseconds(merged), 40 * 4096 / 4e8 * 1e3, 1e-9) << "blocks of 16 KiB";
}

TEST(OfflineStorageModel, NothingReadOrMeasuredTakesNothing) {
  EXPECT_EQ(StorageModel(kDisk).Milliseconds(Reading(0, 4096)), 0.0);
  EXPECT_EQ(StorageModel(StorageProfile{}).Milliseconds(Reading(10, 4096)), 0.0);
  EXPECT_EQ(StorageModel().Milliseconds(Reading(10, 4096)), 0.0);
}

TEST(OfflineLeastSquares, KnownAnswers) {
  const auto exact = NonNegativeLeastSquares({{1, 0}, {0, 2}, {1, 2}}, {3, 8, 11}, 0.0);
  ASSERT_EQ(exact.size(), 2U);
  EXPECT_NEAR(exact[0], 3.0, 1e-6);
  EXPECT_NEAR(exact[1], 4.0, 1e-6);
  // Without the bound the second would be -1; then the first is the mean of what remains.
  const auto bounded = NonNegativeLeastSquares({{1, 0}, {1, 1}}, {2, 1}, 0.0);
  EXPECT_NEAR(bounded[0], 1.5, 1e-6);
  EXPECT_EQ(bounded[1], 0.0);
  const auto unused = NonNegativeLeastSquares({{1, 0}, {2, 0}}, {5, 10}, 0.0);
  EXPECT_NEAR(unused[0], 5.0, 1e-6);
  EXPECT_EQ(unused[1], 0.0);
  EXPECT_TRUE(NonNegativeLeastSquares({}, {}, 1.0).empty());
}

TEST(OfflineLeastSquares, ScaleOfAColumnDoesNotMatterAndARidgeShrinks) {
  const auto small = NonNegativeLeastSquares({{1e-6, 1}, {2e-6, 0}, {0, 1}}, {3, 4, 1}, 0.0);
  EXPECT_NEAR(small[0], 2e6, 10);
  EXPECT_NEAR(small[1], 1.0, 1e-5);
  const auto free = NonNegativeLeastSquares({{1}, {1}}, {2, 2}, 0.0);
  const auto shrunk = NonNegativeLeastSquares({{1}, {1}}, {2, 2}, 1.0);
  EXPECT_NEAR(free[0], 2.0, 1e-9);
  EXPECT_NEAR(shrunk[0], 1.0, 1e-9) << "the column's length is 1, and so is the ridge";
}

// A machine that does all one after another: what each thing costs is far from what the model begins with.
double ComputeMs(const TimePoint& point) {
  const double entries =
      double{1.0} * point.n_streams * point.chosen_groups * point.group_tokens * point.heads_per_record;
  const auto cost = [](KvType type) {
    if (type == KvType::kF16) return 0.8e-3;
    return type == KvType::kInt4 ? 1.6e-3 : 1.2e-3;
  };
  const double scored = double{1.0} * point.batch * point.ctx;
  return 2.0 + 1.0 * point.batch + entries * (cost(point.k_type) + cost(point.v_type)) +
         scored * point.rank * (point.index_type == KvType::kF16 ? 1e-5 : 1.6e-5) + scored * 1e-4 +
         point.loads * 1.5e-3;
}

struct Cases {
  std::vector<StepSample> samples;   // to fit to
  std::vector<StepSample> held_out;  // to ask about
};

// `time`: of a point, in ms.
template <typename Time>
Cases CasesOf(const std::vector<SearchSetting>& settings, const Time& time) {
  std::vector<std::vector<SizedCandidate>> candidates;
  for (const SearchSetting& setting : settings) candidates.push_back(AllCandidates(setting));
  const auto measure = [&](size_t count, uint64_t seed) {
    std::vector<StepSample> samples;
    for (const StepPoint& point : SpreadPoints(settings, candidates, count, seed)) {
      const TimePoint at = PointOf(point.setting, point.sized.plan, {point.repeated_share, 0.9});
      samples.push_back({at, time(at)});
    }
    return samples;
  };
  return {measure(64, 1), measure(100, 2)};
}

struct Errors {
  double mean = 0.0;
  double worst = 0.0;
};
Errors ErrorsOf(const TimeModel& model, const std::vector<StepSample>& samples) {
  Errors errors;
  for (const StepSample& sample : samples) {
    const double error = std::abs(model.Predict(sample.point).step_ms / sample.step_ms - 1.0);
    errors.mean += error / static_cast<double>(samples.size());
    errors.worst = std::max(errors.worst, error);
  }
  return errors;
}

TEST(OfflineTimeModel, ASumOfCostsIsPredicted) {
  for (const uint32_t divisor : {13U, 34U}) {
    const Cases cases = CasesOf({SmolLm2Setting(divisor), SmolLm2Setting(divisor, 4)}, ComputeMs);
    const Result<TimeModel> model = TimeModel::Fit(cases.samples, {});
    ASSERT_TRUE(model.ok()) << model.status().message();
    const Errors errors = ErrorsOf(*model, cases.held_out);
    EXPECT_LT(errors.mean, 0.03) << divisor;
    EXPECT_LT(errors.worst, 0.12) << divisor;
    const Errors fitted = ErrorsOf(*model, cases.samples);
    EXPECT_NEAR(model->max_error(), fitted.worst, 1e-9);
    EXPECT_NEAR(model->mean_error(), fitted.mean, 1e-9);
    for (const StepSample& sample : cases.held_out) {
      const PredictedTime time = model->Predict(sample.point);
      EXPECT_EQ(time.storage_ms, 0.0);
      EXPECT_FALSE(time.is_io_bound());
      EXPECT_NEAR(time.step_ms, time.model_ms + time.reading_ms, 1e-9);
    }
  }
}

TEST(OfflineTimeModel, OneWildSampleDoesNotBendTheRest) {
  Cases cases = CasesOf({SmolLm2Setting(13)}, ComputeMs);
  cases.samples[7].step_ms *= 6;
  cases.samples[20].step_ms /= 4;
  const Result<TimeModel> model = TimeModel::Fit(cases.samples, {});
  ASSERT_TRUE(model.ok());
  const Errors errors = ErrorsOf(*model, cases.held_out);
  EXPECT_LT(errors.mean, 0.04);
  EXPECT_LT(errors.worst, 0.15);
  EXPECT_GT(model->max_error(), 0.5) << "they are still told";
}

// All blocks at one rate, whatever the depth.
StorageProfile SteadyDisk(double bytes_per_s) {
  StorageProfile disk{"/x", 512, {}};
  for (const uint32_t block : {512U, 1U << 20}) {
    for (const uint32_t depth : {1U, 64U}) disk.rates.push_back(Rate(block, depth, bytes_per_s));
  }
  return disk;
}

TEST(OfflineTimeModel, StepsThatWaitForFlashFollowItsRate) {
  const auto time = [](const TimePoint& point) {
    const double flash_ms = point.loads * point.record_bytes / 2e7 * 1e3;
    return std::max(ComputeMs(point), flash_ms);
  };
  const Cases cases = CasesOf({SmolLm2Setting(13)}, time);
  const Result<TimeModel> model = TimeModel::Fit(cases.samples, SteadyDisk(2e7));
  ASSERT_TRUE(model.ok());
  size_t n_bound = 0;
  for (const StepSample& sample : cases.held_out) {
    const double flash_ms = sample.point.loads * sample.point.record_bytes / 2e7 * 1e3;
    if (flash_ms < 2 * ComputeMs(sample.point)) continue;
    ++n_bound;
    const PredictedTime predicted = model->Predict(sample.point);
    EXPECT_TRUE(predicted.is_io_bound());
    EXPECT_NEAR(predicted.step_ms / flash_ms, 1.0, 0.05);
  }
  EXPECT_GT(n_bound, 20U);
}

TEST(OfflineTimeModel, FlashThatIsSlowerThanItsRatesIsLearnt) {
  const auto time = [](const TimePoint& point) {
    return std::max(ComputeMs(point), 1.4 * point.loads * point.record_bytes / 2e7 * 1e3);
  };
  const Cases cases = CasesOf({SmolLm2Setting(13)}, time);
  const Result<TimeModel> model = TimeModel::Fit(cases.samples, SteadyDisk(2e7));
  ASSERT_TRUE(model.ok());
  std::vector<StepSample> waiting;
  for (const StepSample& sample : cases.held_out) {
    if (sample.step_ms > 3 * ComputeMs(sample.point)) waiting.push_back(sample);
  }
  ASSERT_GT(waiting.size(), 20U);
  const Errors errors = ErrorsOf(*model, waiting);
  EXPECT_LT(errors.mean, 0.05) << "by the rates alone it would be 0.29";
  EXPECT_LT(errors.worst, 0.25);
}

// Other programs take the processor: few steps, each of them longer by a factor that says nothing.
TEST(OfflineTimeModel, NoiseDoesNotRunAway) {
  const Cases cases = CasesOf({SmolLm2Setting(13), SmolLm2Setting(13, 2)}, ComputeMs);
  std::mt19937_64 random(1);
  for (int i = 0; i < 40; ++i) {
    std::vector<StepSample> samples = cases.samples;
    std::shuffle(samples.begin(), samples.end(), random);
    samples.resize(4 + random() % 12);
    for (StepSample& sample : samples) {
      sample.step_ms *= std::exp(4.0 * std::generate_canonical<double, 53>(random));
    }
    const auto [shortest, longest] =
        std::minmax_element(samples.begin(), samples.end(),
                            [](const StepSample& a, const StepSample& b) { return a.step_ms < b.step_ms; });
    const Result<TimeModel> model = TimeModel::Fit(samples, i % 2 == 0 ? SteadyDisk(2e9) : StorageProfile{});
    ASSERT_TRUE(model.ok());
    for (const StepSample& sample : cases.held_out) {
      const PredictedTime time = model->Predict(sample.point);
      EXPECT_GE(time.step_ms, shortest->step_ms / 10) << i;
      EXPECT_LE(time.step_ms, longest->step_ms * 10) << i;
      EXPECT_LT(time.model_ms + time.reading_ms + time.storage_ms, longest->step_ms * 30)
          << i << ": the fit's own";
    }
  }
}

TEST(OfflineTimeModel, ABatchBetweenThoseSampledIsInterpolated) {
  const Cases cases = CasesOf({SmolLm2Setting(13), SmolLm2Setting(13, 4)}, ComputeMs);
  const Result<TimeModel> model = TimeModel::Fit(cases.samples, {});
  ASSERT_TRUE(model.ok());
  for (const uint32_t batch : {2U, 3U}) {
    const Cases between = CasesOf({SmolLm2Setting(13, batch)}, ComputeMs);
    EXPECT_LT(ErrorsOf(*model, between.held_out).mean, 0.05) << batch;
  }
  TimePoint point = cases.held_out.front().point;
  point.batch = 16;
  EXPECT_TRUE(std::isfinite(model->Predict(point).step_ms)) << "beyond the largest";
}

TEST(OfflineTimeModel, TooFewSamplesAreRefused) {
  const Cases cases = CasesOf({SmolLm2Setting(13)}, ComputeMs);
  const std::vector<StepSample> three(cases.samples.begin(), cases.samples.begin() + 3);
  const Result<TimeModel> model = TimeModel::Fit(three, {});
  EXPECT_EQ(model.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(model.status().message().find("too few"), std::string::npos);
  EXPECT_FALSE(TimeModel::Fit({}, {}).ok());
  const std::vector<StepSample> four(cases.samples.begin(), cases.samples.begin() + 4);
  EXPECT_TRUE(TimeModel::Fit(four, {}).ok());
}

TEST(OfflineTimePoint, CountsWhatAPlanReads) {
  const SearchSetting setting = SmolLm2Setting(13);
  const SizedCandidate own = BudgetsOwnChoice(setting).value();
  const TimePoint point = PointOf(setting, own.plan, {0.75, 0.5});
  const double chosen = own.plan.choice.n_chosen - own.plan.choice.n_pinned;
  EXPECT_NEAR(point.loads, 30 * chosen * 0.25, 1e-9);
  EXPECT_NEAR(point.reads, point.loads / 2, 1e-9);
  EXPECT_EQ(point.record_bytes % setting.io_alignment_bytes, 0U);
  EXPECT_GE(point.record_bytes, own.plan.record.size_bytes());
  EXPECT_EQ(PointOf(setting, own.plan, {}).loads, 0.0);
}

}  // namespace
}  // namespace kvrun::offline
