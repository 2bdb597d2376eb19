#include "tests/support/fake_tokenizer.h"

#include <algorithm>

namespace kvrun::testing {

Result<std::vector<TokenId>> FakeTokenizer::Encode(std::string_view text,
                                                   const EncodeOptions& options) const {
  constexpr std::string_view kBosText = "<bos>";
  std::vector<TokenId> ids;
  if (options.add_special && adds_bos_) ids.push_back(kBos);
  while (!text.empty()) {
    const bool is_bos = options.parse_special && text.starts_with(kBosText);
    ids.push_back(is_bos ? kBos : static_cast<TokenId>(static_cast<unsigned char>(text.front())));
    text.remove_prefix(is_bos ? kBosText.size() : 1);
  }
  return ids;
}

Result<std::vector<TokenId>> FakeTokenizer::EncodeParts(std::span<const TextPart> parts,
                                                        std::span<const std::string> /*form_texts*/) const {
  std::vector<TokenId> ids;
  for (const TextPart& part : parts) {
    KVRUN_ASSIGN_OR_RETURN(const std::vector<TokenId> of_part,
                           Encode(part.text, {.add_special = false, .parse_special = part.is_form}));
    ids.insert(ids.end(), of_part.begin(), of_part.end());
  }
  return ids;
}

void FakeTokenizer::AppendToken(TokenId id, bool show_special, std::string* bytes) const {
  const auto word = static_cast<size_t>(id - kFirstWord);
  if (id >= 0 && id < 256) {
    *bytes += static_cast<char>(id);
  } else if (IsControl(id)) {
    if (show_special) *bytes += id == kBos ? "<bos>" : "<eos>";
  } else if (id >= kFirstWord && word < words_.size()) {
    *bytes += words_[word];
  }
}

std::string FakeTokenizer::Decode(const std::vector<TokenId>& ids, bool show_special) const {
  std::string text;
  for (const TokenId id : ids) AppendToken(id, show_special, &text);
  return text.starts_with(' ') ? text.substr(1) : text;
}

TokenId FakeTokenizer::FindToken(std::string_view text) const {
  const auto word = std::find(words_.begin(), words_.end(), text);
  return word == words_.end() ? -1 : kFirstWord + static_cast<TokenId>(word - words_.begin());
}

}  // namespace kvrun::testing
