// The messages of a chat.
#pragma once

#include "apps/kvserve/openai_error.h"

namespace kvrun::serve {

// As CompletionRequest::messages has them. Throws an ApiError (400) that names the message and its field.
Json ReadMessages(const Json& value);

}  // namespace kvrun::serve
