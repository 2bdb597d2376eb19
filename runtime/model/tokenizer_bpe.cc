#include "runtime/model/tokenizer_bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/model/tokenizer_base.h"
#include "runtime/model/tokenizer_character_bpe.h"
#include "runtime/model/tokenizer_merges.h"
#include "runtime/model/tokenizer_pretokenize.h"
#include "runtime/model/tokenizer_text.h"

namespace kvrun {
namespace {

class BpeTokenizer final : public TokenizerBase {
 public:
  BpeTokenizer(Vocab vocab, MergeTable merges, std::unique_ptr<PreTokenizer> pre_tokenizer)
      : TokenizerBase(std::move(vocab)),
        merges_(std::move(merges)),
        pre_tokenizer_(std::move(pre_tokenizer)) {
    for (unsigned byte = 0; byte < 256; ++byte) {
      byte_tokens_[byte] = FindPlain(ByteAlphabet::Get().CharacterOf(static_cast<uint8_t>(byte)));
    }
  }

 protected:
  Status EncodePlain(std::string_view text, bool first, std::span<const TokenId> barred,
                     EncodedText* encoded) const override;
  bool SaysEveryByte() const override {
    return std::all_of(byte_tokens_.begin(), byte_tokens_.end(), [](TokenId id) { return id >= 0; });
  }
  void AppendPlain(TokenId id, std::string* bytes) const override;
  bool RemovesLeadingSpace() const override { return false; }

 private:
  TokenId FindPlain(std::string_view text) const {
    const TokenId id = vocab().Find(text);
    return id >= 0 && vocab().IsPlain(id) ? id : -1;
  }

  MergeTable merges_;
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  std::array<TokenId, 256> byte_tokens_{};  // -1 where the vocabulary lacks one
};

// A byte that the vocabulary lacks is left out: there is no token that would say it, and the files' unknown
// token of this family is <|endoftext|> or the like.
Status BpeTokenizer::EncodePlain(std::string_view text, bool /*first*/, std::span<const TokenId> barred,
                                 EncodedText* encoded) const {
  KVRUN_ASSIGN_OR_RETURN(const std::vector<uint32_t> ends, pre_tokenizer_->Split(text));
  WordMerger merger(merges_, barred);
  std::vector<TokenId> symbols;
  uint32_t begin = 0;
  for (const uint32_t end : ends) {
    const std::string_view word = text.substr(begin, end - begin);
    begin = end;
    if (pre_tokenizer_->takes_whole_words() && word.size() <= vocab().longest_text_bytes()) {
      const TokenId whole = FindPlain(ByteAlphabet::Get().Encode(word));
      if (whole >= 0 && std::find(barred.begin(), barred.end(), whole) == barred.end()) {
        encoded->ids.push_back(whole);
        continue;
      }
    }
    symbols.clear();
    for (const char byte : word) symbols.push_back(byte_tokens_[static_cast<uint8_t>(byte)]);
    encoded->lost_bytes += static_cast<uint64_t>(std::count(symbols.begin(), symbols.end(), -1));
    merger.Merge(symbols, &encoded->ids);
  }
  return Status::Ok();
}

void BpeTokenizer::AppendPlain(TokenId id, std::string* bytes) const {
  const std::string_view text = vocab().text(id);
  // Added tokens stand in some files as they are, not in the alphabet.
  if (!ByteAlphabet::Get().Decode(text, bytes)) *bytes += text;
}

Result<std::string_view> PreTokenizerName(const GgufFile& file) {
  KVRUN_ASSIGN_OR_RETURN(const std::string_view name, file.StringOr("tokenizer.ggml.pre", ""));
  if (!name.empty() && name != "default") return name;
  return Status(
      StatusCode::kUnsupported,
      fmt::format("{}: tokenizer.ggml.pre {}, so kvrun does not know how to cut text into words, and a guess "
                  "would silently spoil every answer; convert the model again with a current converter",
                  file.name(), name.empty() ? "is missing" : "is \"default\""));
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> CreateBpeTokenizer(const GgufFile& file) {
  KVRUN_ASSIGN_OR_RETURN(const std::string_view name, PreTokenizerName(file));
  if (name == "gemma4") return CreateCharacterBpeTokenizer(file);
  Result<std::unique_ptr<PreTokenizer>> pre_tokenizer = PreTokenizer::Create(name);
  if (!pre_tokenizer.ok()) return pre_tokenizer.status().WithContext(file.name());
  VocabDefaults defaults;
  defaults.add_bos = (*pre_tokenizer)->adds_bos_by_default();
  KVRUN_ASSIGN_OR_RETURN(Vocab vocab, Vocab::Load(file, defaults));
  KVRUN_ASSIGN_OR_RETURN(MergeTable merges, MergeTable::Load(file, vocab));
  std::unique_ptr<Tokenizer> tokenizer =
      std::make_unique<BpeTokenizer>(std::move(vocab), std::move(merges), std::move(pre_tokenizer).value());
  return tokenizer;
}

}  // namespace kvrun
