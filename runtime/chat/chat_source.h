// What a model file says about its chats: its Jinja template, and the tokens that templates name.
#pragma once

#include <cstddef>
#include <string_view>

#include "platform/base/status.h"
#include "runtime/chat/chat_text.h"
#include "runtime/model/gguf.h"

namespace kvrun {

// Templates of models have some thousands of bytes, and some ten thousand where they describe tools.
inline constexpr size_t kMaxTemplateBytes = size_t{1} << 20;

// The template for ordinary chats, of the one or several that the file has. kUnsupported: it has none, with
// how to go on.
Result<std::string_view> FindChatTemplate(const GgufFile& file);
// Those that the file does not name keep their usual texts.
Result<ChatTokenTexts> ReadChatTokenTexts(const GgufFile& file);

}  // namespace kvrun
