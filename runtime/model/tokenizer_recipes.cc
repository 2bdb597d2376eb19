#include "runtime/model/tokenizer_recipes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

namespace kvrun {
namespace {

// Unicode's White_Space. PCRE2's own \s also takes U+180E, which no longer is one.
constexpr std::string_view kWhiteSpace =
    R"(\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// In all patterns <w> is, within a class, the whitespace characters; <s> is one of them, <S> any other
// character, <sym> neither space nor letter nor digit, <'s> an English contraction.
constexpr std::string_view kContraction = R"('(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD]))";
constexpr std::string_view kGpt2Pattern =
    R"('(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?<sym>+|<s>+(?!<S>)|<s>+)";
// Of Llama 3 and its kin, with <digits> for what they take of a number at once.
constexpr std::string_view kLlama3Pattern =
    R"(<'s>|[^\r\n\p{L}\p{N}]?\p{L}+|<digits>| ?<sym>+[\r\n]*|<s>*[\r\n]+|<s>+(?!<S>)|<s>+)";
// Marks belong to the letters before them.
constexpr std::string_view kQwen35Pattern =
    R"(<'s>|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^<w>\p{L}\p{M}\p{N}]+[\r\n]*|<s>*[\r\n]+)"
    R"(|<s>+(?!<S>)|<s>+)";
constexpr std::string_view kSeedCoderPattern =
    R"(<'s>|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^<w>\p{L}\p{N}\r\n]+|<s>*[\r\n]+|<s>+(?!<S>)|<s>+)";
// A word ends where capitals follow small letters. <end> is what may follow a word, <digits> as above.
constexpr std::string_view kCasedPattern =
    R"([^\r\n\p{L}\p{N}]?[<upper>]*[<lower>]+<end>|[^\r\n\p{L}\p{N}]?[<upper>]+[<lower>]*<end>|<digits>)"
    R"(| ?<sym>+[\r\n/]*|<s>*[\r\n]+|<s>+(?!<S>)|<s>+)";
constexpr std::string_view kUpper = R"(\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M})";
constexpr std::string_view kLower = R"(\p{Ll}\p{Lm}\p{Lo}\p{M})";
constexpr std::string_view kDeepSeek3Pattern =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|<s>*[\r\n]+|<s>+(?!<S>)|<s>+)";

constexpr std::string_view kOneDigit = R"(\p{N})";
constexpr std::string_view kThreeDigits = R"(\p{N}{1,3})";
constexpr std::string_view kAnyDigits = R"(\p{N}+)";

std::string Replaced(std::string text, std::string_view what, std::string_view with) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size())) {
    text.replace(at, what.size(), with);
  }
  return text;
}

std::string Expand(std::string_view pattern, std::string_view digits = "", std::string_view end = "") {
  std::string text = Replaced(std::string(pattern), "<digits>", digits);
  text = Replaced(std::move(text), "<end>", end);
  text = Replaced(std::move(text), "<upper>", kUpper);
  text = Replaced(std::move(text), "<lower>", kLower);
  text = Replaced(std::move(text), "<'s>", kContraction);
  text = Replaced(std::move(text), "<sym>", R"([^<w>\p{L}\p{N}])");
  text = Replaced(std::move(text), "<s>", "[<w>]");
  text = Replaced(std::move(text), "<S>", "[^<w>]");
  return Replaced(std::move(text), "<w>", kWhiteSpace);
}

enum class Patterns : uint8_t {
  kGpt2,
  kGpt2Digits,  // each digit is a word
  kLlama3,
  kQwen2,
  kQwen35,
  kMiniCpm5,
  kSeedCoder,
  kGpt4o,
  kTekken,
  kDeepSeekCoder,
  kDeepSeek3,
};

std::vector<std::string> PatternsOf(Patterns patterns) {
  switch (patterns) {
    case Patterns::kGpt2: return {Expand(kGpt2Pattern)};
    case Patterns::kGpt2Digits: return {std::string(kOneDigit), Expand(kGpt2Pattern)};
    case Patterns::kLlama3: return {Expand(kLlama3Pattern, kThreeDigits)};
    case Patterns::kQwen2: return {Expand(kLlama3Pattern, kOneDigit)};
    case Patterns::kQwen35: return {Expand(kQwen35Pattern)};
    case Patterns::kMiniCpm5: return {std::string(kThreeDigits), Expand(kLlama3Pattern, kAnyDigits)};
    case Patterns::kSeedCoder: return {Expand(kSeedCoderPattern)};
    case Patterns::kGpt4o: return {Expand(kCasedPattern, kThreeDigits, "(?:<'s>)?")};
    case Patterns::kTekken: return {Expand(kCasedPattern, kOneDigit)};
    case Patterns::kDeepSeekCoder:
      return {R"([\r\n])", Expand(R"(<s>?\p{L}+)"), Expand(R"(<s>?\p{P}+)"),
              R"([\x{800}-\x{9fa5}\x{ac00}-\x{d7ff}]+)", std::string(kOneDigit)};
    case Patterns::kDeepSeek3:
      return {std::string(kThreeDigits), R"([\x{4e00}-\x{9fa5}\x{3040}-\x{30ff}]+)",
              Expand(kDeepSeek3Pattern)};
  }
  return {};
}

struct NamedRecipe {
  std::string_view name;
  Patterns patterns;
  bool takes_whole_words = false;
  bool adds_bos_by_default = false;
};

// The names are those that llama.cpp's converter writes; what a file of another family writes is given with
// it: "dbrx" is also what Phi-4 and OLMo 2 have, "smaug-bpe" SmolLM3, "gpt-4o" Phi-4-mini, "refact" Granite.
constexpr auto kRecipes = std::to_array<NamedRecipe>({
    {"gpt-2", Patterns::kGpt2},
    {"gpt2", Patterns::kGpt2},
    {"phi-2", Patterns::kGpt2},
    {"mpt", Patterns::kGpt2},
    {"olmo", Patterns::kGpt2},
    {"jais", Patterns::kGpt2},
    {"trillion", Patterns::kGpt2},
    {"granite-docling", Patterns::kGpt2},
    {"gigachat", Patterns::kGpt2},
    {"a.x-4.0", Patterns::kGpt2},
    {"mellum", Patterns::kGpt2},
    {"exaone4", Patterns::kGpt2},
    {"smollm", Patterns::kGpt2Digits},
    {"starcoder", Patterns::kGpt2Digits},
    {"refact", Patterns::kGpt2Digits},
    {"command-r", Patterns::kGpt2Digits},
    {"codeshell", Patterns::kGpt2Digits},
    {"exaone", Patterns::kGpt2Digits},
    {"minerva-7b", Patterns::kGpt2Digits},
    {"mellum2", Patterns::kGpt2Digits},
    {"llama-bpe", Patterns::kLlama3, true, true},
    {"llama3", Patterns::kLlama3, true, true},
    {"llama-v3", Patterns::kLlama3, true, true},
    {"lfm2", Patterns::kLlama3, true, true},
    {"falcon3", Patterns::kLlama3, true, true},
    {"falcon-h1", Patterns::kLlama3, true, true},
    {"pixtral", Patterns::kLlama3, true, true},
    {"midm-2.0", Patterns::kLlama3, true, true},
    {"dbrx", Patterns::kLlama3},
    {"smaug-bpe", Patterns::kLlama3},
    {"chatglm-bpe", Patterns::kLlama3},
    {"glm4", Patterns::kLlama3, true},
    {"glm5", Patterns::kLlama3, true},
    {"minicpm5", Patterns::kMiniCpm5, true},
    {"qwen2", Patterns::kQwen2},
    {"deepseek-r1-qwen", Patterns::kQwen2},
    {"stablelm2", Patterns::kQwen2},
    {"megrez", Patterns::kQwen2},
    {"kormo", Patterns::kQwen2},
    {"hunyuan", Patterns::kQwen2},
    {"solar-open", Patterns::kQwen2},
    {"grok-2", Patterns::kQwen2},
    {"qwen35", Patterns::kQwen35},
    {"seed-coder", Patterns::kSeedCoder},
    {"bailingmoe", Patterns::kQwen2},
    {"bailingmoe2", Patterns::kQwen2},
    {"llada-moe", Patterns::kQwen2},
    {"gpt-4o", Patterns::kGpt4o},
    {"llama4", Patterns::kGpt4o},
    {"kanana2", Patterns::kGpt4o},
    {"minimax-m2", Patterns::kGpt4o},
    {"tekken", Patterns::kTekken, true, true},
    {"deepseek-coder", Patterns::kDeepSeekCoder},
    {"deepseek-v3", Patterns::kDeepSeek3},
    {"hunyuan-dense", Patterns::kDeepSeek3},
    {"joyai-llm", Patterns::kDeepSeek3},
});

}  // namespace

Result<PreTokenizerRecipe> FindPreTokenizerRecipe(std::string_view name) {
  const auto* known =
      std::find_if(kRecipes.begin(), kRecipes.end(), [&](const NamedRecipe& r) { return r.name == name; });
  if (known == kRecipes.end()) {
    return Status(
        StatusCode::kUnsupported,
        fmt::format(
            "tokenizer.ggml.pre is \"{}\", a way to cut text into words that kvrun does not know, and "
            "a guess would silently spoil every answer; take a newer kvrun, or a model of a family "
            "that kvrun's docs/tokenizers.md names",
            name));
  }
  return PreTokenizerRecipe{PatternsOf(known->patterns), known->takes_whole_words,
                            known->adds_bos_by_default};
}

std::vector<std::string_view> PreTokenizerNames() {
  std::vector<std::string_view> names;
  for (const NamedRecipe& known : kRecipes) names.push_back(known.name);
  return names;
}

}  // namespace kvrun
