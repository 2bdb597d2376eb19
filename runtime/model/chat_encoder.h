// From messages to ids, in a chat form. Control tokens come from the form alone, whatever the messages hold.
#pragma once

#include <vector>

#include "platform/base/status.h"
#include "runtime/model/chat_template.h"
#include "runtime/model/tokenizer.h"

namespace kvrun {

struct ChatEncodeOptions {
  // The messages follow an assistant's answer that is in the context already, all but the end of its turn:
  // the ids begin with that.
  bool continued = false;
  // Contents are parsed for control tokens too: only for those that are trusted.
  bool parse_special = false;
  Thinking thinking = Thinking::kDefault;
};

// Ends where the assistant's answer begins. BOS comes first where the file asks for it, unless `continued`.
Result<std::vector<TokenId>> EncodeChat(const Tokenizer& tokenizer, const ChatTemplate& chat,
                                        const std::vector<ChatMessage>& messages,
                                        const ChatEncodeOptions& options);

}  // namespace kvrun
