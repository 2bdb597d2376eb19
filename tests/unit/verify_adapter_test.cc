// Each check of an adapter, with one that is right and one that is broken in just that way.
#include "offline/verify_adapter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace kvrun::offline {
namespace {

constexpr uint32_t kLayers = 2;
constexpr uint32_t kKeyDim = 6;
constexpr uint32_t kRank = 4;

AdapterTarget Target() {
  return {.fingerprint = "0123", .n_layers = kLayers, .n_kv_heads = 2, .key_dim = kKeyDim};
}

// Unit vectors; those of weighted kinds are as much longer on one side as shorter on the other.
Adapter MakeAdapter(AdapterKind kind, uint32_t rank = kRank) {
  Adapter adapter;
  adapter.kind = kind;
  adapter.fingerprint = "0123";
  const float scale = SidesDiffer(kind) ? 4.0F : 1.0F;
  for (uint32_t i = 0; i < kLayers; ++i) {
    LayerAdapter layer{kKeyDim, rank, {}, {}, std::vector<float>(kKeyDim), {}};
    layer.key_side.resize(size_t{kKeyDim} * rank);
    layer.query_side = layer.key_side;
    for (uint32_t column = 0; column < rank; ++column) {
      layer.key_side[column * rank + column] = scale;
      layer.query_side[column * rank + column] = 1.0F / scale;
      layer.energy.push_back(1.0F - std::ldexp(1.0F, -static_cast<int>(column) - 1));
    }
    if (rank == kKeyDim) layer.energy.back() = 1.0F;
    adapter.layers.push_back(layer);
  }
  adapter.reuse = {{"lru", 4, 96, 1000, 24, 0.5F},  {"lru", 4, 96, 1000, 48, 0.75F},
                   {"lru", 8, 96, 1000, 12, 0.4F},  {"fifo", 4, 96, 1000, 24, 0.5F},
                   {"fifo", 4, 96, 1000, 48, 0.4F}, {"non-hit", 4, 96, 1000, 24, 0.5F}};
  adapter.cluster_thresholds = {0.0F, 1.0F, 2.0F, 3.0F};
  return adapter;
}

using Damage = std::function<void(Adapter&)>;

// The named check alone fails, and says `part`.
void ExpectFails(AdapterKind kind, const Damage& damage, const std::string& name, const std::string& part) {
  Adapter adapter = MakeAdapter(kind);
  damage(adapter);
  bool was_seen = false;
  for (const AdapterCheck& check : VerifyAdapter(adapter, Target())) {
    EXPECT_EQ(check.ok, check.name != name) << name << ": " << check.name << ": " << check.detail;
    if (check.name != name) continue;
    was_seen = true;
    EXPECT_NE(check.detail.find(part), std::string::npos) << name << ": " << check.detail;
  }
  EXPECT_TRUE(was_seen) << name;
}

TEST(VerifyAdapter, WhatIsRightPasses) {
  for (const AdapterKind kind : {AdapterKind::kPlain, AdapterKind::kCentred, AdapterKind::kQuery,
                                 AdapterKind::kQueryCentred, AdapterKind::kHeads, AdapterKind::kSkewed}) {
    for (const uint32_t rank : {1U, kRank, kKeyDim}) {
      const std::vector<AdapterCheck> checks = VerifyAdapter(MakeAdapter(kind, rank), Target());
      EXPECT_EQ(checks.size(), 8U);
      for (const AdapterCheck& check : checks) EXPECT_TRUE(check.ok) << check.name << ": " << check.detail;
    }
  }
  // Columns of heads come in turn, whatever each of them adds.
  Adapter heads = MakeAdapter(AdapterKind::kHeads);
  heads.layers[1].energy = {0.2F, 0.5F, 0.6F, 0.7F};
  for (const AdapterCheck& check : VerifyAdapter(heads, Target())) EXPECT_TRUE(check.ok) << check.detail;
  Adapter bare = MakeAdapter(AdapterKind::kPlain);
  bare.reuse.clear();
  bare.cluster_thresholds.clear();
  for (LayerAdapter& layer : bare.layers) layer.energy.clear();
  for (const AdapterCheck& check : VerifyAdapter(bare, Target())) EXPECT_TRUE(check.ok) << check.detail;
}

TEST(VerifyAdapter, AnotherModelsIsFound) {
  ExpectFails(
      AdapterKind::kPlain, [](Adapter& a) { a.fingerprint = "4567"; }, "fingerprint", "4567");
}

TEST(VerifyAdapter, WrongShapesAreFoundAndEndTheChecks) {
  const std::pair<Damage, std::string> cases[] = {
      {[](Adapter& a) { a.layers.pop_back(); }, "the adapter has 1 layer, and the model has 2"},
      {[](Adapter& a) { a.layers[1].key_dim = 5; }, "layer 1: keys of 5"},
      {[](Adapter& a) { a.layers[1].rank = 3; }, "layer 1: its rank 3 is not from 1 to"},
      {[](Adapter& a) { a.layers[0].rank = 0; }, "layer 0: its rank 0 is not from 1 to"},
      {[](Adapter& a) { a.layers[1].query_side.pop_back(); }, "layer 1: its sides"},
      {[](Adapter& a) { a.layers[1].mean.clear(); }, "layer 1: its sides, mean"},
      {[](Adapter& a) { a.layers[1].energy.pop_back(); }, "energies have a wrong size"},
  };
  for (const auto& [damage, part] : cases) {
    ExpectFails(AdapterKind::kQuery, damage, "shape", part);
    Adapter adapter = MakeAdapter(AdapterKind::kQuery);
    damage(adapter);
    EXPECT_EQ(VerifyAdapter(adapter, Target()).size(), 2U);
  }
}

TEST(VerifyAdapter, WhatIsNotFiniteIsFound) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  ExpectFails(
      AdapterKind::kCentred, [](Adapter& a) { a.layers[1].mean[2] = kInfinity; }, "finite",
      "layer 1: mean holds inf");
  Adapter adapter = MakeAdapter(AdapterKind::kQuery);
  adapter.layers[1].key_side[3] = kNan;
  const std::vector<AdapterCheck> checks = VerifyAdapter(adapter, Target());
  EXPECT_FALSE(checks[2].ok);
  EXPECT_NE(checks[2].detail.find("layer 1: key side holds nan"), std::string::npos) << checks[2].detail;
  EXPECT_FALSE(checks[3].ok) << "the product is none either";
  adapter = MakeAdapter(AdapterKind::kQuery);
  adapter.layers[0].energy[1] = kNan;
  EXPECT_FALSE(VerifyAdapter(adapter, Target())[2].ok);
  EXPECT_FALSE(VerifyAdapter(adapter, Target())[4].ok);
}

TEST(VerifyAdapter, ColumnsThatAreNotOrthonormalAreFound) {
  const auto set_both = [](size_t at, float value) {
    return [=](Adapter& a) { a.layers[1].key_side[at] = a.layers[1].query_side[at] = value; };
  };
  for (const AdapterKind kind : {AdapterKind::kPlain, AdapterKind::kCentred}) {
    ExpectFails(kind, set_both(0, 1.001F), "columns orthonormal", "layer 1");
    ExpectFails(kind, set_both(1, 0.002F), "columns orthonormal", "off by at most 0.002");
    ExpectFails(
        kind, [](Adapter& a) { a.layers[0].query_side[1] += 1e-5F; }, "columns orthonormal",
        "layer 0: its sides differ");
  }
}

TEST(VerifyAdapter, SidesThatAreNotInverseAreFound) {
  for (const AdapterKind kind : {AdapterKind::kQuery, AdapterKind::kQueryCentred}) {
    ExpectFails(
        kind, [](Adapter& a) { a.layers[1].key_side[0] *= 1.02F; }, "sides inverse",
        "off by at most 0.02, in layer 1");
    ExpectFails(
        kind, [](Adapter& a) { a.layers[0].query_side[1] = 0.01F; }, "sides inverse", "layer 0");
  }
}

TEST(VerifyAdapter, EnergiesThatCannotBeAreFound) {
  const auto set = [](std::vector<float> energy) {
    return [energy](Adapter& a) { a.layers[1].energy = energy; };
  };
  const std::pair<std::vector<float>, std::string> cases[] = {
      {{0.5F, 0.4F, 0.6F, 0.7F}, "column 1 keeps 0.400000, less than"},
      {{0.2F, 0.5F, 0.6F, 0.7F}, "column 1 adds 0.300000, more than"},
      {{0.5F, 0.8F, 0.9F, 1.1F}, "column 3 keeps 1.100000, which is not from 0 to 1"},
      {{-0.1F, 0.0F, 0.0F, 0.0F}, "column 0 keeps -0.1"},
  };
  for (const auto& [energy, part] : cases) ExpectFails(AdapterKind::kQuery, set(energy), "energies", part);
  Adapter whole = MakeAdapter(AdapterKind::kPlain, kKeyDim);
  whole.layers[1].energy.back() = 0.98F;
  EXPECT_FALSE(VerifyAdapter(whole, Target())[4].ok) << "all columns keep all";
}

TEST(VerifyAdapter, ReuseRatesThatCannotBeAreFound) {
  const std::pair<Damage, std::string> cases[] = {
      {[](Adapter& a) { a.reuse[0].rate = 1.01F; }, "its rate is 1.01; it must be"},
      {[](Adapter& a) { a.reuse[0].rate = std::nanf(""); }, "its rate is nan; it must be"},
      {[](Adapter& a) { a.reuse[0].policy = "random"; }, "unknown replacement policy"},
      {[](Adapter& a) { a.reuse[0].group_tokens = 0; }, "its selection is empty"},
      {[](Adapter& a) { a.reuse[0].reuse_groups = 23; }, "fewer groups kept than the 24 selected"},
      {[](Adapter& a) { a.reuse[5].reuse_groups = 48; }, "more groups kept than the 24 selected"},
      {[](Adapter& a) { a.reuse[1].rate = 0.498F; }, "0.5000, but with 48 kept only 0.4980"},
  };
  for (const auto& [damage, part] : cases) ExpectFails(AdapterKind::kPlain, damage, "reuse rates", part);
  Adapter adapter = MakeAdapter(AdapterKind::kPlain);
  adapter.reuse[1].rate = 0.4995F;  // as two slots of one age may have it
  EXPECT_TRUE(VerifyAdapter(adapter, Target())[5].ok);
}

TEST(VerifyAdapter, ThresholdsThatCannotBeAreFound) {
  const std::pair<Damage, std::string> cases[] = {
      {[](Adapter& a) { a.cluster_thresholds.pop_back(); },
       "there are 3, and the model has 2 layers of 2 KV heads"},
      {[](Adapter& a) { a.cluster_thresholds[3] = -1.0F; }, "layer 1, KV head 1: the threshold is -1"},
      {[](Adapter& a) { a.cluster_thresholds[0] = std::nanf(""); },
       "layer 0, KV head 0: the threshold is nan"},
  };
  for (const auto& [damage, part] : cases)
    ExpectFails(AdapterKind::kPlain, damage, "cluster thresholds", part);
}

TEST(VerifyAdapter, SharesThatCannotBeAreFound) {
  const std::pair<Damage, std::string> cases[] = {
      {[](Adapter& a) { a.layer_shares = {1.0F}; }, "there are 1, and the model has 2 layers"},
      {[](Adapter& a) {
         a.layer_shares = {1.0F, 2.0F};
       },
       "their mean is 1.5000, not 1"},
  };
  for (const auto& [damage, part] : cases) ExpectFails(AdapterKind::kPlain, damage, "shares of layers", part);
  Adapter adapter = MakeAdapter(AdapterKind::kPlain);
  adapter.layer_shares = {0.5F, 1.5F};
  for (const AdapterCheck& check : VerifyAdapter(adapter, Target())) EXPECT_TRUE(check.ok) << check.name;
}

}  // namespace
}  // namespace kvrun::offline
