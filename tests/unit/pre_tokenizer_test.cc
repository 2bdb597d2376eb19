// Not grouped (cmake/KvrunCompile.cmake): its names are others', too.
// Where each kind of pre-tokenizer cuts. What is expected was derived from the patterns of the models' own
// tokenizer.json files, and checked with another library for regular expressions.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/tokenizer_pretokenize.h"
#include "runtime/model/tokenizer_recipes.h"

namespace kvrun {
namespace {

using Words = std::vector<std::string>;

Words Split(std::string_view name, std::string_view text) {
  Words words;
  const auto splitter = PreTokenizer::Create(name);
  EXPECT_TRUE(splitter.ok()) << splitter.status().message();
  if (!splitter.ok()) return words;
  const auto ends = (*splitter)->Split(text);
  EXPECT_TRUE(ends.ok()) << ends.status().message();
  uint32_t begin = 0;
  for (const uint32_t end : *ends) {
    words.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  EXPECT_EQ(begin, text.size());
  return words;
}

constexpr std::array<std::string_view, 8> kTexts = {
    "I'VE can't 12345 3.14",
    "HelloWorld JSONParser's mcDonald \u00c9T\u00c9 \u00c9t\u00e9",
    "a  b\t\tc   \n\n  d \r\n",
    "// x\n/y!?\n\nz",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
    "\u79c1\u306f\u6771\u4eac 123\u4eba \u3067\u3059\ud55c\uad6d\uc5b4",
    "e\u0301te\u0301 _j",
    "$price #tag (a) <b>",
};

struct Case {
  std::vector<std::string_view> names;
  std::array<Words, kTexts.size()> words;
};

void ExpectSplits(const Case& one) {
  for (const std::string_view name : one.names) {
    for (size_t i = 0; i < kTexts.size(); ++i) EXPECT_EQ(Split(name, kTexts[i]), one.words[i]) << name;
  }
}

TEST(PreTokenizers, Gpt2) {
  ExpectSplits({{"gpt-2", "mpt", "olmo", "exaone4"},
                {{
                    Words{"I", "'", "VE", " can", "'t", " 12345", " 3", ".", "14"},
                    Words{"HelloWorld", " JSONParser", "'s", " mcDonald", " \u00c9T\u00c9", " \u00c9t\u00e9"},
                    Words{"a", " ", " b", "\t", "\t", "c", "   \n\n ", " d", " \r\n"},
                    Words{"//", " x", "\n", "/", "y", "!?", "\n", "\n", "z"},
                    Words{"\u0928\u092e\u0938", "\u094d", "\u0924", "\u0947", " \u0926", "\u0941", "\u0928",
                          "\u093f", "\u092f", "\u093e"},
                    Words{"\u79c1\u306f\u6771\u4eac", " 123", "\u4eba", " \u3067\u3059\ud55c\uad6d\uc5b4"},
                    Words{"e", "\u0301", "te", "\u0301", " _", "j"},
                    Words{"$", "price", " #", "tag", " (", "a", ")", " <", "b", ">"},
                }}});
}

TEST(PreTokenizers, Gpt2WithDigits) {
  ExpectSplits(
      {{"smollm", "refact", "command-r", "starcoder"},
       {{
           Words{"I", "'", "VE", " can", "'t", " ", "1", "2", "3", "4", "5", " ", "3", ".", "1", "4"},
           Words{"HelloWorld", " JSONParser", "'s", " mcDonald", " \u00c9T\u00c9", " \u00c9t\u00e9"},
           Words{"a", " ", " b", "\t", "\t", "c", "   \n\n ", " d", " \r\n"},
           Words{"//", " x", "\n", "/", "y", "!?", "\n", "\n", "z"},
           Words{"\u0928\u092e\u0938", "\u094d", "\u0924", "\u0947", " \u0926", "\u0941", "\u0928", "\u093f",
                 "\u092f", "\u093e"},
           Words{"\u79c1\u306f\u6771\u4eac", " ", "1", "2", "3", "\u4eba", " \u3067\u3059\ud55c\uad6d\uc5b4"},
           Words{"e", "\u0301", "te", "\u0301", " _", "j"},
           Words{"$", "price", " #", "tag", " (", "a", ")", " <", "b", ">"},
       }}});
}

TEST(PreTokenizers, Llama3) {
  ExpectSplits(
      {{"llama-bpe", "lfm2", "dbrx", "smaug-bpe", "glm4", "falcon3"},
       {{
           Words{"I", "'VE", " can", "'t", " ", "123", "45", " ", "3", ".", "14"},
           Words{"HelloWorld", " JSONParser", "'s", " mcDonald", " \u00c9T\u00c9", " \u00c9t\u00e9"},
           Words{"a", " ", " b", "\t", "\tc", "   \n\n", " ", " d", " \r\n"},
           Words{"//", " x", "\n", "/y", "!?\n\n", "z"},
           Words{"\u0928\u092e\u0938", "\u094d\u0924", "\u0947", " \u0926", "\u0941\u0928", "\u093f\u092f",
                 "\u093e"},
           Words{"\u79c1\u306f\u6771\u4eac", " ", "123", "\u4eba", " \u3067\u3059\ud55c\uad6d\uc5b4"},
           Words{"e", "\u0301te", "\u0301", " _", "j"},
           Words{"$price", " #", "tag", " (", "a", ")", " <", "b", ">"},
       }}});
}

TEST(PreTokenizers, Qwen2) {
  ExpectSplits(
      {{"qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "bailingmoe2"},
       {{
           Words{"I", "'VE", " can", "'t", " ", "1", "2", "3", "4", "5", " ", "3", ".", "1", "4"},
           Words{"HelloWorld", " JSONParser", "'s", " mcDonald", " \u00c9T\u00c9", " \u00c9t\u00e9"},
           Words{"a", " ", " b", "\t", "\tc", "   \n\n", " ", " d", " \r\n"},
           Words{"//", " x", "\n", "/y", "!?\n\n", "z"},
           Words{"\u0928\u092e\u0938", "\u094d\u0924", "\u0947", " \u0926", "\u0941\u0928", "\u093f\u092f",
                 "\u093e"},
           Words{"\u79c1\u306f\u6771\u4eac", " ", "1", "2", "3", "\u4eba", " \u3067\u3059\ud55c\uad6d\uc5b4"},
           Words{"e", "\u0301te", "\u0301", " _", "j"},
           Words{"$price", " #", "tag", " (", "a", ")", " <", "b", ">"},
       }}});
}

TEST(PreTokenizers, Qwen35KeepsMarksWithLetters) {
  ExpectSplits(
      {{"qwen35"},
       {{
           Words{"I", "'VE", " can", "'t", " ", "1", "2", "3", "4", "5", " ", "3", ".", "1", "4"},
           Words{"HelloWorld", " JSONParser", "'s", " mcDonald", " \u00c9T\u00c9", " \u00c9t\u00e9"},
           Words{"a", " ", " b", "\t", "\tc", "   \n\n", " ", " d", " \r\n"},
           Words{"//", " x", "\n", "/y", "!?\n\n", "z"},
           Words{"\u0928\u092e\u0938\u094d\u0924\u0947", " \u0926\u0941\u0928\u093f\u092f\u093e"},
           Words{"\u79c1\u306f\u6771\u4eac", " ", "1", "2", "3", "\u4eba", " \u3067\u3059\ud55c\uad6d\uc5b4"},
           Words{"e\u0301te\u0301", " _", "j"},
           Words{"$price", " #", "tag", " (", "a", ")", " <", "b", ">"},
       }}});
}

TEST(PreTokenizers, MiniCpm5) {
  ExpectSplits(
      {{"minicpm5"},
       {{
           Words{"I", "'VE", " can", "'t", " ", "123", "45", " ", "3", ".", "14"},
           Words{"HelloWorld", " JSONParser", "'s", " mcDonald", " \u00c9T\u00c9", " \u00c9t\u00e9"},
           Words{"a", " ", " b", "\t", "\tc", "   \n\n", " ", " d", " \r\n"},
           Words{"//", " x", "\n", "/y", "!?\n\n", "z"},
           Words{"\u0928\u092e\u0938", "\u094d\u0924", "\u0947", " \u0926", "\u0941\u0928", "\u093f\u092f",
                 "\u093e"},
           Words{"\u79c1\u306f\u6771\u4eac", " ", "123", "\u4eba", " \u3067\u3059\ud55c\uad6d\uc5b4"},
           Words{"e", "\u0301te", "\u0301", " _", "j"},
           Words{"$price", " #", "tag", " (", "a", ")", " <", "b", ">"},
       }}});
}

TEST(PreTokenizers, SeedCoder) {
  ExpectSplits(
      {{"seed-coder"},
       {{
           Words{"I", "'VE", " can", "'t", " ", "1", "2", "3", "4", "5", " ", "3", ".", "1", "4"},
           Words{"HelloWorld", " JSONParser", "'s", " mcDonald", " \u00c9T\u00c9", " \u00c9t\u00e9"},
           Words{"a", " ", " b", "\t", "\tc", "   \n\n", " ", " d", " \r\n"},
           Words{"//", " x", "\n", "/y", "!?", "\n\n", "z"},
           Words{"\u0928\u092e\u0938", "\u094d\u0924", "\u0947", " \u0926", "\u0941\u0928", "\u093f\u092f",
                 "\u093e"},
           Words{"\u79c1\u306f\u6771\u4eac", " ", "1", "2", "3", "\u4eba", " \u3067\u3059\ud55c\uad6d\uc5b4"},
           Words{"e", "\u0301te", "\u0301", " _", "j"},
           Words{"$price", " #", "tag", " (", "a", ")", " <", "b", ">"},
       }}});
}

TEST(PreTokenizers, Gpt4oCutsWhereCapitalsBegin) {
  ExpectSplits(
      {{"gpt-4o", "llama4"},
       {{
           Words{"I'VE", " can't", " ", "123", "45", " ", "3", ".", "14"},
           Words{"Hello", "World", " JSONParser's", " mc", "Donald", " \u00c9T\u00c9", " \u00c9t\u00e9"},
           Words{"a", " ", " b", "\t", "\tc", "   \n\n", " ", " d", " \r\n"},
           Words{"//", " x", "\n", "/y", "!?\n\n", "z"},
           Words{"\u0928\u092e\u0938\u094d\u0924\u0947", " \u0926\u0941\u0928\u093f\u092f\u093e"},
           Words{"\u79c1\u306f\u6771\u4eac", " ", "123", "\u4eba", " \u3067\u3059\ud55c\uad6d\uc5b4"},
           Words{"e\u0301te\u0301", " _", "j"},
           Words{"$price", " #", "tag", " (", "a", ")", " <", "b", ">"},
       }}});
}

TEST(PreTokenizers, TekkenCutsWhereCapitalsBegin) {
  ExpectSplits(
      {{"tekken"},
       {{
           Words{"I", "'VE", " can", "'t", " ", "1", "2", "3", "4", "5", " ", "3", ".", "1", "4"},
           Words{"Hello", "World", " JSONParser", "'s", " mc", "Donald", " \u00c9T\u00c9", " \u00c9t\u00e9"},
           Words{"a", " ", " b", "\t", "\tc", "   \n\n", " ", " d", " \r\n"},
           Words{"//", " x", "\n", "/y", "!?\n\n", "z"},
           Words{"\u0928\u092e\u0938\u094d\u0924\u0947", " \u0926\u0941\u0928\u093f\u092f\u093e"},
           Words{"\u79c1\u306f\u6771\u4eac", " ", "1", "2", "3", "\u4eba", " \u3067\u3059\ud55c\uad6d\uc5b4"},
           Words{"e\u0301te\u0301", " _", "j"},
           Words{"$price", " #", "tag", " (", "a", ")", " <", "b", ">"},
       }}});
}

TEST(PreTokenizers, DeepSeekCoder) {
  ExpectSplits(
      {{"deepseek-coder"},
       {{
           Words{"I", "'", "VE", " can", "'", "t", " ", "1", "2", "3", "4", "5", " ", "3", ".", "1", "4"},
           Words{"HelloWorld", " JSONParser", "'", "s", " mcDonald", " \u00c9T\u00c9", " \u00c9t\u00e9"},
           Words{"a", " ", " b", "\t", "\tc", "   ", "\n", "\n", " ", " d", " ", "\r", "\n"},
           Words{"//", " x", "\n", "/", "y", "!?", "\n", "\n", "z"},
           Words{"\u0928\u092e\u0938", "\u094d", "\u0924", "\u0947", " ", "\u0926", "\u0941", "\u0928",
                 "\u093f", "\u092f", "\u093e"},
           Words{"\u79c1\u306f\u6771\u4eac", " ", "1", "2", "3", "\u4eba", " ",
                 "\u3067\u3059\ud55c\uad6d\uc5b4"},
           Words{"e", "\u0301", "te", "\u0301", " _", "j"},
           Words{"$", "price", " #", "tag", " (", "a", ")", " <", "b", ">"},
       }}});
}

TEST(PreTokenizers, DeepSeek3) {
  ExpectSplits(
      {{"deepseek-v3", "hunyuan-dense"},
       {{
           Words{"I", "'VE", " can", "'t", " ", "123", "45", " ", "3", ".", "14"},
           Words{"HelloWorld", " JSONParser", "'s", " mcDonald", " \u00c9T\u00c9", " \u00c9t\u00e9"},
           Words{"a", " ", " b", "\t", "\tc", "   \n\n", " ", " d", " \r\n"},
           Words{"//", " x", "\n", "/y", "!?\n\n", "z"},
           Words{"\u0928\u092e\u0938\u094d\u0924\u0947", " \u0926\u0941\u0928\u093f\u092f\u093e"},
           Words{"\u79c1\u306f\u6771\u4eac", " ", "123", "\u4eba", " ", "\u3067\u3059", "\ud55c\uad6d\uc5b4"},
           Words{"e\u0301te\u0301", " _", "j"},
           Words{"$price", " #", "tag", " (", "a", ")", " <", "b", ">"},
       }}});
}

TEST(PreTokenizers, DifferInDetails) {
  EXPECT_EQ(Split("minicpm5", "   12a"), (Words{"   ", "12", "a"}));
  EXPECT_EQ(Split("llama-bpe", "   12a"), (Words{"  ", " ", "12", "a"}));
  EXPECT_EQ(Split("gpt-4o", "path/ to//\n/x don'T"), (Words{"path", "/", " to", "//\n/", "x", " don'T"}));
  EXPECT_EQ(Split("tekken", "path/ to//\n/x don'T"), (Words{"path", "/", " to", "//\n/", "x", " don", "'T"}));
  EXPECT_EQ(Split("deepseek-v3", "a=b \u30ab\u30ca\u3072 #x_y"),
            (Words{"a", "=b", " ", "\u30ab\u30ca\u3072", " #", "x", "_y"}));
  EXPECT_EQ(Split("gpt-4o", "\u01c5a \u02b0B \u4e2d\u56fdA"),
            (Words{"\u01c5a", " \u02b0", "B", " \u4e2d\u56fd", "A"}));
  EXPECT_EQ(Split("deepseek-coder", "\u3042\u30001\n x"), (Words{"\u3042", "\u3000", "1", "\n", " x"}));
}

TEST(PreTokenizers, EveryKnownNameCuts) {
  for (const std::string_view name : PreTokenizerNames())
    EXPECT_EQ(Split(name, "one two").size(), 2U) << name;
}

TEST(PreTokenizers, TakeWholeWordsAndABosAsTheirFamiliesDo) {
  struct Facts {
    std::string_view name;
    bool whole;
    bool bos;
  };
  for (const Facts& facts :
       {Facts{"llama-bpe", true, true}, Facts{"lfm2", true, true}, Facts{"tekken", true, true},
        Facts{"glm4", true, false}, Facts{"smaug-bpe", false, false}, Facts{"dbrx", false, false},
        Facts{"gpt-4o", false, false}, Facts{"qwen35", false, false}, Facts{"deepseek-v3", false, false}}) {
    const auto splitter = PreTokenizer::Create(facts.name);
    ASSERT_TRUE(splitter.ok());
    EXPECT_EQ((*splitter)->takes_whole_words(), facts.whole) << facts.name;
    EXPECT_EQ((*splitter)->adds_bos_by_default(), facts.bos) << facts.name;
  }
}

// Each with a megabyte of one character, in which a pattern might look too far ahead again and again.
TEST(PreTokenizers, LongRunsAreCutAtOnce) {
  for (const std::string_view name : {"gpt-2", "llama-bpe", "qwen35", "seed-coder", "gpt-4o", "tekken",
                                      "deepseek-coder", "deepseek-v3", "minicpm5"}) {
    for (const std::string_view unit :
         {"a", "A", " ", "\n", "1", "'", "\u4e00", "\u0301", " a", "Aa", "\n "}) {
      std::string text;
      while (text.size() < (size_t{1} << 20)) text += unit;
      EXPECT_FALSE(Split(name, text).empty()) << name << " " << unit;
      EXPECT_FALSE(Split(name, text + "!").empty()) << name << " " << unit;
    }
  }
}

}  // namespace
}  // namespace kvrun
