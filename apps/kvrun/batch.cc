#include "apps/kvrun/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/session_plan.h"
#include "apps/kvrun/batch_lines.h"
#include "apps/kvrun/report.h"
#include "apps/kvrun/token_json.h"

namespace kvrun::cli {
namespace {

// A line that can be answered.
struct Item {
  const BatchLine* line;
  std::vector<int32_t> ids;
};

// Of what is wrong with a line, not with the model, the device or the options of all.
bool IsOfLineAlone(const Failure& failure) {
  return failure.status() == KVRUN_INVALID_ARGUMENT || failure.status() == KVRUN_CONTEXT_FULL ||
         failure.status() == KVRUN_UNSUPPORTED;
}

class BatchRunner {
 public:
  BatchRunner(const BatchJob& job, const Model& model, std::vector<BatchLine> lines)
      : job_(job), model_(model), lines_(std::move(lines)), progress_(ProgressModeOf(job.shared)) {
    uint32_t n_ctx = 0;
    if (job.chat && !job.shared.quiet) NoteLostBytes(model, job.form, job.system, "the system message");
    for (BatchLine& line : lines_) {
      if (!line.error) n_ctx = std::max(n_ctx, TakeLine(&line));
      if (line.error) PrintMessage(line.error->what());
    }
    if (items_.empty()) return;
    const auto n_sequences = static_cast<uint32_t>(std::min<size_t>(items_.size(), KVRUN_MAX_SEQUENCES));
    SessionPlan plan =
        PlanSession(model, job.shared, n_sequences, n_ctx, job.generation.of_prompts.values.seed);
    loaded_ = LoadEngine(model, job.shared, &progress_);
    session_ = StartSession(loaded_, job.shared, &plan, &progress_);
  }

  int Run() {
    for (size_t start = 0; start < items_.size(); start += KVRUN_MAX_SEQUENCES) {
      const size_t count = std::min<size_t>(items_.size() - start, KVRUN_MAX_SEQUENCES);
      if (!RunGroup(start, std::span(items_).subspan(start, count))) return kExitInterrupted;
    }
    WriteErrorsBefore(lines_.size());
    return items_.size() < lines_.size() ? kExitFailure : 0;
  }

 private:
  // The context that the line needs; 0, and its error set, where it cannot be answered.
  uint32_t TakeLine(BatchLine* line) {
    const std::string what = line->where + (line->messages.empty() ? ": the prompt" : ": the conversation");
    try {
      std::vector<int32_t> ids = Encode(*line, what);
      const uint32_t n_ctx =
          ChooseContext(model_, job_.shared, ids.size(), RoomAskedFor(line->generation), what);
      NoteLost(*line, what);
      items_.push_back({line, std::move(ids)});
      return n_ctx;
    } catch (const Failure& failure) {
      if (!IsOfLineAlone(failure)) throw;
      const std::string message = failure.what();
      line->error.emplace(failure.status(),
                          message.starts_with(line->where) ? message : line->where + ": " + message);
      return 0;
    }
  }

  // A line alone that sets no limit is not worth a whole context for each sequence.
  uint32_t RoomAskedFor(const GenerationOptions& generation) const {
    const bool all_ask = job_.generation.of_prompts.values.max_tokens == 0;
    return generation.values.max_tokens == 0 && !all_ask ? kOpenEndedRoom : generation.values.max_tokens;
  }

  std::vector<int32_t> Encode(const BatchLine& line, const std::string& what) const {
    if (line.messages.empty()) {
      return job_.chat ? EncodeChat(model_, job_.form, job_.system, line.prompt)
                       : EncodePlain(model_, job_.form, line.prompt, what);
    }
    Json messages = line.messages;
    if (!job_.system.empty() && messages.front()["role"] != "system") {
      const Json system = {{"role", "system"}, {"content", job_.system}};
      messages.insert(messages.begin(), system);
    }
    return EncodeConversation(model_, job_.form, messages, line.tools);
  }

  void NoteLost(const BatchLine& line, const std::string& what) const {
    if (job_.shared.quiet) return;
    std::string text = line.prompt;
    for (const Json& message : line.messages) text += message["content"].get_ref<const std::string&>();
    NoteLostBytes(model_, job_.form, text, what);
  }

  // Null for a text that is continued: it is no chat.
  Reasoning ReasoningOf(const Item& item) const {
    const bool is_chat = job_.chat || !item.line->messages.empty();
    return is_chat ? BeginReasoning(model_, item.ids) : nullptr;
  }

  // `start`: of the group's first among all items. False if it was interrupted.
  bool RunGroup(size_t start, std::span<const Item> group) {
    kvrun_session_stats_reset(session_.get());
    std::vector<AnswerRequest> requests;
    for (uint32_t i = 0; i < group.size(); ++i) {
      progress_.SetLabel(fmt::format("prompt {} of {}", start + i + 1, items_.size()));
      Check(kvrun_session_truncate(session_.get(), i, 0));
      Check(kvrun_session_feed(session_.get(), i, group[i].ids.data(), group[i].ids.size()));
      requests.push_back({&group[i].line->generation, ReasoningOf(group[i])});
    }
    progress_.Clear();
    PieceSink sink;
    if (job_.json_lines) {
      sink = [&](const GeneratedPiece& piece) {
        if (piece.is_reasoning && !job_.form.shows_reasoning()) return 0;
        Json line = group[piece.sequence].line->Beginning();
        line.update(PieceJson(model_, piece));
        return TryWriteStdout(JsonLine(line));
      };
    }
    const std::vector<Answer> answers = GenerateEach(session_, requests, sink);
    const Json stats = SessionStats(session_);
    for (size_t i = 0; i < group.size(); ++i) WriteAnswer(group[i], answers[i], stats);
    if (!job_.shared.quiet && !job_.shared.json) {
      WriteStderr(fmt::format("prompts  {} to {} of {}\n", start + 1, start + group.size(), items_.size()) +
                  SummaryText(stats) + (job_.shared.verbose ? StatisticsText(stats, loaded_.info) : "") +
                  ProfileText(stats));
    }
    return std::none_of(answers.begin(), answers.end(),
                        [](const Answer& answer) { return answer.finish == KVRUN_FINISH_CANCELLED; });
  }

  void WriteAnswer(const Item& item, const Answer& answer, const Json& stats) {
    WriteErrorsBefore(item.line->index);
    Json object = item.line->Beginning();
    object.update(AnswerJson(answer, item.ids.size(), job_.form.shows_reasoning()));
    if (item.line->generation.values.n_logprobs > 0)
      object["logprobs"] = LogprobsJson(model_, answer.logprobs);
    if (job_.shared.json) AddStatistics(stats, loaded_.info, &object);
    WriteStdout(JsonLine(object));
    n_written_ = item.line->index + 1;
  }

  // Answers are in the order of their lines, and so are those that say what is wrong.
  void WriteErrorsBefore(size_t end) {
    for (; n_written_ < end; ++n_written_) {
      const BatchLine& line = lines_[n_written_];
      if (!line.error) continue;
      Json object = line.Beginning();
      object["error"] = {{"status", kvrun_status_name(line.error->status())},
                         {"message", line.error->what()}};
      WriteStdout(JsonLine(object));
    }
  }

  const BatchJob& job_;
  const Model& model_;
  std::vector<BatchLine> lines_;
  Progress progress_;
  std::vector<Item> items_;
  size_t n_written_ = 0;  // lines whose answer is written
  LoadedEngine loaded_;
  Session session_;
};

}  // namespace

int RunBatch(const BatchJob& job, const Model& model) {
  std::vector<BatchLine> lines = ReadBatchLines(job.path, job.generation, job.shared.quiet);
  return BatchRunner(job, model, std::move(lines)).Run();
}

}  // namespace kvrun::cli
