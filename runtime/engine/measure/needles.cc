#include "runtime/engine/measure/needles.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "platform/base/random.h"

namespace kvrun {
namespace {

// The key stands right before the value: a small model finds it far less often with words between them.
constexpr std::string_view kQuestion = " The password is ";
constexpr uint32_t kKeySyllables = 3;
constexpr uint32_t kValueDigits = 5;
constexpr std::string_view kConsonants = "bcdfghjklmnprstvwz";
constexpr std::string_view kVowels = "aeiou";

struct Sentence {
  std::vector<TokenId> question;
  std::vector<TokenId> value;
  std::vector<TokenId> end;

  uint32_t n_asked() const { return static_cast<uint32_t>(question.size() + value.size()); }
  uint32_t n_tokens() const { return static_cast<uint32_t>(n_asked() + end.size()); }
};

struct Sentences {
  std::vector<Sentence> all;  // of one document
  uint64_t n_tokens = 0;
  uint32_t longest = 0;  // question and value
};

char OneOf(std::string_view letters, Random& random) {
  return letters[random.Below(static_cast<uint32_t>(letters.size()))];
}

std::string RandomKey(Random& random) {
  std::string key;
  for (uint32_t i = 0; i < kKeySyllables; ++i) {
    key += OneOf(kConsonants, random);
    key += OneOf(kVowels, random);
  }
  key[0] = static_cast<char>(key[0] - 'a' + 'A');
  return key;
}

// Encoded in three parts, so that the question has the same tokens in the document and after it.
Result<Sentence> MakeSentence(const Tokenizer& tokenizer, const std::string& key, Random& random) {
  std::string value = " ";
  for (uint32_t i = 0; i < kValueDigits; ++i) value += OneOf("0123456789", random);
  Sentence sentence;
  KVRUN_ASSIGN_OR_RETURN(sentence.question, tokenizer.Encode(std::string(kQuestion) + key, {}));
  KVRUN_ASSIGN_OR_RETURN(sentence.value, tokenizer.Encode(value, {}));
  KVRUN_ASSIGN_OR_RETURN(sentence.end, tokenizer.Encode(".", {}));
  if (sentence.question.empty() || sentence.value.empty() || sentence.n_asked() > kMaxQuestionTokens) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("cannot ask for needles with this model's tokenizer: \"{}{}{}\" has {} tokens, "
                              "and a question needs from 2 to {}, all of which fit in the window of methods "
                              "that evict",
                              kQuestion, key, value, sentence.n_asked(), kMaxQuestionTokens));
  }
  return sentence;
}

Result<Sentences> MakeSentences(const Tokenizer& tokenizer, uint32_t count, Random& random) {
  Sentences sentences;
  std::set<std::string> keys;
  while (sentences.all.size() < count) {
    const std::string key = RandomKey(random);
    if (!keys.insert(key).second) continue;
    KVRUN_ASSIGN_OR_RETURN(Sentence sentence, MakeSentence(tokenizer, key, random));
    sentences.n_tokens += sentence.n_tokens();
    sentences.longest = std::max(sentences.longest, sentence.n_asked());
    sentences.all.push_back(std::move(sentence));
  }
  return sentences;
}

Status CheckOptions(const NeedleOptions& options) {
  if (options.n_needles == 0 || options.n_needles > kMaxNeedles) {
    return {StatusCode::kInvalidArgument,
            fmt::format("cannot hide {} needles: ask for 1 to {}", options.n_needles, kMaxNeedles)};
  }
  if (options.n_per_document == 0 || options.n_per_document > kMaxNeedlesPerDocument ||
      options.n_copies == 0 || options.n_copies > kMaxNeedlesPerDocument) {
    return {StatusCode::kInvalidArgument,
            fmt::format("cannot hide {} needles in a document, {} times each: both are from 1 to {}",
                        options.n_per_document, options.n_copies, kMaxNeedlesPerDocument)};
  }
  return Status::Ok();
}

// How many tokens of a text of `n_text` lie between a document's needles: at least as many as theirs.
Result<uint32_t> TextTokens(const NeedleOptions& options, const Sentences& sentences, size_t n_text) {
  const uint64_t n_said = sentences.n_tokens * options.n_copies;
  const uint64_t least_ctx = 2 * n_said + sentences.longest;
  if (options.n_ctx < least_ctx) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("cannot hide {} needles, {} times each, in a context of {} tokens: they take {}, "
                    "and the text between them takes no less. Ask for fewer needles, or for a "
                    "context of at least {} tokens",
                    sentences.all.size(), options.n_copies, options.n_ctx, n_said, least_ctx));
  }
  const uint64_t n_hay = options.n_ctx - n_said - sentences.longest;
  if (n_hay > n_text) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("cannot hide needles in a text of {} tokens: a context of {} tokens takes {} of "
                    "them beside {} needles. Give a longer text, or ask for a context of at most {} "
                    "tokens",
                    n_text, options.n_ctx, n_hay, sentences.all.size(), n_text + n_said + sentences.longest));
  }
  return static_cast<uint32_t>(n_hay);
}

NeedleDocument Hide(std::span<const TokenId> hay, const Sentences& sentences, uint32_t n_copies,
                    NeedleDocument document, Random& random) {
  const auto append = [&document](std::span<const TokenId> ids) {
    document.ids.insert(document.ids.end(), ids.begin(), ids.end());
  };
  const size_t n_parts = sentences.all.size() * n_copies;
  for (const Sentence& sentence : sentences.all) {
    document.needles.push_back({{}, sentence.question, sentence.value});
  }
  size_t n_taken = 0;
  for (size_t part = 0; part < n_parts; ++part) {
    const size_t begin = hay.size() * part / n_parts;
    const size_t end = hay.size() * (part + 1) / n_parts;
    const size_t at = begin + random.Below(static_cast<uint32_t>(end - begin));
    append(hay.subspan(n_taken, at - n_taken));
    n_taken = at;
    const size_t i = part % sentences.all.size();
    document.needles[i].positions.push_back(static_cast<uint32_t>(document.ids.size()));
    append(sentences.all[i].question);
    append(sentences.all[i].value);
    append(sentences.all[i].end);
  }
  append(hay.subspan(n_taken));
  return document;
}

}  // namespace

Result<std::vector<NeedleDocument>> HideNeedles(const Tokenizer& tokenizer, std::span<const TokenId> text,
                                                const NeedleOptions& options) {
  KVRUN_RETURN_IF_ERROR(CheckOptions(options));
  NeedleDocument beginning;
  if (!text.empty() && text[0] == tokenizer.bos()) {
    beginning.ids.push_back(text[0]);
    text = text.subspan(1);
  }
  NeedleOptions within = options;
  within.n_ctx -= std::min(options.n_ctx, static_cast<uint32_t>(beginning.ids.size()));
  Random random(options.seed);
  std::vector<NeedleDocument> documents;
  const uint64_t n = options.n_needles;
  const uint64_t n_documents = (n + options.n_per_document - 1) / options.n_per_document;
  for (uint64_t i = 0; i < n_documents; ++i) {
    const auto n_here = static_cast<uint32_t>(n * (i + 1) / n_documents - n * i / n_documents);
    KVRUN_ASSIGN_OR_RETURN(const Sentences sentences, MakeSentences(tokenizer, n_here, random));
    KVRUN_ASSIGN_OR_RETURN(const uint32_t n_hay, TextTokens(within, sentences, text.size()));
    const size_t begin = n_documents == 1 ? 0 : (text.size() - n_hay) * i / (n_documents - 1);
    documents.push_back(Hide(text.subspan(begin, n_hay), sentences, options.n_copies, beginning, random));
  }
  return documents;
}

}  // namespace kvrun
