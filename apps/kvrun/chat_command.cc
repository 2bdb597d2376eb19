// kvrun chat: a conversation on the terminal.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/interrupt.h"
#include "apps/common/plural.h"
#include "apps/common/shared_options.h"
#include "apps/kvrun/chat_commands.h"
#include "apps/kvrun/chat_history.h"
#include "apps/kvrun/chat_sampling.h"
#include "apps/kvrun/commands.h"
#include "apps/kvrun/conversation.h"
#include "apps/kvrun/documents.h"
#include "apps/kvrun/kept_documents.h"
#include "apps/kvrun/line_reader.h"
#include "apps/kvrun/long_document.h"
#include "apps/kvrun/report.h"
#include "apps/kvrun/terminal_line_reader.h"
#include "apps/kvrun/terminal_modes.h"
#include "apps/kvrun/transcript.h"

namespace kvrun::cli {
namespace {

constexpr const char* kShortHelp = "/help lists commands and keys; /exit or Ctrl-D ends\n";
// Beside the documents of -f, where no --ctx says otherwise.
constexpr size_t kRoomForTalk = 4096;

struct ChatOptions {
  SharedOptions shared;
  ConversationOptions conversation;
  std::vector<std::string> files;
  LongDocuments long_documents;
  Keeping keeping;  // of documents
  bool no_history = false;
  const OptionSet* set = nullptr;
};

// What a line can do wrong, without an end of the conversation: the user can do something else.
bool ConcernsLineOnly(const Failure& failure) {
  switch (failure.status()) {
    case KVRUN_INVALID_ARGUMENT:
    case KVRUN_NOT_FOUND:
    case KVRUN_UNSUPPORTED:
    case KVRUN_CONTEXT_FULL: return true;
    default: return false;
  }
}

// --long cut: beside the documents there is room for an answer, and for some talk before it.
PromptSpace SpaceForDocuments(const ChatOptions& options, uint32_t n_ctx) {
  // The usual limit of an answer asks for no room: talk has some.
  const bool asks_for_room = options.set->Given("--max-tokens");
  const uint32_t max_tokens = asks_for_room ? options.conversation.generation.values.max_tokens : 0;
  PromptSpace space = SpaceForPrompt(n_ctx, max_tokens);
  const auto talk = static_cast<uint32_t>(std::min<size_t>(kRoomForTalk, space.n_ctx / 4));
  space.room = max_tokens == 0 ? talk : std::max(talk, space.room);
  return space;
}

void CutToFit(const Model& model, const ChatOptions& options, uint32_t n_ctx, const EncodeDocuments& encode,
              std::vector<Document>* documents) {
  const PromptSpace space = SpaceForDocuments(options, n_ctx);
  const std::vector<LeftOut> left_out =
      CutDocuments(model, options.conversation.form.parse_special, space, encode, documents);
  if (!options.shared.quiet) SayLeftOut(left_out, space);
}

class ChatLoop {
 public:
  ChatLoop(const ChatOptions& options, const Model& model, Conversation* conversation, const Session& session,
           KeptDocument* document, const Json& engine_info)
      : options_(options),
        model_(model),
        conversation_(*conversation),
        document_(*document),
        session_(session),
        engine_info_(engine_info),
        n_ctx_(kvrun_session_context(session.get())) {}

  // The answer is the exit code. `edits_lines`: the reader is a line editor.
  int Run(LineReader* reader, bool edits_lines) {
    edits_lines_ = edits_lines;
    while (!TerminationAsked()) {
      const std::optional<std::string> line = reader->Next();
      if (!line) return Interrupted() ? kExitInterrupted : 0;
      if (!CarryOut(ReadChatLine(*line))) return 0;
    }
    return kExitInterrupted;
  }

 private:
  // False: the chat ends.
  bool CarryOut(const ChatLine& line) {
    switch (line.action) {
      case ChatAction::kNothing: break;
      case ChatAction::kMessage: Say(line.text); break;
      case ChatAction::kFile: AddFile(TypedPath(line.text)); break;
      case ChatAction::kSave: Save(TypedPath(line.text)); break;
      case ChatAction::kStats: WriteStderr(Statistics()); break;
      case ChatAction::kReset:
        conversation_.Reset();
        conversation_.KeepIt();
        break;
      case ChatAction::kHelp: WriteStderr(ChatHelp(edits_lines_)); break;
      case ChatAction::kExit: return false;
      case ChatAction::kWrong: PrintMessage(line.text); break;
    }
    return true;
  }

  void Say(const std::string& message) {
    NoteLost(message, "the message");
    try {
      const Answer answer = conversation_.Say(message);
      conversation_.KeepIt();
      ++n_answers_;
      WriteStdout("\n");
      SayWhyItEnded(answer);
      document_.Keep(session_);
    } catch (const Interruption&) {
      WriteStderr("\n");  // stopped before the first token
    } catch (const Failure& failure) {
      if (!ConcernsLineOnly(failure)) throw;
      PrintMessage(failure.status() == KVRUN_CONTEXT_FULL ? DoesNotFit("the message") : failure.what());
    }
    ClearInterrupt();
  }

  // Where it is not the model that ended it.
  void SayWhyItEnded(const Answer& answer) const {
    if (answer.finish == KVRUN_FINISH_CONTEXT_FULL) {
      PrintMessage(fmt::format("the context of {} tokens is full; /reset starts over", n_ctx_));
    } else if (answer.finish == KVRUN_FINISH_LENGTH && !options_.shared.quiet) {
      PrintMessage(fmt::format("the answer was ended at its limit of {} (-n N sets another, -n -1 none)",
                               Counted(answer.tokens.size(), "token")));
    } else if (answer.finish == KVRUN_FINISH_REPEATS && !options_.shared.quiet) {
      PrintMessage("the answer was ended, as it repeated itself");
    }
  }

  void AddFile(const std::string& path) {
    Document document{path, ""};
    try {
      document.text = ReadText(path);
      if (options_.long_documents.cuts()) Cut(&document);
    } catch (const Interruption&) {
      return ClearInterrupt();
    } catch (const Failure& failure) {
      return PrintMessage(failure.status() == KVRUN_CONTEXT_FULL ? DoesNotFit(path) : failure.what());
    }
    const size_t n_bytes = document.text.size();
    NoteLost(document.text, path);
    conversation_.AddDocument(std::move(document));
    try {
      conversation_.ReadAhead();
    } catch (const Interruption&) {
      PrintMessage("interrupted: the rest of the document is read with the next message");
      return ClearInterrupt();
    } catch (const Failure& failure) {
      if (!ConcernsLineOnly(failure)) throw;
      conversation_.DropDocument();
      return PrintMessage(failure.status() == KVRUN_CONTEXT_FULL ? DoesNotFit(path) : failure.what());
    }
    if (!options_.shared.quiet) {
      PrintMessage(fmt::format("{} ({}) is part of the next message", path, Counted(n_bytes, "byte")));
    }
  }

  // What was said and added before stays.
  void Cut(Document* document) const {
    const EncodeDocuments encode = [this](const std::vector<Document>& last) {
      std::vector<Document> documents = conversation_.pending();
      documents.insert(documents.end(), last.begin(), last.end());
      return conversation_.ContextWith(documents, "?");
    };
    std::vector<Document> documents = {*document};
    CutToFit(model_, options_, n_ctx_, encode, &documents);
    *document = std::move(documents.front());
  }

  void Save(const std::string& path) {
    if (conversation_.turns().empty()) return PrintMessage("there is nothing to save: nothing was said yet");
    try {
      const std::string model = std::filesystem::path(options_.shared.model).filename().string();
      WriteNewFile(path, Transcript(model, options_.conversation.system, conversation_.turns()));
      PrintMessage(fmt::format("the conversation was written to {}", path));
    } catch (const Failure& failure) {
      PrintMessage(failure.what());
    }
  }

  void NoteLost(const std::string& text, const std::string& what) const {
    if (!options_.shared.quiet) NoteLostBytes(model_, options_.conversation.form, text, what);
  }

  std::string Statistics() const {
    const Json stats = SessionStats(session_);
    return SummaryText(stats) + (n_answers_ > 1 ? TurnText(stats) : "") +
           (options_.shared.verbose ? StatisticsText(stats, engine_info_) : "") + ProfileText(stats) +
           SamplingText(options_.conversation.generation.values) + "\n" +
           fmt::format("context  {} of {} tokens\n", conversation_.n_tokens(), n_ctx_);
  }

  std::string DoesNotFit(const std::string& what) const {
    return fmt::format(
        "{} does not fit into what is left of the context of {} tokens; /reset starts over, --ctx "
        "makes room",
        what, n_ctx_);
  }

  const ChatOptions& options_;
  const Model& model_;
  Conversation& conversation_;
  KeptDocument& document_;
  const Session& session_;
  const Json& engine_info_;
  const uint32_t n_ctx_;
  bool edits_lines_ = false;
  uint64_t n_answers_ = 0;
};

void CheckUsage(const ChatOptions& options) {
  CheckGenerationOptions(options.conversation.generation);
  CheckKeptSession(*options.set, options.shared);
  CheckTextNames(options.files);
  if (std::find(options.files.begin(), options.files.end(), "-") != options.files.end())
    throw UsageError("--file: chat reads messages from standard input: name a file");
  // In the environment it is meant for other commands.
  if (options.long_documents.splits() && !options.files.empty() && options.set->OnCommandLine("--long")) {
    throw UsageError(
        "--long split: a chat does not ask documents in parts: give --long cut, or ask one question "
        "with kvrun run --chat -f FILE -p QUESTION --long split");
  }
}

void NoteLostBytes(const Model& model, const ChatOptions& options, const std::vector<Document>& documents) {
  const PromptForm& form = options.conversation.form;
  NoteLostBytes(model, form, options.conversation.system, "the system message");
  for (const Document& document : documents) NoteLostBytes(model, form, document.text, document.name);
}

// How long a context it takes (0: as usual), and how it begins, where it has documents.
struct ChatBeginning {
  uint32_t n_ctx = 0;
  std::vector<int32_t> ids;
};

// May cut the documents, where that is asked for.
ChatBeginning BeginningOf(const Model& model, const ChatOptions& options, std::vector<Document>* documents) {
  const EncodeDocuments encode = [&](const std::vector<Document>& some) {
    return EncodeFirstTurn(model, options.conversation, some, "?");
  };
  if (!documents->empty() && options.long_documents.cuts())
    CutToFit(model, options, LargestContext(model, options.shared), encode, documents);
  // An unknown chat form is better said before the weights are loaded.
  std::vector<int32_t> ids = encode(*documents);
  if (documents->empty()) return {options.shared.ctx, {}};
  const char* what = documents->size() == 1 ? "the document of -f" : "the text of all documents of -f";
  const uint32_t n_ctx =
      ChooseContext(model, options.shared, ids.size(), 0, what, "; --long cut leaves out their middle");
  if (options.shared.ctx != 0) return {n_ctx, std::move(ids)};
  const uint32_t trained = kvrun_model_context_train(model.get());
  const size_t with_talk = std::min<size_t>(trained, ids.size() + kRoomForTalk);
  return {std::max(n_ctx, static_cast<uint32_t>(with_talk)), std::move(ids)};
}

void SayIgnoredAdvice(const Json& model_info) {
  const Json sampling = model_info.value("sampling", Json::object());
  for (const Json& why : sampling.value("ignored", Json::array())) {
    PrintMessage("note: the model file's advice is ignored: " + TextOf(why));
  }
}

int Converse(const ChatOptions& options, ChatLoop* loop) {
  const bool terminal = isatty(STDIN_FILENO) == 1;
  if (terminal) WriteStderr(kShortHelp);
  TerminalLines lines = OpenTerminalLines(options.no_history ? "" : ChatHistory::UsualPath());
  if (!lines.note.empty() && !options.shared.quiet) PrintMessage("note: " + lines.note);
  const bool edits_lines = lines.reader != nullptr;
  if (!edits_lines) lines.reader = PlainLines();
  return loop->Run(lines.reader.get(), edits_lines);
}

void SayNotes(const ChatOptions& options, const Json& model_info) {
  if (options.shared.quiet) return;
  NoteChatTemplate(options.conversation.form, model_info);
  SayIgnoredAdvice(model_info);
}

// A conversation with what it is about in its session, as far as that is read before the first message.
class ReadChat {
 public:
  ReadChat(const ChatOptions& options, const Model& model, std::vector<Document> documents,
           KeptDocument* document, const LoadedEngine& loaded, Progress* progress)
      : options_(options),
        model_(model),
        documents_(std::move(documents)),
        document_(*document),
        loaded_(loaded),
        progress_(progress) {
    std::string why;
    try {
      Begin(document_.Start(loaded_, progress_));
      return;
    } catch (const Interruption&) {
      if (session_ != nullptr) document_.Keep(session_);  // what was read need not be read again
      throw;
    } catch (const Failure& failure) {
      if (!document_.MayBeTheReason(failure)) throw;
      why = failure.what();
    }
    conversation_.reset();
    session_.reset();
    Begin(document_.StartWithout(loaded_, progress_, why));
  }

  const Session& session() const { return session_; }
  Conversation* conversation() { return &*conversation_; }

 private:
  void Begin(Session session) {
    session_ = std::move(session);
    conversation_.emplace(options_.conversation, documents_, model_, session_, progress_);
    if (conversation_->Restore() && !options_.shared.quiet) SayHowItGoesOn();
    conversation_->ReadAhead();
    conversation_->KeepIt();
  }

  void SayHowItGoesOn() const {
    const size_t n_messages = conversation_->turns().size();
    if (n_messages > 0) {
      PrintMessage(fmt::format("the conversation goes on after {}", Counted(n_messages, "message")));
      return;
    }
    PrintMessage(fmt::format(
        "the conversation begins after the session's text, {}{}", Counted(conversation_->n_before(), "token"),
        options_.conversation.system.empty() ? "" : ": without the message of --system"));
  }

  const ChatOptions& options_;
  const Model& model_;
  const std::vector<Document> documents_;
  KeptDocument& document_;
  const LoadedEngine& loaded_;
  Progress* progress_;
  Session session_;
  std::optional<Conversation> conversation_;
};

int Chat(ChatOptions& options) {
  CheckUsage(options);
  ReadPromptForm(&options.conversation.form);
  std::vector<Document> documents = ReadDocuments(options.files);
  const Model model = OpenNamedModel(options.shared);
  const ChatBeginning beginning = BeginningOf(model, options, &documents);
  if (!options.shared.quiet) NoteLostBytes(model, options, documents);
  const Json model_info = ModelInfo(model);
  ChooseSampling(*options.set, model_info, &options.conversation.generation);
  options.shared.max_answer = options.conversation.generation.values.max_tokens;
  KeptDocument document(
      {options.keeping, model, options.shared, beginning.n_ctx, options.conversation.generation.values.seed},
      beginning.ids);
  options.conversation.keeps_messages = !document.is_chosen();
  // From now on nothing that is typed is cut, while the model is loaded and while it answers too.
  std::optional<TerminalModes> modes;
  if (CanEditLines()) modes.emplace(STDIN_FILENO, TerminalOutput());
  Progress progress(ProgressModeOf(options.shared));
  const LoadedEngine loaded = LoadEngine(model, options.shared, &progress);
  ReadChat chat(options, model, std::move(documents), &document, loaded, &progress);
  SayNotes(options, model_info);
  ChatLoop loop(options, model, chat.conversation(), chat.session(), &document, loaded.info);
  const int exit_code = Converse(options, &loop);
  document.Keep(chat.session());
  if (!options.shared.quiet) {
    const Json stats = SessionStats(chat.session());
    WriteStderr(SummaryText(stats) + (options.shared.verbose ? StatisticsText(stats, loaded.info) : "") +
                ProfileText(stats) + SamplingText(options.conversation.generation.values) + "\n");
  }
  return exit_code;
}

}  // namespace

Command AddChatCommand(CLI::App* program) {
  auto options = std::make_shared<ChatOptions>();
  auto set = std::make_shared<OptionSet>(program, "chat", "Talk with a model, line by line");
  set->Group(HelpGroup::kPrompt);
  AddModelOption(set.get(), &options->shared);
  set->TextList("-f,--file", &options->files, "FILE",
                "a document to talk about, put into the first message (may be given several times)");
  AddLongOption(set.get(), &options->long_documents,
                "if the documents of -f are longer than the context: leave out their middle (split is for "
                "kvrun run); without this they are refused");
  set->Text("--system", &options->conversation.system, "TEXT", "the system message");
  AddPromptFormOptions(set.get(), &options->conversation.form);
  set->AddExample("kvrun chat -m model.gguf -f report.txt", "talk about a document");
  set->AddExample("kvrun chat -m model.gguf --system \"Answer in one sentence.\" --kv-budget 1/13",
                  "with an instruction, and the KV cache on flash");
  AddGenerationOptions(set.get(), &options->conversation.generation, kChatMaxTokens, SamplingDefaults::kChat);
  AddEngineOptions(set.get(), &options->shared, "what the model was trained with, at most 8192");
  AddKeptSessionOption(set.get(), &options->shared);
  AddKeepOptions(set.get(), &options->keeping);
  set->Group(HelpGroup::kOutput);
  set->Flag("--no-history", &options->no_history, "do not save what you type for later chats");
  AddQuietOptions(set.get(), &options->shared);
  AddVerboseOption(set.get(), &options->shared);
  options->set = set.get();
  return {set, nullptr, [options] { return Chat(*options); }};
}

}  // namespace kvrun::cli
