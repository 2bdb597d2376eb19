#include "runtime/model/tokenizer_bytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace kvrun {

ByteTokens::ByteTokens(const Vocab& vocab) {
  for (unsigned byte = 0; byte < ids_.size(); ++byte) {
    TokenId id = vocab.Find(fmt::format("<0x{:02X}>", byte));
    if (id < 0 || vocab.type(id) != TokenType::kByte) {
      const char character = static_cast<char>(byte);
      id = vocab.Find({&character, 1});
      if (id >= 0 && !vocab.IsPlain(id)) id = -1;
    }
    ids_[byte] = id;
  }
}

bool ByteTokens::has_all() const {
  return std::all_of(ids_.begin(), ids_.end(), [](TokenId id) { return id >= 0; });
}

void ByteTokens::Append(TokenId id, std::string* bytes) const {
  const auto* found = std::find(ids_.begin(), ids_.end(), id);
  if (found != ids_.end()) *bytes += static_cast<char>(found - ids_.begin());
}

}  // namespace kvrun
