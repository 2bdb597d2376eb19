// kvrun render: the text that a chat template makes of its variables.
#include <fmt/format.h>

#include <cstdlib>
#include <ctime>
#include <string>

#include "apps/common/api.h"
#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/options.h"
#include "apps/kvrun/commands.h"

namespace kvrun::cli {
namespace {

struct RenderOptions {
  std::string chat_template;
  std::string variables;
  int64_t now_s = 0;
};

// Noon of the day, in local time, which is what strftime_now tells.
int64_t ReadDay(const std::string& source, const std::string& text) {
  std::tm day = {};
  const char* const end = strptime(text.c_str(), "%Y-%m-%d", &day);
  day.tm_hour = 12;
  day.tm_isdst = -1;
  const int month = day.tm_mon;  // mktime makes the 2nd of March of the 30th of February
  std::time_t seconds = end == nullptr || *end != '\0' ? -1 : std::mktime(&day);
  if (day.tm_mon != month) seconds = -1;
  if (seconds <= 0) throw UsageError(fmt::format("{}: \"{}\" is not a day such as 2026-03-07", source, text));
  return seconds;
}

int RenderTemplate(const RenderOptions& options) {
  if (options.chat_template.empty()) throw UsageError("nothing to render: give --chat-template FILE");
  if (options.variables.empty()) throw UsageError("nothing to render it with: give --variables FILE.json");
  if (options.chat_template == "-" && options.variables == "-")
    throw UsageError("--variables: standard input is the template already: name a file");
  const std::string jinja = ReadText(options.chat_template, LimitOfSmallFile("a chat template"));
  const std::string variables = ReadText(options.variables);
  std::string why;
  const Json parsed = ParseJson(variables, &why);
  if (!parsed.is_object()) {
    throw Failure(KVRUN_INVALID_ARGUMENT,
                  fmt::format("{}: {}: it holds the template's variables, such as {{\"messages\": [...]}}",
                              options.variables, parsed.is_discarded() ? why : "not a JSON object"));
  }
  char* text = nullptr;
  Check(kvrun_template_render(jinja.c_str(), variables.c_str(), options.now_s, &text));
  WriteStdout(TakeText(text));
  return 0;
}

}  // namespace

Command AddRenderCommand(CLI::App* program) {
  auto options = std::make_shared<RenderOptions>();
  auto set = std::make_shared<OptionSet>(program, "render", "Print the text that a chat template makes");
  set->Group(HelpGroup::kPrompt);
  set->Text("--chat-template", &options->chat_template, "FILE", "the Jinja template (-: standard input)");
  set->Text(
      "--variables", &options->variables, "FILE",
      "a JSON object of its variables: messages, add_generation_prompt, bos_token, tools, ... (-: standard "
      "input)");
  set->Checked("--date", "YYYY-MM-DD", "the day that the template sees as today's (default: today)",
               [options = options.get()](const std::string& source, const std::string& text) {
                 options->now_s = ReadDay(source, text);
               });
  set->AddExample("kvrun render --chat-template chat.jinja --variables chat.json",
                  "see what a model would be given; no model is needed");
  set->AddExample("kvrun render --chat-template chat.jinja --variables chat.json --date 2026-03-07",
                  "the same text on any day, of a template that tells the date");
  return {set, nullptr, [options] { return RenderTemplate(*options); }};
}

}  // namespace kvrun::cli
