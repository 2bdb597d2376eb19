// Adapters of the index: their kinds, what they are computed from, how they are rounded and used.
// Not grouped (cmake/KvrunCompile.cmake): its names are others', too.
#include "runtime/kv/math/adapter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/device/self_test_data.h"
#include "runtime/model/half_float.h"
#include "tests/support/adapter_cases.h"

namespace kvrun::testing::adapters {
namespace {

std::vector<float> Scaled(std::vector<float> values, float factor) {
  for (float& value : values) value *= factor;
  return values;
}

// Sides of very different sizes: what they give together stays as it was, and both are near 1.
TEST(Adapter, HalvesOfSidesThatDifferALot) {
  constexpr uint32_t kDim = 12;
  constexpr uint32_t kRank = 3;
  LayerAdapter adapter{.key_dim = kDim,
                       .rank = kRank,
                       .key_side = Scaled(RandomFloats(kDim * kRank, 5), 1e6F),
                       .query_side = Scaled(RandomFloats(kDim * kRank, 6), 1e-6F),
                       .mean = std::vector<float>(kDim),
                       .energy = {}};
  for (size_t i = 0; i < kDim; ++i)
    adapter.key_side[i * kRank + 2] = adapter.query_side[i * kRank + 2] = 0.0F;
  const LayerAdapter before = adapter;
  RoundToHalves(adapter);
  for (size_t c = 0; c < kRank; ++c) {
    for (size_t i = 0; i < kDim; ++i) {
      const float key = adapter.key_side[i * kRank + c];
      const float query = adapter.query_side[i * kRank + c];
      EXPECT_EQ(key, HalfToFloat(FloatToHalf(key)));
      EXPECT_EQ(query, HalfToFloat(FloatToHalf(query)));
      EXPECT_LE(std::abs(key), 4.0F);
      EXPECT_LE(std::abs(query), 4.0F);
      const float product = before.key_side[i * kRank + c] * before.query_side[i * kRank + c];
      EXPECT_NEAR(key * query, product, 1e-3F * std::abs(product) + 1e-7F) << c << ", " << i;
    }
  }
}

// Sides that are alike stay alike, and halves stay what they are.
TEST(Adapter, HalvesAreRoundedOnce) {
  LayerAdapter adapter{.key_dim = 2,
                       .rank = 1,
                       .key_side = {0.333F, 70000.0F},
                       .query_side = {0.333F, 70000.0F},
                       .mean = {0.0F, 0.0F},
                       .energy = {}};
  RoundToHalves(adapter);
  EXPECT_EQ(adapter.key_side, (std::vector<float>{HalfToFloat(FloatToHalf(0.333F)), 65504.0F}));
  EXPECT_EQ(adapter.query_side, adapter.key_side);
  const std::vector<float> once = adapter.key_side;
  RoundToHalves(adapter);
  EXPECT_EQ(adapter.key_side, once);
}

TEST(Adapter, WhatCannotBeComputedIsRefused) {
  const Sample sample = MakeSample(2, 4, 9);
  const auto expect_refused = [](const Result<LayerAdapter>& result, std::string_view part) {
    ASSERT_EQ(result.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(result.status().message().find(part), std::string::npos) << result.status().message();
  };
  expect_refused(Compute(AdapterKind::kPlain, sample, 9), "ranks from 1 to 8");
  expect_refused(Compute(AdapterKind::kPlain, sample, 0), "ranks from 1 to 8");
  Sums sums = SumUp(sample);
  sums.view.queries = sums.queries;
  sums.view.keys = sums.keys;
  LayerSums no_keys = sums.view;
  no_keys.n_keys = 0;
  expect_refused(ComputeAdapter(AdapterKind::kPlain, no_keys, 2), "no keys");
  LayerSums no_queries = sums.view;
  no_queries.n_queries = 0;
  expect_refused(ComputeAdapter(AdapterKind::kQuery, no_queries, 2), "no queries");
  sums.queries[3] = std::nanf("");
  expect_refused(ComputeAdapter(AdapterKind::kQueryCentred, sums.view, 2), "queries are not finite");
  sums.keys[3] = INFINITY;
  expect_refused(ComputeAdapter(AdapterKind::kPlain, sums.view, 2), "keys are not finite");
}

TEST(Adapter, KindsHaveNames) {
  for (const AdapterKind kind : kAllKinds) {
    const auto found = FindAdapterKind(AdapterKindName(kind));
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(*found, kind);
  }
  EXPECT_EQ(FindAdapterKind("svd").status().message(),
            "unknown kind of adapter 'svd'; known: plain, centred, query, query-centred, heads, skewed");
}

TEST(Adapter, SumsOfKeysOnTheHost) {
  Sample sample = MakeSample(2, 6, 5);
  const Sums expected = SumUp(sample);
  std::vector<float> keys;
  AppendRows(sample.keys, keys);
  std::vector<float> sums(expected.keys.size());
  const size_t part = size_t{100} * 12;
  AddKeys(std::span(keys).first(part), 12, sums);
  AddKeys(std::span(keys).subspan(part), 12, sums);
  for (size_t i = 0; i < sums.size(); ++i) EXPECT_NEAR(sums[i], expected.keys[i], 0.01) << i;
}

TEST(Adapter, KeysAreProjectedAsSidesAndMeanSay) {
  const Sample sample = MakeSample(2, 6, 6);
  std::vector<float> keys;
  AppendRows(sample.keys, keys);
  for (const AdapterKind kind : kAllKinds) {
    const uint32_t rank = IsOfHeads(kind) ? 4 : 5;
    const Result<LayerAdapter> adapter = Compute(kind, sample, rank);
    ASSERT_TRUE(adapter.ok());
    std::vector<float> projected(size_t{300} * rank);
    ProjectKeys(*adapter, keys, projected);
    for (size_t entry : {0, 7, 299}) {
      for (size_t c = 0; c < rank; ++c) {
        double sum = 0.0;
        for (size_t i = 0; i < 12; ++i) {
          sum += (double{keys[entry * 12 + i]} - adapter->mean[i]) * adapter->key_side[i * rank + c];
        }
        EXPECT_NEAR(projected[entry * rank + c], sum, 1e-4) << AdapterKindName(kind);
      }
    }
  }
}

// Of a mean that is the keys', and of another one.
TEST(Adapter, MeanSquaresAreThoseOfProjectedKeys) {
  constexpr uint32_t kKeyDim = 12;
  constexpr uint32_t kRank = 5;
  std::vector<float> keys;
  AppendRows(MakeSample(3, 4, 7).keys, keys);
  const size_t n_keys = keys.size() / kKeyDim;
  std::vector<float> sums((kKeyDim + 1) * kKeyDim);
  AddKeys(keys, kKeyDim, sums);
  const LayerSums of_keys{
      .n_kv_heads = 3, .head_dim = 4, .n_keys = n_keys, .keys = sums, .n_queries = 0, .queries = {}};
  for (const AdapterKind kind : {AdapterKind::kPlain, AdapterKind::kCentred}) {
    Result<LayerAdapter> adapter = ComputeAdapter(kind, of_keys, kRank);
    ASSERT_TRUE(adapter.ok()) << adapter.status().message();
    for (const float moved : {0.0F, 0.25F}) {
      for (float& mean : adapter->mean) mean += moved;
      std::vector<float> projected(n_keys * kRank);
      ProjectKeys(*adapter, keys, projected);
      const std::vector<double> squares = MeanSquaresOfColumns(*adapter, of_keys);
      ASSERT_EQ(squares.size(), kRank);
      for (uint32_t c = 0; c < kRank; ++c) {
        double expected = 0.0;
        for (size_t i = 0; i < n_keys; ++i)
          expected += double{projected[i * kRank + c]} * projected[i * kRank + c];
        expected /= static_cast<double>(n_keys);
        EXPECT_NEAR(squares[c], expected, 1e-4 * (1 + expected)) << AdapterKindName(kind) << " column " << c;
      }
    }
  }
}

TEST(Adapter, KindsWithoutQueriesKeepTheirMean) {
  for (const AdapterKind kind : kAllKinds) {
    EXPECT_EQ(IsOfHeads(WithoutQueries(kind)), IsOfHeads(kind));
    EXPECT_EQ(TakesMeanOff(WithoutQueries(kind)), TakesMeanOff(kind));
    EXPECT_FALSE(WeighsByQueries(WithoutQueries(kind)));
  }
}

}  // namespace
}  // namespace kvrun::testing::adapters
