#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "platform/io/replace_file.h"
#include "runtime/device/self_test_data.h"
#include "runtime/kv/math/adapter.h"
#include "runtime/model/gguf.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun {
namespace {

using testing::OrDie;
using testing::RandomFloats;

constexpr uint32_t kLayers = 3;
constexpr uint32_t kKeyDim = 10;
constexpr uint32_t kRank = 4;
constexpr char kFingerprint[] = "0123456789abcdef0123456789abcdef";

// Values that f16 holds, so that what is read equals what was written.
Adapter MakeAdapter(AdapterKind kind) {
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

Result<Adapter> Read(const std::string& path, uint32_t rank = kRank) {
  return ReadAdapter(path, kFingerprint, kLayers, kKeyDim, rank);
}

void ExpectEqual(const Adapter& a, const Adapter& b) {
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

void ExpectRefused(const Result<Adapter>& result, StatusCode code, std::string_view part) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), code) << result.status().message();
  EXPECT_NE(result.status().message().find(part), std::string::npos) << result.status().message();
}

TEST(AdapterFile, HoldsEveryKind) {
  const TemporaryFolder folder;
  for (const AdapterKind kind : {AdapterKind::kPlain, AdapterKind::kCentred, AdapterKind::kQuery,
                                 AdapterKind::kQueryCentred, AdapterKind::kHeads, AdapterKind::kSkewed}) {
    const Adapter adapter = MakeAdapter(kind);
    const std::string path = folder.Path("adapter.gguf");  // replaced each time
    const Status status = WriteAdapter(adapter, path);
    ASSERT_TRUE(status.ok()) << status.message();
    const auto read = Read(path);
    ASSERT_TRUE(read.ok()) << read.status().message();
    ExpectEqual(*read, adapter);
    ExpectEqual(OrDie(ReadWholeAdapter(path)), adapter);
  }
  const auto entries = std::filesystem::directory_iterator(folder.Path(""));
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1) << "temporary files were left behind";
}

TEST(AdapterFile, IsPlainGguf) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("adapter.gguf");
  ASSERT_TRUE(WriteAdapter(MakeAdapter(AdapterKind::kQueryCentred), path).ok());
  const auto file = OrDie(GgufFile::Open(path));
  EXPECT_EQ(file->version(), 3U);
  EXPECT_EQ(OrDie(file->String("general.architecture")), "kvrun-adapter");
  EXPECT_EQ(OrDie(file->U32("kvrun-adapter.rank")), kRank);
  EXPECT_EQ(file->tensors().size(), 3 * kLayers);
}

// As all programs do it: a new file is as private as the umask says, and another stays as private as it was.
TEST(AdapterFile, TheUmaskAndTheModeThatIsThereCount) {
  const TemporaryFolder folder;
  const Adapter adapter = MakeAdapter(AdapterKind::kPlain);
  const auto mode_of = [](const std::string& path) {
    struct stat info {};
    EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
    return info.st_mode & 07777;
  };
  for (const mode_t mask : {0027U, 0077U, 0002U}) {
    const std::string path = folder.Path("new");
    const mode_t before = ::umask(mask);
    EXPECT_TRUE(WriteAdapter(adapter, path).ok());
    ::umask(before);
    EXPECT_EQ(mode_of(path), 0666U & ~mask);
    std::filesystem::remove(path);
  }
  const std::string old = folder.Write("old", "old");
  for (const mode_t mode : {0600U, 0664U, 0444U}) {
    ASSERT_EQ(::chmod(old.c_str(), mode), 0);
    ASSERT_TRUE(WriteAdapter(adapter, old).ok());
    EXPECT_EQ(mode_of(old), mode);
  }
}

TEST(AdapterFile, ALowerRankIsTheFirstColumns) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("adapter.gguf");
  const Adapter adapter = MakeAdapter(AdapterKind::kQueryCentred);
  ASSERT_TRUE(WriteAdapter(adapter, path).ok());
  const auto read = Read(path, 3);
  ASSERT_TRUE(read.ok()) << read.status().message();
  for (size_t layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(read->layers[layer].rank, 3U);
    EXPECT_EQ(read->layers[layer].energy, (std::vector<float>{0.5F, 0.75F, 0.875F}));
    for (size_t row = 0; row < kKeyDim; ++row) {
      for (size_t column = 0; column < 3; ++column) {
        EXPECT_EQ(read->layers[layer].key_side[row * 3 + column],
                  adapter.layers[layer].key_side[row * kRank + column]);
        EXPECT_EQ(read->layers[layer].query_side[row * 3 + column],
                  adapter.layers[layer].query_side[row * kRank + column]);
      }
    }
  }
}

TEST(AdapterFile, WhatDoesNotFitIsRefused) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("adapter.gguf");
  ASSERT_TRUE(WriteAdapter(MakeAdapter(AdapterKind::kPlain), path).ok());
  ExpectRefused(Read(path, 5), StatusCode::kInvalidArgument, "has rank 4, and 5 was asked for");
  ExpectRefused(Read(path, 0), StatusCode::kInvalidArgument, "ask for 1 to 4");
  const auto other_model = ReadAdapter(path, "fedcba", kLayers, kKeyDim, kRank);
  ExpectRefused(other_model, StatusCode::kInvalidArgument, "of another model");
  ExpectRefused(other_model, StatusCode::kInvalidArgument, kFingerprint);
  ExpectRefused(other_model, StatusCode::kInvalidArgument, "fedcba");
  ExpectRefused(ReadAdapter(path, kFingerprint, 4, kKeyDim, kRank), StatusCode::kInvalidArgument, "3 layers");
  ExpectRefused(ReadAdapter(path, kFingerprint, kLayers, 12, kRank), StatusCode::kInvalidArgument,
                "keys of 12");
}

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

// What was measured may lack; then the file has no keys of it.
TEST(AdapterFile, WhatWasMeasuredIsOptional) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("adapter.gguf");
  Adapter adapter = MakeAdapter(AdapterKind::kQuery);
  adapter.reuse.clear();
  adapter.cluster_thresholds.clear();
  adapter.entry_means.clear();
  adapter.layer_shares.clear();
  ASSERT_TRUE(WriteAdapter(adapter, path).ok());
  const auto file = OrDie(GgufFile::Open(path));
  EXPECT_FALSE(file->Has("kvrun-adapter.reuse.policy"));
  EXPECT_FALSE(file->Has("kvrun-adapter.cluster_thresholds"));
  EXPECT_FALSE(file->Has("kvrun-adapter.entry_means"));
  EXPECT_FALSE(file->Has("kvrun-adapter.layer_shares"));
  ExpectEqual(OrDie(ReadWholeAdapter(path)), adapter);
}

TEST(AdapterFile, WhatCannotHaveBeenMeasuredIsNotWritten) {
  const TemporaryFolder folder;
  const std::pair<std::function<void(Adapter&)>, std::string> cases[] = {
      {[](Adapter& a) { a.reuse[1].rate = 1.5F; }, "reuse rate 1 is 1.5"},
      {[](Adapter& a) { a.reuse[1].rate = -0.1F; }, "reuse rate 1 is -0.1"},
      {[](Adapter& a) { a.reuse[0].rate = std::nanf(""); }, "reuse rate 0 is nan"},
      {[](Adapter& a) { a.reuse[0].reuse_groups = 0; }, "reuse rate 0 is of an empty selection"},
      {[](Adapter& a) { a.cluster_thresholds.pop_back(); }, "5 cluster thresholds"},
      {[](Adapter& a) { a.cluster_thresholds.resize(9); }, "9 cluster thresholds"},  // 3 heads of 10
      {[](Adapter& a) { a.cluster_thresholds[2] = -1.0F; }, "a cluster threshold is -1"},
      {[](Adapter& a) { a.cluster_thresholds[2] = INFINITY; }, "a cluster threshold is inf"},
      {[](Adapter& a) { a.entry_means.pop_back(); }, "mean values, which do not fit its layers"},
      {[](Adapter& a) { a.entry_means[7] = INFINITY; }, "a mean value is inf"},
      {[](Adapter& a) { a.layer_shares.pop_back(); }, "it has 2 shares of 3 layers"},
      {[](Adapter& a) { a.layer_shares[0] = -0.5F; }, "a layer's share is -0.5"},
      {[](Adapter& a) { a.layer_shares[0] = std::nanf(""); }, "a layer's share is nan"},
  };
  for (const auto& [damage, part] : cases) {
    Adapter adapter = MakeAdapter(AdapterKind::kPlain);
    damage(adapter);
    const Status status = WriteAdapter(adapter, folder.Path("adapter.gguf"));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << part;
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.Path("")));
}

// A file of version 1, as it was written before there were reuse rates: one layer, keys of two elements.
testing::GgufBuilder OldFile() {
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

TEST(AdapterFile, VersionOneIsStillRead) {
  const TemporaryFolder folder;
  const std::string path = testing::WriteModel(folder, "old", OldFile().Build());
  for (const auto& read : {ReadWholeAdapter(path), ReadAdapter(path, "0123", 1, 2, 1)}) {
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->layers[0].key_side, (std::vector<float>{1.0F, 0.5F}));
    EXPECT_EQ(read->layers[0].energy, (std::vector<float>{0.75F}));
    EXPECT_TRUE(read->reuse.empty());
    EXPECT_TRUE(read->cluster_thresholds.empty());
    EXPECT_TRUE(read->entry_means.empty());
    EXPECT_TRUE(read->layer_shares.empty());
  }
  const auto renamed = OldFile().Set("kvrun-adapter.version", uint32_t{2}).Build();
  ExpectRefused(ReadWholeAdapter(testing::WriteModel(folder, "renamed", renamed)), StatusCode::kCorrupt,
                "its checksum is wrong");
}

// As it was written before a file said what it was made from.
TEST(AdapterFile, VersionThreeIsStillRead) {
  uint64_t value = 0;
  const auto add = [&value](const void* data, size_t size) {
    value = XXH3_64bits_withSeed(data, size, value);
  };
  const uint32_t numbers[] = {1, 1, 2};  // rank, layers, key_dim
  const float energy = 0.75F;
  const uint32_t n_rates = 0;
  const uint16_t halves[] = {0x3c00, 0x3800};
  add("plain", 5);
  add("0123", 4);
  for (const uint32_t& number : numbers) add(&number, sizeof number);
  add(&energy, sizeof energy);
  add(&n_rates, sizeof n_rates);
  for (int i = 0; i < 3; ++i) add("", 0);  // thresholds, means, shares
  add(halves, sizeof halves);
  const TemporaryFolder folder;
  const auto bytes = OldFile()
                         .Set("kvrun-adapter.version", uint32_t{3})
                         .Set("kvrun-adapter.checksum", fmt::format("{:016x}", value))
                         .Build();
  const auto read = ReadWholeAdapter(testing::WriteModel(folder, "three", bytes));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->made_from, "");
  EXPECT_EQ(read->layers[0].key_side, (std::vector<float>{1.0F, 0.5F}));
  const std::string path = folder.Path("four");
  ASSERT_TRUE(WriteAdapter(*read, path).ok());
  EXPECT_EQ(OrDie(ReadWholeAdapter(path)).measured_on, "");
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

TEST(AdapterFile, WhatCannotBeWrittenIsRefusedAndLeavesTheOldFile) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("adapter.gguf");
  const Adapter old = MakeAdapter(AdapterKind::kPlain);
  ASSERT_TRUE(WriteAdapter(old, path).ok());
  Adapter adapter = MakeAdapter(AdapterKind::kPlain);
  adapter.layers[1].key_side[7] = 70000.0F;
  EXPECT_NE(WriteAdapter(adapter, path).message().find("blk.1.key_side holds 70000"), std::string::npos);
  adapter.layers[1].key_side[7] = std::nanf("");
  EXPECT_FALSE(WriteAdapter(adapter, path).ok());
  adapter = MakeAdapter(AdapterKind::kPlain);
  adapter.layers.pop_back();
  adapter.layers.front() = {
      kKeyDim, 1, std::vector<float>(kKeyDim), std::vector<float>(kKeyDim), std::vector<float>(kKeyDim),
      {1.0F}};
  EXPECT_FALSE(WriteAdapter(adapter, path).ok());
  EXPECT_FALSE(WriteAdapter({}, path).ok());
  ExpectEqual(OrDie(Read(path)), old);
  const Status status = WriteAdapter(old, folder.Path("no/such/folder"));
  EXPECT_EQ(status.code(), StatusCode::kNotFound) << status.message();
  EXPECT_NE(status.message().find("no/such/folder"), std::string::npos) << status.message();
}

TEST(AdapterFile, APathCanBeCheckedBeforehand) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("adapter.gguf");
  EXPECT_TRUE(CheckResultFile(path).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder.Path(""))) << "the check left something behind";
  folder.Write("adapter.gguf", "old");
  EXPECT_TRUE(CheckResultFile(path).ok());
  EXPECT_EQ(ReadWholeFile(path), "old");
  EXPECT_EQ(CheckResultFile(folder.Path("no/such/folder")).code(), StatusCode::kNotFound);
}

TEST(AdapterFile, WhatIsNoFileIsNotReplacedAndALinkIsKept) {
  const TemporaryFolder folder;
  const std::string fifo = folder.Path("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const Adapter adapter = MakeAdapter(AdapterKind::kPlain);
  for (const std::string& path : {folder.Path(""), fifo}) {
    EXPECT_EQ(CheckResultFile(path).code(), StatusCode::kInvalidArgument) << path;
    EXPECT_EQ(WriteAdapter(adapter, path).code(), StatusCode::kInvalidArgument) << path;
  }
  EXPECT_TRUE(std::filesystem::is_fifo(fifo));
  const std::string link = folder.Path("link");
  std::filesystem::create_symlink(folder.Write("target", "old"), link);
  ASSERT_TRUE(WriteAdapter(adapter, link).ok());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  ExpectEqual(OrDie(Read(folder.Path("target"))), adapter);
}

}  // namespace
}  // namespace kvrun
