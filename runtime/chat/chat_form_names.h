// A template of each form for files that carry none. Internal to the chat templates.
#pragma once

#include <string>
#include <string_view>

namespace kvrun {

// A Jinja template; empty if there is no form of this name.
std::string_view FindNamedTemplate(std::string_view name);
std::string ListChatFormNames();  // "chatml, llama-2, ..."

}  // namespace kvrun
