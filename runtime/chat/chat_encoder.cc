#include "runtime/chat/chat_encoder.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

namespace kvrun {
namespace {

class Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, const ChatTemplate& chat, bool parse_special)
      : tokenizer_(tokenizer), form_texts_(chat.FormTexts()), parse_special_(parse_special) {}

  Result<std::vector<TokenId>> Encode(std::span<const ChatSegment> text) const {
    if (parse_special_) {
      std::string whole;
      for (const ChatSegment& segment : text) whole += segment.text;
      return tokenizer_.Encode(whole, {.add_special = false, .parse_special = true});
    }
    std::vector<TextPart> parts;
    for (const ChatSegment& segment : text) parts.push_back({segment.text, !segment.is_content});
    return tokenizer_.EncodeParts(parts, form_texts_);
  }

  // A text that follows another begins otherwise than one at the start, so it is encoded behind a stand-in
  // for the answer, whose ids are then taken off. Where the text changes these ids (they merged), its own
  // must do.
  Result<std::vector<TokenId>> EncodeAfterAnswer(ChatText text) const {
    text.insert(text.begin(), {"<answer>", true});
    KVRUN_ASSIGN_OR_RETURN(const std::vector<TokenId> stand_in, Encode(std::span(text).first(1)));
    KVRUN_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, Encode(text));
    const auto [of_stand_in, of_ids] =
        std::mismatch(stand_in.begin(), stand_in.end(), ids.begin(), ids.end());
    if (of_stand_in == stand_in.end()) return std::vector<TokenId>(of_ids, ids.end());
    return Encode(std::span(text).subspan(1));
  }

 private:
  const Tokenizer& tokenizer_;
  std::vector<std::string> form_texts_;
  bool parse_special_;
};

}  // namespace

ChatText WithoutAddedBos(const Tokenizer& tokenizer, ChatText text) {
  if (!tokenizer.adds_bos() || tokenizer.bos() < 0 || text.empty() || text[0].is_content) return text;
  const std::string bos = tokenizer.DecodeToken(tokenizer.bos(), /*show_special=*/true);
  if (bos.empty() || !text[0].text.starts_with(bos)) return text;
  text[0].text.erase(0, bos.size());
  if (text[0].text.empty()) text.erase(text.begin());
  return text;
}

Result<std::vector<TokenId>> EncodeChat(const Tokenizer& tokenizer, const ChatTemplate& chat,
                                        const ChatRequest& request, bool parse_special) {
  const Encoder encoder(tokenizer, chat, parse_special);
  KVRUN_ASSIGN_OR_RETURN(ChatText text, chat.Write(request));
  if (request.continued) return encoder.EncodeAfterAnswer(std::move(text));
  KVRUN_ASSIGN_OR_RETURN(std::vector<TokenId> ids,
                         encoder.Encode(WithoutAddedBos(tokenizer, std::move(text))));
  if (tokenizer.adds_bos() && tokenizer.bos() >= 0) ids.insert(ids.begin(), tokenizer.bos());
  return ids;
}

}  // namespace kvrun
