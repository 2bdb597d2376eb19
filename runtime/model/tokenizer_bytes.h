// The tokens that stand for one byte of a text that nothing else says. Internal to the tokenizers.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "runtime/model/tokenizer_vocab.h"

namespace kvrun {

class ByteTokens {
 public:
  // "<0x41>" of type byte, else the byte itself as a plain token.
  explicit ByteTokens(const Vocab& vocab);

  TokenId of(char byte) const { return ids_[static_cast<uint8_t>(byte)]; }  // -1 where there is none
  bool has_all() const;
  void Append(TokenId id, std::string* bytes) const;  // nothing if it stands for no byte

 private:
  std::array<TokenId, 256> ids_{};
};

}  // namespace kvrun
