// kvrun chat: a conversation on the terminal.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/interrupt.h"
#include "apps/common/session_plan.h"
#include "apps/common/shared_options.h"
#include "apps/kvrun/commands.h"
#include "apps/kvrun/generation.h"
#include "apps/kvrun/report.h"

namespace kvrun::cli {
namespace {

constexpr const char* kHelp = "/reset starts over, /exit (or Ctrl-D) ends; Ctrl-C stops an answer\n";

struct ChatOptions {
  SharedOptions shared;
  GenerationOptions generation;
  std::string system;
  PromptForm form;
};

class LineReader {
 public:
  // Nothing at the end of the input, or if a signal came.
  std::optional<std::string> Next() {
    size_t end;
    while ((end = buffer_.find('\n')) == std::string::npos) {
      if (!WaitReadable(STDIN_FILENO)) return std::nullopt;
      char chunk[4096];
      const ssize_t size = ::read(STDIN_FILENO, chunk, sizeof chunk);
      if (size < 0 && errno == EINTR) continue;
      if (size <= 0) return buffer_.empty() ? std::nullopt : std::optional(std::exchange(buffer_, {}));
      buffer_.append(chunk, static_cast<size_t>(size));
    }
    std::string line = buffer_.substr(0, end);
    buffer_.erase(0, end + 1);
    return line;
  }

 private:
  std::string buffer_;
};

class Conversation {
 public:
  Conversation(const ChatOptions& options, const Model& model, const Session& session, Progress* progress)
      : options_(options), model_(model), session_(session), progress_(progress) {}

  void Reset() {
    Check(kvrun_session_truncate(session_.get(), 0, 0));
    context_.clear();
  }

  // Answers on standard output. If it fails or is interrupted before the answer begins, the message counts as
  // not said.
  Answer Say(const std::string& message) {
    RejectNul(message);
    std::vector<int32_t> context = context_;
    const std::vector<int32_t> turn = context_.empty()
                                          ? EncodeChat(model_, options_.form, options_.system, message)
                                          : EncodeNextTurn(model_, options_.form, message);
    context.insert(context.end(), turn.begin(), turn.end());
    Feed(context);
    context_ = std::move(context);
    Answer answer = std::move(Generate(session_, 1, options_.generation, /*stream=*/true)[0]);
    context_.insert(context_.end(), answer.tokens.begin(), answer.tokens.end());
    return answer;
  }

 private:
  // Makes the session hold `context`, of which context_ is the beginning. The session may hold more (a
  // message that was interrupted) or less (the last generated token) than context_, so the last common token
  // is always computed again.
  void Feed(const std::vector<int32_t>& context) {
    const size_t held = std::min<size_t>(kvrun_session_length(session_.get(), 0), context_.size());
    const size_t kept = held == 0 ? 0 : held - 1;
    Check(kvrun_session_truncate(session_.get(), 0, static_cast<uint32_t>(kept)));
    Check(kvrun_session_feed(session_.get(), 0, context.data() + kept, context.size() - kept));
    progress_->Clear();
  }

  const ChatOptions& options_;
  const Model& model_;
  const Session& session_;
  Progress* progress_;
  std::vector<int32_t> context_;  // every token of the conversation so far
};

void SayAndReport(Conversation* conversation, const std::string& message, uint32_t n_ctx) {
  try {
    const Answer answer = conversation->Say(message);
    WriteStdout("\n");
    if (answer.finish == KVRUN_FINISH_CONTEXT_FULL) {
      PrintMessage(fmt::format("the context of {} tokens is full; /reset starts over", n_ctx));
    }
  } catch (const Interruption&) {
    WriteStderr("\n");  // stopped before the first token
  } catch (const Failure& failure) {
    if (failure.status() != KVRUN_CONTEXT_FULL) throw;
    PrintMessage(
        fmt::format("the message does not fit into what is left of the context of {} tokens; /reset "
                    "starts over, --ctx makes room",
                    n_ctx));
  }
  ClearInterrupt();
}

int Converse(Conversation* conversation, uint32_t n_ctx) {
  const bool terminal = isatty(STDIN_FILENO) == 1;
  if (terminal) WriteStderr(kHelp);
  LineReader reader;
  while (true) {
    if (terminal) WriteStderr("> ");
    const std::optional<std::string> line = reader.Next();
    if (!line) {
      if (terminal) WriteStderr("\n");
      return Interrupted() ? kExitInterrupted : 0;
    }
    if (line->find_first_not_of(" \t\r") == std::string::npos) continue;
    if (*line == "/exit" || *line == "/quit") return 0;
    if (*line == "/help") {
      WriteStderr(kHelp);
    } else if (*line == "/reset") {
      conversation->Reset();
    } else {
      SayAndReport(conversation, *line, n_ctx);
    }
  }
}

int Chat(ChatOptions& options) {
  CheckGenerationOptions(options.generation);
  ReadChatTemplate(&options.form);
  const Model model = OpenNamedModel(options.shared);
  // An unknown chat form is better said before the weights are loaded.
  (void)EncodeChat(model, options.form, options.system, "?");
  SessionPlan plan = PlanSession(model, options.shared, 1, options.shared.ctx);
  Progress progress(ProgressModeOf(options.shared));
  const LoadedEngine loaded = LoadEngine(model, options.shared, &progress);
  const Session session = StartSession(loaded, options.shared, &plan, &progress);
  Conversation conversation(options, model, session, &progress);
  const int exit_code = Converse(&conversation, kvrun_session_context(session.get()));
  if (!options.shared.quiet) WriteStderr(StatisticsText(SessionStats(session), loaded.info));
  return exit_code;
}

}  // namespace

Command AddChatCommand(CLI::App* program) {
  auto options = std::make_shared<ChatOptions>();
  auto set = std::make_shared<OptionSet>(program, "chat", "Talk with a model, line by line");
  AddModelOption(set.get(), &options->shared);
  set->Text("--system", &options->system, "TEXT", "the system message");
  AddPromptFormOptions(set.get(), &options->form);
  AddGenerationOptions(set.get(), &options->generation, 0);
  AddEngineOptions(set.get(), &options->shared, "what the model was trained with, at most 8192");
  AddQuietOptions(set.get(), &options->shared);
  return {set, nullptr, [options] { return Chat(*options); }};
}

}  // namespace kvrun::cli
