// Files that are cut, flipped, hostile or something else altogether: a clear Status or a valid parse.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "runtime/model/gguf.h"
#include "runtime/model/model_config.h"
#include "runtime/model/weights.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/reference_files.h"

namespace kvrun {
namespace {

using testing::Bytes;
using testing::ByteWriter;
using testing::GgufBuilder;

Status ParseStatus(std::span<const std::byte> bytes) {
  // A copy of exactly that size, so that a sanitizer sees reads beyond it.
  const auto exact = std::make_unique<std::byte[]>(bytes.size());
  if (!bytes.empty()) std::memcpy(exact.get(), bytes.data(), bytes.size());
  return GgufFile::Parse({exact.get(), bytes.size()}, "model.gguf").status();
}

// Everything that reading a model does before it computes.
Status LoadStatus(std::span<const std::byte> bytes) {
  const auto exact = std::make_unique<std::byte[]>(bytes.size());
  if (!bytes.empty()) std::memcpy(exact.get(), bytes.data(), bytes.size());
  const auto file = GgufFile::Parse({exact.get(), bytes.size()}, "model.gguf");
  if (!file.ok()) return file.status();
  const auto config = ReadModelConfig(**file);
  if (!config.ok()) return config.status();
  (void)MakeRopeTable(config->rope, 1024);
  return FindModelWeights(**file, *config).status();
}

void ExpectRefused(const Status& status, StatusCode code, std::string_view part) {
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  EXPECT_EQ(status.message().find("model.gguf: "), 0U) << status.message();
}

void ExpectRefused(const GgufBuilder& builder, StatusCode code, std::string_view part) {
  ExpectRefused(ParseStatus(builder.Build()), code, part);
}

GgufBuilder SmallModel() {
  testing::TinyModelOptions options;
  options.n_layers = 1;
  options.n_embd = 8;
  options.n_heads = 1;
  options.n_kv_heads = 1;
  options.n_ff = 8;
  options.n_vocab = 5;
  options.has_tied_output = true;
  return testing::TinyModel(options);
}

TEST(GgufDamage, TheWholeFileLoads) {
  const Status status = LoadStatus(SmallModel().Build());
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(GgufDamage, CutAtAnyByteIsRefused) {
  const Bytes whole = SmallModel().Build();
  for (size_t size = 0; size < whole.size(); ++size) {
    const Status status = LoadStatus(std::span(whole).first(size));
    ASSERT_EQ(status.code(), StatusCode::kCorrupt) << size << ": " << status.message();
    ASSERT_EQ(status.message().find("model.gguf: "), 0U) << status.message();
    if (size >= 4) {
      ASSERT_NE(status.message().find("end of the file"), std::string::npos) << status.message();
    }
  }
}

TEST(GgufDamage, AnyFlippedByteOfTheHeaderIsRefusedOrHarmless) {
  const GgufBuilder builder = SmallModel();
  Bytes bytes = builder.Build();
  size_t n_refused = 0;
  for (size_t at = 0; at < builder.HeaderBytes(); ++at) {
    for (const std::byte mask : {std::byte{0x01}, std::byte{0x80}, std::byte{0xFF}, std::byte{0x10}}) {
      bytes[at] ^= mask;
      const Status status = LoadStatus(bytes);
      if (!status.ok()) {
        ++n_refused;
        ASSERT_EQ(status.message().find("model.gguf: "), 0U) << status.message();
        ASSERT_NE(status.code(), StatusCode::kInternal) << status.message();
      }
      bytes[at] ^= mask;
    }
  }
  EXPECT_GT(n_refused, builder.HeaderBytes());
}

constexpr std::array<uint64_t, 8> kHugeNumbers = {
    (uint64_t{1} << 63) - 1, uint64_t{1} << 63, (uint64_t{1} << 63) + 1, ~uint64_t{0},
    ~uint64_t{0} - 7,        ~uint64_t{0} - 31, uint64_t{1} << 62,       uint64_t{1} << 32};

TEST(GgufDamage, HugeCountsAreRefused) {
  for (const uint64_t huge : kHugeNumbers) {
    const std::string number = std::to_string(huge);
    ExpectRefused(SmallModel().ClaimTensorCount(huge), StatusCode::kCorrupt, "tensor count " + number);
    ExpectRefused(SmallModel().ClaimKeyCount(huge), StatusCode::kCorrupt, "key count " + number);
  }
}

TEST(GgufDamage, HugeLengthsAreRefused) {
  for (const uint64_t huge : kHugeNumbers) {
    const std::string number = std::to_string(huge);
    const auto text = ByteWriter().Put(huge).PutBytes(Bytes(64)).Take();
    ExpectRefused(GgufBuilder().SetRaw("k", 8, text), StatusCode::kCorrupt,
                  "key \"k\": string length " + number + " at byte 37 runs past the end of the file");
    for (const uint32_t element_type : {0U, 5U, 7U, 8U, 12U}) {
      const auto array = ByteWriter().Put(element_type).Put(huge).PutBytes(Bytes(64)).Take();
      ExpectRefused(GgufBuilder().SetRaw("k", 9, array), StatusCode::kCorrupt, "array length " + number);
    }
  }
}

TEST(GgufDamage, HugeShapesAndOffsetsAreRefused) {
  for (const uint64_t huge : kHugeNumbers) {
    ExpectRefused(GgufBuilder().AddTensor("t", TensorType::kF32, {huge}, Bytes(64)), StatusCode::kCorrupt,
                  "\"t\"");
    ExpectRefused(GgufBuilder().AddTensor("t", TensorType::kF32, {huge, huge}, Bytes(64)),
                  StatusCode::kCorrupt, "more elements than 64 bits can count");
    ExpectRefused(GgufBuilder().AddTensor("t", TensorType::kQ4_0, {32, huge}, Bytes(64)),
                  StatusCode::kCorrupt, "\"t\"");
    // 64 bytes: offset and size together pass 2^64.
    ExpectRefused(GgufBuilder().AddTensor("t", {16}, std::vector<float>(16)).ClaimOffset("t", huge),
                  StatusCode::kCorrupt, "tensor \"t\"");
  }
}

TEST(GgufDamage, MessageNamesPlaceAndSize) {
  Bytes bytes = GgufBuilder().Set("k", "value").Build();
  const uint64_t huge = 9223372036854775807U;
  std::memcpy(bytes.data() + 24, &huge, sizeof(huge));
  EXPECT_EQ(ParseStatus(bytes).message(),
            "model.gguf: key 1 of 1: string length 9223372036854775807 at byte 24 runs past the end of the "
            "file (64 "
            "bytes); the file is cut short or damaged");
}

TEST(GgufDamage, WhatIsNotGgufIsNamed) {
  const auto parse_text = [](std::string_view text) {
    return ParseStatus(std::as_bytes(std::span(text.data(), text.size())));
  };
  ExpectRefused(parse_text(""), StatusCode::kCorrupt, "empty (0 bytes)");
  ExpectRefused(parse_text("GG"), StatusCode::kCorrupt, "not a GGUF file");
  ExpectRefused(parse_text("GGUF"), StatusCode::kCorrupt, "end of the file");
  ExpectRefused(parse_text("hello world, this is text"), StatusCode::kCorrupt, "starts with \"hell\"");
  ExpectRefused(parse_text(std::string_view("\0\x01\xFF\n", 4)), StatusCode::kCorrupt,
                "\"\\x00\\x01\\xff\\x0a\"");
  ExpectRefused(parse_text("tjgg\x03"), StatusCode::kCorrupt, "GGJT");
  ExpectRefused(parse_text("version https://git-lfs.github.com/spec/v1"), StatusCode::kCorrupt,
                "Git LFS pointer");
  ExpectRefused(parse_text("<!DOCTYPE html>"), StatusCode::kCorrupt, "web page");
}

TEST(GgufDamage, OtherVersionsAndByteOrdersAreNamed) {
  ExpectRefused(GgufBuilder().ClaimVersion(1), StatusCode::kUnsupported, "version 1");
  ExpectRefused(GgufBuilder().ClaimVersion(0), StatusCode::kUnsupported, "version 0");
  ExpectRefused(GgufBuilder().ClaimVersion(4), StatusCode::kUnsupported, "version 4");
  ExpectRefused(GgufBuilder().ClaimVersion(0x03000000), StatusCode::kUnsupported, "big-endian");
  ExpectRefused(GgufBuilder().ClaimVersion(0x02000000), StatusCode::kUnsupported, "big-endian");
  Bytes reversed = GgufBuilder().Build();
  std::memcpy(reversed.data(), "FUGG", 4);
  ExpectRefused(ParseStatus(reversed), StatusCode::kUnsupported, "big-endian");
}

TEST(GgufDamage, WrongKeysAreRefused) {
  ExpectRefused(GgufBuilder().AllowDuplicates().Set("k", 1).Set("k", 2), StatusCode::kCorrupt,
                "key \"k\" is there twice");
  ExpectRefused(GgufBuilder().Set("", 1), StatusCode::kCorrupt, "has 0 bytes");
  ExpectRefused(GgufBuilder().Set(std::string(65536, 'k'), 1), StatusCode::kCorrupt, "has 65536 bytes");
  ExpectRefused(GgufBuilder().SetRaw("k", 13, Bytes(8)), StatusCode::kCorrupt, "value type 13");
  ExpectRefused(GgufBuilder().SetRaw("k", ~0U, Bytes(8)), StatusCode::kCorrupt, "value type 4294967295");
  ExpectRefused(GgufBuilder().SetRaw("k", 7, Bytes(1, std::byte{2})), StatusCode::kCorrupt,
                "a bool is 0 or 1");
  const auto array_of = [](uint32_t type) {
    return ByteWriter().Put(type).Put(uint64_t{1}).Put(uint64_t{0}).Take();
  };
  ExpectRefused(GgufBuilder().SetRaw("k", 9, array_of(9)), StatusCode::kUnsupported, "array of arrays");
  ExpectRefused(GgufBuilder().SetRaw("k", 9, array_of(13)), StatusCode::kCorrupt, "element type 13");
}

TEST(GgufDamage, ManyKeysAreRefusedEvenIfTheFileIsLongEnough) {
  GgufBuilder builder;
  builder.SetArray("filler", std::vector<uint64_t>(300000)).ClaimKeyCount(100000);
  ExpectRefused(builder, StatusCode::kCorrupt, "not believable");
}

TEST(GgufDamage, WrongAlignmentIsRefused) {
  for (const uint32_t alignment : {0U, 1U, 4U, 24U, 33U, 131072U, 0x80000000U}) {
    ExpectRefused(GgufBuilder().Set("general.alignment", alignment), StatusCode::kCorrupt,
                  "\"general.alignment\" is " + std::to_string(alignment));
  }
  ExpectRefused(GgufBuilder().Set("general.alignment", "32"), StatusCode::kCorrupt, "\"general.alignment\"");
}

TEST(GgufDamage, WrongTensorsAreRefused) {
  const auto one = [](TensorType type, const std::vector<uint64_t>& shape) {
    return GgufBuilder().AddTensor("t", type, shape, Bytes(64));
  };
  ExpectRefused(one(TensorType::kF32, {}), StatusCode::kCorrupt, "0 dimensions");
  ExpectRefused(one(TensorType::kF32, {1, 1, 1, 1, 1}), StatusCode::kCorrupt, "5 dimensions");
  ExpectRefused(one(TensorType::kF32, {4, 0}), StatusCode::kCorrupt, "dimension 1 is 0");
  ExpectRefused(one(TensorType::kQ4_0, {33}), StatusCode::kCorrupt, "whole number of Q4_0 blocks of 32");
  ExpectRefused(one(TensorType::kQ4_K, {32, 8}), StatusCode::kCorrupt, "whole number of Q4_K blocks of 256");
  ExpectRefused(one(TensorType::kF32, {17}), StatusCode::kCorrupt, "runs past the end");
  EXPECT_TRUE(ParseStatus(one(TensorType::kF32, {16}).Build()).ok());
  ExpectRefused(GgufBuilder().AddTensor("", {1}, {1.0F}), StatusCode::kCorrupt, "has 0 bytes");
  ExpectRefused(GgufBuilder().AddTensor(std::string(65, 't'), {1}, {1.0F}), StatusCode::kCorrupt,
                "has 65 bytes");
  ExpectRefused(GgufBuilder().AllowDuplicates().AddTensor("t", {1}, {1.0F}).AddTensor("t", {1}, {1.0F}),
                StatusCode::kCorrupt, "tensor \"t\" is there twice");
  ExpectRefused(GgufBuilder().AddTensor("t", {16}, std::vector<float>(16)).ClaimOffset("t", 4),
                StatusCode::kCorrupt, "offset 4 is not a multiple of the alignment, 32");
  GgufBuilder overlapping;
  overlapping.AddTensor("a", {16}, std::vector<float>(16)).AddTensor("b", {16}, std::vector<float>(16));
  ExpectRefused(overlapping.ClaimOffset("b", 32), StatusCode::kCorrupt, "\"a\" and \"b\" overlap");
}

TEST(GgufDamage, UnknownTensorTypeNamesTensorTypeAndTheKnown) {
  const Status status = ParseStatus(GgufBuilder().AddTensor("blk.0.x", 16U, {256}, Bytes(66)).Build());
  ExpectRefused(status, StatusCode::kUnsupported, "\"blk.0.x\": tensor type 16 is not supported");
  for (const std::string_view known : {"F32", "BF16", "Q4_0", "Q6_K"}) {
    EXPECT_NE(status.message().find(known), std::string::npos) << known;
  }
  ExpectRefused(GgufBuilder().AddTensor("t", 4U, {32}, Bytes(64)), StatusCode::kUnsupported,
                "tensor type 4 ");
  ExpectRefused(GgufBuilder().AddTensor("t", ~0U, {32}, Bytes(64)), StatusCode::kUnsupported, "4294967295");
}

TEST(GgufDamage, UnprintableNamesAreEscapedAndCut) {
  const Status status =
      ParseStatus(GgufBuilder().SetRaw("a\n\x1b[2J" + std::string(200, 'x'), 99, Bytes(8)).Build());
  ExpectRefused(status, StatusCode::kCorrupt, "\"a\\x0a\\x1b[2Jxxx");
  EXPECT_LT(status.message().size(), 250U);
}

TEST(GgufDamage, FuzzingCorpusIsReadWithoutACrash) {
  size_t n_files = 0;
  size_t n_loaded = 0;
  for (const auto& entry : std::filesystem::directory_iterator(KVRUN_SOURCE_DIR "/tests/fuzz/corpus/gguf")) {
    const std::string bytes = testing::ReadFileOrDie(entry.path().string());
    EXPECT_LT(bytes.size(), 4096U) << entry.path();
    if (LoadStatus(std::as_bytes(std::span(bytes))).ok()) ++n_loaded;
    ++n_files;
  }
  EXPECT_GE(n_files, 8U);
  EXPECT_GE(n_loaded, 4U);
}

}  // namespace
}  // namespace kvrun
