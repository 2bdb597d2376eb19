// kvrun run: one prompt, or a batch of them.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/shared_options.h"
#include "apps/kvrun/answer_output.h"
#include "apps/kvrun/batch.h"
#include "apps/kvrun/chat_sampling.h"
#include "apps/kvrun/commands.h"
#include "apps/kvrun/documents.h"
#include "apps/kvrun/generation.h"
#include "apps/kvrun/kept_documents.h"
#include "apps/kvrun/long_document.h"
#include "apps/kvrun/long_parts.h"
#include "apps/kvrun/report.h"
#include "apps/kvrun/token_json.h"

namespace kvrun::cli {
namespace {

constexpr uint32_t kDefaultMaxTokens = 256;
// As many are read again sooner than a save point is made for them.
constexpr uint64_t kFewTokens = 32;
constexpr const char* kLongHint =
    "; --long cut leaves out the middle of the documents, and --long split asks them in parts";

struct RunOptions {
  SharedOptions shared;
  GenerationOptions generation;
  std::string prompt;
  std::vector<std::string> files;
  std::string batch;
  std::string system;
  PromptForm form;
  LongDocuments long_documents;
  bool chat = false;
  Keeping keeping;          // of documents
  bool json_lines = false;  // shared.json too, then: the last line is what --json says
  const OptionSet* set = nullptr;

  // -p "" is a prompt too.
  bool has_prompt() const { return !prompt.empty() || set->OnCommandLine("--prompt"); }
  // What --long split needs; without it a KVRUN_LONG=split in the environment is of no use.
  bool asks_about_documents() const { return chat && has_prompt(); }
};

// What is of one session, or of one that is kept.
void CheckBatch(const RunOptions& options) {
  if (options.batch.empty()) return;
  if (options.set->OnCommandLine("--profile")) {
    throw UsageError(
        "--profile times the operations of one session, and a --batch has one for each line: give one prompt "
        "(-p), or use kvrun bench --profile");
  }
  if (options.set->OnCommandLine("--session-key")) {
    throw UsageError(
        "--session-key is for a session that is kept, and a --batch keeps nothing: leave it out; "
        "--kv-encrypt encrypts what is on flash meanwhile");
  }
}

void CheckUsage(const RunOptions& options) {
  CheckGenerationOptions(options.generation);
  CheckKeptSession(*options.set, options.shared);
  CheckTextNames(options.files);
  if (!options.has_prompt() && options.files.empty() && options.batch.empty()) {
    throw UsageError("nothing to run: give a prompt (-p TEXT), a file (-f FILE) or a batch (--batch FILE)");
  }
  if (!options.batch.empty() && (options.has_prompt() || !options.files.empty())) {
    throw UsageError("--batch brings its own prompts: leave out -p and -f");
  }
  if (options.long_documents.splits() && !options.files.empty() && !options.asks_about_documents() &&
      options.set->OnCommandLine("--long")) {
    throw UsageError("--long split asks each part of the document a question: give one with -p, and --chat");
  }
  if (options.generation.values.n_logprobs > 0 && !options.shared.json && options.batch.empty()) {
    throw UsageError("--logprobs goes into JSON: give --json or --json-lines, or a --batch");
  }
  if (!options.batch.empty() && options.set->OnCommandLine("--long")) {
    throw UsageError("--long is for the documents of -f: a --batch has none");
  }
  CheckBatch(options);
  if (!options.shared.session.empty() && (!options.batch.empty() || options.long_documents.splits())) {
    throw UsageError("--session keeps one text: it does not go with --batch, nor with --long split");
  }
  for (const char* of_chats : {"--system", "--chat-template", "--thinking", "--template-var"}) {
    if (!options.chat && options.set->OnCommandLine(of_chats)) {
      throw UsageError(fmt::format("{} needs --chat", of_chats));
    }
  }
}

// What is said of an answer in JSON besides.
struct SentPrompt {
  std::vector<int32_t> ids;
  size_t n_left_out = 0;       // tokens, by --long cut
  Json parts = Json::array();  // their answers, by --long split
};

void Report(const RunOptions& options, const Model& model, const Session& session, const Json& engine_info,
            const SentPrompt& prompt, const Answer& answer) {
  const Json stats = SessionStats(session);
  if (options.shared.json) {
    Json object = AnswerJson(answer, prompt.ids.size(), options.form.shows_reasoning());
    if (prompt.n_left_out > 0) object["left_out_tokens"] = prompt.n_left_out;
    if (!prompt.parts.empty()) object["parts"] = prompt.parts;
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

// A prompt of files and a question, from its text to the end of its answer.
class PromptRunner {
 public:
  PromptRunner(const RunOptions& options, const Model& model)
      : options_(options),
        model_(model),
        shared_(options.shared),
        space_(SpaceForPrompt(LargestContext(model, options.shared), options.generation.values.max_tokens)),
        progress_(ProgressModeOf(options.shared)) {}

  int Run() {
    const uint32_t n_ctx = MakePrompt();
    const bool is_document = !options_.files.empty() && parts_.size() <= 1;
    KeptDocument document({options_.keeping, model_, shared_, n_ctx, options_.generation.values.seed},
                          std::span(prompt_.ids).first(is_document ? prompt_.ids.size() : 0));
    const LoadedEngine loaded = LoadEngine(model_, shared_, &progress_);
    Session session = document.Start(loaded, &progress_);
    if (parts_.size() > 1) AskAll(session);
    const uint64_t n_read = ReadWith(&document, loaded, &session);
    // Whatever becomes of the answer. What nobody named waits for it.
    if (n_read >= kFewTokens && !document.is_chosen()) Keep(session);
    const Answer answer = GeneratedWith(&document, session);
    const bool is_kept = document.is_chosen() || Keep(session);
    Report(options_, model_, session, loaded.info, prompt_, answer);
    document.Keep(session);
    if (answer.finish == KVRUN_FINISH_CANCELLED) return kExitInterrupted;
    return is_kept ? 0 : kExitFailure;
  }

 private:
  // The answer is the context that it needs.
  uint32_t MakePrompt() {
    std::vector<Document> documents = ReadDocuments(options_.files);
    const EncodeDocuments encode = [this](const std::vector<Document>& some) {
      return Encode(some, question());
    };
    prompt_.ids = encode(documents);
    if (!documents.empty() && prompt_.ids.size() > space_.limit()) {
      if (options_.long_documents.cuts()) Cut(encode, &documents);
      if (options_.long_documents.splits() && options_.asks_about_documents()) {
        parts_ = SplitText(model_, options_.form.parse_special, space_, encode, ComposedText(documents, {}));
      }
    }
    if (!options_.shared.quiet) {
      NoteLostBytes(model_, options_.form, ComposedText(documents, question()), "the prompt");
      if (options_.chat) NoteLostBytes(model_, options_.form, options_.system, "the system message");
    }
    if (parts_.size() > 1) return space_.n_ctx;
    const uint32_t n_ctx =
        ChooseContext(model_, options_.shared, prompt_.ids.size(), options_.generation.values.max_tokens,
                      "the prompt", documents.empty() ? "" : kLongHint);
    if (shared_.session.empty() || options_.shared.ctx != 0) return n_ctx;
    // What is kept may be a longer text's later, and short contexts have smaller windows.
    constexpr uint32_t kLeastKeptContext = 1024;
    return std::max(n_ctx, std::min(kLeastKeptContext, kvrun_model_context_train(model_.get())));
  }

  void Cut(const EncodeDocuments& encode, std::vector<Document>* documents) {
    const std::vector<LeftOut> left_out =
        CutDocuments(model_, options_.form.parse_special, space_, encode, documents);
    if (!options_.shared.quiet) SayLeftOut(left_out, space_);
    for (const LeftOut& one : left_out) prompt_.n_left_out += one.n_left_out;
    prompt_.ids = encode(*documents);
  }

  std::optional<std::string> question() const {
    return options_.has_prompt() ? std::optional(options_.prompt) : std::nullopt;
  }

  std::vector<int32_t> Encode(const std::vector<Document>& documents,
                              const std::optional<std::string>& question) const {
    const std::string text = ComposedText(documents, question);
    return options_.chat ? EncodeChat(model_, options_.form, options_.system, text)
                         : EncodePlain(model_, options_.form, text, "the prompt");
  }

  // How many tokens had to be read. Where what is kept fails, the text is read without it.
  uint64_t ReadWith(KeptDocument* document, const LoadedEngine& loaded, Session* session) {
    std::string why;
    try {
      return Read(*session);
    } catch (const Interruption&) {
      // What was read need not be read again.
      if (document->is_chosen()) {
        document->Keep(*session);
      } else {
        Keep(*session);
      }
      throw;
    } catch (const Failure& failure) {
      if (!document->MayBeTheReason(failure)) throw;
      why = failure.what();
    }
    session->reset();
    *session = document->StartWithout(loaded, &progress_, why);
    return Read(*session);
  }

  uint64_t Read(const Session& session) {
    const std::string why_anew = FeedRest(session, prompt_.ids);
    progress_.Clear();
    if (!why_anew.empty() && !options_.shared.quiet) {
      PrintMessage("note: the text was read again from its beginning: " + why_anew);
    }
    return SessionStats(session)["prefill_tokens"].get<uint64_t>();
  }

  // The prompt is then the one that joins the parts' answers.
  void AskAll(const Session& session) {
    const EncodeQuestion encode = [this](const std::vector<Document>& some, const std::string& question) {
      return Encode(some, question);
    };
    AskedParts asked = AskParts({.model = model_,
                                 .session = session,
                                 .generation = options_.generation,
                                 .encode = encode,
                                 .question = options_.prompt,
                                 .space = space_,
                                 .parse_special = options_.form.parse_special,
                                 .shows_reasoning = options_.form.shows_reasoning(),
                                 .quiet = options_.shared.quiet,
                                 .progress = &progress_},
                                parts_);
    prompt_.ids = std::move(asked.ids);
    prompt_.parts = std::move(asked.answers);
    progress_.SetLabel("");
    Check(kvrun_session_truncate(session.get(), 0, 0));
  }

  // What was read need not be read again, whatever becomes of the answer: its reader may go, as head does.
  Answer GeneratedWith(KeptDocument* document, const Session& session) const {
    try {
      return Generated(session);
    } catch (const Failure&) {
      document->Keep(session);
      throw;
    }
  }

  Answer Generated(const Session& session) const {
    Reasoning reasoning = options_.chat ? BeginReasoning(model_, prompt_.ids) : nullptr;
    const bool shows_reasoning = options_.form.shows_reasoning();
    if (!options_.shared.json)
      return GenerateOnStdout(session, options_.generation, std::move(reasoning), shows_reasoning);
    PieceSink sink;
    if (options_.json_lines) {
      sink = [this, shows_reasoning](const GeneratedPiece& piece) {
        if (piece.is_reasoning && !shows_reasoning) return 0;
        return TryWriteStdout(JsonLine(PieceJson(model_, piece)));
      };
    }
    return Generate(session, options_.generation, std::move(reasoning), sink);
  }

  const RunOptions& options_;
  const Model& model_;
  const SharedOptions& shared_;
  const PromptSpace space_;
  Progress progress_;
  SentPrompt prompt_;
  std::vector<std::string> parts_;  // more than one: to be asked one by one
};

int Run(RunOptions& options) {
  CheckUsage(options);
  if (options.chat) ReadPromptForm(&options.form);
  ChooseSeed(&options.generation, options.shared.quiet);
  options.shared.max_answer = options.generation.values.max_tokens;
  const Model model = OpenNamedModel(options.shared);
  GenerationOptions of_messages = options.generation;
  if (options.chat || !options.batch.empty()) {
    const Json model_info = ModelInfo(model);
    AvoidRepetition(*options.set, model_info, &of_messages);
    if (options.chat && !options.shared.quiet) NoteChatTemplate(options.form, model_info);
  }
  if (options.chat) options.generation = of_messages;
  if (options.batch.empty()) return PromptRunner(options, model).Run();
  options.shared.profile = false;  // the environment may ask for these; see CheckBatch
  options.shared.session_key.clear();
  const BatchJob job{.shared = options.shared,
                     .generation = {options.generation, of_messages},
                     .path = options.batch,
                     .chat = options.chat,
                     .system = options.system,
                     .form = options.form,
                     .json_lines = options.json_lines};
  return RunBatch(job, model);
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
  AddLongOption(set.get(), &options->long_documents,
                "if the documents of -f are longer than the context: leave out their middle, or ask them in "
                "parts and join the answers (with --chat and -p); without this they are refused");
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
  AddKeptSessionOption(set.get(), &options->shared);
  AddKeepOptions(set.get(), &options->keeping);
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
