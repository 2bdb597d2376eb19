#include "runtime/model/tokenizer_spm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/model/tokenizer_base.h"
#include "runtime/model/tokenizer_bytes.h"
#include "runtime/model/tokenizer_text.h"

namespace kvrun {
namespace {

constexpr std::string_view kScoresKey = "tokenizer.ggml.scores";

// Where the word that starts at `begin` ends: before the first space mark that follows another character.
size_t WordEnd(std::string_view text, size_t begin) {
  size_t letters = begin;
  while (text.substr(letters, kSpaceMark.size()) == kSpaceMark) letters += kSpaceMark.size();
  if (letters == text.size()) return text.size();
  return std::min(text.find(kSpaceMark, letters), text.size());
}

class SpmTokenizer final : public TokenizerBase {
 public:
  SpmTokenizer(Vocab vocab, std::vector<float> scores, bool adds_space)
      : TokenizerBase(std::move(vocab)),
        scores_(std::move(scores)),
        adds_space_(adds_space),
        byte_tokens_(this->vocab()) {
    for (TokenId id = 0; this->vocab().Contains(id) && spaces_start_words_; ++id) {
      const std::string_view text = this->vocab().text(id);
      if (this->vocab().IsPlain(id) && !text.empty()) spaces_start_words_ = WordEnd(text, 0) == text.size();
    }
  }

  bool CanSayEveryByte() const { return byte_tokens_.has_all(); }

 protected:
  Status EncodePlain(std::string_view text, bool first, std::span<const TokenId> barred,
                     EncodedText* encoded) const override;
  bool SaysEveryByte() const override { return CanSayEveryByte(); }
  void AppendPlain(TokenId id, std::string* bytes) const override;
  // Older files of Gemma spell their runs of spaces with marks.
  void AppendUserDefined(TokenId id, std::string* bytes) const override { AppendPlain(id, bytes); }
  bool RemovesLeadingSpace() const override { return adds_space_; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Symbol {
    uint32_t begin;
    uint32_t bytes;  // 0: merged into the one before
    uint32_t previous;
    uint32_t next;
  };
  struct Candidate {
    float score;
    uint32_t left;
    uint32_t bytes;  // of both

    // The better one is the greater: by score, then the leftmost.
    bool operator<(const Candidate& other) const {
      return score != other.score ? score < other.score : left > other.left;
    }
  };
  struct Work {
    std::span<const TokenId> barred;
    std::string_view word;
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  TokenId FindPlain(std::string_view text, std::span<const TokenId> barred = {}) const;
  void Push(uint32_t left, Work* work) const;
  void MergeAll(Work* work) const;
  void EncodeWord(std::string_view word, Work* work, EncodedText* encoded) const;
  void AppendIds(std::string_view symbol, std::span<const TokenId> barred, EncodedText* encoded) const;

  std::vector<float> scores_;
  bool adds_space_;
  bool spaces_start_words_ = true;  // no token has a space mark after another character: none spans two words
  ByteTokens byte_tokens_;
};

TokenId SpmTokenizer::FindPlain(std::string_view text, std::span<const TokenId> barred) const {
  if (text.size() > vocab().longest_text_bytes()) return -1;
  const TokenId id = vocab().Find(text);
  if (id < 0 || !vocab().IsPlain(id)) return -1;
  return std::find(barred.begin(), barred.end(), id) == barred.end() ? id : -1;
}

void SpmTokenizer::Push(uint32_t left, Work* work) const {
  const Symbol& symbol = work->symbols[left];
  if (symbol.next == kNone) return;
  const uint32_t bytes = symbol.bytes + work->symbols[symbol.next].bytes;
  const TokenId id = FindPlain(work->word.substr(symbol.begin, bytes), work->barred);
  if (id < 0) return;
  work->heap.push_back({scores_[static_cast<size_t>(id)], left, bytes});
  std::push_heap(work->heap.begin(), work->heap.end());
}

void SpmTokenizer::MergeAll(Work* work) const {
  for (uint32_t i = 0; i < work->symbols.size(); ++i) Push(i, work);
  while (!work->heap.empty()) {
    std::pop_heap(work->heap.begin(), work->heap.end());
    const Candidate best = work->heap.back();
    work->heap.pop_back();
    Symbol& left = work->symbols[best.left];
    // Outdated where one of the two has been merged since.
    if (left.bytes == 0 || left.next == kNone) continue;
    Symbol& right = work->symbols[left.next];
    if (left.bytes + right.bytes != best.bytes) continue;
    left.bytes = best.bytes;
    left.next = right.next;
    right.bytes = 0;
    if (left.next != kNone) work->symbols[left.next].previous = best.left;
    Push(best.left, work);
    if (left.previous != kNone) Push(left.previous, work);
  }
}

void SpmTokenizer::AppendIds(std::string_view symbol, std::span<const TokenId> barred,
                             EncodedText* encoded) const {
  const TokenId whole = FindPlain(symbol, barred);
  if (whole >= 0) {
    encoded->ids.push_back(whole);
    return;
  }
  if (std::any_of(symbol.begin(), symbol.end(), [&](char byte) { return byte_tokens_.of(byte) < 0; })) {
    // Create has seen to it that there is one. Where a file names another kind of token as the unknown one,
    // such as the end of the text, it is not for a text to write.
    const TokenId unknown = vocab().unknown();
    if (vocab().type(unknown) != TokenType::kControl && !IsEndOfGeneration(unknown)) {
      encoded->ids.push_back(unknown);
    }
    encoded->lost_bytes += symbol.size();
    return;
  }
  for (const char byte : symbol) encoded->ids.push_back(byte_tokens_.of(byte));
}

void SpmTokenizer::EncodeWord(std::string_view word, Work* work, EncodedText* encoded) const {
  work->word = word;
  work->symbols.clear();
  for (size_t at = 0; at < word.size();) {
    const auto bytes = static_cast<uint32_t>(std::max<size_t>(Utf8CharacterBytes(word, at), 1));
    const auto index = static_cast<uint32_t>(work->symbols.size());
    const uint32_t next = at + bytes < word.size() ? index + 1 : kNone;
    work->symbols.push_back({static_cast<uint32_t>(at), bytes, index == 0 ? kNone : index - 1, next});
    at += bytes;
  }
  MergeAll(work);
  for (const Symbol& symbol : work->symbols) {
    if (symbol.bytes > 0) AppendIds(word.substr(symbol.begin, symbol.bytes), work->barred, encoded);
  }
}

Status SpmTokenizer::EncodePlain(std::string_view text, bool first, std::span<const TokenId> barred,
                                 EncodedText* encoded) const {
  std::string marked = WithSpacesMarked(text);
  if (first && adds_space_) marked.insert(0, kSpaceMark);
  Work work;
  work.barred = barred;
  const std::string_view all = marked;
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = spaces_start_words_ ? WordEnd(all, begin) : all.size();
    EncodeWord(all.substr(begin, end - begin), &work, encoded);
    begin = end;
  }
  return Status::Ok();
}

void SpmTokenizer::AppendPlain(TokenId id, std::string* bytes) const {
  if (vocab().type(id) == TokenType::kByte) {
    byte_tokens_.Append(id, bytes);
  } else {
    AppendWithMarksAsSpaces(vocab().text(id), bytes);
  }
}

Result<std::vector<float>> LoadScores(const GgufFile& file, size_t n_vocab) {
  KVRUN_ASSIGN_OR_RETURN(std::vector<float> scores, file.Floats(kScoresKey));
  if (scores.size() != n_vocab) {
    return Status(StatusCode::kCorrupt, fmt::format("{}: {} has {} entries, but the vocabulary has {} tokens",
                                                    file.name(), kScoresKey, scores.size(), n_vocab));
  }
  const auto nan = std::find_if(scores.begin(), scores.end(), [](float score) { return std::isnan(score); });
  if (nan != scores.end()) {
    return Status(StatusCode::kCorrupt, fmt::format("{}: {} of token {} is not a number", file.name(),
                                                    kScoresKey, nan - scores.begin()));
  }
  return scores;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> CreateSpmTokenizer(const GgufFile& file) {
  VocabDefaults defaults = {.add_bos = true, .bos = 1, .eos = 2, .unknown = 0};
  KVRUN_ASSIGN_OR_RETURN(const std::string_view architecture, file.StringOr("general.architecture", ""));
  defaults.strips_after_control = architecture == "phi3";
  KVRUN_ASSIGN_OR_RETURN(Vocab vocab, Vocab::Load(file, defaults));
  KVRUN_ASSIGN_OR_RETURN(std::vector<float> scores, LoadScores(file, vocab.size()));
  KVRUN_ASSIGN_OR_RETURN(const bool adds_space, file.BoolOr("tokenizer.ggml.add_space_prefix", true));
  const bool has_unknown = vocab.unknown() >= 0;
  auto tokenizer = std::make_unique<SpmTokenizer>(std::move(vocab), std::move(scores), adds_space);
  if (!has_unknown && !tokenizer->CanSayEveryByte()) {
    return Status(
        StatusCode::kUnsupported,
        fmt::format("{}: the vocabulary has neither all byte tokens (<0x00> to <0xFF>) nor an unknown token "
                    "(tokenizer.ggml.unknown_token_id), so it cannot say every text",
                    file.name()));
  }
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

}  // namespace kvrun
