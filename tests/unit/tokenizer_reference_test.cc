// Ids that another runtime gave for the same vocabularies and texts.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/model/gguf.h"
#include "runtime/model/tokenizer.h"
#include "tests/support/reference_files.h"

namespace kvrun {
namespace {

using testing::ReadFileOrDie;
using testing::ReadIds;
using testing::SharedPath;

std::unique_ptr<Tokenizer> OpenTokenizer(const std::string& path) {
  Result<std::unique_ptr<GgufFile>> file = GgufFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status().message();
  if (!file.ok()) return nullptr;
  Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(**file);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return tokenizer.ok() ? std::move(tokenizer).value() : nullptr;
}

std::vector<std::string> SplitAt(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t at = text.find(separator); at != std::string::npos; at = text.find(separator, begin)) {
    parts.push_back(text.substr(begin, at - begin));
    begin = at + separator.size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::vector<TokenId> IdsOf(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<TokenId>(in), std::istream_iterator<TokenId>()};
}

std::string RandomUnicode(std::minstd_rand* random) {
  std::string text;
  for (size_t n = (*random)() % 64; n > 0; --n) {
    const auto range = static_cast<uint32_t>((*random)() >> 8) % 4;
    const uint32_t limit = range == 0 ? 0x80U : range == 1 ? 0x800U : range == 2 ? 0x10000U : 0x110000U;
    const auto c = static_cast<uint32_t>((*random)() % limit);
    if ((c >= 0xd800 && c < 0xe000) || c == 0x2581) continue;  // U+2581 is SentencePiece's space
    if (c < 0x80) {
      text += static_cast<char>(c);
      continue;
    }
    const int tail = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    text += static_cast<char>((0xf00U >> (tail + 1) & 0xf0U) | c >> (6 * tail));
    for (int i = tail - 1; i >= 0; --i) text += static_cast<char>(0x80 | (c >> (6 * i) & 0x3f));
  }
  return text;
}

// What pre-tokenizers and vocabularies treat specially, repeated and mixed.
std::string RandomMixture(std::minstd_rand* random) {
  static const std::vector<std::string> parts = SplitAt(
      " |  |\t|\n|\r\n|\u00a0|\u3000|\u2028|0|12|3456|\u0664|\u00bd|a|Z|word|CamelCase|\u00e9|e\u0301|\u00df|"
      "\u0416|\u0928\u093f|\u65e5\u672c|\ud55c|\u30ab|\U0001F680|\U0001F469\u200d\U0001F4BB|'s|'RE|'ll|'|."
      "|...|!?|/|_|<\x01|\x1f|\x7f|\u180e|\ufeff|<0x41>|</s>",
      "|");
  std::string text;
  for (size_t n = ((*random)() >> 8) % 24; n > 0; --n) {
    const std::string& part = parts[((*random)() >> 8) % parts.size()];
    const size_t times = ((*random)() >> 8) % 8 == 0 ? ((*random)() >> 8) % 40 : 1;
    for (size_t i = 0; i < times; ++i) text += part;
  }
  return text;
}

std::string RandomBytes(std::minstd_rand* random) {
  std::string text;
  for (size_t n = (*random)() % 64; n > 0; --n) text += static_cast<char>((*random)() & 0xff);
  return text;
}

class VocabReference : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string name = std::string("reference/tokenizer/ggml-vocab-") + GetParam() + ".gguf";
    const auto path = SharedPath(name);
    if (!path) GTEST_SKIP() << name << " is not there";
    path_ = *path;
    tokenizer_ = OpenTokenizer(path_);
    ASSERT_NE(tokenizer_, nullptr);
  }

  void ExpectRoundTrip(const std::string& text) {
    const Result<std::vector<TokenId>> ids = tokenizer_->Encode(text, {});
    ASSERT_TRUE(ids.ok()) << ids.status().message();
    EXPECT_TRUE(tokenizer_->Decode(*ids) == text) << ::testing::PrintToString(text.substr(0, 200));
  }

  std::string path_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(VocabReference, TextsGiveTheSameIds) {
  const std::vector<std::string> texts = SplitAt(ReadFileOrDie(path_ + ".inp"), "\n__ggml_vocab_test__\n");
  const std::vector<std::string> lines = SplitAt(ReadFileOrDie(path_ + ".out"), "\n");
  ASSERT_GE(lines.size(), texts.size());
  ASSERT_GT(texts.size(), 40U);
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(*tokenizer_->Encode(texts[i], {}), IdsOf(lines[i])) << ::testing::PrintToString(texts[i]);
  }
}

TEST_P(VocabReference, AnyBytesComeBack) {
  std::minstd_rand random(7);
  for (int i = 0; i < 300; ++i) ExpectRoundTrip(RandomUnicode(&random));
  // Bytes of U+2581 by chance would come back as a space; this seed has none.
  for (int i = 0; i < 300; ++i) ExpectRoundTrip(RandomBytes(&random));
}

TEST_P(VocabReference, TenThousandTextsComeBack) {
  std::minstd_rand random(23);
  for (int i = 0; i < 2500; ++i) ExpectRoundTrip(RandomUnicode(&random));
  for (int i = 0; i < 7500; ++i) ExpectRoundTrip(RandomMixture(&random));
}

TEST_P(VocabReference, NovelsComeBack) {
  for (const char* name : {"texts/moby-dick.txt", "texts/frankenstein.txt"}) {
    const auto path = SharedPath(name);
    if (!path) GTEST_SKIP() << name << " is not there";
    ExpectRoundTrip(ReadFileOrDie(*path));
  }
}

INSTANTIATE_TEST_SUITE_P(All, VocabReference, ::testing::Values("gpt-2", "llama-bpe", "llama-spm", "qwen2"),
                         [](const auto& vocab) {
                           std::string name = vocab.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

void ExpectIds(const Tokenizer& tokenizer, const std::string& text, const std::string& ids_path,
               bool special) {
  const Result<std::vector<TokenId>> ids = tokenizer.Encode(text, {.add_special = special});
  ASSERT_TRUE(ids.ok()) << ids.status().message();
  EXPECT_EQ(*ids, ReadIds(ids_path));
  EXPECT_EQ(tokenizer.Decode(*ids), text);
}

TEST(SmolLmReference, MobyDickGivesTheSameIds) {
  const auto model = testing::TestModelPath();
  const auto text = SharedPath("reference/smollm2/moby.txt");
  const auto ids = SharedPath("reference/smollm2/moby.all.ids");
  if (!model || !text || !ids) GTEST_SKIP() << "the test model or reference/smollm2 is not there";
  ExpectIds(*OpenTokenizer(*model), ReadFileOrDie(*text), *ids, true);
}

TEST(SmolLmReference, TheGplGivesTheSameIds) {
  const auto model = testing::TestModelPath();
  const auto ids = SharedPath("reference/smollm2/gpl3.ids");
  const std::string text_path = "/usr/share/common-licenses/GPL-3";
  if (!model || !ids || !std::ifstream(text_path))
    GTEST_SKIP() << "the model, the ids or the text is not there";
  ExpectIds(*OpenTokenizer(*model), ReadFileOrDie(text_path), *ids, true);
}

TEST(SmolLmReference, AChatEndsWithItsMark) {
  const auto model = testing::TestModelPath();
  if (!model) GTEST_SKIP() << "the test model is not there";
  const auto tokenizer = OpenTokenizer(*model);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->FindToken("<|im_end|>"), 2);
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(2));
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(tokenizer->FindToken("<|endoftext|>")));
  EXPECT_FALSE(tokenizer->IsEndOfGeneration(tokenizer->FindToken("<|im_start|>")));
  EXPECT_FALSE(tokenizer->adds_bos());
}

TEST(Stories260KReference, TheStoryGivesTheSameIds) {
  const auto model = SharedPath("models/stories260K.gguf");
  const auto text = SharedPath("reference/stories260K/stories.txt");
  const auto ids = SharedPath("reference/stories260K/stories.ids");
  if (!model || !text || !ids) GTEST_SKIP() << "stories260K is not there";
  ExpectIds(*OpenTokenizer(*model), ReadFileOrDie(*text), *ids, true);
}

}  // namespace
}  // namespace kvrun
