// Runs arbitrary bytes as a chat template. Whatever it does ends soon, and nothing that a message holds
// becomes what the template wrote.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "runtime/jinja/jinja_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes);

namespace {

// Stands nowhere else.
constexpr const char* kSaid = "\x01said";

kvrun::JinjaVariables Conversation() {
  kvrun::JinjaVariables variables;
  variables.content = {
      {"messages",
       {{{"role", "system"}, {"content", kSaid}},
        {{"role", "user"}, {"content", kSaid}},
        {{"role", "assistant"}, {"content", kSaid}, {"reasoning_content", kSaid}}}},
      {"tools", {{{"type", "function"}, {"function", {{"name", kSaid}, {"parameters", {1, 2.5}}}}}}},
      {"add_generation_prompt", true},
      {"enable_thinking", false}};
  variables.form = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  variables.now = 1'700'000'000;
  return variables;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  static const kvrun::JinjaVariables variables = Conversation();
  const std::string_view source(reinterpret_cast<const char*>(data), size_bytes);
  if (source.find('\\') != std::string_view::npos) return 0;  // it could spell the text itself
  const auto parsed = kvrun::JinjaTemplate::Parse(source);
  if (!parsed.ok()) return 0;
  const auto text =
      parsed->Render(variables, {.max_steps = 50'000, .max_depth = 100, .max_bytes = size_t{1} << 20});
  if (!text.ok()) return 0;
  for (const kvrun::JinjaPiece& piece : *text) {
    if (!piece.is_content && piece.text.find(kSaid) != std::string::npos) std::abort();
  }
  return 0;
}
