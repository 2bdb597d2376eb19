#include "runtime/model/gguf.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "tests/support/gguf_builder.h"
#include "tests/support/reference_files.h"

namespace kvrun {
namespace {

using testing::Bytes;
using testing::ByteWriter;
using testing::GgufBuilder;

// A file and the bytes it points into.
struct Opened {
  std::unique_ptr<Bytes> bytes;
  std::unique_ptr<GgufFile> file;
  const GgufFile* operator->() const { return file.get(); }
};

Opened OpenOrDie(const GgufBuilder& builder) {
  Opened opened{std::make_unique<Bytes>(builder.Build()), nullptr};
  auto file = GgufFile::Parse(*opened.bytes, "test.gguf");
  if (!file.ok()) throw std::runtime_error(file.status().message());
  opened.file = std::move(*file);
  return opened;
}

Bytes DataOf(const GgufFile& file, const GgufTensor& tensor) {
  auto bytes = file.ReadAll(tensor);
  if (!bytes.ok()) throw std::runtime_error(bytes.status().message());
  return *bytes;
}

GgufBuilder EveryKind() {
  GgufBuilder builder;
  builder.Set("u8", uint8_t{200}).Set("i8", int8_t{-3}).Set("u16", uint16_t{60000}).Set("i16", int16_t{-300});
  builder.Set("u32", uint32_t{4000000000U}).Set("i32", int32_t{7}).Set("u64", uint64_t{1} << 40);
  builder.Set("i64", int64_t{-5}).Set("f32", 1.5F).Set("f64", 2.25).Set("yes", true).Set("no", false);
  builder.Set("text", "hello").Set("empty", "");
  builder.SetStrings("strings", {"a", "", "ccc"}).SetStrings("no_strings", {});
  builder.SetArray<float>("floats", {1.0F, -2.5F}).SetArray<int32_t>("ints", {-1, 2, 3});
  builder.SetArray<uint8_t>("bytes", {0, 255}).SetArray<int8_t>("small", {-128, 127});
  builder.SetArray<int16_t>("shorts", {-32768}).SetArray<uint16_t>("ushorts", {65535});
  builder.SetArray<uint32_t>("uints", {0x80000000U})
      .SetArray<uint64_t>("longs", {1})
      .SetArray<bool>("bools", {true});
  builder.Set("nan", std::nanf("")).Set("huge", 1e300);
  return builder;
}

TEST(Gguf, ReadsScalarsOfEveryType) {
  const Opened file = OpenOrDie(EveryKind());
  EXPECT_EQ(*file->U32("u8"), 200U);
  EXPECT_EQ(*file->U32("u16"), 60000U);
  EXPECT_EQ(*file->U32("u32"), 4000000000U);
  EXPECT_EQ(*file->U32("i32"), 7U);
  EXPECT_EQ(std::get<uint64_t>(*file->Find("u64")), uint64_t{1} << 40);
  EXPECT_EQ(std::get<int64_t>(*file->Find("i8")), -3);
  EXPECT_EQ(std::get<int64_t>(*file->Find("i16")), -300);
  EXPECT_EQ(std::get<int64_t>(*file->Find("i64")), -5);
  EXPECT_EQ(*file->F32("f32"), 1.5F);
  EXPECT_EQ(*file->F32("f64"), 2.25F);
  EXPECT_EQ(*file->F32("i8"), -3.0F);
  EXPECT_EQ(*file->F32("u8"), 200.0F);
  EXPECT_TRUE(*file->Bool("yes"));
  EXPECT_FALSE(*file->Bool("no"));
  EXPECT_EQ(*file->String("text"), "hello");
  EXPECT_EQ(*file->String("empty"), "");
}

TEST(Gguf, ReadsArrays) {
  const Opened file = OpenOrDie(EveryKind());
  EXPECT_EQ(*file->Strings("strings"), (std::vector<std::string_view>{"a", "", "ccc"}));
  EXPECT_TRUE(file->Strings("no_strings")->empty());
  EXPECT_EQ(*file->Floats("floats"), (std::vector<float>{1.0F, -2.5F}));
  EXPECT_EQ(*file->Ints("ints"), (std::vector<int32_t>{-1, 2, 3}));
  EXPECT_EQ(*file->Ints("bytes"), (std::vector<int32_t>{0, 255}));
  EXPECT_EQ(*file->Ints("small"), (std::vector<int32_t>{-128, 127}));
  EXPECT_EQ(*file->Ints("shorts"), (std::vector<int32_t>{-32768}));
  EXPECT_EQ(*file->Ints("ushorts"), (std::vector<int32_t>{65535}));
  EXPECT_EQ(*file->Ints("bools"), (std::vector<int32_t>{1})) << "flags of layers are either";
}

void ExpectError(const Status& status, StatusCode code, std::string_view part) {
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  EXPECT_EQ(status.message().find("test.gguf: "), 0U) << status.message();
}

TEST(Gguf, TypedAccessNamesFileKeyAndReason) {
  const Opened file = OpenOrDie(EveryKind());
  ExpectError(file->U32("gone").status(), StatusCode::kNotFound, "key \"gone\" is missing");
  ExpectError(file->String("gone").status(), StatusCode::kNotFound, "key \"gone\" is missing");
  ExpectError(file->U32("text").status(), StatusCode::kCorrupt, "\"text\" is a string, expected an integer");
  ExpectError(file->U32("yes").status(), StatusCode::kCorrupt, "a bool");
  ExpectError(file->U32("i8").status(), StatusCode::kCorrupt, "-3");
  ExpectError(file->U32("u64").status(), StatusCode::kCorrupt, "1099511627776");
  ExpectError(file->F32("nan").status(), StatusCode::kCorrupt, "finite");
  ExpectError(file->F32("huge").status(), StatusCode::kCorrupt, "finite");
  ExpectError(file->Bool("u8").status(), StatusCode::kCorrupt, "an unsigned integer, expected a bool");
  ExpectError(file->Strings("floats").status(), StatusCode::kCorrupt, "an array of numbers");
  ExpectError(file->Floats("ints").status(), StatusCode::kCorrupt, "32-bit floats");
  ExpectError(file->Ints("floats").status(), StatusCode::kCorrupt, "integers");
  ExpectError(file->Ints("longs").status(), StatusCode::kCorrupt, "integers");
  ExpectError(file->Ints("uints").status(), StatusCode::kCorrupt, "uints[0]\" is 2147483648");
}

TEST(Gguf, FallbackOnlyWhereTheKeyIsMissing) {
  const Opened file = OpenOrDie(EveryKind());
  EXPECT_EQ(*file->U32Or("gone", 9), 9U);
  EXPECT_EQ(*file->F32Or("gone", 0.5F), 0.5F);
  EXPECT_TRUE(*file->BoolOr("gone", true));
  EXPECT_EQ(*file->StringOr("gone", "x"), "x");
  EXPECT_EQ(*file->U32Or("u8", 9), 200U);
  EXPECT_FALSE(file->U32Or("text", 9).ok());
  EXPECT_FALSE(file->F32Or("nan", 9).ok());
  EXPECT_FALSE(file->BoolOr("text", true).ok());
  EXPECT_FALSE(file->StringOr("u8", "x").ok());
}

TEST(Gguf, FindsTensorsAndTheirBytes) {
  GgufBuilder builder;
  builder.AddTensor("a", {3}, {1.0F, 2.0F, 3.0F});
  builder.AddTensor("b", TensorType::kF16, {2, 2}, Bytes(8, std::byte{0x3C}));
  const Opened file = OpenOrDie(builder);
  ASSERT_EQ(file->tensors().size(), 2U);
  const GgufTensor* a = file->FindTensor("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->n_dims, 1U);
  EXPECT_EQ(a->elements(), 3U);
  std::vector<float> values(3);
  DecodeTensor(a->type, DataOf(*file.file, *a), values);
  EXPECT_EQ(values, (std::vector<float>{1.0F, 2.0F, 3.0F}));
  const GgufTensor* b = file->FindTensor("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->type, TensorType::kF16);
  EXPECT_EQ(b->shape, (std::array<uint64_t, 4>{2, 2, 1, 1}));
  EXPECT_EQ(DataOf(*file.file, *b), Bytes(8, std::byte{0x3C}));
  EXPECT_EQ(file->FindTensor("c"), nullptr);
}

TEST(Gguf, ReadsVersion2AndOtherAlignments) {
  EXPECT_EQ(OpenOrDie(GgufBuilder().ClaimVersion(2).AddTensor("a", {1}, {4.0F}))->version(), 2U);
  for (const uint64_t alignment : {8U, 64U, 4096U}) {
    GgufBuilder builder;
    builder.Set("general.alignment", static_cast<uint32_t>(alignment)).Align(alignment);
    builder.AddTensor("a", {1}, {4.0F}).AddTensor("b", {1}, {5.0F});
    const Opened file = OpenOrDie(builder);
    float value = 0;
    DecodeTensor(TensorType::kF32, DataOf(*file.file, *file->FindTensor("b")), {&value, 1});
    EXPECT_EQ(value, 5.0F) << alignment;
  }
}

TEST(Gguf, AFileWithoutTensorsMayEndBehindItsKeys) {
  const Opened file = OpenOrDie(GgufBuilder().Set("k", "v").Align(1));
  EXPECT_TRUE(file->tensors().empty());
  EXPECT_TRUE(file->Has("k"));
}

class GgufOnDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("kvrun_gguf_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& name, std::span<const std::byte> bytes) {
    const std::string path = (folder_ / name).string();
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return path;
  }
  std::filesystem::path folder_;
};

TEST_F(GgufOnDisk, OpensAFile) {
  const std::string path = Write("a.gguf", testing::TinyModel().Build());
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ((*file)->name(), path);
  EXPECT_EQ((*file)->size_bytes(), std::filesystem::file_size(path));
  const GgufTensor* norm = (*file)->FindTensor("output_norm.weight");
  ASSERT_NE(norm, nullptr);
  const Bytes bytes = testing::TinyModel().Build();
  const auto memory = GgufFile::Parse(bytes, "memory");
  EXPECT_EQ(DataOf(**file, *norm), DataOf(**memory, *(*memory)->FindTensor("output_norm.weight")));
  Bytes part(4);
  ASSERT_TRUE((*file)->Read(*norm, norm->size_bytes - 4, part).ok());
  const Bytes all = DataOf(**file, *norm);
  EXPECT_EQ(part, Bytes(all.end() - 4, all.end()));
  EXPECT_EQ((*file)->paths(), std::vector<std::string>{path});
}

// More than what is read at first: a text and a list go over its end.
TEST_F(GgufOnDisk, KeysMayTakeManyMegabytes) {
  GgufBuilder builder = testing::TinyModel();
  builder.Set("a.text", std::string(3'000'000, 'x')).Set("b.text", "end");
  builder.SetStrings("c.texts", std::vector<std::string>(400'000, "word"));
  const std::string path = Write("a.gguf", builder.Build());
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ((*file)->String("a.text")->size(), 3'000'000U);
  EXPECT_EQ(*(*file)->String("b.text"), "end");
  EXPECT_EQ((*file)->Strings("c.texts")->back(), "word");
  EXPECT_EQ(DataOf(**file, *(*file)->FindTensor("output_norm.weight")).size(),
            (*file)->FindTensor("output_norm.weight")->size_bytes);
}

// Of a length that no disk holds all of: nothing as large is allocated.
TEST_F(GgufOnDisk, AFileThatIsMostlyAHoleIsRefused) {
  Bytes bytes = GgufBuilder().Set("long", "text").Build();
  const uint64_t length = uint64_t{1} << 40;  // of the text, which lies before the list of tensors
  const auto at = std::search(bytes.begin(), bytes.end(), reinterpret_cast<const std::byte*>("text"),
                              reinterpret_cast<const std::byte*>("text") + 4);
  std::memcpy(&*at - 8, &length, sizeof length);
  const std::string path = Write("hole.gguf", bytes);
  std::error_code error;
  std::filesystem::resize_file(path, 2 * length, error);
  if (error) GTEST_SKIP() << "the file system has no files of 2 TiB: " << error.message();
  const Status status = GgufFile::Open(path).status();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_NE(status.message().find("more than 256.0 MiB, which is not believable"), std::string::npos)
      << status.message();
}

TEST_F(GgufOnDisk, WhatIsCutAfterItWasOpenedIsAnError) {
  const std::string path = Write("a.gguf", testing::TinyModel().Build());
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->CheckUnchanged().ok());
  const uint64_t was_bytes = std::filesystem::file_size(path);
  std::filesystem::resize_file(path, 700);
  for (const GgufTensor& tensor : (*file)->tensors()) {
    const Status status = (*file)->ReadAll(tensor).status();
    EXPECT_EQ(status.code(), StatusCode::kCorrupt);
    EXPECT_EQ(status.message().find("tensor \"" + std::string(tensor.name) + "\": " + path +
                                    ": it was cut to 700 bytes while it was being read, and had " +
                                    std::to_string(was_bytes)),
              0U)
        << status.message();
  }
  EXPECT_EQ((*file)->CheckUnchanged().code(), StatusCode::kCorrupt);
  EXPECT_TRUE((*file)->String("general.architecture").ok()) << "keys are in memory";
}

TEST_F(GgufOnDisk, WhatIsNoFileIsNamed) {
  const std::string missing = (folder_ / "missing.gguf").string();
  const Status none = GgufFile::Open(missing).status();
  EXPECT_EQ(none.code(), StatusCode::kNotFound);
  EXPECT_NE(none.message().find(missing), std::string::npos);
  const Status folder = GgufFile::Open(folder_.string()).status();
  EXPECT_EQ(folder.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(folder.message().find("not a regular file"), std::string::npos);
  const std::string empty = Write("empty.gguf", {});
  const Status nothing = GgufFile::Open(empty).status();
  EXPECT_EQ(nothing.code(), StatusCode::kCorrupt);
  EXPECT_EQ(nothing.message(), empty + ": the file is empty (0 bytes)");
}

TEST(GgufReference, EveryReferenceFileOpens) {
  const auto root = testing::SharedPath("reference");
  if (!root) GTEST_SKIP() << "no reference files";
  size_t n_files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(*root)) {
    if (entry.path().extension() != ".gguf") continue;
    const auto file = GgufFile::Open(entry.path().string());
    EXPECT_TRUE(file.ok()) << file.status().message();
    ++n_files;
  }
  EXPECT_GT(n_files, 15U);
}

TEST(GgufReference, StoriesHasItsTensors) {
  const auto path = testing::SharedPath("models/stories260K.gguf");
  if (!path) GTEST_SKIP() << "no reference files";
  const auto file = GgufFile::Open(*path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ((*file)->tensors().size(), 47U);
  EXPECT_EQ((*file)->Strings("tokenizer.ggml.tokens")->size(), 512U);
  const GgufTensor* down = (*file)->FindTensor("blk.4.ffn_down.weight");
  ASSERT_NE(down, nullptr);
  EXPECT_EQ(down->shape, (std::array<uint64_t, 4>{172, 64, 1, 1}));
}

}  // namespace
}  // namespace kvrun
