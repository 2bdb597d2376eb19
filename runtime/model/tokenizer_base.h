// What both families of tokenizers share. Internal to the tokenizers.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/tokenizer.h"
#include "runtime/model/tokenizer_specials.h"
#include "runtime/model/tokenizer_vocab.h"

namespace kvrun {

struct EncodedText {
  std::vector<TokenId> ids;
  uint64_t lost_bytes = 0;  // that the vocabulary cannot say
};

class TokenizerBase : public Tokenizer {
 public:
  explicit TokenizerBase(Vocab vocab) : vocab_(std::move(vocab)), specials_(vocab_) {}

  Result<std::vector<TokenId>> Encode(std::string_view text, const EncodeOptions& options) const override;
  Result<std::vector<TokenId>> EncodeParts(std::span<const TextPart> parts,
                                           std::span<const std::string> form_texts) const override;
  Result<uint64_t> CountLostBytes(std::string_view text, const EncodeOptions& options) const override;
  void AppendToken(TokenId id, bool show_special, std::string* bytes) const override;
  std::string Decode(const std::vector<TokenId>& ids, bool show_special) const override;

  uint32_t n_vocab() const override { return vocab_.size(); }
  TokenId bos() const override { return vocab_.bos(); }
  TokenId eos() const override { return vocab_.eos(); }
  bool adds_bos() const override { return vocab_.add_bos(); }
  bool IsEndOfGeneration(TokenId id) const override { return vocab_.IsEndOfGeneration(id); }
  bool IsControl(TokenId id) const override;
  TokenId FindToken(std::string_view text) const override { return vocab_.Find(text); }

 protected:
  const Vocab& vocab() const { return vocab_; }

  // Appends the ids of text without special tokens. `first`: nothing or a special token comes before it.
  // `barred`: tokens that it must not give (few).
  virtual Status EncodePlain(std::string_view text, bool first, std::span<const TokenId> barred,
                             EncodedText* encoded) const = 0;
  virtual bool SaysEveryByte() const = 0;
  // Appends the bytes of a user-defined token.
  virtual void AppendUserDefined(TokenId id, std::string* bytes) const { *bytes += vocab_.text(id); }
  // Appends the bytes of a token that is neither control, unknown, user-defined nor unused.
  virtual void AppendPlain(TokenId id, std::string* bytes) const = 0;
  virtual bool RemovesLeadingSpace() const = 0;

 private:
  Status CheckSize(size_t text_bytes) const;
  std::vector<TokenId> TokensOfForm(std::span<const TextPart> parts,
                                    std::span<const std::string> form_texts) const;
  Status EncodeFragments(std::string_view text, std::span<const TextFragment> fragments,
                         std::span<const TokenId> barred, EncodedText* encoded) const;

  Vocab vocab_;
  SpecialTokens specials_;  // points into vocab_
};

}  // namespace kvrun
