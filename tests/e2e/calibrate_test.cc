// Adapters computed from texts: what they are mathematically, however the texts are cut and the work is
// divided.
// Not grouped (cmake/KvrunCompile.cmake): its names are others', too.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/engine/measure/calibration.h"
#include "runtime/engine/resident/resident_pass.h"
#include "tests/support/calibrate_fixture.h"

namespace kvrun::testing::calibrations {
namespace {

constexpr const char* kKinds[] = {"plain", "centred", "query", "query-centred"};
constexpr const char* kAllKinds[] = {"plain", "centred", "query", "query-centred", "heads", "skewed"};

// [rank, rank]: a^T b.
std::vector<double> Product(const LayerAdapter& layer, const std::vector<float>& a,
                            const std::vector<float>& b) {
  std::vector<double> product(size_t{layer.rank} * layer.rank);
  for (uint32_t d = 0; d < layer.key_dim; ++d) {
    for (uint32_t i = 0; i < layer.rank; ++i) {
      for (uint32_t j = 0; j < layer.rank; ++j)
        product[i * layer.rank + j] += double{a[d * layer.rank + i]} * b[d * layer.rank + j];
    }
  }
  return product;
}

double DistanceFromIdentity(const std::vector<double>& product, uint32_t rank) {
  double distance = 0;
  for (uint32_t i = 0; i < rank; ++i) {
    for (uint32_t j = 0; j < rank; ++j)
      distance = std::max(distance, std::abs(product[i * rank + j] - (i == j ? 1.0 : 0.0)));
  }
  return distance;
}

std::vector<SmallModel> CalibrateModels() {
  std::vector<SmallModel> models = SmallModels();
  std::erase_if(models, [](const SmallModel& model) {
    return model.name != "SelfMade" && model.name != "llama_odd_Q4_1" && model.name != "qwen3_qknorm_Q4_K_M";
  });
  return models;
}

INSTANTIATE_TEST_SUITE_P(All, Calibrate, ::testing::ValuesIn(CalibrateModels()),
                         [](const ::testing::TestParamInfo<SmallModel>& source) {
                           return source.param.name;
                         });

TEST_P(Calibrate, SidesAreInverseAndOrthonormalUnlessWeighted) {
  const uint32_t n_kv_heads = opened_->config().n_kv_heads;
  const uint32_t rank = std::min(opened_->config().kv_dim(), 16U) / n_kv_heads * n_kv_heads;
  for (const char* kind : kAllKinds) {
    const Adapter adapter = opened_->CalibrateOrDie(
        {.kind = kind, .rank = rank, .texts = {Text(300, 1), Text(100, 2)}}, out_, rank);
    EXPECT_EQ(AdapterKindName(adapter.kind), kind);
    for (const LayerAdapter& layer : adapter.layers) {
      EXPECT_LT(DistanceFromIdentity(Product(layer, layer.key_side, layer.query_side), rank), 1e-2) << kind;
      if (!SidesDiffer(adapter.kind)) {
        EXPECT_LT(DistanceFromIdentity(Product(layer, layer.key_side, layer.key_side), rank), 1e-3) << kind;
      }
      EXPECT_TRUE(std::is_sorted(layer.energy.begin(), layer.energy.end()));
      EXPECT_GT(layer.energy.front(), 0.0F);
      EXPECT_LE(layer.energy.back(), 1.0F);
      const bool has_mean =
          std::any_of(layer.mean.begin(), layer.mean.end(), [](float value) { return value != 0.0F; });
      EXPECT_EQ(has_mean, TakesMeanOff(adapter.kind)) << kind;
    }
  }
}

// To the rounding to halves.
template <class Values>
void ExpectNearly(const Values& a, const Values& b) {
  ASSERT_EQ(a.size(), b.size());
  float largest = 0.0F;
  float difference = 0.0F;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<float>(a[i])));
    difference = std::max(difference, std::abs(static_cast<float>(a[i]) - static_cast<float>(b[i])));
  }
  EXPECT_LE(difference, 1e-3F * largest);
}

TEST_P(Calibrate, ALowerRankIsTheFirstColumns) {
  const uint32_t all = opened_->config().kv_dim();
  for (const char* kind : {"plain", "query-centred"}) {
    const std::vector<Ids> texts = {Text(300, 3)};
    const Adapter high = opened_->CalibrateOrDie({.kind = kind, .texts = texts}, out_, 4);
    Json info;
    ASSERT_EQ(opened_->Calibrate({.kind = kind, .texts = texts}, out_, &info), KVRUN_OK);
    EXPECT_EQ(info["rank"], std::min(all, kMaxDefaultRank));
    const Adapter low = opened_->CalibrateOrDie({.kind = kind, .rank = 4, .texts = texts}, out_, 4);
    for (size_t i = 0; i < high.layers.size(); ++i) {
      // Each rank has its own iteration, which ends within 1e-4 of the direction (docs/testing.md).
      ExpectNearly(high.layers[i].key_side, low.layers[i].key_side);
      ExpectNearly(high.layers[i].query_side, low.layers[i].query_side);
      ExpectNearly(high.layers[i].energy, low.layers[i].energy);
    }
  }
}

// A text is cut where pieces end, and the order of pieces does not matter.
TEST_P(Calibrate, PiecesAreTextsInAnyOrder) {
  const Ids text = Text(203, 4);  // the last three are left out
  const Ids first(text.begin(), text.begin() + 100);
  const Ids second(text.begin() + 100, text.begin() + 200);
  for (const char* kind : kKinds) {
    Json whole;
    ASSERT_EQ(opened_->Calibrate({.kind = kind, .rank = 4, .n_ctx = 100, .texts = {text}}, out_, &whole),
              KVRUN_OK)
        << kvrun_last_error();
    const std::string bytes = ReadWholeFile(out_);
    EXPECT_EQ(whole["n_tokens"], 200);
    EXPECT_EQ(whole["n_pieces"], 2);
    Json parts;
    ASSERT_EQ(opened_->Calibrate({.kind = kind, .rank = 4, .texts = {second, first}}, out_, &parts), KVRUN_OK)
        << kvrun_last_error();
    EXPECT_EQ(whole, parts) << kind;
    EXPECT_TRUE(bytes == ReadWholeFile(out_)) << kind;
    ASSERT_EQ(opened_->Calibrate({.kind = kind, .rank = 4, .texts = {first}}, out_), KVRUN_OK);
    EXPECT_FALSE(bytes == ReadWholeFile(out_)) << kind << ": the second piece does not count";
  }
}

// The same pieces give the same file, whether the time or the text was short.
TEST_P(Calibrate, PiecesThatThereIsNoTimeForDoNotCount) {
  const Ids text = Text(6400, 4);
  Json info;
  ASSERT_EQ(opened_->Calibrate({.rank = 4, .n_ctx = 64, .texts = {text}, .max_ms = 1}, out_, &info), KVRUN_OK)
      << kvrun_last_error();
  const auto n_tokens = info["n_tokens"].get<size_t>();
  EXPECT_EQ(info["n_tokens_given"], 6400);
  EXPECT_GE(n_tokens, 64U);
  EXPECT_LT(n_tokens, 6400U);
  EXPECT_EQ(info["n_pieces"], n_tokens / 64);
  const std::string bytes = ReadWholeFile(out_);
  const Ids first(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(n_tokens));
  ASSERT_EQ(opened_->Calibrate({.rank = 4, .n_ctx = 64, .texts = {first}}, out_), KVRUN_OK);
  EXPECT_TRUE(bytes == ReadWholeFile(out_));
  EXPECT_EQ(OrDie(ReadWholeAdapter(out_)).made_from, info["made_from"]);
  EXPECT_TRUE(info["made_from"].get<std::string>().starts_with(fmt::format("{} tokens in ", n_tokens)));
  // What the rank needs is there in any case.
  ASSERT_EQ(opened_->Calibrate({.rank = 4, .n_ctx = 8, .texts = {text}, .max_ms = 1}, out_, &info), KVRUN_OK);
  EXPECT_GE(info["n_pieces"].get<int>() * 4, 4);
}

// Keys of all entries of a layer, [n, kv_dim], as the device cached them.
std::vector<float> CachedKeys(ResidentForwardPass& pass, uint32_t layer, uint32_t n) {
  Device& device = *SharedDevice();
  const KvShape& shape = pass.kv_shape();
  const KvRecordShape record{.k_type = KvType::kF32,
                             .v_type = KvType::kF32,
                             .n_heads = shape.n_kv_heads,
                             .head_dim = shape.head_dim,
                             .group_tokens = 1};
  const auto records = OrDie(device.CreateBuffer(record.size_bytes() * n, BufferUse::kShared, "kv"));
  const auto list = OrDie(device.CreateCommandList());
  RunOrDie(list->EncodeRecords(*pass.kv(layer), shape, 0, n, record, {}, records.get()));
  RunOrDie(list->Finish());
  RunOrDie(device.Wait(OrDie(device.Submit(*list))));
  RunOrDie(records->Invalidate(0, records->size_bytes()));
  const size_t kv_dim = size_t{shape.n_kv_heads} * shape.head_dim;
  std::vector<float> keys(n * kv_dim);
  for (uint32_t t = 0; t < n; ++t) {
    std::memcpy(keys.data() + t * kv_dim, records->host().data() + t * record.size_bytes(),
                kv_dim * sizeof(float));
  }
  return keys;
}

// Sums of keys over several prompts, without the first kCalibrationSinks of each: [kv_dim + 1, kv_dim].
struct HostSums {
  std::vector<std::vector<double>> layers;
  uint64_t n_keys = 0;
};

HostSums SumOnHost(const LoadedModel& loaded, const std::vector<Ids>& pieces) {
  const size_t dim = loaded.model->config.kv_dim();
  HostSums sums;
  sums.layers.assign(loaded.model->config.n_layers, std::vector<double>((dim + 1) * dim));
  for (const Ids& piece : pieces) {
    const auto n = static_cast<uint32_t>(piece.size());
    const auto pass = OrDie(ResidentForwardPass::Create(*loaded.model, loaded.weights, *SharedDevice(),
                                                        {.n_ctx = n, .kv_type = KvType::kF32}));
    Feed(*pass, piece, 0, n, 100);
    for (uint32_t layer = 0; layer < sums.layers.size(); ++layer) {
      const std::vector<float> keys = CachedKeys(*pass, layer, n);
      for (size_t t = kCalibrationSinks; t < n; ++t) {
        const float* key = keys.data() + t * dim;
        for (size_t i = 0; i <= dim; ++i) {
          for (size_t j = 0; j < dim; ++j)
            sums.layers[layer][i * dim + j] += (i < dim ? double{key[i]} : 1.0) * key[j];
        }
      }
    }
    sums.n_keys += n - kCalibrationSinks;
  }
  return sums;
}

// What the host sums up from the keys of each piece is what the device summed up over all of them. 257 tokens
// are a step and a single row more.
TEST_P(Calibrate, SumsOverPiecesAreThoseOfTheirKeys) {
  const std::vector<Ids> pieces = {Text(257, 5), Text(40, 6), Text(120, 7)};
  const HostSums host = SumOnHost(LoadModelOrDie(path_), pieces);
  constexpr uint32_t kRank = 4;
  for (const char* kind : {"plain", "centred"}) {
    const Adapter adapter =
        opened_->CalibrateOrDie({.kind = kind, .rank = kRank, .texts = pieces}, out_, kRank);
    for (size_t i = 0; i < host.layers.size(); ++i) {
      const std::vector<float> keys(host.layers[i].begin(), host.layers[i].end());
      const LayerSums sums{.n_kv_heads = opened_->config().n_kv_heads,
                           .head_dim = opened_->config().head_dim,
                           .n_keys = host.n_keys,
                           .keys = keys,
                           .n_queries = 0,
                           .queries = {}};
      const LayerAdapter expected = OrDie(ComputeAdapter(adapter.kind, sums, kRank));
      for (uint32_t r = 0; r < kRank; ++r) {
        EXPECT_NEAR(adapter.layers[i].energy[r], expected.energy[r], 1e-4) << kind << ", layer " << i;
        // The same directions, or others that keep as much (equal eigenvalues).
        const auto cross = Product(expected, expected.key_side, adapter.layers[i].key_side);
        double aligned = 0;
        for (uint32_t k = 0; k < kRank; ++k) aligned += cross[k * kRank + r] * cross[k * kRank + r];
        EXPECT_NEAR(aligned, 1.0, 2e-2) << kind << ", layer " << i << ", column " << r;
      }
      for (uint32_t d = 0; d < expected.key_dim; ++d)
        EXPECT_NEAR(adapter.layers[i].mean[d], expected.mean[d], 2e-3 * (1 + std::abs(expected.mean[d])));
    }
  }
}

// How often the device's sums are drained must not show.
TEST_P(Calibrate, DrainingAfterEveryStepGivesTheSame) {
  const LoadedModel loaded = LoadModelOrDie(path_);
  const std::vector<Ids> texts = {Text(300, 8), Text(90, 9)};
  std::mutex mutex;
  std::vector<Calibration> made;
  for (const uint32_t rows_per_drain : {1U, 16384U}) {
    CalibrationOptions options;
    options.rank = 4;
    options.rows_per_drain = rows_per_drain;
    for (const Ids& ids : texts) options.texts.emplace_back(ids);
    made.push_back(
        OrDie(CalibrateAdapter(*loaded.model, loaded.weights, *SharedDevice(), &mutex, options, out_, {})));
  }
  for (size_t i = 0; i < made[0].adapter.layers.size(); ++i) {
    const LayerAdapter& often = made[0].adapter.layers[i];
    const LayerAdapter& once = made[1].adapter.layers[i];
    for (uint32_t r = 0; r < 4; ++r) EXPECT_NEAR(often.energy[r], once.energy[r], 1e-5);
    for (uint32_t d = 0; d < often.key_dim; ++d) EXPECT_NEAR(often.mean[d], once.mean[d], 1e-5);
  }
}

}  // namespace
}  // namespace kvrun::testing::calibrations
