// Files of adapters for tests: one of every kind, one of the first version, and what is expected of reading
// them.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/device/self_test_data.h"
#include "runtime/kv/math/adapter.h"
#include "tests/support/gguf_builder.h"

namespace kvrun::testing::adapter_files {

inline constexpr uint32_t kLayers = 3;
inline constexpr uint32_t kKeyDim = 10;
inline constexpr uint32_t kRank = 4;
inline constexpr char kFingerprint[] = "0123456789abcdef0123456789abcdef";

// Values that f16 holds, so that what is read equals what was written.
inline Adapter MakeAdapter(AdapterKind kind) {
  Adapter adapter;
  adapter.kind = kind;
  adapter.fingerprint = kFingerprint;
  for (uint32_t i = 0; i < kLayers; ++i) {
    LayerAdapter layer;
    layer.key_dim = kKeyDim;
    layer.rank = kRank;
    layer.key_side = layer.query_side = RoundedToHalf(RandomFloats(kKeyDim * kRank, 1.0F, 10 + i));
    if (SidesDiffer(kind)) layer.query_side = RoundedToHalf(RandomFloats(kKeyDim * kRank, 2.0F, 20 + i));
    layer.mean.assign(kKeyDim, 0.0F);
    if (TakesMeanOff(kind)) layer.mean = RoundedToHalf(RandomFloats(kKeyDim, 3.0F, 30 + i));
    layer.energy = {0.5F, 0.75F, 0.875F, 1.0F};
    adapter.layers.push_back(layer);
  }
  adapter.reuse = {{"lru", 4, 96, 8096, 24, 0.75F}, {"non-hit", 16, 384, 8096, 24, 0.0F}};
  adapter.cluster_thresholds = {0.0F, 1.5F, 2.0F, 3.0F, 0.25F, 1.0F};
  adapter.layer_shares = {0.5F, 1.0F, 1.5F};
  adapter.made_from = "400 tokens in 2 pieces of at most 200";
  adapter.measured_on = "reuse rates: 2 of 20 settings after 8096 tokens";
  adapter.entry_means = RandomFloats(size_t{kLayers} * kKeyDim * 2, 1.0F, 40);
  return adapter;
}

inline Result<Adapter> Read(const std::string& path, uint32_t rank = kRank) {
  return ReadAdapter(path, kFingerprint, kLayers, kKeyDim, rank);
}

inline void ExpectEqual(const Adapter& a, const Adapter& b) {
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.fingerprint, b.fingerprint);
  EXPECT_EQ(a.reuse, b.reuse);
  EXPECT_EQ(a.cluster_thresholds, b.cluster_thresholds);
  EXPECT_EQ(a.entry_means, b.entry_means);
  EXPECT_EQ(a.layer_shares, b.layer_shares);
  EXPECT_EQ(a.made_from, b.made_from);
  EXPECT_EQ(a.measured_on, b.measured_on);
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (size_t i = 0; i < a.layers.size(); ++i) {
    EXPECT_EQ(a.layers[i].key_dim, b.layers[i].key_dim);
    EXPECT_EQ(a.layers[i].rank, b.layers[i].rank);
    EXPECT_EQ(a.layers[i].key_side, b.layers[i].key_side);
    EXPECT_EQ(a.layers[i].query_side, b.layers[i].query_side);
    EXPECT_EQ(a.layers[i].mean, b.layers[i].mean);
    EXPECT_EQ(a.layers[i].energy, b.layers[i].energy);
  }
}

inline void ExpectRefused(const Result<Adapter>& result, StatusCode code, std::string_view part) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), code) << result.status().message();
  EXPECT_NE(result.status().message().find(part), std::string::npos) << result.status().message();
}

// A file of version 1, as it was written before there were reuse rates: one layer, keys of two elements.
inline testing::GgufBuilder OldFile() {
  testing::GgufBuilder file;
  file.Set("general.architecture", "kvrun-adapter")
      .Set("kvrun-adapter.version", uint32_t{1})
      .Set("kvrun-adapter.kind", "plain")
      .Set("kvrun-adapter.fingerprint", "0123")
      .Set("kvrun-adapter.rank", uint32_t{1})
      .Set("kvrun-adapter.layers", uint32_t{1})
      .Set("kvrun-adapter.key_dim", uint32_t{2})
      .SetArray("kvrun-adapter.energies", std::vector<float>{0.75F})
      .Set("kvrun-adapter.checksum", "278230e60f976c98");
  testing::ByteWriter halves;
  halves.Put(uint16_t{0x3c00}).Put(uint16_t{0x3800});
  file.AddTensor("blk.0.key_side", TensorType::kF16, {1, 2}, halves.Take());
  return file;
}

}  // namespace kvrun::testing::adapter_files
