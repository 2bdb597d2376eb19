// kvrun info: what a model holds, what its context costs and what a budget of the KV cache buys; kvrun
// version.
#include <fmt/format.h>

#include <limits>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/printable.h"
#include "apps/common/session_plan.h"
#include "apps/common/shared_options.h"
#include "apps/kvrun/commands.h"
#include "apps/kvrun/report.h"
#include "apps/kvrun/shaped_model.h"

namespace kvrun::cli {
namespace {

constexpr size_t kMaxTextBytes = 400;  // of a text of the file, as people are shown it

struct InfoOptions {
  SharedOptions shared;
  std::string shape;
};

uint64_t CountOf(const Json& info, const char* key) {
  const Json value = info.value(key, Json());
  return value.is_number() ? value.get<uint64_t>() : 0;
}

// Names that a file gives may have any length: programs read them whole (--json).
void ClipTexts(Json* json) {
  if (json->is_string()) *json = Clipped(json->get<std::string>(), kMaxTextBytes);
  if (json->is_structured()) {
    for (Json& value : *json) ClipTexts(&value);
  }
}

// What the file says: not what it could have said.
void LeaveOutUnknown(Json* info) {
  Json known = Json::object();
  for (const auto& [key, value] : info->items()) {
    if (!value.is_null()) known[key] = value;
  }
  *info = known;
}

// Of a file that no engine can compute. The counts of what a vocabulary alone does not have say nothing.
void ShowWhatItHolds(Json* shown) {
  LeaveOutUnknown(shown);
  if (!shown->contains("vocabulary")) return;
  Json& vocabulary = (*shown)["vocabulary"];
  LeaveOutUnknown(&vocabulary);
  if (vocabulary.contains("ends")) vocabulary["ends"] = DumpJson(vocabulary["ends"]);
  if (!shown->value("tensor_types", Json()).empty()) return;
  const bool usable = !vocabulary.contains("unusable");
  Json all = {{"holds", usable ? "a vocabulary alone, no weights: kvrun tokenize takes it"
                               : "a vocabulary alone, no weights"}};
  for (const char* key : {"tensor_types", "parameters"}) shown->erase(key);
  all.update(*shown);
  *shown = all;
}

// The library's object as it is, with the two sizes in bytes made readable and f32 beside f16.
std::string InfoText(const Json& info) {
  Json shown = info;
  for (const char* key :
       {"file_bytes", "kv_bytes_per_token", "kv_bytes", "state_bytes", "context", "kv_plan", "unsupported"})
    shown.erase(key);
  const Json refusal = info.value("unsupported", Json());
  if (shown.contains("sampling")) LeaveOutUnknown(&shown["sampling"]);
  if (shown.value("sampling", Json()).empty()) shown.erase("sampling");
  if (shown.value("chat_form", Json()).is_null()) shown["chat_form"] = "unknown: --chat cannot be used";
  if (refusal.is_null()) {
    shown.erase("vocabulary");
  } else {
    ShowWhatItHolds(&shown);
    shown["cannot be run"] = refusal;
  }
  if (const Json layers = info.value("layers", Json()); layers.size() < 2)
    shown.erase("layers");  // all alike
  ClipTexts(&shown);
  std::string text = Outline(shown, 0);
  text += fmt::format("{:<26}{}\n", "file size", FormatBytes(CountOf(info, "file_bytes")));
  if (!refusal.is_null()) return text;
  const uint64_t per_token = CountOf(info, "kv_bytes_per_token");
  const uint64_t full = CountOf(info, "kv_bytes");
  text += fmt::format("{:<26}{} (f16), {} (f32)\n", "KV per token", FormatBytes(per_token),
                      FormatBytes(per_token * 2));
  text += fmt::format("{:<26}{} (f16), {} (f32)\n", fmt::format("KV at {} tokens", CountOf(info, "context")),
                      FormatBytes(full), FormatBytes(full * 2));
  const uint64_t states = CountOf(info, "state_bytes");
  if (states > 0)
    text += fmt::format("{:<26}{}, whatever the context\n", "states of other layers", FormatBytes(states));
  return text;
}

// What a budget (or a method) buys, as run and chat would say it.
std::string PlanText(const Json& plan) {
  std::string text = fmt::format("{:<26}{}\n", "KV cache", TextOf(plan.value("line", Json())));
  for (const Json& note : plan.value("notes", Json::array()))
    text += fmt::format("{:<26}{}\n", "note", TextOf(note));
  for (const Json& detail : plan.value("details", Json::array()))
    text += fmt::format("{:<26}{}\n", "note", TextOf(detail));
  return text;
}

int Info(const InfoOptions& options) {
  const SharedOptions& shared = options.shared;
  const Model model = options.shape.empty() ? OpenAnyNamedModel(shared) : MakeModel(options.shape, 0);
  char* text = nullptr;
  Check(kvrun_model_info_json(model.get(), shared.ctx, &text));
  Json info = TakeJson(text);
  const auto n_ctx = static_cast<uint32_t>(CountOf(info, "context"));
  const SessionPlan plan = TakeConfig(model, shared, 1, n_ctx);
  const bool asks_for_plan = plan.kv.asks_for_plan();
  if (asks_for_plan) info["kv_plan"] = AskPlan(plan);
  if (shared.json) {
    WriteStdout(JsonLine(info));
  } else {
    WriteStdout(InfoText(info) + (asks_for_plan ? PlanText(info["kv_plan"]) : ""));
  }
  return 0;
}

}  // namespace

Command AddInfoCommand(CLI::App* program) {
  auto options = std::make_shared<InfoOptions>();
  SharedOptions* shared = &options->shared;
  auto set = std::make_shared<OptionSet>(program, "info",
                                         "Show a model's shapes, types and KV size, and what a budget buys");
  set->Text("-m,--model", &shared->model, "FILE",
            "the model: a GGUF file, or any part of a model that is split into several files");
  set->Choice("--shape", &options->shape, ShapeNames(), "instead of a model: a model of this shape");
  set->Exclude("--model", "--shape");
  set->Number("-c,--ctx", &shared->ctx, 0, std::numeric_limits<uint32_t>::max(),
              "show the KV size at this many tokens (default 0: what the model was trained with)");
  set->AddExample("kvrun info -m model.gguf", "show what a model file holds, also one that kvrun cannot run");
  set->AddExample("kvrun info -m model.gguf --ctx 32768 --kv-budget 1/13",
                  "show how large its KV cache is at 32,768 tokens, and what a thirteenth of it buys");
  AddSessionOptions(set.get(), shared);
  set->Group(HelpGroup::kOutput);
  set->Flag("-q,--quiet", &shared->quiet, "show no notes of a config");
  set->Flag(
      "--json", &shared->json,
      "print a JSON object; of a model that is shown but cannot be run, \"unsupported\" says why, and the "
      "exit code is 0");
  return {set, {options, &shared->json}, [options] { return Info(*options); }};
}

Command AddVersionCommand(CLI::App* program) {
  return {std::make_shared<OptionSet>(program, "version", "Show the program's version"), nullptr, [] {
            WriteStdout(fmt::format("kvrun {}\n", kvrun_version()));
            return 0;
          }};
}

}  // namespace kvrun::cli
