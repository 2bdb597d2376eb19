// Not grouped (cmake/KvrunCompile.cmake): its names are others', too.
#include "runtime/model/tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "runtime/model/gguf.h"
#include "runtime/model/tokenizer_text.h"
#include "tests/support/allocation_counter.h"
#include "tests/support/gguf_builder.h"

namespace kvrun {
namespace {

using Ids = std::vector<TokenId>;
using Words = std::vector<std::string>;
using testing::GgufBuilder;

constexpr int32_t kNormal = 1;
constexpr int32_t kUnknown = 2;
constexpr int32_t kControl = 3;
constexpr int32_t kUserDefined = 4;
constexpr int32_t kByte = 6;

Result<std::unique_ptr<Tokenizer>> Create(const GgufBuilder& builder) {
  const testing::Bytes bytes = builder.Build();
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, GgufFile::Parse(bytes, "test.gguf"));
  return Tokenizer::Create(*file);
}

struct TestVocab {
  Words tokens;
  std::vector<int32_t> types;
  std::vector<float> scores;

  TokenId Add(std::string_view text, int32_t type = kNormal, float score = 0) {
    tokens.emplace_back(text);
    types.push_back(type);
    scores.push_back(score);
    return static_cast<TokenId>(tokens.size() - 1);
  }
  void WriteTo(GgufBuilder* builder) const {
    builder->SetStrings("tokenizer.ggml.tokens", tokens).SetArray("tokenizer.ggml.token_type", types);
  }
};

// All bytes, the merges' results, then the control token <|end|> and the user-defined token [[x]].
GgufBuilder Bpe(const std::string& pre, const Words& merges = {}, const Words& whole_words = {}) {
  TestVocab vocab;
  for (unsigned byte = 0; byte < 256; ++byte) {
    vocab.Add(ByteAlphabet::Get().CharacterOf(static_cast<uint8_t>(byte)));
  }
  for (const std::string& merge : merges) {
    std::string merged = merge;
    merged.erase(merged.find(' '), 1);
    vocab.Add(merged);
  }
  for (const std::string& word : whole_words) vocab.Add(word);
  const TokenId end = vocab.Add("<|end|>", kControl);
  vocab.Add("[[x]]", kUserDefined);
  vocab.Add("[[x]][[", kUserDefined);
  GgufBuilder builder;
  builder.Set("tokenizer.ggml.model", "gpt2").Set("tokenizer.ggml.pre", pre);
  vocab.WriteTo(&builder);
  builder.SetStrings("tokenizer.ggml.merges", merges);
  builder.Set("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(end));
  return builder;
}

// <unk>, <s>, </s>, all bytes, then pieces with falling scores.
GgufBuilder Spm(const Words& pieces) {
  TestVocab vocab;
  vocab.Add("<unk>", kUnknown);
  vocab.Add("<s>", kControl);
  vocab.Add("</s>", kControl);
  for (unsigned byte = 0; byte < 256; ++byte) {
    constexpr const char* kDigits = "0123456789ABCDEF";
    vocab.Add(std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + ">", kByte);
  }
  float score = 0;
  for (const std::string& piece : pieces) vocab.Add(piece, kNormal, --score);
  vocab.Add("[[x]]", kUserDefined);
  GgufBuilder builder;
  builder.Set("tokenizer.ggml.model", "llama").SetArray("tokenizer.ggml.scores", vocab.scores);
  vocab.WriteTo(&builder);
  return builder;
}

std::unique_ptr<Tokenizer> CreateOrFail(const GgufBuilder& builder) {
  Result<std::unique_ptr<Tokenizer>> result = Create(builder);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? std::move(result).value() : nullptr;
}

// What each id stands for, special tokens too.
Words Pieces(const Tokenizer& tokenizer, std::string_view text, const EncodeOptions& options = {}) {
  Words pieces;
  const Result<Ids> ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  if (!ids.ok()) return pieces;
  for (const TokenId id : *ids) pieces.push_back(tokenizer.DecodeToken(id, true));
  return pieces;
}

void ExpectRefused(const GgufBuilder& builder, StatusCode code, const std::string& part) {
  const Result<std::unique_ptr<Tokenizer>> result = Create(builder);
  ASSERT_FALSE(result.ok()) << "accepted, should say " << part;
  EXPECT_EQ(result.status().code(), code) << result.status().message();
  EXPECT_NE(result.status().message().find("test.gguf"), std::string::npos) << result.status().message();
  EXPECT_NE(result.status().message().find(part), std::string::npos) << result.status().message();
}

TEST(Utf8, OnlyWellFormedCharactersCount) {
  const std::map<std::string, size_t> lengths = {
      {"a", 1},        {"\xc3\xa9", 2},     {"\xe2\x82\xac", 3}, {"\xf0\x9f\x98\x80", 4},
      {"\xc0\x80", 0}, {"\xe0\x9f\xbf", 0}, {"\xed\xa0\x80", 0}, {"\xf4\x90\x80\x80", 0},
      {"\x80", 0},     {"\xe2\x82", 0},     {"\xff", 0},         {"\xe2\x82z", 0},
  };
  for (const auto& [text, length] : lengths) EXPECT_EQ(Utf8CharacterBytes(text, 0), length) << text;
  EXPECT_EQ(WithInvalidUtf8Masked("a\xe2\x82z\xff\xc3\xa9"), "a\x01\x01z\x01\xc3\xa9");
}

TEST(BytePairs, LowestRankGoesFirstThenTheLeftmost) {
  const auto tokenizer = CreateOrFail(Bpe("gpt-2", {"b c", "a b", "a a", "bc d"}));
  EXPECT_EQ(Pieces(*tokenizer, "abcd"), (Words{"a", "bcd"}));
  EXPECT_EQ(Pieces(*tokenizer, "abd"), (Words{"ab", "d"}));
  EXPECT_EQ(Pieces(*tokenizer, "aaaaa"), (Words{"aa", "aa", "a"}));
  EXPECT_EQ(Pieces(*tokenizer, ""), Words{});
}

TEST(BytePairs, PreTokenizersCutDifferently) {
  const Words merges = {"1 2", "12 3", "123 4", "L L", "' LL", "Ġ a", "Ċ Ċ", "! Ċ", "! ĊĊ"};
  const std::string text = "x1234'LL!\n\n";
  EXPECT_EQ(Pieces(*CreateOrFail(Bpe("gpt-2", merges)), text), (Words{"x", "1234", "'", "LL", "!", "\n\n"}));
  EXPECT_EQ(Pieces(*CreateOrFail(Bpe("smollm", merges)), text),
            (Words{"x", "1", "2", "3", "4", "'", "LL", "!", "\n\n"}));
  EXPECT_EQ(Pieces(*CreateOrFail(Bpe("llama-bpe", merges)), text), (Words{"x", "123", "4", "'LL", "!\n\n"}));
  EXPECT_EQ(Pieces(*CreateOrFail(Bpe("qwen2", merges)), text),
            (Words{"x", "1", "2", "3", "4", "'LL", "!\n\n"}));
}

TEST(BytePairs, BytesThatTheVocabularyLacksAreCounted) {
  TestVocab vocab;
  for (const char* text : {"a", "b", "ab"}) vocab.Add(text);
  const TokenId end = vocab.Add("<|end|>", kControl);
  GgufBuilder builder;
  builder.Set("tokenizer.ggml.model", "gpt2").Set("tokenizer.ggml.pre", "gpt-2");
  vocab.WriteTo(&builder);
  builder.SetStrings("tokenizer.ggml.merges", {"a b"});
  builder.Set("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(end));
  const auto tokenizer = CreateOrFail(builder);
  EXPECT_EQ(Pieces(*tokenizer, "ab c\xc3\xa9 a"), (Words{"ab", "a"}));
  EXPECT_EQ(*tokenizer->CountLostBytes("ab c\xc3\xa9 a", {}), 5U);
  EXPECT_EQ(*tokenizer->CountLostBytes("ab<|end|>", {}), 7U);
  EXPECT_EQ(*tokenizer->CountLostBytes("ab<|end|>", {.add_special = false, .parse_special = true}), 0U);
  EXPECT_EQ(*CreateOrFail(Bpe("gpt-2"))->CountLostBytes("\xff c\xc3\xa9", {}), 0U);
}

// "<||>" is one word to the pre-tokenizers, which merges make a token, and Llama 3's take as a whole.
TEST(BytePairs, NoTextMakesAControlOrEndOfGenerationToken) {
  for (const char* pre : {"gpt-2", "llama-bpe"}) {
    for (const bool ends : {true, false}) {
      for (const int32_t type : {kControl, kNormal, kUserDefined}) {
        if (!ends && type != kControl) continue;
        TestVocab vocab;
        for (unsigned byte = 0; byte < 256; ++byte) {
          vocab.Add(ByteAlphabet::Get().CharacterOf(static_cast<uint8_t>(byte)));
        }
        for (const char* text : {"<|", "|>"}) vocab.Add(text);
        const TokenId mark = vocab.Add("<||>", type);
        GgufBuilder builder;
        builder.Set("tokenizer.ggml.model", "gpt2").Set("tokenizer.ggml.pre", pre);
        vocab.WriteTo(&builder);
        builder.SetStrings("tokenizer.ggml.merges", {"< |", "| >", "<| |>"});
        if (ends) builder.Set("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(mark));
        const auto tokenizer = CreateOrFail(builder);
        EXPECT_EQ(Pieces(*tokenizer, "a<||>"), (Words{"a", "<|", "|>"})) << pre << " " << type;
        EXPECT_EQ(Pieces(*tokenizer, "a<||>", {.add_special = false, .parse_special = true}),
                  (Words{"a", "<||>"}));
      }
    }
  }
}

// As where the end of a line ends an answer.
TEST(BytePairs, AnEndOfGenerationTokenOfOneCharacterIsStillText) {
  GgufBuilder builder = Bpe("gpt-2");
  builder.Set("tokenizer.ggml.eos_token_id", static_cast<uint32_t>('a'));
  EXPECT_EQ(Pieces(*CreateOrFail(builder), "aba"), (Words{"a", "b", "a"}));
}

TEST(EndOfGeneration, UserDefinedMarksCountAsWell) {
  TestVocab vocab;
  for (const char* text : {"a", "b"}) vocab.Add(text);
  const TokenId mark = vocab.Add("<|im_end|>", kUserDefined);
  const TokenId tag = vocab.Add("</s>", kUserDefined);
  GgufBuilder builder;
  builder.Set("tokenizer.ggml.model", "gpt2").Set("tokenizer.ggml.pre", "gpt-2");
  vocab.WriteTo(&builder);
  builder.SetStrings("tokenizer.ggml.merges", {});
  const auto tokenizer = CreateOrFail(builder);
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(mark));
  EXPECT_FALSE(tokenizer->IsEndOfGeneration(tag)) << "of HTML, in some vocabularies";
  EXPECT_EQ(Pieces(*tokenizer, "a<|im_end|></s>b"), (Words{"a", "</s>", "b"}));
}

TEST(BytePairs, TheLastSpaceGoesWithTheWord) {
  const Words merges = {"Ġ Ġ", "Ġ a", "ĠĠ Ġ"};
  EXPECT_EQ(Pieces(*CreateOrFail(Bpe("gpt2", merges)), "    a   "), (Words{"   ", " a", "   "}));
  // Spaces before a digit are a word of their own: the digits are cut out first.
  EXPECT_EQ(Pieces(*CreateOrFail(Bpe("smollm", merges)), "   1"), (Words{"   ", "1"}));
  EXPECT_EQ(Pieces(*CreateOrFail(Bpe("gpt2", merges)), "   1"), (Words{"  ", " ", "1"}));
}

TEST(BytePairs, UnicodeSpacesLettersAndDigitsAreKnown) {
  const Words merges = {"Ù £", "Ù ¤", "Ù£ Ù¤"};  // two Arabic-Indic digits
  EXPECT_EQ(Pieces(*CreateOrFail(Bpe("gpt-2", merges)), "\u0663\u0664"), (Words{"\u0663\u0664"}));
  EXPECT_EQ(Pieces(*CreateOrFail(Bpe("smollm", merges)), "\u0663\u0664"), (Words{"\u0663", "\u0664"}));
  // U+180E is no space since Unicode 6.3: it is a word together with the sign after it.
  const Words joined = {"á ł", "áł İ", "áłİ !"};
  EXPECT_EQ(Pieces(*CreateOrFail(Bpe("qwen2", joined)), "\u180e!"), (Words{"\u180e!"}));
}

TEST(BytePairs, AWholeWordWinsWhereThePreTokenizerSaysSo) {
  const Words merges = {"b c"};
  EXPECT_EQ(Pieces(*CreateOrFail(Bpe("llama-bpe", merges, {"abc"})), "abc"), (Words{"abc"}));
  EXPECT_EQ(Pieces(*CreateOrFail(Bpe("llama3", merges, {"abc"})), "abc"), (Words{"abc"}));
  EXPECT_EQ(Pieces(*CreateOrFail(Bpe("qwen2", merges, {"abc"})), "abc"), (Words{"a", "bc"}));
}

TEST(BytePairs, AnyBytesComeBack) {
  std::string all;
  for (int byte = 255; byte >= 0; --byte) all += static_cast<char>(byte);
  for (const char* pre : {"gpt-2", "smollm", "llama-v3", "deepseek-r1-qwen"}) {
    const auto tokenizer = CreateOrFail(Bpe(pre, {"Ġ a"}));
    for (const std::string& text :
         {all, std::string("a\0b", 3), std::string("\xe2\x82"), std::string(" \xff a")}) {
      EXPECT_EQ(tokenizer->Decode(*tokenizer->Encode(text, {})), text);
    }
  }
}

TEST(BytePairs, LongWordsDoNotTakeQuadraticTime) {
  const auto tokenizer = CreateOrFail(Bpe("llama-bpe", {"a a", "aa aa", "Ġ Ġ", "ĠĠ ĠĠ"}));
  constexpr size_t kBytes = 1 << 20;
  const auto start = std::chrono::steady_clock::now();
  for (const char c : {'a', ' ', '\n', '<', '1', '\xff'}) {
    const std::string text(kBytes, c);
    EXPECT_EQ(tokenizer->Decode(*tokenizer->Encode(text, {})), text);
  }
  EXPECT_EQ(tokenizer->Encode(std::string(kBytes, 'a'), {})->size(), kBytes / 4);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(120));  // quadratic: hours
}

TEST(SpecialTokens, AreParsedOnlyOnRequestExceptUserDefinedOnes) {
  const auto tokenizer = CreateOrFail(Bpe("gpt-2"));
  EXPECT_EQ(Pieces(*tokenizer, "a<|end|>", {.parse_special = true}), (Words{"a", "<|end|>"}));
  const Ids plain = *tokenizer->Encode("<|end|>", {});
  EXPECT_EQ(plain.size(), 7U);
  for (const TokenId id : plain) EXPECT_FALSE(tokenizer->IsControl(id));
  EXPECT_EQ(Pieces(*tokenizer, "a[[x]]b"), (Words{"a", "[[x]]", "b"}));
  EXPECT_EQ(Pieces(*tokenizer, "[[x]][[x]]"), (Words{"[[x]][[", "x", "]", "]"})) << "the longest wins";
  EXPECT_EQ(Pieces(*tokenizer, "[[x]"), (Words{"[", "[", "x", "]"}));
}

TEST(SpecialTokens, ControlTokensAreHiddenUnlessAskedFor) {
  const auto tokenizer = CreateOrFail(Bpe("gpt-2"));
  const TokenId end = tokenizer->FindToken("<|end|>");
  ASSERT_GE(end, 0);
  EXPECT_TRUE(tokenizer->IsControl(end));
  EXPECT_EQ(tokenizer->DecodeToken(end), "");
  EXPECT_EQ(tokenizer->Decode({tokenizer->FindToken("A"), end}), "A");
  EXPECT_EQ(tokenizer->Decode({tokenizer->FindToken("A"), end}, true), "A<|end|>");
  EXPECT_EQ(tokenizer->DecodeToken(-1, true), "");
  EXPECT_EQ(tokenizer->DecodeToken(static_cast<TokenId>(tokenizer->n_vocab()), true), "");
  EXPECT_EQ(tokenizer->FindToken("no such token"), -1);
}

// Generation appends to a buffer that it keeps: a token costs no allocation, however long it is.
TEST(Tokenizers, ATokenIsAppendedWithoutAnyAllocation) {
  const std::string word(40, 'w');
  const auto spm = CreateOrFail(Spm({"▁" + word}));
  const auto bpe = CreateOrFail(Bpe("gpt-2", {}, {"Ġ" + word, "▁" + word}));
  for (const auto* tokenizer : {spm.get(), bpe.get()}) {
    std::string bytes = "before";
    bytes.reserve(100);
    const TokenId id = tokenizer->FindToken((tokenizer == spm.get() ? "▁" : "Ġ") + word);
    const uint64_t before = testing::AllocationsOfThisThread();
    tokenizer->AppendToken(id, false, &bytes);
    EXPECT_EQ(testing::AllocationsOfThisThread() - before, 0U);
    EXPECT_EQ(bytes, "before " + word);
    tokenizer->AppendToken(-1, true, &bytes);
    EXPECT_EQ(bytes, "before " + word);
  }
  // A token that byte-level BPE's alphabet does not cover stands as it is: nothing of a first try is left.
  std::string bytes;
  bpe->AppendToken(bpe->FindToken("▁" + word), false, &bytes);
  EXPECT_EQ(bytes, "▁" + word);
}

TEST(SpecialTokens, EndOfGenerationByKeyAndBySpelling) {
  GgufBuilder builder = Bpe("gpt-2", {}, {"</s>"});  // here </s> is an ordinary token
  const auto plain = CreateOrFail(builder);
  EXPECT_TRUE(plain->IsEndOfGeneration(plain->eos()));
  EXPECT_FALSE(plain->IsEndOfGeneration(plain->FindToken("</s>")));
  EXPECT_FALSE(plain->IsEndOfGeneration(7));
  EXPECT_FALSE(plain->IsEndOfGeneration(-1));
  builder.Set("tokenizer.ggml.eos_token_id", 3U);
  builder.Set("tokenizer.ggml.eot_token_id", 7U).Set("tokenizer.ggml.eom_token_id", 8U);
  const auto keyed = CreateOrFail(builder);
  for (const TokenId id : {3, 7, 8}) EXPECT_TRUE(keyed->IsEndOfGeneration(id));
  EXPECT_TRUE(keyed->IsEndOfGeneration(keyed->FindToken("<|end|>"))) << "by its spelling";
}

TEST(SpecialTokens, BosAndEosAsTheFileSays) {
  GgufBuilder builder = Bpe("gpt-2");
  EXPECT_EQ(Pieces(*CreateOrFail(builder), "a", {.add_special = true}), (Words{"a"}));
  builder.Set("tokenizer.ggml.bos_token_id", 1U);
  EXPECT_FALSE(CreateOrFail(builder)->adds_bos());
  builder.Set("tokenizer.ggml.pre", "llama-bpe");
  EXPECT_TRUE(CreateOrFail(builder)->adds_bos()) << "what this family does where the key is missing";
  builder.Set("tokenizer.ggml.add_bos_token", true).Set("tokenizer.ggml.add_eos_token", true);
  const auto tokenizer = CreateOrFail(builder);
  const Ids ids = *tokenizer->Encode("a", {.add_special = true});
  ASSERT_EQ(ids.size(), 3U);
  EXPECT_EQ(ids.front(), 1);
  EXPECT_EQ(ids.back(), tokenizer->eos());
  EXPECT_EQ(tokenizer->Encode("a", {})->size(), 1U);
  builder.Set("tokenizer.ggml.add_bos_token", false);
  EXPECT_FALSE(CreateOrFail(builder)->adds_bos());
}

TEST(SentencePiece, BestScoreGoesFirst) {
  const auto tokenizer = CreateOrFail(Spm({"bc", "ab", "▁abc", "abc", "▁", "a", "b", "c", "▁▁"}));
  EXPECT_EQ(Pieces(*tokenizer, "abc"), (Words{" abc"}));
  EXPECT_EQ(Pieces(*tokenizer, "babcc"), (Words{" ", "b", "abc", "c"}));
  const auto no_abc = CreateOrFail(Spm({"bc", "ab", "▁", "a", "b", "c"}));
  EXPECT_EQ(Pieces(*no_abc, "abc"), (Words{" ", "a", "bc"}));
  EXPECT_EQ(Pieces(*tokenizer, "ab"), (Words{" ", "ab"}));
  EXPECT_EQ(Pieces(*tokenizer, "  c"), (Words{"  ", " ", "c"}));
  EXPECT_EQ(tokenizer->Decode(*tokenizer->Encode("  c", {})), "  c");
}

TEST(SentencePiece, ATokenMaySpanWords) {
  const auto tokenizer = CreateOrFail(Spm({"a▁", "a▁b", "▁", "a", "b"}));
  EXPECT_EQ(Pieces(*tokenizer, "a b"), (Words{" ", "a b"}));
}

TEST(SentencePiece, BytesWhereThereIsNoPiece) {
  const auto tokenizer = CreateOrFail(Spm({"▁", "a"}));
  EXPECT_EQ(Pieces(*tokenizer, "aé"), (Words{" ", "a", "\xc3", "\xa9"}));
  const std::string broken = "a\xe2\x82 \xff";
  EXPECT_EQ(tokenizer->Decode(*tokenizer->Encode(broken + std::string(1, '\0'), {})),
            broken + std::string(1, '\0'));
  EXPECT_EQ(Pieces(*tokenizer, "<0x41>").size(), 7U) << "text that spells a byte token is text";
}

TEST(SentencePiece, SpacePrefixBeforeTextAndAfterSpecialTokens) {
  GgufBuilder builder = Spm({"▁", "a"});
  const auto tokenizer = CreateOrFail(builder);
  EXPECT_EQ(Pieces(*tokenizer, "a[[x]]a</s>a", {.parse_special = true}),
            (Words{" ", "a", "[[x]]", " ", "a", "</s>", " ", "a"}));
  EXPECT_EQ(Pieces(*tokenizer, "a", {.add_special = true}), (Words{"<s>", " ", "a"}));
  EXPECT_EQ(tokenizer->Decode(*tokenizer->Encode("a a", {.add_special = true})), "a a");
  EXPECT_EQ(Pieces(*tokenizer, ""), Words{});
  builder.Set("tokenizer.ggml.add_space_prefix", false);
  const auto bare = CreateOrFail(builder);
  EXPECT_EQ(Pieces(*bare, "a"), (Words{"a"}));
  EXPECT_EQ(bare->Decode(*bare->Encode(" a", {})), " a");
}

TEST(SentencePiece, PlainTextNeverBecomesAControlToken) {
  const auto tokenizer = CreateOrFail(Spm({"▁", "</", "s>", "s", ">", "</s"}));
  const Ids ids = *tokenizer->Encode("</s>", {});
  EXPECT_EQ(ids.size(), 3U);
  for (const TokenId id : ids) EXPECT_FALSE(tokenizer->IsControl(id));
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(tokenizer->FindToken("</s>")));
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
}

TEST(SentencePiece, BytesThatTheVocabularyLacksAreCounted) {
  TestVocab vocab;
  vocab.Add("<unk>", kUnknown);
  vocab.Add("<s>", kControl);
  vocab.Add("</s>", kControl);
  vocab.Add("\u2581");
  vocab.Add("a");
  GgufBuilder builder;
  builder.Set("tokenizer.ggml.model", "llama").SetArray("tokenizer.ggml.scores", vocab.scores);
  vocab.WriteTo(&builder);
  const auto tokenizer = CreateOrFail(builder);
  EXPECT_EQ(Pieces(*tokenizer, "a\xc3\xa9z"), (Words{" ", "a", "<unk>", "<unk>"}));
  EXPECT_EQ(*tokenizer->CountLostBytes("a\xc3\xa9z", {}), 3U);
  EXPECT_EQ(*tokenizer->CountLostBytes("a a", {}), 0U);
  // A file may name the end of the text as its unknown token: a text does not write that.
  builder.Set("tokenizer.ggml.unknown_token_id", 2U);
  EXPECT_EQ(Pieces(*CreateOrFail(builder), "a\xc3\xa9z"), (Words{" ", "a"}));
  EXPECT_EQ(*CreateOrFail(builder)->CountLostBytes("a\xc3\xa9z", {}), 3U);
}

TEST(SentencePiece, NoTextMakesAnEndOfGenerationToken) {
  GgufBuilder builder = Spm({"<|", "|>", "<||>"});
  EXPECT_EQ(Pieces(*CreateOrFail(builder), "a<||>").back(), "<||>");
  builder.Set("tokenizer.ggml.eos_token_id", 261U);
  const Words pieces = Pieces(*CreateOrFail(builder), "a<||>");
  EXPECT_EQ(Words(pieces.end() - 2, pieces.end()), (Words{"<|", "|>"}));
  EXPECT_EQ(Pieces(*CreateOrFail(builder), "a<||>", {.add_special = false, .parse_special = true}).back(),
            "<||>");
}

TEST(SentencePiece, LongWordsDoNotTakeQuadraticTime) {
  const auto tokenizer = CreateOrFail(Spm({"aa", "aaaa", "a", "▁▁", "▁"}));
  const auto start = std::chrono::steady_clock::now();
  for (const char c : {'a', ' ', '\n', '\xff'}) {
    const std::string text(1 << 20, c);
    EXPECT_EQ(tokenizer->Decode(*tokenizer->Encode(text, {})), text);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(120));  // quadratic: hours
}

TEST(TokenizerFiles, UnknownKindsAreNamed) {
  GgufBuilder builder = Bpe("gpt-2");
  ExpectRefused(Bpe("no-such"), StatusCode::kUnsupported, "\"no-such\", a way to cut text into words");
  ExpectRefused(Bpe("no-such"), StatusCode::kUnsupported, "that kvrun's docs/tokenizers.md names");
  ExpectRefused(Bpe("default"), StatusCode::kUnsupported, "tokenizer.ggml.pre is \"default\"");
  builder.Erase("tokenizer.ggml.pre");
  ExpectRefused(builder, StatusCode::kUnsupported, "tokenizer.ggml.pre is missing");
  builder.Set("tokenizer.ggml.model", "bert");
  ExpectRefused(builder, StatusCode::kUnsupported, "\"bert\"");
  builder.Erase("tokenizer.ggml.model");
  ExpectRefused(builder, StatusCode::kNotFound, "tokenizer.ggml.model");
}

TEST(TokenizerFiles, MissingArraysAreNamed) {
  for (const char* key : {"tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.merges"}) {
    ExpectRefused(Bpe("gpt-2").Erase(key), StatusCode::kNotFound, key);
    ExpectRefused(Bpe("gpt-2").Erase(key), StatusCode::kNotFound, "convert the model again");
    ExpectRefused(Bpe("gpt-2").Set(key, 5U), StatusCode::kCorrupt, key);
  }
  ExpectRefused(Spm({"a"}).Erase("tokenizer.ggml.scores"), StatusCode::kNotFound, "tokenizer.ggml.scores");
  ExpectRefused(Spm({"a"}).SetStrings("tokenizer.ggml.scores", {"a"}), StatusCode::kCorrupt,
                "tokenizer.ggml.scores");
}

TEST(TokenizerFiles, ArraysOfTheWrongLengthOrContentAreNamed) {
  ExpectRefused(Bpe("gpt-2").SetStrings("tokenizer.ggml.tokens", {}), StatusCode::kCorrupt, "is empty");
  ExpectRefused(Bpe("gpt-2").SetArray<int32_t>("tokenizer.ggml.token_type", {1, 1}), StatusCode::kCorrupt,
                "tokenizer.ggml.token_type has 2 entries");
  ExpectRefused(Spm({}).SetArray<float>("tokenizer.ggml.scores", {1.0F}), StatusCode::kCorrupt,
                "tokenizer.ggml.scores has 1 entries");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  ExpectRefused(Spm({}).SetArray("tokenizer.ggml.scores", std::vector<float>(260, nan)), StatusCode::kCorrupt,
                "tokenizer.ggml.scores");
  GgufBuilder builder = Bpe("gpt-2");
  builder.SetStrings("tokenizer.ggml.tokens", {"a"}).SetArray<int32_t>("tokenizer.ggml.token_type", {77});
  ExpectRefused(builder, StatusCode::kCorrupt, "token 0 is 77");
}

TEST(TokenizerFiles, IdsOutOfRangeAreNamed) {
  for (const char* name : {"bos", "eos", "unknown", "eot", "eom"}) {
    const std::string key = std::string("tokenizer.ggml.") + name + "_token_id";
    ExpectRefused(Bpe("gpt-2").Set(key, 100000U), StatusCode::kCorrupt, key);
    ExpectRefused(Bpe("gpt-2").Set(key, -1), StatusCode::kCorrupt, key);
    ExpectRefused(Bpe("gpt-2").Set(key, "x"), StatusCode::kCorrupt, key);
  }
  ExpectRefused(Bpe("gpt-2").Set("tokenizer.ggml.add_bos_token", "yes"), StatusCode::kCorrupt,
                "add_bos_token");
}

TEST(TokenizerFiles, BrokenMergesAreNamed) {
  for (const char* merge : {"", " ", "ab", "a ", " b", "a b c", "a zz", "a b"}) {
    ExpectRefused(Bpe("gpt-2").SetStrings("tokenizer.ggml.merges", {merge}), StatusCode::kCorrupt,
                  "tokenizer.ggml.merges: entry 0");
  }
}

TEST(TokenizerFiles, AVocabularyThatCannotSayEveryTextIsRefused) {
  TestVocab vocab;
  vocab.Add("a");
  GgufBuilder builder = Spm({});
  vocab.WriteTo(&builder);
  builder.SetArray("tokenizer.ggml.scores", vocab.scores);
  ExpectRefused(builder, StatusCode::kUnsupported, "byte tokens");
  vocab.Add("<unk>", kUnknown);
  vocab.WriteTo(&builder);
  builder.SetArray("tokenizer.ggml.scores", vocab.scores).Set("tokenizer.ggml.unknown_token_id", 1U);
  builder.Set("tokenizer.ggml.add_space_prefix", false);
  EXPECT_EQ(Pieces(*CreateOrFail(builder), "aé"), (Words{"a", "<unk>"}));
}

}  // namespace
}  // namespace kvrun
