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

// A character that nobody uses. A fuzzer learns what it is compared with, so a source that holds it, or could
// spell it, is left out.
constexpr const char* kMark = "\U000E07A5";
constexpr const char* kSaid = "it\U000E07A5 said";

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
  for (const char* spells : {kMark, "\\", "919461"}) {
    if (source.find(spells) != std::string_view::npos) return 0;
  }
  const auto parsed = kvrun::JinjaTemplate::Parse(source);
  if (!parsed.ok()) return 0;
  const auto text =
      parsed->Render(variables, {.max_steps = 50'000, .max_depth = 100, .max_bytes = size_t{1} << 20});
  if (!text.ok()) return 0;
  for (const kvrun::JinjaPiece& piece : *text) {
    if (!piece.is_content && piece.text.find(kMark) != std::string::npos) std::abort();
  }
  return 0;
}
