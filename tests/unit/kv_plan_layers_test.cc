// Plans in which layers have different shares of the slots, and the shares that follow from what cuts cost.
#include "runtime/kv/planner/kv_plan_layers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "runtime/engine/measure/layer_sensitivity.h"
#include "runtime/kv/planner/describe_plan.h"
#include "runtime/kv/planner/kv_options.h"
#include "tests/support/kv_plan_cases.h"

namespace kvrun::testing {
namespace {

// From a third to three times, their mean 1.
std::vector<float> SomeShares(uint32_t n_layers) {
  std::vector<float> shares(n_layers);
  for (uint32_t i = 0; i < n_layers; ++i) {
    shares[i] = static_cast<float>(std::pow(9.0, static_cast<double>(i * 7 % n_layers) / n_layers));
  }
  const float mean = std::accumulate(shares.begin(), shares.end(), 0.0F) / static_cast<float>(n_layers);
  for (float& share : shares) share /= mean;
  return shares;
}

KvOptions WithShares(double budget, const KvModelShape& model = kSmolLm2) {
  KvOptions options = Swap(budget);
  options.adapter_from_file = true;
  options.layer_shares = SomeShares(model.n_layers);
  return options;
}

// Of all layers, how many more have slots than where all have as many, or fewer.
int64_t MoreSlots(const KvPlan& plan) {
  int64_t more = 0;
  for (const KvLayerPlan& layer : plan.layers)
    more += int64_t{layer.n_cache_slots} - plan.slots.n_cache_slots;
  return more;
}

void ExpectEqualLayers(const KvPlan& plan) {
  const KvLayerPlan of_each = {plan.choice.n_chosen, plan.slots.n_cache_slots};
  for (const KvLayerPlan& layer : plan.layers) EXPECT_EQ(layer, of_each);
}

uint64_t NeededBytes(const KvPlan& plan) { return std::max(plan.prefill_bytes(), plan.decode_bytes()); }

TEST(KvPlanLayers, SlotsAreSharedOutWithinTheBudget) {
  for (const double budget : {1.0 / 6, 1.0 / 13, 1.0 / 34}) {
    for (const uint32_t n_sequences : {1U, 4U}) {
      const KvOptions options = WithShares(budget);
      KvOptions even = options;
      even.kept_shares = KeptShares::kEven;
      const KvPlan plan = Plan(options, kSmolLm2, 8192, n_sequences);
      const KvPlan without = Plan(even, kSmolLm2, 8192, n_sequences);
      EXPECT_FALSE(without.has_layer_shares);
      ASSERT_TRUE(plan.has_layer_shares);
      ASSERT_EQ(plan.layers.size(), kSmolLm2.n_layers);
      EXPECT_LE(MoreSlots(plan), 0);
      EXPECT_GT(MoreSlots(plan), -static_cast<int64_t>(kSmolLm2.n_layers));
      EXPECT_LE(NeededBytes(plan), plan.budget.bytes);
      EXPECT_GE(plan.choice.n_chosen + 2, without.choice.n_chosen) << "only rounding is lost";
      for (uint32_t layer = 0; layer < kSmolLm2.n_layers; ++layer) {
        const double free = plan.choice.n_chosen - plan.choice.n_pinned;
        EXPECT_NEAR(plan.layers[layer].n_chosen - plan.choice.n_pinned, options.layer_shares[layer] * free,
                    1.5)
            << layer;
        EXPECT_EQ(plan.slot_cache_shape(layer).n_slots, plan.slot_cache_shape(layer).max_chosen)
            << "each has a slot";
      }
      EXPECT_EQ(plan.selected_entries() + 2 * 4 >= without.selected_entries(), true);
    }
  }
}

TEST(KvPlanLayers, EqualSharesChangeNothing) {
  KvOptions options = WithShares(1.0 / 13);
  options.layer_shares.assign(kSmolLm2.n_layers, 1.0F);
  const KvPlan plan = Plan(options);
  options.layer_shares.clear();
  const KvPlan without = Plan(options);
  EXPECT_EQ(plan.choice.n_chosen, without.choice.n_chosen);
  EXPECT_EQ(NeededBytes(plan), NeededBytes(without));
  ExpectEqualLayers(plan);
}

// A layer reads while one layer computes, whatever its share.
TEST(KvPlanLayers, ThePoolStaysEven) {
  KvOptions options = WithShares(1.0 / 13);
  options.select_entries = 2000;
  const KvPlan plan = Plan(options);
  ASSERT_GT(plan.slots.n_pool_slots, 0U);
  ASSERT_TRUE(plan.has_layer_shares);
  ASSERT_EQ(plan.layers.size(), kSmolLm2.n_layers);
  EXPECT_NE(plan.least_chosen(), plan.most_chosen());
  for (uint32_t layer = 0; layer < kSmolLm2.n_layers; ++layer) {
    const SlotCacheShape shape = plan.slot_cache_shape(layer);
    EXPECT_EQ(shape.max_chosen - shape.n_slots, plan.slots.n_pool_slots) << layer;
    EXPECT_EQ(shape.max_rest, plan.slots.n_pool_slots);
  }
  EXPECT_LE(NeededBytes(plan), plan.budget.bytes);
  options.reuse_groups = 0;
  EXPECT_FALSE(Plan(options).has_layer_shares) << "there are no slots to share out";
}

// As many more or fewer are chosen as have slots, whatever there is more of.
TEST(KvPlanLayers, NoLayerIsLeftWithoutAGroup) {
  for (const uint32_t select : {8U, 40U, 64U, 400U}) {
    for (const uint32_t reuse : {3U, 11U, 65U, 500U}) {
      for (const uint32_t sinks : {0U, 4U, 64U}) {
        KvOptions options = Unlimited("kvswap");
        options.layer_shares = SomeShares(kSmolLm2.n_layers);
        options.layer_shares[3] = 0.01F;
        options.select_entries = select;
        options.reuse_groups = reuse;
        options.sink_entries = sinks;
        const KvPlan plan = Plan(options);
        SCOPED_TRACE(DescribePlan(plan));
        EXPECT_GT(plan.least_chosen(), plan.choice.n_pinned);
        EXPECT_LE(plan.most_chosen(), plan.n_groups());
        EXPECT_LE(MoreSlots(plan), 0);
        for (uint32_t layer = 0; layer < kSmolLm2.n_layers; ++layer) {
          const SlotCacheShape shape = plan.slot_cache_shape(layer);
          EXPECT_LE(shape.n_slots, plan.n_groups());
          EXPECT_GE(shape.n_slots + shape.max_rest, shape.max_chosen);
        }
      }
    }
  }
}

// Whatever a file says: its shares are shares of what there is.
TEST(KvPlanLayers, SharesNeedNotHaveAMeanOfOne) {
  KvOptions options = WithShares(1.0 / 13);
  const KvPlan plan = Plan(options);
  for (float& share : options.layer_shares) share *= 30.0F;
  const KvPlan scaled = Plan(options);
  EXPECT_EQ(scaled.layers, plan.layers);
  EXPECT_EQ(NeededBytes(scaled), NeededBytes(plan));
  options.layer_shares.assign(kSmolLm2.n_layers, 100.0F);
  ExpectEqualLayers(Plan(options));
}

// What one layer cannot use, as there are no more groups, others get.
TEST(KvPlanLayers, NoLayerHasMoreThanThereIs) {
  for (const uint32_t select : {2000U, 5000U, 7900U}) {
    KvOptions options = Unlimited("kvswap");
    options.layer_shares = SomeShares(kSmolLm2.n_layers);
    options.select_entries = select;
    const KvPlan plan = Plan(options);
    EXPECT_LE(plan.most_chosen(), plan.n_groups());
    EXPECT_GT(plan.least_chosen(), plan.choice.n_pinned);
    EXPECT_LE(MoreSlots(plan), 0);
    EXPECT_GT(MoreSlots(plan), -static_cast<int64_t>(kSmolLm2.n_layers)) << select;
  }
  KvOptions all = Unlimited("kvswap");
  all.layer_shares = SomeShares(kSmolLm2.n_layers);
  all.select_entries = 8192;
  EXPECT_FALSE(Plan(all).has_layer_shares) << "all is chosen";
}

TEST(KvPlanLayers, OnlyWhereTheyGoWithTheRest) {
  KvOptions options = WithShares(1.0 / 13);
  options.layer_shares.pop_back();
  EXPECT_FALSE(Plan(options).has_layer_shares) << "of another model, which is refused elsewhere";
  options = WithShares(1.0 / 13);
  options.static_share = StaticShare{.share = 0.0, .by_prompt = true};
  EXPECT_FALSE(Plan(options).has_layer_shares);
  options = WithShares(1.0 / 13);
  options.adapt = true;
  EXPECT_FALSE(Plan(options).has_layer_shares);
  options = WithShares(1.0 / 13);
  options.kept_shares = KeptShares::kLayers;
  EXPECT_TRUE(Plan(options).has_layer_shares);
  options.adapt = true;
  ExpectMessage(Refusal(options), StatusCode::kInvalidArgument,
                "--kv-shares layers does not go with --kv-adapt");
  options.adapt.reset();
  options.layer_shares.clear();
  ExpectMessage(Refusal(options), StatusCode::kInvalidArgument,
                "unless an adapter's file has shares of layers");
  options = WithShares(1.0 / 13);
  options.kept_shares = KeptShares::kHeads;
  ExpectMessage(Refusal(options), StatusCode::kInvalidArgument, "--kv-shares heads does not go with");
  for (const char* method : {"loki", "infinigen", "arkv-flash"}) {
    options = Unlimited(method);
    options.layer_shares = SomeShares(kSmolLm2.n_layers);
    options.select_entries = 400;
    EXPECT_FALSE(Plan(options).has_layer_shares) << method;
  }
  options = Unlimited("flexgen");
  options.kept_shares = KeptShares::kLayers;
  ExpectMessage(Refusal(options), StatusCode::kInvalidArgument, "--kv-shares does not go with");
}

TEST(KvPlanLayers, OneLayerIsCutAlone) {
  KvOptions options = Unlimited("kvswap");
  options.select_entries = 128;
  options.cut_layer = 7;
  const KvPlan plan = Plan(options);
  for (uint32_t layer = 0; layer < kSmolLm2.n_layers; ++layer) {
    EXPECT_EQ(plan.layers[layer].n_chosen, layer == 7 ? plan.choice.n_chosen : plan.n_groups());
    EXPECT_EQ(plan.slot_cache_shape(layer).n_slots, plan.slot_cache_shape(layer).max_chosen);
  }
  EXPECT_EQ(plan.choice.n_chosen - plan.choice.n_pinned, 32U);
}

TEST(LayerSensitivity, SharesFollowWhatACutCosts) {
  const std::vector<double> kls = {1e-3, 2e-3, 4e-3, 1e-4, 0.0, 1.0, 3e-3, 2e-3};
  const std::vector<float> shares = SharesOf(kls);
  ASSERT_EQ(shares.size(), kls.size());
  EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0F), 8.0F, 1e-4F);
  for (size_t a = 0; a < kls.size(); ++a) {
    for (size_t b = 0; b < kls.size(); ++b) {
      const bool is_less = kls[a] <= kls[b];
      EXPECT_TRUE(!is_less || shares[a] <= shares[b]) << a << " " << b;
    }
  }
  EXPECT_LE(shares[5] / shares[4], 9.0F + 1e-4F) << "bounded";
  EXPECT_EQ(SharesOf(std::vector<double>(3, 0.0)), std::vector<float>(3, 1.0F));
  EXPECT_EQ(SharesOf(std::vector<double>(3, 0.5)), std::vector<float>(3, 1.0F));
  EXPECT_TRUE(SharesOf({}).empty());
}

}  // namespace
}  // namespace kvrun::testing
