// From messages to ids. Control tokens come from the template alone, whatever the messages hold.
#pragma once

#include <vector>

#include "platform/base/status.h"
#include "runtime/chat/chat_template.h"
#include "runtime/model/tokenizer.h"

namespace kvrun {

// A text without the BOS text at its start, where the tokenizer adds that token by itself.
ChatText WithoutAddedBos(const Tokenizer& tokenizer, ChatText text);

// Ends where the assistant's answer begins. BOS comes first where the file asks for it, unless the request is
// `continued`: then the messages follow an answer that is in the context already, all but the end of its
// turn, and the ids begin with that. parse_special: contents are parsed for control tokens too: only for
// those that are trusted.
Result<std::vector<TokenId>> EncodeChat(const Tokenizer& tokenizer, const ChatTemplate& chat,
                                        const ChatRequest& request, bool parse_special = false);

}  // namespace kvrun
