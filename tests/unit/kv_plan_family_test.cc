// A plan's part that is its family's own, and what all others ask of it.
#include <gtest/gtest.h>

#include "runtime/kv/plan/kv_method.h"
#include "runtime/kv/plan/kv_plan.h"
#include "tests/support/kv_plan_cases.h"

namespace kvrun::testing {
namespace {

TEST(KvPlanFamily, APlanHasThePartOfItsFamilyAlone) {
  for (const KvMethod& method : KvMethods()) {
    SCOPED_TRACE(method.name);
    const KvPlan plan = Plan(Unlimited(std::string(method.name)));
    EXPECT_EQ(plan.groups() != nullptr, method.store == KvStoreKind::kGroups);
    EXPECT_EQ(plan.clusters() != nullptr, method.store == KvStoreKind::kClusters);
    EXPECT_EQ(plan.kept() != nullptr, method.store == KvStoreKind::kKept);
    EXPECT_EQ(plan.layers.size(), kSmolLm2.n_layers);
    for (const KvLayerPlan& layer : plan.layers) {
      EXPECT_EQ(layer, (KvLayerPlan{plan.choice.n_chosen, plan.slots.n_cache_slots}));
    }
  }
}

TEST(KvPlanFamily, OthersHaveNoneOfItsNumbers) {
  const KvPlan full = Plan(Unlimited("full"));
  EXPECT_FALSE(full.has_statics() || full.has_rows_file() || full.needs_queries() || full.samples_rows());
  EXPECT_EQ(full.static_share(), StaticShare{});
  EXPECT_EQ(full.reading(), nullptr);
  EXPECT_EQ(full.candidates().n_groups, 0U);
  EXPECT_EQ(full.observed_rows(), 0U);
  EXPECT_EQ(full.records_per_extent(), 1U);
  EXPECT_EQ(full.n_total(), full.choice.n_chosen);
  EXPECT_DEATH(full.of_clusters(), "part != nullptr");
  EXPECT_DEATH(full.of_groups(), "part != nullptr");
  EXPECT_DEATH(Plan(Unlimited("kvswap")).of_kept(), "part != nullptr");
}

TEST(KvPlanFamily, OneFamilysAnswersAreNotAnothers) {
  const KvPlan clusters = Plan(Unlimited("dynakv"));
  EXPECT_GT(clusters.records_per_extent(), 1U);
  EXPECT_EQ(clusters.n_record_ids(), clusters.of_clusters().n_clusters * clusters.records_per_extent());
  EXPECT_EQ(clusters.sink_entries(), clusters.of_clusters().n_sinks);
  EXPECT_TRUE(clusters.needs_queries());
  EXPECT_EQ(clusters.observed_rows(), 0U);
  const KvPlan kept = Plan(Unlimited("arkv"));
  EXPECT_EQ(kept.observed_rows(), kept.of_kept().observed_rows);
  EXPECT_TRUE(kept.needs_queries());
  EXPECT_EQ(kept.n_record_ids(), kept.n_groups());
}

TEST(KvPlanFamily, CountsAreThoseOfAllLayers) {
  KvPlan plan = Plan(Unlimited("kvswap"));
  plan.layers[3] = {5, 7};
  plan.has_layer_shares = true;
  EXPECT_EQ(plan.least_chosen(), 5U);
  EXPECT_EQ(plan.n_own_slots(3), 7U);
  plan.SetCounts(20, 30);
  EXPECT_FALSE(plan.has_layer_shares);
  EXPECT_EQ(plan.least_chosen(), 20U);
  EXPECT_EQ(plan.most_chosen(), 20U);
  EXPECT_EQ(plan.n_own_slots(3), 30U);
}

}  // namespace
}  // namespace kvrun::testing
