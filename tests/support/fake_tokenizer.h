// A vocabulary small enough to read: ids 0..255 are the bytes, then BOS, EOS, and words of the test's own.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/model/tokenizer.h"

namespace kvrun::testing {

class FakeTokenizer : public Tokenizer {
 public:
  static constexpr TokenId kBos = 256;
  static constexpr TokenId kEos = 257;
  static constexpr TokenId kFirstWord = 258;

  explicit FakeTokenizer(std::vector<std::string> words = {}, bool adds_bos = true)
      : words_(std::move(words)), adds_bos_(adds_bos) {}

  // One id per byte; "<bos>" is recognised with parse_special.
  Result<std::vector<TokenId>> Encode(std::string_view text, const EncodeOptions& options) const override;
  Result<std::vector<TokenId>> EncodeParts(std::span<const TextPart> parts,
                                           std::span<const std::string> form_texts) const override;
  Result<uint64_t> CountLostBytes(std::string_view, const EncodeOptions&) const override {
    return uint64_t{0};
  }
  void AppendToken(TokenId id, bool show_special, std::string* bytes) const override;
  // Like SentencePiece, without the space that begins the text.
  std::string Decode(const std::vector<TokenId>& ids, bool show_special = false) const override;

  uint32_t n_vocab() const override { return static_cast<uint32_t>(kFirstWord + words_.size()); }
  TokenId bos() const override { return kBos; }
  TokenId eos() const override { return kEos; }
  bool adds_bos() const override { return adds_bos_; }
  bool IsEndOfGeneration(TokenId id) const override { return id == kEos; }
  bool IsControl(TokenId id) const override { return id == kBos || id == kEos; }
  TokenId FindToken(std::string_view text) const override;

 private:
  std::vector<std::string> words_;
  bool adds_bos_;
};

}  // namespace kvrun::testing
