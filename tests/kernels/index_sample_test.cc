// Groups that are drawn at random beside a choice, against the scalar reference; and on the CPU that what is
// drawn stands for all, on average.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "platform/base/random.h"
#include "runtime/device/host/score.h"
#include "shaders/shared/sample_params.h"
#include "tests/support/operations_fixture.h"
#include "tests/support/sample_reference.h"
#include "tests/support/score_cases.h"

namespace kvrun::testing {
namespace {

class IndexSampleTest : public OperationsTest {};

INSTANTIATE_TEST_SUITE_P(Modes, IndexSampleTest,
                         ::testing::ValuesIn(ModesOf(Operations::kIndex,
                                                     {DeviceMode::kPlanned, DeviceMode::kFloor,
                                                      DeviceMode::kGpu, DeviceMode::kGpuFloor})),
                         ModeName);

// A batch whose sequences have nothing, little and much to choose from: all that is left is drawn where it is
// no more.
TEST_P(IndexSampleTest, DrawsBesideAChoice) {
  for (Device* device : devices_) {
    for (const HeadReduction reduction : {HeadReduction::kSoftmax, HeadReduction::kPerKvHead}) {
      for (const uint32_t n_sampled : {1U, 9U, 120U, 300U}) {
        const ScoreCase c{.index = {KvType::kInt4, 12, 4, 250, 4},
                          .n_heads = 6,
                          .n_kv_heads = 2,
                          .head_dim = 16,
                          .reduction = reduction,
                          .window_tokens = 10,
                          .n_pinned = 2,
                          .n_chosen = 11,
                          .rule = ChooseAndSample{.n_sampled = n_sampled, .seed = 1000 + n_sampled},
                          .tokens = {TokenAt(5, 3), TokenAt(9 + 4 * 12, 2), TokenAt(9 + 4 * 140, 1),
                                     TokenAt(9 + 4 * 250, 0)}};
        CheckScore(*device, c);
      }
    }
  }
}

// Where a choice ends by its mass, what it leaves is more than usual.
TEST_P(IndexSampleTest, DrawsBesideAShareOfTheMass) {
  for (Device* device : devices_) {
    CheckScore(*device, {.index = {KvType::kInt4, 12, 4, 500, 1},
                         .n_heads = 6,
                         .n_kv_heads = 2,
                         .head_dim = 16,
                         .reduction = HeadReduction::kSoftmax,
                         .window_tokens = 10,
                         .n_pinned = 1,
                         .n_chosen = 200,
                         .rule = ChooseAndSample{.mass_share = 0.5F, .n_sampled = 60},
                         .tokens = {TokenAt(9 + 4 * 500, 0)}});
  }
}

// More groups than invocations' ranges have places for, drawn from few scores that differ.
TEST_P(IndexSampleTest, DrawsFromALongContext) {
  for (Device* device : devices_) {
    CheckScore(*device, {.index = {KvType::kInt4, 12, 1, 9000, 1},
                         .n_heads = 4,
                         .n_kv_heads = 2,
                         .head_dim = 16,
                         .reduction = HeadReduction::kPerKvHead,
                         .n_pinned = 4,
                         .n_chosen = 400,
                         .rule = ChooseAndSample{.n_sampled = 400},
                         .distinct_rows = 700,
                         .tokens = {TokenAt(8990, 0)}});
  }
}

// Masses as a softmax leaves them: a few large, most tiny, some that underflow.
std::vector<float> SomeMasses(size_t n) {
  Random random(5);
  std::vector<float> masses(n);
  for (float& mass : masses) mass = static_cast<float>(std::exp(6.0 * random.Symmetric() - 6.0));
  for (size_t i = 0; i < n; i += 17) masses[i] = 0.0F;
  return masses;
}

// One list's sample, of groups beside the chosen ones.
struct Sampler {
  std::vector<float> masses;
  ChoiceList shape;
  std::vector<uint32_t> list;

  Sampler(std::vector<float> of, ChoiceList with) : masses(std::move(of)), shape(with), list(shape.words()) {
    host::SelectGroups(masses.data(), static_cast<uint32_t>(masses.size()), 1, shape.n_chosen, 0.0F,
                       list.data());
  }
  void Draw(uint32_t seed) {
    host::SampleGroups(masses.data(), static_cast<uint32_t>(masses.size()), shape,
                       SampleOffset(seed, /*position=*/8000, /*list=*/0), list.data());
  }
  uint32_t n_drawn() const { return list[shape.sampled_begin()]; }
  uint32_t group(uint32_t i) const { return list[shape.sampled_begin() + 1 + i]; }
  double weight(uint32_t i) const { return std::exp(std::bit_cast<float>(list[shape.biases_begin() + i])); }
};

constexpr uint32_t kDraws = 10000;

// How often each is drawn is its probability, within 5 standard errors of as many draws.
TEST(SampleGroups, EachIsDrawnAsOftenAsItsProbabilitySays) {
  Sampler sampler(SomeMasses(600), {.n_chosen = 40, .n_sampled = 70});
  std::vector<double> counts(sampler.masses.size());
  for (uint32_t draw = 0; draw < kDraws; ++draw) {
    sampler.Draw(draw);
    ASSERT_LE(sampler.n_drawn(), 71U);
    ASSERT_GE(sampler.n_drawn(), 69U);
    for (uint32_t i = 0; i < sampler.n_drawn(); ++i) counts[sampler.group(i)] += 1.0;
  }
  const std::vector<double> expected =
      SampleProbabilities(std::vector<double>(sampler.masses.begin(), sampler.masses.end()),
                          std::span(sampler.list).subspan(1, sampler.list[0]), 70);
  EXPECT_NEAR(std::accumulate(expected.begin(), expected.end(), 0.0), 70.0, 0.5);
  for (size_t g = 0; g < counts.size(); ++g) {
    const double p = expected[g];
    const double error = std::sqrt(p * (1 - p) / kDraws) + 0x1p-17;
    EXPECT_NEAR(counts[g] / kDraws, p, 5 * error) << "group " << g;
    EXPECT_TRUE(p > 0.0 || counts[g] == 0.0) << "group " << g << " is chosen";
  }
}

// Numerator and denominator of attention: chosen and drawn groups, these with their biases, sum up to what
// all groups do, in every component.
TEST(SampleGroups, SumsOverWhatIsDrawnAreThoseOverAllOnAverage) {
  constexpr size_t kComponents = 8;  // the last is the denominator
  Sampler sampler(SomeMasses(600), {.n_chosen = 40, .n_sampled = 70});
  Random random(6);
  std::vector<double> values(sampler.masses.size() * kComponents);
  for (double& value : values) value = random.Symmetric();
  const auto term = [&](size_t group, size_t k) {
    return sampler.masses[group] * (k + 1 == kComponents ? 1.0 : values[group * kComponents + k]);
  };
  std::vector<double> all(kComponents);
  for (size_t g = 0; g < sampler.masses.size(); ++g) {
    for (size_t k = 0; k < kComponents; ++k) all[k] += term(g, k);
  }
  std::vector<double> sums(kComponents);
  std::vector<double> squares(kComponents);
  for (uint32_t draw = 0; draw < kDraws; ++draw) {
    sampler.Draw(draw);
    for (size_t k = 0; k < kComponents; ++k) {
      double sum = 0.0;
      for (uint32_t i = 1; i <= sampler.list[0]; ++i) sum += term(sampler.list[i], k);
      for (uint32_t i = 0; i < sampler.n_drawn(); ++i) sum += term(sampler.group(i), k) * sampler.weight(i);
      sums[k] += sum;
      squares[k] += sum * sum;
    }
  }
  for (size_t k = 0; k < kComponents; ++k) {
    const double mean = sums[k] / kDraws;
    const double variance = squares[k] / kDraws - mean * mean;
    const double error = std::sqrt(std::max(variance, 0.0) / kDraws);
    EXPECT_GT(variance, 0.0);
    EXPECT_NEAR(mean, all[k], 5 * error) << "component " << k;
  }
}

TEST(SampleGroups, OffsetsAreEvenAndOfEveryPositionAndList) {
  std::vector<uint32_t> bins(16);
  for (uint32_t position = 0; position < 40; ++position) {
    for (uint32_t list = 0; list < 10; ++list) {
      for (uint32_t seed = 0; seed < 10; ++seed) ++bins[SampleOffset(seed, position, list) >> 14];
    }
  }
  for (const uint32_t count : bins) EXPECT_NEAR(count, 250.0, 5 * std::sqrt(250.0));
  EXPECT_NE(SampleOffset(1, 5, 0), SampleOffset(1, 6, 0));
  EXPECT_NE(SampleOffset(1, 5, 0), SampleOffset(1, 5, 1));
  EXPECT_NE(SampleOffset(1, 5, 0), SampleOffset(2, 5, 0));
}

// Nothing is known of NaNs and infinities but that groups are there, and few enough.
TEST(SampleGroups, MassesThatAreNoNumbers) {
  for (const float odd : {std::nanf(""), INFINITY, -1.0F}) {
    std::vector<float> masses = SomeMasses(300);
    for (size_t i = 0; i < masses.size(); i += 5) masses[i] = odd;
    Sampler sampler(masses, {.n_chosen = 20, .n_sampled = 30});
    for (uint32_t seed = 0; seed < 50; ++seed) {
      sampler.Draw(seed);
      ASSERT_LE(sampler.n_drawn(), 31U);
      for (uint32_t i = 0; i < sampler.n_drawn(); ++i) {
        EXPECT_LT(sampler.group(i), masses.size());
        EXPECT_TRUE(std::isfinite(sampler.weight(i)));
      }
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
