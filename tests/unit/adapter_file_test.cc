// Files of adapters: what is written is read again, with older versions, and where a file may be written.
#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "platform/io/replace_file.h"
#include "runtime/kv/math/adapter.h"
#include "runtime/model/gguf.h"
#include "tests/support/adapter_files.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing::adapter_files {
namespace {

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
}  // namespace kvrun::testing::adapter_files
