// Not grouped (cmake/KvrunCompile.cmake): its names are others', too.
// What the families of models that people download need beyond merges and scores: Gemma, Phi-3, gpt-oss.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "runtime/model/gguf.h"
#include "runtime/model/tokenizer.h"
#include "tests/support/gguf_builder.h"

namespace kvrun {
namespace {

using Words = std::vector<std::string>;
using testing::GgufBuilder;

constexpr int32_t kNormal = 1;
constexpr int32_t kUnknown = 2;
constexpr int32_t kControl = 3;
constexpr int32_t kUserDefined = 4;
constexpr int32_t kByte = 6;

struct Vocabulary {
  Words tokens;
  std::vector<int32_t> types;
  std::vector<float> scores;

  uint32_t Add(std::string_view text, int32_t type = kNormal, float score = 0) {
    tokens.emplace_back(text);
    types.push_back(type);
    scores.push_back(score);
    return static_cast<uint32_t>(tokens.size() - 1);
  }
  void AddBytes() {
    constexpr const char* kDigits = "0123456789ABCDEF";
    for (unsigned byte = 0; byte < 256; ++byte) {
      Add(std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + ">", kByte);
    }
  }
  GgufBuilder Builder(const char* model) const {
    GgufBuilder builder;
    builder.Set("tokenizer.ggml.model", model).SetStrings("tokenizer.ggml.tokens", tokens);
    builder.SetArray("tokenizer.ggml.token_type", types).SetArray("tokenizer.ggml.scores", scores);
    return builder;
  }
};

Result<std::unique_ptr<Tokenizer>> Create(const GgufBuilder& builder) {
  const testing::Bytes bytes = builder.Build();
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, GgufFile::Parse(bytes, "test.gguf"));
  return Tokenizer::Create(*file);
}

std::unique_ptr<Tokenizer> CreateOrFail(const GgufBuilder& builder) {
  Result<std::unique_ptr<Tokenizer>> result = Create(builder);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? std::move(result).value() : nullptr;
}

Words PiecesOf(const Tokenizer& tokenizer, const Result<std::vector<TokenId>>& ids) {
  Words pieces;
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  if (!ids.ok()) return pieces;
  for (const TokenId id : *ids) pieces.push_back(tokenizer.DecodeToken(id, true));
  return pieces;
}

Words Pieces(const Tokenizer& tokenizer, std::string_view text, bool parse_special = false) {
  return PiecesOf(tokenizer, tokenizer.Encode(text, {.add_special = false, .parse_special = parse_special}));
}

// Pieces of all kinds of characters, and what vocabularies treat in their own ways.
void ExpectAnyTextComesBack(const Tokenizer& tokenizer) {
  const Words parts = {"a",      "ab",   "hello",  " ",  "  ",  "    ",   "\t",           "\n",
                       "\n\n\n", "\r\n", "12",     "'s", "<b>", "\u00e9", "\u65e5\u672c", "\U0001F680",
                       "\x01",   "\xff", "<0x41>", "."};
  std::minstd_rand random(11);
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (size_t n = random() % 24; n > 0; --n) text += parts[(random() >> 8) % parts.size()];
    const Result<std::vector<TokenId>> ids = tokenizer.Encode(text, {});
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(tokenizer.Decode(*ids), text);
  }
}

// As converters write Gemma 1 to 3: runs of spaces and line ends, and tags, are user-defined.
GgufBuilder Gemma(const std::string& space) {
  Vocabulary vocabulary;
  vocabulary.Add("<pad>", kControl);
  const uint32_t eos = vocabulary.Add("<eos>", kControl);
  const uint32_t bos = vocabulary.Add("<bos>", kControl);
  const uint32_t unknown = vocabulary.Add("<unk>", kUnknown);
  vocabulary.Add("<start_of_turn>", kControl);
  vocabulary.Add("<end_of_turn>", kControl);
  for (const char* text : {"\n", "\n\n", "<b>"}) vocabulary.Add(text, kUserDefined, -1000);
  for (size_t n = 2; n <= 4; ++n) {
    std::string run;
    for (size_t i = 0; i < n; ++i) run += space;
    vocabulary.Add(run, kUserDefined, -1000);
  }
  vocabulary.AddBytes();
  float score = 0;
  for (const char* piece :
       {"he", "ll", "hell", "hello", "\u2581hello", "\u2581", "a", "b", "e", "h", "l", "o"})
    vocabulary.Add(piece, kNormal, --score);
  GgufBuilder builder = vocabulary.Builder("llama");
  builder.Set("tokenizer.ggml.pre", "default").Set("tokenizer.ggml.add_space_prefix", false);
  builder.Set("tokenizer.ggml.bos_token_id", bos).Set("tokenizer.ggml.eos_token_id", eos);
  builder.Set("tokenizer.ggml.unknown_token_id", unknown).Set("tokenizer.ggml.add_bos_token", true);
  return builder;
}

TEST(Gemma, RunsOfSpacesAreTokensAndNoSpaceIsPutFirst) {
  const auto tokenizer = CreateOrFail(Gemma(" "));
  EXPECT_EQ(Pieces(*tokenizer, "hello hello"), (Words{"hello", " hello"}));
  EXPECT_EQ(Pieces(*tokenizer, "hello  hello"), (Words{"hello", "  ", "hello"}));
  EXPECT_EQ(Pieces(*tokenizer, "a     b"), (Words{"a", "    ", " ", "b"}))
      << "the longest, then the leftmost";
  EXPECT_EQ(Pieces(*tokenizer, "a\n\n\nb<b>"), (Words{"a", "\n\n", "\n", "b", "<b>"}));
  EXPECT_EQ(Pieces(*tokenizer, "\u00e9"), (Words{"\xc3", "\xa9"}));
  ExpectAnyTextComesBack(*tokenizer);
}

TEST(Gemma, ItsMarksAreControlTokens) {
  const auto tokenizer = CreateOrFail(Gemma(" "));
  EXPECT_EQ(Pieces(*tokenizer, "<start_of_turn>a\nhello<end_of_turn>", true),
            (Words{"<start_of_turn>", "a", "\n", "hello", "<end_of_turn>"}));
  const std::vector<TokenId> plain = *tokenizer->Encode("<end_of_turn>", {});
  for (const TokenId id : plain) EXPECT_FALSE(tokenizer->IsControl(id));
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(tokenizer->FindToken("<end_of_turn>")));
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(tokenizer->eos()));
  EXPECT_FALSE(tokenizer->IsEndOfGeneration(tokenizer->FindToken("<start_of_turn>")));
  EXPECT_EQ(tokenizer->FindToken("<bos>"), tokenizer->bos());
  EXPECT_TRUE(tokenizer->adds_bos());
}

TEST(Gemma, OlderFilesSpellSpacesWithMarks) {
  const auto tokenizer = CreateOrFail(Gemma("\u2581"));
  EXPECT_EQ(tokenizer->Decode(*tokenizer->Encode("hello  hello    a", {})), "hello  hello    a");
  ExpectAnyTextComesBack(*tokenizer);
}

TEST(Gemma, AMegabyteOfSpacesTakesNoLongerThanText) {
  const auto tokenizer = CreateOrFail(Gemma(" "));
  for (const char c : {' ', '\n', 'h', '\x01'}) {
    const std::string text(1 << 20, c);
    EXPECT_EQ(tokenizer->Decode(*tokenizer->Encode(text, {})), text);
  }
}

// "\u2581" for spaces, and merges of characters.
GgufBuilder Gemma4() {
  Vocabulary vocabulary;
  vocabulary.Add("<pad>", kControl);
  const uint32_t eos = vocabulary.Add("<eos>", kControl);
  const uint32_t bos = vocabulary.Add("<bos>", kControl);
  vocabulary.Add("<|turn>", kControl);
  vocabulary.Add("<turn|>", kControl);
  vocabulary.Add("<|think|>", kUserDefined);
  vocabulary.AddBytes();
  for (const char* text : {"\n", "\n\n", "\u2581", "a", "b", "\u65e5", "\u672c", "ab", "\u2581ab", "b\u2581",
                           "\u65e5\u672c", "\u2581\u2581", "aa"})
    vocabulary.Add(text);
  GgufBuilder builder = vocabulary.Builder("gemma4");
  builder.Set("tokenizer.ggml.bos_token_id", bos).Set("tokenizer.ggml.eos_token_id", eos);
  builder.SetStrings("tokenizer.ggml.merges",
                     {"a b", "\u2581 ab", "b \u2581", "\u65e5 \u672c", "\u2581 \u2581", "a a"});
  return builder;
}

TEST(Gemma4, MergesCharactersOfAWholeLine) {
  const auto tokenizer = CreateOrFail(Gemma4());
  EXPECT_EQ(Pieces(*tokenizer, "ab ab"), (Words{"ab", " ab"}));
  EXPECT_EQ(Pieces(*tokenizer, "b a"), (Words{"b ", "a"})) << "a token may span words";
  EXPECT_EQ(Pieces(*tokenizer, "\u65e5\u672ca"), (Words{"\u65e5\u672c", "a"}));
  EXPECT_EQ(Pieces(*tokenizer, "a\n\nb\n\n\na"), (Words{"a", "\n\n", "b", "\n", "\n", "\n", "a"}));
  EXPECT_EQ(Pieces(*tokenizer, "\u00e9\xff"), (Words{"\xc3", "\xa9", "\xff"}));
  EXPECT_EQ(Pieces(*tokenizer, "<|turn>a<turn|>", true), (Words{"<|turn>", "a", "<turn|>"}));
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(tokenizer->FindToken("<turn|>")));
  EXPECT_EQ(*tokenizer->CountLostBytes("\u00e9 z", {}), 0U);
  ExpectAnyTextComesBack(*tokenizer);
  for (const char c : {'a', ' ', '\n', 'z'}) {
    const std::string text(1 << 20, c);
    EXPECT_EQ(tokenizer->Decode(*tokenizer->Encode(text, {})), text);
  }
}

TEST(Gemma4, BeginsWithItsBosWhateverTheFileSays) {
  EXPECT_TRUE(CreateOrFail(Gemma4())->adds_bos());
  EXPECT_TRUE(CreateOrFail(Gemma4().Set("tokenizer.ggml.add_bos_token", false))->adds_bos());
  // Others that cut and merge like it.
  GgufBuilder kin = Gemma4();
  kin.Set("tokenizer.ggml.model", "gpt2").Set("tokenizer.ggml.pre", "gemma4");
  EXPECT_EQ(Pieces(*CreateOrFail(kin), "b a"), (Words{"b ", "a"}));
  EXPECT_FALSE(CreateOrFail(kin.Set("tokenizer.ggml.add_bos_token", false))->adds_bos());
  const auto refused = Create(Gemma4().Erase("tokenizer.ggml.merges"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kNotFound);
  EXPECT_NE(refused.status().message().find("test.gguf: "), std::string::npos);
  EXPECT_NE(refused.status().message().find("tokenizer.ggml.merges"), std::string::npos);
}

GgufBuilder Phi3() {
  Vocabulary vocabulary;
  vocabulary.Add("<unk>", kUnknown);
  vocabulary.Add("<s>", kControl);
  vocabulary.Add("</s>", kUserDefined);
  vocabulary.AddBytes();
  float score = 0;
  for (const char* piece : {"\u2581a", "\u2581", "a", "b"}) vocabulary.Add(piece, kNormal, --score);
  const uint32_t end_of_text = vocabulary.Add("<|endoftext|>", kControl);
  for (const char* mark : {"<|user|>", "<|end|>", "<|assistant|>"}) vocabulary.Add(mark, kControl);
  GgufBuilder builder = vocabulary.Builder("llama");
  builder.Set("general.architecture", "phi3").Set("tokenizer.ggml.eos_token_id", end_of_text);
  return builder;
}

TEST(Phi3, MarksOfAChatTakeTheWhiteSpaceAfterThem) {
  const auto tokenizer = CreateOrFail(Phi3());
  EXPECT_EQ(Pieces(*tokenizer, "<|user|>\na b<|end|>\n<|assistant|>\n", true),
            (Words{"<|user|>", " a", " ", "b", "<|end|>", "<|assistant|>"}));
  EXPECT_EQ(Pieces(*tokenizer, "<s>\na<|endoftext|> a", true),
            (Words{"<s>", " ", "\n", "a", "<|endoftext|>", " ", " a"}));
  const std::vector<TextPart> parts = {
      {"<|user|>\n", true}, {" a<|end|>", false}, {"<|end|>\n<|assistant|>\n", true}};
  const Words pieces = PiecesOf(*tokenizer, tokenizer->EncodeParts(parts, {}));
  EXPECT_EQ(Words(pieces.begin(), pieces.begin() + 3), (Words{"<|user|>", " a", "<"}));
  EXPECT_EQ(Words(pieces.end() - 3, pieces.end()), (Words{">", "<|end|>", "<|assistant|>"}));
  EXPECT_EQ(Pieces(*CreateOrFail(Phi3().Set("general.architecture", "llama")), "<|end|>\na", true),
            (Words{"<|end|>", " ", "\n", "a"}));
}

TEST(Phi3, PlainTextKeepsItsWhiteSpace) {
  const auto tokenizer = CreateOrFail(Phi3());
  EXPECT_EQ(Pieces(*tokenizer, "a</s>  b"), (Words{" a", "</s>", " ", " ", " ", "b"}));
  EXPECT_EQ(tokenizer->Decode(*tokenizer->Encode("<|end|>\n\n a  b ", {})), "<|end|>\n\n a  b ");
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(tokenizer->FindToken("<|end|>")));
  EXPECT_FALSE(tokenizer->IsEndOfGeneration(tokenizer->FindToken("</s>")));
}

TEST(GptOss, AMessageEndsNoAnswer) {
  Vocabulary vocabulary;
  vocabulary.Add("<unk>", kUnknown);
  for (const char* mark : {"<|end|>", "<|return|>", "<|call|>"}) vocabulary.Add(mark, kControl);
  vocabulary.AddBytes();
  GgufBuilder builder = vocabulary.Builder("llama");
  builder.Set("tokenizer.ggml.eos_token_id", 2U);
  const auto tokenizer = CreateOrFail(builder);
  EXPECT_FALSE(tokenizer->IsEndOfGeneration(1));
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(2));
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(3));
  EXPECT_TRUE(CreateOrFail(builder.Set("tokenizer.ggml.eos_token_id", 1U))->IsEndOfGeneration(1));
}

TEST(SolarOpen, AMessageEndsNoAnswer) {
  Vocabulary vocabulary;
  vocabulary.Add("<unk>", kUnknown);
  for (const char* mark : {"<|end|>", "<|flush|>", "<|calls|>", "<|endoftext|>"})
    vocabulary.Add(mark, kControl);
  vocabulary.AddBytes();
  GgufBuilder builder = vocabulary.Builder("llama");
  builder.Set("tokenizer.ggml.eos_token_id", 4U);
  const auto tokenizer = CreateOrFail(builder);
  EXPECT_FALSE(tokenizer->IsEndOfGeneration(1));
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(2));
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(3));
}

}  // namespace
}  // namespace kvrun
