#include "runtime/model/tokenizer_character_bpe.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/model/tokenizer_base.h"
#include "runtime/model/tokenizer_bytes.h"
#include "runtime/model/tokenizer_merges.h"
#include "runtime/model/tokenizer_text.h"

namespace kvrun {
namespace {

// Where the run of line ends, or of anything else, that starts at `begin` ends.
size_t LineRunEnd(std::string_view text, size_t begin) {
  const size_t end =
      text[begin] == '\n' ? text.find_first_not_of('\n', begin) : text.find_first_of('\n', begin);
  return std::min(end, text.size());
}

// Spaces are marks as in SentencePiece, and a whole line is merged as one word.
class CharacterBpeTokenizer final : public TokenizerBase {
 public:
  CharacterBpeTokenizer(Vocab vocab, MergeTable merges)
      : TokenizerBase(std::move(vocab)), merges_(std::move(merges)), byte_tokens_(this->vocab()) {}

 protected:
  Status EncodePlain(std::string_view text, bool first, std::span<const TokenId> barred,
                     EncodedText* encoded) const override;
  bool SaysEveryByte() const override { return byte_tokens_.has_all(); }
  void AppendPlain(TokenId id, std::string* bytes) const override;
  bool RemovesLeadingSpace() const override { return false; }

 private:
  TokenId FindPlain(std::string_view text, std::span<const TokenId> barred) const;
  void AppendSymbols(std::string_view run, std::span<const TokenId> barred,
                     std::vector<TokenId>* symbols) const;

  MergeTable merges_;
  ByteTokens byte_tokens_;
};

TokenId CharacterBpeTokenizer::FindPlain(std::string_view text, std::span<const TokenId> barred) const {
  const TokenId id = vocab().Find(text);
  if (id < 0 || !vocab().IsPlain(id)) return -1;
  return std::find(barred.begin(), barred.end(), id) == barred.end() ? id : -1;
}

void CharacterBpeTokenizer::AppendSymbols(std::string_view run, std::span<const TokenId> barred,
                                          std::vector<TokenId>* symbols) const {
  for (size_t at = 0; at < run.size();) {
    const size_t bytes = std::max<size_t>(Utf8CharacterBytes(run, at), 1);
    const std::string_view character = run.substr(at, bytes);
    const TokenId id = FindPlain(character, barred);
    if (id >= 0) {
      symbols->push_back(id);
    } else {
      for (const char byte : character) symbols->push_back(byte_tokens_.of(byte));
    }
    at += bytes;
  }
}

Status CharacterBpeTokenizer::EncodePlain(std::string_view text, bool /*first*/,
                                          std::span<const TokenId> barred, EncodedText* encoded) const {
  const std::string marked = WithSpacesMarked(text);
  const std::string_view all = marked;
  WordMerger merger(merges_, barred);
  std::vector<TokenId> symbols;
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = LineRunEnd(all, begin);
    const std::string_view run = all.substr(begin, end - begin);
    begin = end;
    // A run of line ends is one token where the vocabulary has it, whatever the merges say.
    const TokenId whole = run.front() == '\n' ? FindPlain(run, barred) : -1;
    if (whole >= 0) {
      encoded->ids.push_back(whole);
      continue;
    }
    symbols.clear();
    AppendSymbols(run, barred, &symbols);
    encoded->lost_bytes += static_cast<uint64_t>(std::count(symbols.begin(), symbols.end(), -1));
    merger.Merge(symbols, &encoded->ids);
  }
  return Status::Ok();
}

void CharacterBpeTokenizer::AppendPlain(TokenId id, std::string* bytes) const {
  if (vocab().type(id) == TokenType::kByte) {
    byte_tokens_.Append(id, bytes);
  } else {
    AppendWithMarksAsSpaces(vocab().text(id), bytes);
  }
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> CreateCharacterBpeTokenizer(const GgufFile& file) {
  VocabDefaults defaults;
  defaults.add_bos = true;
  // Early files of Gemma 4 say that it has none; the model needs it.
  KVRUN_ASSIGN_OR_RETURN(const std::string_view model, file.String("tokenizer.ggml.model"));
  defaults.must_add_bos = model == "gemma4";
  KVRUN_ASSIGN_OR_RETURN(Vocab vocab, Vocab::Load(file, defaults));
  KVRUN_ASSIGN_OR_RETURN(MergeTable merges, MergeTable::Load(file, vocab));
  std::unique_ptr<Tokenizer> tokenizer =
      std::make_unique<CharacterBpeTokenizer>(std::move(vocab), std::move(merges));
  return tokenizer;
}

}  // namespace kvrun
