// kvrun run: one prompt, or a batch of them.
#include <fmt/format.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/session_plan.h"
#include "apps/common/shared_options.h"
#include "apps/kvrun/batch.h"
#include "apps/kvrun/commands.h"
#include "apps/kvrun/generation.h"
#include "apps/kvrun/report.h"
#include "apps/kvrun/token_json.h"

namespace kvrun::cli {
namespace {

constexpr uint32_t kDefaultMaxTokens = 256;

struct RunOptions {
  SharedOptions shared;
  GenerationOptions generation;
  std::string prompt;
  std::vector<std::string> files;
  std::string batch;
  std::string system;
  PromptForm form;
  bool chat = false;
  bool json_lines = false;  // shared.json too, then: the last line is what --json says
  const OptionSet* set = nullptr;

  // -p "" is a prompt too.
  bool has_prompt() const { return !prompt.empty() || set->OnCommandLine("--prompt"); }
};

void CheckUsage(const RunOptions& options) {
  CheckGenerationOptions(options.generation);
  CheckTextNames(options.files);
  if (!options.has_prompt() && options.files.empty() && options.batch.empty()) {
    throw UsageError("nothing to run: give a prompt (-p TEXT), a file (-f FILE) or a batch (--batch FILE)");
  }
  if (!options.batch.empty() && (options.has_prompt() || !options.files.empty())) {
    throw UsageError("--batch brings its own prompts: leave out -p and -f");
  }
  if (options.generation.values.n_logprobs > 0 && !options.shared.json && options.batch.empty()) {
    throw UsageError("--logprobs goes into JSON: give --json or --json-lines, or a --batch");
  }
  for (const char* of_chats : {"--system", "--chat-template", "--thinking"}) {
    if (!options.chat && options.set->OnCommandLine(of_chats)) {
      throw UsageError(fmt::format("{} needs --chat", of_chats));
    }
  }
}

void Report(const RunOptions& options, const Model& model, const Session& session, const Json& engine_info,
            size_t prompt_tokens, const Answer& answer) {
  const Json stats = SessionStats(session);
  if (options.shared.json) {
    Json object = {{"text", answer.text},
                   {"tokens", answer.tokens},
                   {"finish", FinishName(answer.finish)},
                   {"prompt_tokens", prompt_tokens}};
    if (options.generation.values.n_logprobs > 0) object["logprobs"] = LogprobsJson(model, answer.logprobs);
    AddStatistics(stats, engine_info, &object);
    WriteStdout(JsonLine(object));
    return;
  }
  if (!answer.text.ends_with('\n')) WriteStdout("\n");
  if (options.shared.quiet) return;
  WriteStderr("\n" + SummaryText(stats) +
              EndText(answer.finish, answer.tokens.size(), kvrun_session_context(session.get())) +
              (options.shared.verbose ? StatisticsText(stats, engine_info) : "") + ProfileText(stats));
}

int RunOne(const RunOptions& options, const Model& model) {
  const std::string text = ComposePrompt(options.files, options.has_prompt(), options.prompt);
  const std::vector<int32_t> ids = options.chat ? EncodeChat(model, options.form, options.system, text)
                                                : EncodePlain(model, options.form, text, "the prompt");
  if (!options.shared.quiet) {
    NoteLostBytes(model, options.form, text, "the prompt");
    if (options.chat) NoteLostBytes(model, options.form, options.system, "the system message");
  }
  const uint32_t n_ctx =
      ChooseContext(model, options.shared, ids.size(), options.generation.values.max_tokens, "the prompt");
  SessionPlan plan = PlanSession(model, options.shared, 1, n_ctx, options.generation.values.seed);
  Progress progress(ProgressModeOf(options.shared));
  const LoadedEngine loaded = LoadEngine(model, options.shared, &progress);
  const Session session = StartSession(loaded, options.shared, &plan, &progress);
  Check(kvrun_session_feed(session.get(), 0, ids.data(), ids.size()));
  progress.Clear();
  const std::vector<Answer> answers =
      options.json_lines ? GenerateInto(session, 1, options.generation,
                                        [&model](const GeneratedPiece& piece) {
                                          return TryWriteStdout(JsonLine(PieceJson(model, piece)));
                                        })
                         : Generate(session, 1, options.generation, !options.shared.json);
  Report(options, model, session, loaded.info, ids.size(), answers[0]);
  return answers[0].finish == KVRUN_FINISH_CANCELLED ? kExitInterrupted : 0;
}

int Run(RunOptions& options) {
  CheckUsage(options);
  if (options.chat) ReadChatTemplate(&options.form);
  ChooseSeed(&options.generation, options.shared.quiet);
  if (options.batch.empty()) return RunOne(options, OpenNamedModel(options.shared));
  const BatchJob job{options.shared, options.generation, options.batch,     options.chat,
                     options.system, options.form,       options.json_lines};
  return RunBatch(job);
}

}  // namespace

Command AddRunCommand(CLI::App* program) {
  auto options = std::make_shared<RunOptions>();
  auto set = std::make_shared<OptionSet>(program, "run", "Continue a prompt, or answer it with --chat");
  set->Group(HelpGroup::kPrompt);
  AddModelOption(set.get(), &options->shared);
  set->Text("-p,--prompt", &options->prompt, "TEXT",
            "the prompt; with -f, the question that follows the file");
  set->TextList("-f,--file", &options->files, "FILE",
                "a file with the prompt (-: standard input); several are read in order, with a blank line "
                "between them");
  set->Text(
      "--batch", &options->batch, "FILE",
      "a file of JSON lines {\"prompt\": ...} or {\"messages\": [{\"role\", \"content\"}, ...]}, each with "
      "an "
      "id and sampling options of its own, if it has any; up to 16 run together, and each is answered by a "
      "JSON line, in order");
  set->Exclude("--batch", "--prompt");
  set->Exclude("--batch", "--file");
  set->Flag("--chat", &options->chat, "put the prompt into the model's chat form, as the user's message");
  set->Text("--system", &options->system, "TEXT", "with --chat: the system message");
  AddPromptFormOptions(set.get(), &options->form);
  set->AddExample("kvrun run -m model.gguf -p \"Once upon a time\" -n 100", "continue a text by 100 tokens");
  set->AddExample(
      "kvrun run -m model.gguf -f report.txt -p \"What is it about?\" --chat --kv-method kvswap "
      "--kv-budget 1/13",
      "ask a question about a document, with the KV cache on flash and a thirteenth of it in memory");
  AddGenerationOptions(set.get(), &options->generation, kDefaultMaxTokens);
  AddEngineOptions(set.get(), &options->shared);
  AddReportOptions(set.get(), &options->shared);
  set->CheckedFlag("--json-lines",
                   "a JSON line for each token as it comes, and at the end the object of --json",
                   [options = options.get()](const std::string&, bool given) {
                     options->json_lines = given;
                     options->shared.json = options->shared.json || given;
                   });
  set->Number("--logprobs", &options->generation.values.n_logprobs, 0, KVRUN_MAX_LOGPROBS,
              "in JSON: each token's log-probability and the N likeliest tokens, by the model alone, before "
              "penalties and temperature (default 0: none)");
  AddVerboseOption(set.get(), &options->shared);
  options->set = set.get();
  return {set, {options, &options->shared.json}, [options] { return Run(*options); }};
}

}  // namespace kvrun::cli
