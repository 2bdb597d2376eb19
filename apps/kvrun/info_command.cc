// kvrun info: what a model file holds and what its context costs; kvrun version.
#include <fmt/format.h>

#include <limits>

#include "apps/common/files.h"
#include "apps/common/shared_options.h"
#include "apps/kvrun/commands.h"
#include "apps/kvrun/report.h"

namespace kvrun::cli {
namespace {

uint64_t CountOf(const Json& info, const char* key) {
  const Json value = info.value(key, Json());
  return value.is_number() ? value.get<uint64_t>() : 0;
}

// The library's object as it is, with the two sizes in bytes made readable and f32 beside f16.
std::string InfoText(const Json& info) {
  Json shown = info;
  for (const char* key : {"file_bytes", "kv_bytes_per_token", "kv_bytes"}) shown.erase(key);
  shown.erase("context");
  if (shown.value("chat_form", Json()).is_null()) shown["chat_form"] = "unknown: --chat cannot be used";
  std::string text = Outline(shown, 0);
  const uint64_t per_token = CountOf(info, "kv_bytes_per_token");
  const uint64_t full = CountOf(info, "kv_bytes");
  text += fmt::format("{:<26}{}\n", "file size", FormatBytes(CountOf(info, "file_bytes")));
  text += fmt::format("{:<26}{} (f16), {} (f32)\n", "KV per token", FormatBytes(per_token),
                      FormatBytes(per_token * 2));
  text += fmt::format("{:<26}{} (f16), {} (f32)\n", fmt::format("KV at {} tokens", CountOf(info, "context")),
                      FormatBytes(full), FormatBytes(full * 2));
  return text;
}

int Info(const SharedOptions& shared) {
  const Model model = OpenNamedModel(shared);
  char* text = nullptr;
  Check(kvrun_model_info_json(model.get(), shared.ctx, &text));
  const Json info = TakeJson(text);
  WriteStdout(shared.json ? JsonLine(info) : InfoText(info));
  return 0;
}

}  // namespace

Command AddInfoCommand(CLI::App* program) {
  auto shared = std::make_shared<SharedOptions>();
  auto set = std::make_shared<OptionSet>(program, "info", "Show a model's shapes, types and KV size");
  AddModelOption(set.get(), shared.get());
  set->Number("-c,--ctx", &shared->ctx, 0, std::numeric_limits<uint32_t>::max(),
              "show the KV size at this many tokens (default 0: what the model was trained with)");
  set->AddExample("kvrun info -m model.gguf", "show what a model file holds");
  set->AddExample("kvrun info -m model.gguf --ctx 32768", "show how large its KV cache is at 32,768 tokens");
  set->Group(HelpGroup::kOutput);
  set->Flag("--json", &shared->json, "print a JSON object");
  return {set, {shared, &shared->json}, [shared] { return Info(*shared); }};
}

Command AddVersionCommand(CLI::App* program) {
  return {std::make_shared<OptionSet>(program, "version", "Show the program's version"), nullptr, [] {
            WriteStdout(fmt::format("kvrun {}\n", kvrun_version()));
            return 0;
          }};
}

}  // namespace kvrun::cli
