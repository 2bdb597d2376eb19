// The vocabulary of a GGUF file, checked: texts, types, special tokens. Internal to the tokenizers.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "runtime/model/gguf.h"
#include "runtime/model/tokenizer.h"

namespace kvrun {

// Values of tokenizer.ggml.token_type.
enum class TokenType : uint8_t {
  kUndefined = 0,
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};
inline constexpr int32_t kMaxTokenType = 6;

// What a family of tokenizers takes for granted where the file is silent.
struct VocabDefaults {
  bool add_bos = false;
  bool must_add_bos = false;  // also where the file says otherwise
  bool strips_after_control = false;
  TokenId bos = -1;
  TokenId eos = -1;
  TokenId unknown = -1;
};

class Vocab {
 public:
  static Result<Vocab> Load(const GgufFile& file, const VocabDefaults& defaults);

  Vocab(Vocab&&) = default;
  Vocab& operator=(Vocab&&) = default;
  Vocab(const Vocab&) = delete;
  Vocab& operator=(const Vocab&) = delete;

  uint32_t size() const { return static_cast<uint32_t>(types_.size()); }
  bool Contains(TokenId id) const { return id >= 0 && static_cast<size_t>(id) < types_.size(); }
  std::string_view text(TokenId id) const;  // as the file spells it
  TokenType type(TokenId id) const { return types_[static_cast<size_t>(id)]; }
  // Control, unknown and end-of-generation tokens, whatever the type of the latter, but for those of one
  // character, which may be the only way to write it. None of them comes from a text that is not parsed for
  // them.
  bool IsReserved(TokenId id) const;
  // Text that a person may have written, as opposed to reserved, unused and byte tokens.
  bool IsPlain(TokenId id) const;
  bool IsEndOfGeneration(TokenId id) const {
    return Contains(id) && ends_generation_[static_cast<size_t>(id)];
  }
  // Whether white space after it belongs to it, as in Phi-3's form "<|user|>\n".
  bool StripsAfter(TokenId id) const;
  TokenId Find(std::string_view text) const;  // -1 if absent; the last of several with the same text
  size_t longest_text_bytes() const { return longest_text_bytes_; }

  TokenId bos() const { return bos_; }
  TokenId eos() const { return eos_; }
  TokenId unknown() const { return unknown_; }
  bool add_bos() const { return add_bos_ && bos_ >= 0; }
  bool add_eos() const { return add_eos_ && eos_ >= 0; }

 private:
  Vocab() = default;
  Status LoadTexts(const GgufFile& file);
  void IndexTexts();
  // Where the index has this text, or has none yet.
  size_t SlotOf(std::string_view text, uint32_t hash) const;
  Status LoadTypes(const GgufFile& file);
  Status LoadSpecials(const GgufFile& file, const VocabDefaults& defaults);
  Result<TokenId> SpecialId(const GgufFile& file, std::string_view key, TokenId fallback) const;

  std::vector<char> characters_;
  std::vector<uint64_t> offsets_;  // size() + 1
  std::vector<TokenType> types_;
  std::vector<bool> ends_generation_;
  // Open addressing; as many as a power of two, at most half of them in use. A program that starts looks up
  // three texts for each merge rule: what has another hash is not compared.
  struct Slot {
    uint32_t hash = 0;
    TokenId id = -1;
  };
  std::vector<Slot> index_;
  size_t longest_text_bytes_ = 0;
  TokenId bos_ = -1;
  TokenId eos_ = -1;
  TokenId unknown_ = -1;
  bool add_bos_ = false;
  bool add_eos_ = false;
  bool strips_after_control_ = false;
};

}  // namespace kvrun
