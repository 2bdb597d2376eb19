// Files that are no adapters, or none any more: foreign, hostile and damaged ones are refused.
#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/kv/math/adapter.h"
#include "tests/support/adapter_files.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/program_runner.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing::adapter_files {
namespace {

TEST(AdapterFile, ForeignFilesAreRefused) {
  const TemporaryFolder folder;
  ExpectRefused(Read(folder.Path("missing")), StatusCode::kNotFound, "missing");
  ExpectRefused(Read(folder.Write("text", "hello world")), StatusCode::kCorrupt, "not a GGUF file");
  const std::string model = testing::WriteModel(folder, "model.gguf", testing::TinyModel().Build());
  ExpectRefused(Read(model), StatusCode::kInvalidArgument,
                "is not an adapter of kvrun but a file of 'llama'");
  testing::GgufBuilder newer;
  newer.Set("general.architecture", "kvrun-adapter").Set("kvrun-adapter.version", uint32_t{5});
  ExpectRefused(Read(testing::WriteModel(folder, "newer", newer.Build())), StatusCode::kUnsupported,
                "of version 5, and this kvrun reads versions 1 to 4");
  newer.Set("kvrun-adapter.version", uint32_t{0});
  ExpectRefused(Read(testing::WriteModel(folder, "older", newer.Build())), StatusCode::kUnsupported,
                "of version 0");
  newer.Set("kvrun-adapter.version", uint32_t{1});
  ExpectRefused(Read(testing::WriteModel(folder, "bare", newer.Build())), StatusCode::kCorrupt, "is missing");
}

// A file of version 1 of one layer, rank 2, two elements, and all that kinds may have, whose checksum is
// right.
class SoundChecksum {
 public:
  std::vector<float> energies = {0.5F, 1.0F};
  std::vector<uint16_t> key_side = {0x3c00, 0x3800, 0x3400, 0x3000};
  std::vector<uint16_t> query_side = {0x3c00, 0x3800, 0x3400, 0x3000};
  std::vector<uint16_t> mean = {0x3c00, 0x3800};

  testing::Bytes Build() const {
    uint64_t value = 0;
    const auto add = [&value](const void* data, size_t size) {
      value = XXH3_64bits_withSeed(data, size, value);
    };
    const auto add_all = [&](const auto& values) { add(values.data(), values.size() * sizeof(values[0])); };
    const std::string_view kind = "query-centred";
    const std::vector<uint32_t> rank_layers_key_dim = {2, 1, 2};
    add(kind.data(), kind.size());
    add("0123", 4);
    for (const uint32_t number : rank_layers_key_dim) add(&number, sizeof number);
    add_all(energies);
    testing::GgufBuilder file;
    const auto tensor = [&](const char* name, const std::vector<uint64_t>& shape,
                            const std::vector<uint16_t>& halves) {
      add_all(halves);
      testing::ByteWriter bytes;
      for (const uint16_t half : halves) bytes.Put(half);
      file.AddTensor(name, TensorType::kF16, shape, bytes.Take());
    };
    tensor("blk.0.key_side", {2, 2}, key_side);
    tensor("blk.0.query_side", {2, 2}, query_side);
    tensor("blk.0.mean", {2}, mean);
    file.Set("general.architecture", "kvrun-adapter").Set("kvrun-adapter.version", uint32_t{1});
    file.Set("kvrun-adapter.kind", kind).Set("kvrun-adapter.fingerprint", "0123");
    file.Set("kvrun-adapter.rank", uint32_t{2}).Set("kvrun-adapter.layers", uint32_t{1});
    file.Set("kvrun-adapter.key_dim", uint32_t{2}).SetArray("kvrun-adapter.energies", energies);
    return file.Set("kvrun-adapter.checksum", fmt::format("{:016x}", value)).Build();
  }
};

// Scores of them would be none, and nothing else would show it. Also in columns that are not asked for.
TEST(AdapterFile, WhatIsNoNumberIsRefusedWhateverTheChecksumSays) {
  const TemporaryFolder folder;
  const auto read = [&](const SoundChecksum& file, uint32_t rank) {
    return ReadAdapter(testing::WriteModel(folder, "adapter", file.Build()), "0123", 1, 2, rank);
  };
  ASSERT_TRUE(read({}, 1).ok()) << read({}, 1).status().message();
  for (const auto& [bits, name] :
       {std::pair<uint16_t, std::string>{0x7c00, "inf"}, {0xfc00, "-inf"}, {0x7e01, "nan"}}) {
    for (const uint32_t rank : {1U, 2U}) {
      for (size_t at = 0; at < 4; ++at) {
        SoundChecksum file;
        file.key_side[at] = bits;
        ExpectRefused(read(file, rank), StatusCode::kCorrupt, "damaged (blk.0.key_side holds " + name + ")");
        file = {};
        file.query_side[at] = bits;
        ExpectRefused(read(file, rank), StatusCode::kCorrupt,
                      "damaged (blk.0.query_side holds " + name + ")");
      }
      SoundChecksum file;
      file.mean[1] = bits;
      ExpectRefused(read(file, rank), StatusCode::kCorrupt, "damaged (blk.0.mean holds " + name + ")");
    }
  }
  for (const float energy : {INFINITY, std::nanf("")}) {
    SoundChecksum file;
    file.energies[1] = energy;
    ExpectRefused(read(file, 1), StatusCode::kCorrupt, fmt::format("damaged (an energy is {})", energy));
    Adapter adapter = MakeAdapter(AdapterKind::kPlain);
    adapter.layers[1].energy[0] = energy;
    EXPECT_EQ(WriteAdapter(adapter, folder.Path("new")).code(), StatusCode::kInvalidArgument);
  }
}

// What a hostile file says of sizes and rates is found before it is relied on.
TEST(AdapterFile, HostileFilesAreRefused) {
  const TemporaryFolder folder;
  const auto with_rates = [] {
    return OldFile()
        .Set("kvrun-adapter.version", uint32_t{2})
        .SetStrings("kvrun-adapter.reuse.policy", {"lru", "fifo"})
        .SetArray("kvrun-adapter.reuse.group", std::vector<uint32_t>{4, 4})
        .SetArray("kvrun-adapter.reuse.select", std::vector<uint32_t>{96, 96})
        .SetArray("kvrun-adapter.reuse.ctx", std::vector<uint32_t>{1000, 1000})
        .SetArray("kvrun-adapter.reuse.capacity", std::vector<uint32_t>{24, 24})
        .SetArray("kvrun-adapter.reuse.rate", std::vector<float>{0.5F, 0.25F});
  };
  const auto expect_refused = [&](const testing::GgufBuilder& file, const std::string& part) {
    ExpectRefused(ReadWholeAdapter(testing::WriteModel(folder, "hostile", file.Build())),
                  StatusCode::kCorrupt, part);
  };
  expect_refused(with_rates(), "its checksum is wrong");  // and nothing else
  for (const char* column : {"group", "select", "ctx", "capacity"}) {
    const std::string key = std::string("kvrun-adapter.reuse.") + column;
    expect_refused(with_rates().SetArray(key, std::vector<uint32_t>{1}),
                   "its columns of reuse rates differ in length");
    expect_refused(with_rates().SetArray(key, std::vector<int32_t>{1, -1}), "holds -1");
    expect_refused(with_rates().SetArray(key, std::vector<uint32_t>{1, UINT32_MAX}), "below 2^31");
    expect_refused(with_rates().Erase(key), "is missing");
    if (key != "kvrun-adapter.reuse.ctx")
      expect_refused(with_rates().SetArray(key, std::vector<uint32_t>{1, 0}),
                     "reuse rate 1 is of an empty selection");
  }
  for (const float rate : {-0.5F, 1.5F, std::nanf(""), INFINITY}) {
    expect_refused(with_rates().SetArray("kvrun-adapter.reuse.rate", std::vector<float>{0.5F, rate}),
                   "reuse rate 1 is ");
  }
  expect_refused(with_rates().SetArray("kvrun-adapter.reuse.rate", std::vector<float>{0.5F}),
                 "its columns of reuse rates differ in length");
  expect_refused(with_rates().SetArray("kvrun-adapter.cluster_thresholds", std::vector<float>(3)),
                 "3 cluster thresholds");
  const std::pair<const char*, uint32_t> sizes[] = {{"rank", 0},
                                                    {"rank", 3},
                                                    {"key_dim", 0},
                                                    {"layers", 0},
                                                    {"layers", UINT32_MAX},
                                                    {"key_dim", UINT32_MAX}};
  for (const auto& [key, value] : sizes) {
    expect_refused(OldFile()
                       .Erase("kvrun-adapter.energies")
                       .SetArray("kvrun-adapter.energies", std::vector<float>())
                       .Set(std::string("kvrun-adapter.") + key, value),
                   "the adapter is damaged");
  }
}

// Whichever byte is damaged or missing: refused, or (padding, unused bits) without effect.
TEST(AdapterFile, NoDamageGoesUnseen) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("adapter.gguf");
  const Adapter adapter = MakeAdapter(AdapterKind::kQueryCentred);
  ASSERT_TRUE(WriteAdapter(adapter, path).ok());
  const std::string bytes = ReadWholeFile(path);
  size_t n_refused = 0;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << i % 8));
    const auto read = Read(folder.Write("damaged", damaged));
    if (!read.ok()) {
      ++n_refused;
      EXPECT_FALSE(read.status().message().empty());
      continue;
    }
    ASSERT_NO_FATAL_FAILURE(ExpectEqual(*read, adapter)) << "byte " << i;
  }
  EXPECT_GT(n_refused, bytes.size() / 6);
  for (size_t length = 0; length < bytes.size(); length += 41) {
    const std::string message = Read(folder.Write("cut", bytes.substr(0, length))).status().message();
    EXPECT_TRUE(message.ends_with(": make it again, or run without it")) << length << ": " << message;
  }
}

}  // namespace
}  // namespace kvrun::testing::adapter_files
