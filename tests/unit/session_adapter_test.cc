// The adapter's file of a session: read once, with the same messages whenever it is asked.
#include "runtime/engine/session/session_adapter.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/device/self_test_data.h"
#include "runtime/engine/session/session_kv.h"
#include "runtime/model/tensor_type.h"
#include "tests/support/open_counter.h"
#include "tests/support/or_die.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kContext = 512;
constexpr uint32_t kFileRank = 8;
constexpr uint32_t kRank = 4;

class SessionAdapterTest : public ::testing::Test {
 protected:
  SessionAdapterTest() : model_(OrDie(OpenModel(WriteModel(folder_, "m.gguf", TalkingModel().Build())))) {
    Write(MakeAdapter(1));
  }

  const ModelConfig& config() const { return model_->config; }
  size_t n_sides() const { return size_t{config().kv_dim()} * kFileRank; }

  Adapter MakeAdapter(uint32_t seed) const {
    Adapter adapter;
    adapter.kind = AdapterKind::kPlain;
    adapter.fingerprint = OrDie(model_->Fingerprint());
    for (uint32_t i = 0; i < config().n_layers; ++i) {
      LayerAdapter layer;
      layer.key_dim = config().kv_dim();
      layer.rank = kFileRank;
      layer.key_side = layer.query_side = RoundedToHalf(RandomFloats(n_sides(), 1.0F, seed * 100 + i));
      layer.mean.assign(config().kv_dim(), 0.0F);
      layer.energy.assign(kFileRank, 1.0F);
      adapter.layers.push_back(std::move(layer));
    }
    adapter.cluster_thresholds.assign(size_t{config().n_layers} * config().n_kv_heads, 1.5F);
    adapter.layer_shares = {0.5F, 1.5F};
    return adapter;
  }
  void Write(const Adapter& adapter) const { RunOrDie(WriteAdapter(adapter, path_)); }

  KvSettings Settings(const std::string& options) const {
    KvSettings settings;
    settings.storage.folder = folder_.Path("kv");
    settings.storage.allow_tmpfs = true;
    RunOrDie(ParseKvOptions(fmt::format("--kv-adapter {} {}", path_, options), &settings));
    return settings;
  }
  KvSettings Kvswap(const std::string& options = "") const {
    return Settings(fmt::format("--kv-method kvswap --kv-select 64 --kv-rank {} {}", kRank, options));
  }
  KvPlan PlanOf(const KvSettings& settings) const {
    return OrDie(PlanSessionKv(*model_, settings, kContext, 1));
  }
  OffloadedPassOptions Prepare(const KvSettings& settings) const {
    return OrDie(PrepareOffloadedPass(*model_, settings, kContext, 1));
  }

  void ExpectColumnsOf(const Adapter& whole, const std::shared_ptr<const Adapter>& cut) const {
    ASSERT_NE(cut, nullptr);
    ASSERT_EQ(cut->layers.size(), whole.layers.size());
    for (size_t i = 0; i < whole.layers.size(); ++i) {
      EXPECT_EQ(cut->layers[i].rank, kRank);
      EXPECT_EQ(cut->layers[i].energy, std::vector<float>(kRank, 1.0F));
      for (const auto side : {&LayerAdapter::key_side, &LayerAdapter::query_side}) {
        ASSERT_EQ((cut->layers[i].*side).size(), size_t{config().kv_dim()} * kRank);
        for (size_t at = 0; at < (cut->layers[i].*side).size(); ++at) {
          const size_t in_whole = at / kRank * kFileRank + at % kRank;
          ASSERT_EQ((cut->layers[i].*side)[at], (whole.layers[i].*side)[in_whole]) << i << ": " << at;
        }
      }
    }
  }
  static void ExpectRefused(const Status& status, StatusCode code, std::string_view part) {
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.Path("adapter.gguf");
  const std::unique_ptr<Model> model_;
};

TEST_F(SessionAdapterTest, ASessionOpensTheFileOnce) {
  OpenCounter counter(path_);
  if (!counter.works()) GTEST_SKIP() << "the system does not say what is opened";
  for (const std::string options : {"", "--kv-shares even"}) {
    const KvSettings settings = Kvswap(options);
    const KvPlan plan = PlanOf(settings);
    EXPECT_EQ(counter.Count(), 1) << "a plan " << options;
    EXPECT_NE(Prepare(settings).adapter, nullptr);
    EXPECT_EQ(counter.Count(), 1) << "a session " << options;
    EXPECT_NE(OrDie(PrepareByPlan(*model_, settings, plan)).adapter, nullptr);
    EXPECT_EQ(counter.Count(), 1) << "by a plan " << options;
  }
  const KvSettings clusters = Settings("--kv-method dynakv --kv-select 64");
  EXPECT_EQ(Prepare(clusters).adapter->cluster_thresholds.size(),
            size_t{config().n_layers} * config().n_kv_heads);
  EXPECT_EQ(counter.Count(), 1) << "clusters";
  EXPECT_EQ(Prepare(Settings("--kv-budget 1/1")).adapter, nullptr);
  EXPECT_LE(counter.Count(), 1) << "of no use";
}

TEST_F(SessionAdapterTest, APassHasTheFirstColumns) {
  ExpectColumnsOf(MakeAdapter(1), Prepare(Kvswap()).adapter);
  ExpectColumnsOf(MakeAdapter(1), OrDie(PrepareByPlan(*model_, Kvswap(), PlanOf(Kvswap()))).adapter);
}

TEST_F(SessionAdapterTest, WhatWasReadStaysThoughTheFileIsAnother) {
  const KvSettings settings = Kvswap();
  const KvPlan plan = PlanOf(settings);
  SessionAdapter adapter(*model_, settings);
  EXPECT_EQ(OrDie(adapter.LayerShares()), MakeAdapter(1).layer_shares);
  Write(MakeAdapter(2));
  RunOrDie(adapter.Check(plan));
  EXPECT_EQ(OrDie(adapter.LayerShares()), MakeAdapter(1).layer_shares);
  std::filesystem::remove(path_);
  RunOrDie(adapter.Check(plan));
  ExpectColumnsOf(MakeAdapter(1), OrDie(std::move(adapter).Take(plan)));
}

TEST_F(SessionAdapterTest, WhatIsWrongStaysSoToo) {
  const KvSettings settings = Kvswap();
  const KvPlan plan = PlanOf(settings);
  std::filesystem::remove(path_);
  SessionAdapter adapter(*model_, settings);
  EXPECT_TRUE(OrDie(adapter.LayerShares()).empty());  // left to Check
  Write(MakeAdapter(1));
  ExpectRefused(adapter.Check(plan), StatusCode::kNotFound, path_);
  ExpectRefused(std::move(adapter).Take(plan).status(), StatusCode::kNotFound, path_);
  // Asked for the first time.
  ExpectColumnsOf(MakeAdapter(1), OrDie(SessionAdapter(*model_, settings).Take(plan)));
}

TEST_F(SessionAdapterTest, SharesThatAreAskedForAreMissed) {
  const KvSettings settings = Kvswap("--kv-shares layers");
  std::filesystem::remove(path_);
  ExpectRefused(SessionAdapter(*model_, settings).LayerShares().status(), StatusCode::kNotFound, path_);
}

// In this order, whether or not all of the file was read before: model, rank, damage.
TEST_F(SessionAdapterTest, RefusesInTheOrderOfAFileThatIsReadForTheModel) {
  const KvPlan plan = PlanOf(Kvswap());
  Adapter other = MakeAdapter(1);
  other.fingerprint = "0123456789abcdef";
  Adapter small = MakeAdapter(1);
  for (LayerAdapter& layer : small.layers) {
    layer.rank = kRank - 1;
    layer.key_side.resize(size_t{layer.key_dim} * layer.rank);
    layer.query_side = layer.key_side;
    layer.energy.resize(layer.rank);
  }
  const auto damage = [this] {
    std::string bytes = ReadWholeFile(path_);
    bytes[bytes.size() - 100] ^= 1;
    folder_.Write("adapter.gguf", bytes);
  };
  const auto expect_refused = [&](StatusCode code, std::string_view part) {
    for (const std::string options : {"", "--kv-shares even"}) {
      const KvSettings settings = Kvswap(options);
      SessionAdapter adapter(*model_, settings);
      static_cast<void>(adapter.LayerShares());
      ExpectRefused(adapter.Check(plan), code, part);
      ExpectRefused(std::move(adapter).Take(plan).status(), code, part);
      ExpectRefused(SessionAdapter(*model_, settings).Take(plan).status(), code, part);
      const Status planned = PlanSessionKv(*model_, settings, kContext, 1).status();
      ExpectRefused(planned, code, part);
    }
  };
  Write(other);
  damage();
  expect_refused(StatusCode::kInvalidArgument, "the adapter is of another model");
  Write(small);
  damage();
  expect_refused(StatusCode::kInvalidArgument, fmt::format("the adapter has rank {}", kRank - 1));
  Write(MakeAdapter(1));
  damage();
  expect_refused(StatusCode::kCorrupt, "checksum");
}

TEST_F(SessionAdapterTest, ClustersNeedThresholdsOrAFactor) {
  Adapter adapter = MakeAdapter(1);
  adapter.cluster_thresholds.clear();
  Write(adapter);
  const KvSettings settings = Settings("--kv-method dynakv --kv-select 64");
  ExpectRefused(PlanSessionKv(*model_, settings, kContext, 1).status(), StatusCode::kInvalidArgument,
                "the adapter has no thresholds");
  const OffloadedPassOptions options = Prepare(Settings("--kv-method dynakv --kv-select 64 --kv-split 2"));
  ASSERT_NE(options.adapter, nullptr);
  EXPECT_TRUE(options.adapter->cluster_thresholds.empty());
  EXPECT_TRUE(options.adapter->layers.empty());
}

}  // namespace
}  // namespace kvrun::testing
